//! The left side of a product, packed for the tile kernel: `[tile][depth][rows of the tile]`.

use super::Codes8;
use crate::parallel::Parts;
use crate::{Cpu, dtype, isa::by_isa};

/// Elements below which one thread packs alone.
const SHARE: usize = 1 << 16;
/// Elements of a row in one go: few enough that what is written stays in the first cache until every row was there.
const RUN: usize = 64;

/// How rows are cut into tiles: all of one height, or of two that differ by one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    rows: usize,
    count: usize,
}

impl Tiling {
    /// The fewest tiles of at most `height` rows.
    pub(super) fn new(rows: usize, height: usize) -> Tiling {
        Tiling { rows, count: rows.div_ceil(height) }
    }

    pub(super) fn rows(self) -> usize {
        self.rows
    }

    /// Tiles in all.
    pub(super) fn count(self) -> usize {
        self.count
    }

    /// First row of tile `tile`; of the tile behind the last, all rows.
    pub(super) fn start(self, tile: usize) -> usize {
        tile * (self.rows / self.count) + tile.min(self.rows % self.count)
    }
}

/// Where the left side comes from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// `[rows, depth]`.
    Rows(&'a [f32]),
    /// `[rows, depth]`, 8-bit.
    Codes(Codes8<'a>),
    /// `[depth, rows]`.
    Columns(&'a [f32]),
}

/// Packs `source`, multiplied by `factor` (a power of two), into `out`, `[rows * depth]`.
pub(super) fn pack(cpu: &Cpu, tiling: Tiling, depth: usize, source: Source<'_>, factor: f32, out: &mut [f32]) {
    let parts = Parts::new(out);
    cpu.for_each_if(tiling.rows() * depth >= SHARE, tiling.count(), |tile| {
        let (start, end) = (tiling.start(tile), tiling.start(tile + 1));
        // SAFETY: each task takes the elements of its own tile.
        let out = unsafe { parts.range(start * depth, (end - start) * depth) };
        match source {
            Source::Rows(x) => pack_rows(cpu.isa(), &x[start * depth..end * depth], depth, factor, out),
            Source::Codes(Codes8 { codes, scales }) => {
                pack_codes(cpu.isa(), &codes[start * depth..end * depth], &scales[start..end], depth, factor, out);
            }
            Source::Columns(x) => pack_columns(cpu.isa(), x, tiling.rows(), start, end - start, factor, out),
        }
    });
}

by_isa! {
    fn pack_rows(x: &[f32], depth: usize, factor: f32, out: &mut [f32]) {
        let rows = x.len() / depth;
        for at in (0..depth).step_by(RUN) {
            let len = RUN.min(depth - at);
            let out = &mut out[at * rows..(at + len) * rows];
            for (r, x) in x.chunks_exact(depth).enumerate() {
                for (group, &x) in out.chunks_exact_mut(rows).zip(&x[at..at + len]) {
                    group[r] = x * factor;
                }
            }
        }
    }
}

by_isa! {
    fn pack_codes(codes: &[u8], scales: &[f32], depth: usize, factor: f32, out: &mut [f32]) {
        let rows = scales.len();
        let mut values = [0.0_f32; RUN];
        for at in (0..depth).step_by(RUN) {
            let len = RUN.min(depth - at);
            let out = &mut out[at * rows..(at + len) * rows];
            for ((r, codes), &scale) in codes.chunks_exact(depth).enumerate().zip(scales) {
                for (value, &code) in values.iter_mut().zip(&codes[at..at + len]) {
                    *value = dtype::e4m3_to_f32(code) * scale * factor;
                }
                for (group, &value) in out.chunks_exact_mut(rows).zip(&values) {
                    group[r] = value;
                }
            }
        }
    }
}

by_isa! {
    fn pack_columns(x: &[f32], width: usize, start: usize, rows: usize, factor: f32, out: &mut [f32]) {
        for (group, x) in out.chunks_exact_mut(rows).zip(x.chunks_exact(width)) {
            for (o, &x) in group.iter_mut().zip(&x[start..start + rows]) {
                *o = x * factor;
            }
        }
    }
}
