//! The two inner loops of attention, register-tiled, for each instruction set.
//!
//! Keys come in groups of 16, one group to a vector (two on AVX2): [`Source`] says where each group starts, so the same
//! loops read pages in place and widened scratch. `scores` puts its lanes across keys, `mix` across dims; both broadcast
//! from up to [`ROWS`] rows at a time, and each result is one FMA chain whatever the tiling.
//!
//! e4m3 codes are read as code / 256, which is what their bits mean as f16; the caller multiplies the other factor by
//! 256, so that every product is the same number and every chain the same bits. NaN codes would be read as 480, and the
//! caller keeps them away (see `widen`). e5m2 codes are upper bytes of f16 and are read as what they are, infinity and
//! NaN included. Scales of tokens are no matter of these loops: they go on the finished scores and on the weights.

use std::ops::Range;

use super::widen::Stretch;
use crate::{DType, Isa};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
mod portable;

/// Rows that share one pass over keys.
pub(super) const ROWS: usize = 6;
/// Keys of a group.
pub(super) const GROUP: usize = 16;
/// Groups of a chunk.
pub(super) const GROUPS: usize = super::CHUNK / GROUP;
/// What e4m3 codes come out divided by.
pub(super) const E4M3_GAIN: f32 = 256.0;

/// Up to 256 keys' tiles: each of `groups` starts at its byte offset in `bytes`.
///
/// For `scores` a group is `[dims]` lines of 16 keys, `stride` bytes apart. For `mix` it is 16 keys, `stride` bytes
/// apart, of dims in vectors of 16, `step` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub bytes: &'a [u8],
    pub dtype: DType,
    pub starts: [usize; GROUPS],
    pub groups: usize,
    pub stride: usize,
    pub step: usize,
    ahead: Ahead,
}

/// What to fetch into the cache while a source is read: a share for each of its groups, 16 keys' worth of bytes in a
/// row. Pages lie anywhere, so the hardware cannot guess where the next ones are.
#[derive(Clone, Copy)]
struct Ahead {
    starts: [usize; GROUPS],
    /// Bytes of an element; zero when there is nothing to fetch.
    size: usize,
}

const NOTHING: Ahead = Ahead { starts: [0; GROUPS], size: 0 };

impl<'a> Source<'a> {
    /// Keys in their pages, for `scores`. `page_len` is at least 16.
    pub(super) fn stored_keys(from: Stretch<'a>) -> Source<'a> {
        let size = from.shape.k.bytes();
        let starts = from.starts(|page| from.shape.k_tile(page, from.head).start, size);
        let stride = from.shape.page_len * size;
        Source {
            bytes: from.bytes,
            dtype: from.shape.k,
            starts,
            groups: from.groups(),
            stride,
            step: 0,
            ahead: NOTHING,
        }
    }

    /// Values in their pages, for `mix`. `page_len` is at least 16.
    pub(super) fn stored_values(from: Stretch<'a>) -> Source<'a> {
        let stride = from.shape.head_dim * from.shape.v.bytes();
        let starts = from.starts(|page| from.shape.v_tile(page, from.head).start, stride);
        let (groups, step) = (from.groups(), GROUP * from.shape.v.bytes());
        Source { bytes: from.bytes, dtype: from.shape.v, starts, groups, stride, step, ahead: NOTHING }
    }

    /// Has these keys fetched while this source is read.
    pub(super) fn fetch_keys(mut self, next: Stretch<'_>) -> Source<'a> {
        let row = next.shape.head_dim * next.shape.k.bytes();
        let starts = next.starts(|page| next.shape.k_tile(page, next.head).start, row);
        self.ahead = Ahead { starts, size: next.shape.k.bytes() };
        self
    }

    /// Has these values fetched while this source is read.
    pub(super) fn fetch_values(mut self, next: Stretch<'_>) -> Source<'a> {
        let row = next.shape.head_dim * next.shape.v.bytes();
        let starts = next.starts(|page| next.shape.v_tile(page, next.head).start, row);
        self.ahead = Ahead { starts, size: next.shape.v.bytes() };
        self
    }

    /// f32 groups `[groups][dims][16 keys]`, for `scores`.
    pub(super) fn wide_keys(wide: &'a [f32], dims: usize) -> Source<'a> {
        let starts = std::array::from_fn(|g| g * dims * GROUP * 4);
        let groups = (wide.len() / (dims * GROUP)).min(GROUPS);
        Source {
            bytes: bytemuck::cast_slice(wide),
            dtype: DType::F32,
            starts,
            groups,
            stride: GROUP * 4,
            step: 0,
            ahead: NOTHING,
        }
    }

    /// f32 columns `[dims / 16][rows][16 dims]`, for `mix`; `rows` is a multiple of 16, at most 256.
    pub(super) fn wide_values(wide: &'a [f32], rows: usize) -> Source<'a> {
        let starts = std::array::from_fn(|g| g * GROUP * GROUP * 4);
        let (stride, step) = (GROUP * 4, rows * GROUP * 4);
        Source {
            bytes: bytemuck::cast_slice(wide),
            dtype: DType::F32,
            starts,
            groups: rows / GROUP,
            stride,
            step,
            ahead: NOTHING,
        }
    }

    /// Asserts that `lines` lines of `vectors` vectors, in each of the first `groups` groups, lie within the bytes.
    fn check(&self, groups: usize, lines: usize, vectors: usize) {
        assert!(groups <= self.groups, "{groups} groups of {}", self.groups);
        let span = (lines - 1) * self.stride + (vectors - 1) * self.step + GROUP * self.dtype.bytes();
        for &start in &self.starts[..groups] {
            assert!(start <= self.bytes.len() && span <= self.bytes.len() - start, "a tile ends beyond the pages");
        }
    }
}

/// Scores of `rows` queries, `[dims][rows]`, for the keys of the first `groups` groups: one chain over dims each, to
/// `out[row * width + key]`.
#[allow(clippy::too_many_arguments)]
pub(super) fn scores(
    isa: Isa,
    rows: usize,
    queries: &[f32],
    keys: &Source<'_>,
    groups: usize,
    out: &mut [f32],
    width: usize,
) {
    assert!((1..=ROWS).contains(&rows) && groups > 0 && groups * GROUP <= width, "{rows} rows, {groups} groups");
    assert!(queries.len().is_multiple_of(rows) && !queries.is_empty(), "queries are not [dims, {rows}]");
    assert!(out.len() >= (rows - 1) * width + groups * GROUP, "too little room for scores");
    keys.check(groups, queries.len() / rows, 1);
    match isa {
        // SAFETY: the bounds that the loops rely on are those asserted above.
        Isa::Portable => unsafe { portable::scores(rows, queries, keys, groups, out, width) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::scores(rows, queries, keys, groups, out, width) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::scores(rows, queries, keys, groups, out, width) },
    }
}

/// Continues the chains `sums[row * pitch + dim]` over `keys`, ascending: `fma(weights[row * ROW + key * KEY], value,
/// sum)`, for `vectors` vectors of 16 dims.
#[allow(clippy::too_many_arguments)]
pub(super) fn mix<const ROW: usize, const KEY: usize>(
    isa: Isa,
    rows: usize,
    weights: &[f32],
    values: &Source<'_>,
    keys: Range<usize>,
    vectors: usize,
    sums: &mut [f32],
    pitch: usize,
) {
    if keys.is_empty() {
        return;
    }
    assert!((1..=ROWS).contains(&rows) && vectors > 0, "{rows} rows, {vectors} vectors");
    assert!(weights.len() > (rows - 1) * ROW + (keys.end - 1) * KEY, "too few weights");
    assert!(sums.len() >= (rows - 1) * pitch + vectors * GROUP, "too little room for sums");
    values.check(keys.end.div_ceil(GROUP), GROUP, vectors);
    match isa {
        // SAFETY: the bounds that the loops rely on are those asserted above.
        Isa::Portable => unsafe { portable::mix::<ROW, KEY>(rows, weights, values, keys, vectors, sums, pitch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::mix::<ROW, KEY>(rows, weights, values, keys, vectors, sums, pitch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::mix::<ROW, KEY>(rows, weights, values, keys, vectors, sums, pitch) },
    }
}
