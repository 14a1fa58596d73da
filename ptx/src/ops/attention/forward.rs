//! One task for each (span, kv head, block of query rows). The rows of the group's query heads count as one list,
//! position by position, and go through each chunk of keys six at a time.
//!
//! Few rows read the pages in place and widen in registers; many rows, small pages and odd head dims widen a chunk to
//! scratch first. Both give the same numbers to the same chains.

use super::lanes::{E4M3_GAIN, GROUP, ROWS, Source, mix, scores};
use super::rows::{combine, finish, scale_each, softmax};
use super::{CHUNK, Shape, widen};
use crate::kv_tile::{KvPages, Span};
use crate::math::{exp, ln};
use crate::parallel::Parts;
use crate::{Cpu, DType, Isa, Scratch, scratch};

/// Query rows (position and head) of a task: enough to pay for widening a chunk.
const BLOCK: usize = 16 * ROWS;
/// Up to here rows read the pages in place.
const IN_PLACE: usize = 2 * ROWS;
/// Multiply-adds below which threads cost more than they bring.
const SHARE_FROM: usize = 1 << 17;

/// What a thread keeps for blocks of up to `rows` query rows, and the caller for `spans` spans.
pub(super) fn scratch(dims: usize, rows: usize, spans: usize) -> Scratch {
    Scratch::default().every(0, sizes(dims, rows.min(BLOCK)).iter().sum()).caller(1, spans)
}

/// Floats of the buffers that a block of `rows` rows works in: queries, totals, largest, sums, weights, chunk, a chunk of keys
/// and of values, and the scales of either.
fn sizes(dims: usize, rows: usize) -> [usize; 10] {
    let pitch = dims.next_multiple_of(GROUP);
    let list = rows.next_multiple_of(GROUP);
    [
        (rows * dims).next_multiple_of(GROUP),
        rows * pitch,
        list,
        list,
        ROWS * CHUNK,
        ROWS * pitch,
        CHUNK * dims,
        CHUNK * pitch,
        CHUNK,
        CHUNK,
    ]
}

pub(super) fn forward(
    cpu: &Cpu,
    shape: Shape,
    pages: KvPages<'_>,
    spans: &[Span<'_>],
    q: &[f32],
    out: &mut [f32],
    lse: Option<&mut [f32]>,
) {
    let group = shape.heads / pages.shape.kv_heads;
    let dims = pages.shape.head_dim;
    let work: usize = spans.iter().map(|s| s.row_count * s.end_position() * shape.heads * dims).sum();
    let out = Parts::new(out);
    let lse = lse.map(Parts::new);
    // Ends of the spans' blocks in the list of all blocks, so that a task finds its span.
    scratch::with::<1, _>(spans.len(), |ends| {
        let ends: &mut [u32] = bytemuck::cast_slice_mut(ends);
        let mut blocks = 0;
        for (end, span) in ends.iter_mut().zip(spans) {
            blocks += (span.row_count * group).div_ceil(BLOCK);
            *end = u32::try_from(blocks).expect("fewer than 2^32 blocks of rows");
        }
        let ends = &*ends;
        cpu.for_each_if(work >= SHARE_FROM, blocks * pages.shape.kv_heads, |task| {
            // Last blocks first: they see the most keys.
            let block = blocks - 1 - task / pages.shape.kv_heads;
            let head = task % pages.shape.kv_heads;
            let index = ends.partition_point(|&end| end as usize <= block);
            let before = if index == 0 { 0 } else { ends[index - 1] as usize };
            let span = spans[index];
            let first = (block - before) * BLOCK;
            let rows = BLOCK.min(span.row_count * group - first);
            Block { isa: cpu.isa(), shape, pages, span, head, group, first, rows, q }.run(&out, lse.as_ref());
        });
    });
}

/// Rows `first..first + rows` of a span's list for one kv head: row `i` is query head `i % group` of the group at
/// token `i / group`.
struct Block<'a> {
    isa: Isa,
    shape: Shape,
    pages: KvPages<'a>,
    span: Span<'a>,
    head: usize,
    group: usize,
    first: usize,
    rows: usize,
    q: &'a [f32],
}

/// The running state of a block's rows and the room to work in.
struct Work<'a> {
    /// Queries of each six rows, `[dims][rows]`.
    queries: &'a mut [f32],
    /// O, `[rows][pitch]`.
    totals: &'a mut [f32],
    /// M of each row.
    largest: &'a mut [f32],
    /// L of each row.
    sums: &'a mut [f32],
    /// Scores, then weights, of six rows, `[6][CHUNK]`.
    weights: &'a mut [f32],
    /// o of six rows, `[6][pitch]`.
    chunk: &'a mut [f32],
}

/// Scales of a chunk's keys and values of their own, where they have such.
#[derive(Clone, Copy)]
struct TokenScales<'a> {
    k: Option<&'a [f32]>,
    v: Option<&'a [f32]>,
}

impl Block<'_> {
    fn run(&self, out: &Parts<'_, f32>, lse: Option<&Parts<'_, f32>>) {
        let sizes = sizes(self.pages.shape.head_dim, self.rows);
        scratch::with::<0, _>(sizes.iter().sum(), |buffer| {
            let [queries, totals, largest, sums, weights, chunk, wide_k, wide_v, k_scales, v_scales] =
                split(buffer, sizes);
            let mut work = Work { queries, totals, largest, sums, weights, chunk };
            let in_place = self.load_queries(work.queries);
            let keys = self.position(self.rows - 1) + 1;
            for first in (0..keys).step_by(CHUNK) {
                let keys = CHUNK.min(keys - first);
                let k = self.keys(first, keys, in_place, wide_k);
                let stretch = self.stretch(first, keys);
                let scales = TokenScales { k: stretch.k_scales(k_scales), v: stretch.v_scales(v_scales) };
                // The values come after the first scores, which have them fetched.
                let (mut room, mut v) = (Some(&mut *wide_v), None);
                for row in (0..self.rows).step_by(ROWS) {
                    let seen = self.seen(row, first);
                    if seen.iter().all(|&keys| keys == 0) {
                        continue;
                    }
                    self.score(&mut work, row, &seen, &k);
                    let v = v.get_or_insert_with(|| {
                        let room = room.take().expect("taken once for each chunk");
                        self.values(first, keys, in_place, room)
                    });
                    self.mix(&mut work, row, &seen, first, v, scales);
                }
            }
            self.store(&work, out, lse);
        });
    }

    /// Position in the sequence of a row of this block.
    fn position(&self, row: usize) -> usize {
        self.span.first_position + (self.first + row) / self.group
    }

    /// Row of the batch and query head of a row of this block.
    fn place(&self, row: usize) -> (usize, usize) {
        let row = self.first + row;
        (self.span.first_row + row / self.group, self.head * self.group + row % self.group)
    }

    /// Lays out the queries and says whether pages can be read in place; if so and K is e4m3 they are multiplied by
    /// the codes' gain, which is exact.
    fn load_queries(&self, queries: &mut [f32]) -> bool {
        let shape = &self.pages.shape;
        let dims = shape.head_dim;
        let query = |row: usize| {
            let (token, head) = self.place(row);
            &self.q[(token * self.shape.heads + head) * dims..][..dims]
        };
        let mut in_place = self.rows <= IN_PLACE && shape.page_len >= GROUP && dims.is_multiple_of(GROUP);
        let gain = if in_place && shape.k == DType::E4m3 {
            // A product that overflows would not be exact.
            in_place = (0..self.rows).all(|row| query(row).iter().all(|x| x.abs() < f32::MAX / E4M3_GAIN));
            if in_place { E4M3_GAIN } else { 1.0 }
        } else {
            1.0
        };
        for start in (0..self.rows).step_by(ROWS) {
            let rows = ROWS.min(self.rows - start);
            widen::interleave(rows, |r| query(start + r), gain, &mut queries[start * dims..][..rows * dims]);
        }
        in_place
    }

    fn keys<'b>(&'b self, first: usize, keys: usize, in_place: bool, wide: &'b mut [f32]) -> Source<'b> {
        let shape = &self.pages.shape;
        let stretch = self.stretch(first, keys);
        let has_nan =
            in_place && shape.k == DType::E4m3 && self.has_nan(first, keys, |page| shape.k_tile(page, self.head));
        if in_place && !has_nan {
            return Source::stored_keys(stretch).fetch_values(stretch);
        }
        let wide = &mut wide[..keys.next_multiple_of(GROUP) * shape.head_dim];
        widen::keys(self.isa, stretch, wide);
        if has_nan {
            // The queries carry the gain already.
            wide.iter_mut().for_each(|x| *x *= 1.0 / E4M3_GAIN);
        }
        Source::wide_keys(wide, shape.head_dim)
    }

    fn values<'b>(&'b self, first: usize, keys: usize, in_place: bool, wide: &'b mut [f32]) -> Source<'b> {
        let shape = &self.pages.shape;
        let stretch = self.stretch(first, keys);
        let has_nan = || shape.v == DType::E4m3 && self.has_nan(first, keys, |page| shape.v_tile(page, self.head));
        if in_place && !has_nan() {
            let values = Source::stored_values(stretch);
            let (next, end) = (first + CHUNK, self.position(self.rows - 1) + 1);
            return if next < end { values.fetch_keys(self.stretch(next, CHUNK.min(end - next))) } else { values };
        }
        widen::values(self.isa, stretch, wide, CHUNK);
        Source::wide_values(wide, CHUNK)
    }

    fn stretch(&self, first: usize, keys: usize) -> widen::Stretch<'_> {
        let KvPages { shape, bytes, .. } = self.pages;
        widen::Stretch { bytes, shape, table: self.span.block_table, head: self.head, first, keys }
    }

    fn has_nan(&self, first: usize, keys: usize, tile: impl Fn(u32) -> std::ops::Range<usize>) -> bool {
        let page_len = self.pages.shape.page_len;
        let pages = &self.span.block_table[first / page_len..(first + keys).div_ceil(page_len)];
        pages.iter().any(|&page| widen::has_nan(self.isa, &self.pages.bytes[tile(page)]))
    }

    /// How many keys of the chunk that starts at position `first` each of the six rows from `row` on sees; rows beyond
    /// the last see what the last does.
    fn seen(&self, row: usize, first: usize) -> [usize; ROWS] {
        std::array::from_fn(|r| (self.position((row + r).min(self.rows - 1)) + 1).saturating_sub(first).min(CHUNK))
    }

    /// Scores, unscaled, of six rows from `row` on for a chunk's keys.
    fn score(&self, work: &mut Work<'_>, row: usize, seen: &[usize; ROWS], k: &Source<'_>) {
        let rows = ROWS.min(self.rows - row);
        let dims = self.pages.shape.head_dim;
        let queries = &work.queries[row * dims..][..rows * dims];
        scores(self.isa, rows, queries, k, seen[ROWS - 1].div_ceil(GROUP), work.weights, CHUNK);
    }

    /// Takes those rows from the scores to their new running state.
    fn mix(
        &self,
        work: &mut Work<'_>,
        row: usize,
        seen: &[usize; ROWS],
        first: usize,
        v: &Source<'_>,
        scales: TokenScales<'_>,
    ) {
        let rows = ROWS.min(self.rows - row);
        let pitch = self.pages.shape.head_dim.next_multiple_of(GROUP);
        let scale = self.pages.k_scale(self.head) * self.shape.softmax_scale;
        let gain = if v.dtype == DType::E4m3 { E4M3_GAIN } else { 1.0 };
        let least = seen[0];
        let mut states = [(0.0, 0.0); ROWS];
        for (r, state) in states[..rows].iter_mut().enumerate() {
            if seen[r] > 0 {
                let weights = &mut work.weights[r * CHUNK..][..CHUNK];
                if let Some(scales) = scales.k {
                    scale_each(self.isa, weights, scales, 1.0);
                }
                // The gain comes after the scale, which may round a weight that is all but zero: so in place and
                // widened the same weight is rounded.
                let early = if scales.v.is_none() { gain } else { 1.0 };
                *state = softmax(self.isa, weights, seen[r], scale, early);
                if let Some(scales) = scales.v {
                    scale_each(self.isa, weights, scales, gain);
                }
            }
        }
        let chunk = &mut work.chunk[..rows * pitch];
        chunk.fill(0.0);
        let vectors = pitch / GROUP;
        // All rows over the keys that all of them see, then each over the few that are left to it alone.
        mix::<CHUNK, 1>(self.isa, rows, work.weights, v, 0..least, vectors, chunk, pitch);
        for r in 0..rows {
            let (weights, sums) = (&work.weights[r * CHUNK..], &mut chunk[r * pitch..]);
            mix::<CHUNK, 1>(self.isa, 1, weights, v, least..seen[r], vectors, sums, pitch);
        }
        for r in (0..rows).filter(|&r| seen[r] > 0) {
            let (m, l) = states[r];
            let (largest, sum) = (&mut work.largest[row + r], &mut work.sums[row + r]);
            let total = &mut work.totals[(row + r) * pitch..][..pitch];
            let o = &chunk[r * pitch..][..pitch];
            if first == 0 {
                (*largest, *sum) = (m, l);
                total.copy_from_slice(o);
            } else {
                let top = if m > *largest { m } else { *largest };
                let (a, b) = (exp(*largest - top), exp(m - top));
                *sum = sum.mul_add(a, l * b);
                *largest = top;
                combine(self.isa, total, o, a, b);
            }
        }
    }

    fn store(&self, work: &Work<'_>, out: &Parts<'_, f32>, lse: Option<&Parts<'_, f32>>) {
        let dims = self.pages.shape.head_dim;
        let pitch = dims.next_multiple_of(GROUP);
        for row in 0..self.rows {
            let (token, head) = self.place(row);
            let at = token * self.shape.heads + head;
            // SAFETY: spans do not overlap (`check`), so this (token, head) belongs to this task alone.
            let out = unsafe { out.range(at * dims, dims) };
            let total = &work.totals[row * pitch..][..dims];
            finish(self.isa, total, work.sums[row], self.pages.v_scale(self.head), out);
            if let Some(lse) = lse {
                // SAFETY: as above.
                let lse = unsafe { lse.range(at, 1) };
                lse[0] = work.largest[row] + ln(work.sums[row]);
            }
        }
    }
}

/// Cuts a buffer into parts of these sizes.
pub(super) fn split<const N: usize>(mut buffer: &mut [f32], sizes: [usize; N]) -> [&mut [f32]; N] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut buffer).split_at_mut(size);
        buffer = rest;
        part
    })
}
