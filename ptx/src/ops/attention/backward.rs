//! One task for each (span, kv head). Blocks of query rows go over blocks of keys; for each pair the scores and dP are
//! formed six rows at a time, and dV, dK and dQ go on where the last pair left them.
//!
//! Order: dQ sums over ascending keys, dK and dV over ascending rows (token, then head of the group), each one FMA
//! chain; a masked pair has weight zero. With scales by token, scores and dP are chains over codes, multiplied by the token's
//! scale, and dQ sums over the keys' values.

use super::forward::split;
use super::lanes::{GROUP, ROWS, Source, mix, scores};
use super::{Shape, widen};
use crate::isa::by_isa;
use crate::kv_tile::{KvPages, Span};
use crate::math::{exp, tree16};
use crate::parallel::Parts;
use crate::{Cpu, Isa, scratch};

/// Query rows (position and head) of a block; the widened keys of a pair are paid for by them. At most 256.
const BLOCK: usize = 192;
/// Keys of a block.
const KEYS: usize = 64;
/// Multiply-adds below which threads cost more than they bring.
const SHARE_FROM: usize = 1 << 16;

/// What the gradients are computed from.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub shape: Shape,
    pub pages: KvPages<'a>,
    pub q: &'a [f32],
    pub out: &'a [f32],
    pub lse: &'a [f32],
    pub dout: &'a [f32],
}

pub(super) fn backward(
    cpu: &Cpu,
    given: Given<'_>,
    spans: &[Span<'_>],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let kv_heads = given.pages.shape.kv_heads;
    let work: usize = spans.iter().map(|s| s.row_count * s.row_count).sum();
    let work = work * given.shape.heads * given.pages.shape.head_dim;
    let (dq, dk, dv) = (Parts::new(dq), Parts::new(dk), Parts::new(dv));
    cpu.for_each_if(work >= SHARE_FROM, spans.len() * kv_heads, |task| {
        let (span, head) = (spans[task / kv_heads], task % kv_heads);
        if span.row_count > 0 {
            Head { isa: cpu.isa(), given, span, head }.run(&dq, &dk, &dv);
        }
    });
}

/// One kv head of one sequence.
struct Head<'a> {
    isa: Isa,
    given: Given<'a>,
    span: Span<'a>,
    head: usize,
}

/// A block of query rows, and the room to work in.
struct Work<'a> {
    /// Queries: columns `[vectors][BLOCK][16]`, and groups of six rows `[dims][rows]`.
    q: &'a mut [f32],
    q_rows: &'a mut [f32],
    /// Gradients of the outputs, as the queries.
    dout: &'a mut [f32],
    dout_rows: &'a mut [f32],
    /// `sum(dout * out)` of each row.
    dot: &'a mut [f32],
    /// dQ of each row, `[BLOCK][pitch]`.
    dq: &'a mut [f32],
    /// Scores, then probabilities, `[BLOCK][KEYS]`.
    p: &'a mut [f32],
    /// dP, then dS, `[BLOCK][KEYS]`.
    ds: &'a mut [f32],
}

/// A block of keys, widened.
struct Keys<'a> {
    /// Keys for `scores` and for `mix`.
    k: &'a mut [f32],
    k_columns: &'a mut [f32],
    /// Values for `scores`; the columns are on the way there.
    v: &'a mut [f32],
    v_columns: &'a mut [f32],
    /// dK and dV of the block, `[KEYS][pitch]`.
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// Scales of the keys and values of their own, 1 where they have none.
    k_scales: &'a mut [f32],
    v_scales: &'a mut [f32],
}

impl Head<'_> {
    fn dims(&self) -> usize {
        self.given.pages.shape.head_dim
    }

    fn pitch(&self) -> usize {
        self.dims().next_multiple_of(GROUP)
    }

    fn group(&self) -> usize {
        self.given.shape.heads / self.given.pages.shape.kv_heads
    }

    /// Index of (token, query head) of row `row` of the span's list.
    fn place(&self, row: usize) -> usize {
        let group = self.group();
        (self.span.first_row + row / group) * self.given.shape.heads + self.head * group + row % group
    }

    fn run(&self, dq: &Parts<'_, f32>, dk: &Parts<'_, f32>, dv: &Parts<'_, f32>) {
        let (dims, pitch) = (self.dims(), self.pitch());
        let rows = self.span.row_count * self.group();
        let scale = self.given.shape.softmax_scale;
        for token in 0..self.span.row_count {
            self.row(dk, token).fill(0.0);
            self.row(dv, token).fill(0.0);
        }
        let query_sizes = [BLOCK * pitch, BLOCK * dims, BLOCK * pitch, BLOCK * dims, BLOCK, BLOCK * pitch];
        let pair_sizes = [BLOCK * KEYS; 2];
        let key_sizes = [KEYS * dims, KEYS * pitch, KEYS * dims, KEYS * pitch, KEYS * pitch, KEYS * pitch, KEYS, KEYS];
        let sizes = [query_sizes.iter().sum(), pair_sizes.iter().sum(), key_sizes.iter().sum()];
        scratch::with::<0, _>(sizes.iter().sum(), |buffer| {
            let [queries, pairs, keys] = split(buffer, sizes);
            let [q, q_rows, dout, dout_rows, dot, dq_block] = split(queries, query_sizes);
            let [p, ds] = split(pairs, pair_sizes);
            let mut work = Work { q, q_rows, dout, dout_rows, dot, dq: dq_block, p, ds };
            let [k, k_columns, v, v_columns, dk_block, dv_block, k_scales, v_scales] = split(keys, key_sizes);
            let mut keys = Keys { k, k_columns, v, v_columns, dk: dk_block, dv: dv_block, k_scales, v_scales };
            for first in (0..rows).step_by(BLOCK) {
                let count = BLOCK.min(rows - first);
                self.load_queries(&mut work, first, count);
                let last = (first + count - 1) / self.group();
                for key in (0..=last).step_by(KEYS) {
                    self.load_keys(&mut keys, key, dk, dv);
                    self.pair(&mut work, &mut keys, first, count, key);
                    for token in key..self.span.row_count.min(key + KEYS) {
                        self.row(dk, token).copy_from_slice(&keys.dk[(token - key) * pitch..][..dims]);
                        self.row(dv, token).copy_from_slice(&keys.dv[(token - key) * pitch..][..dims]);
                    }
                }
                let scale = scale * self.given.pages.k_scale(self.head);
                for row in 0..count {
                    // SAFETY: spans do not overlap (`check`), so this (token, head) belongs to this task alone.
                    let dq = unsafe { dq.range(self.place(first + row) * dims, dims) };
                    for (to, &x) in dq.iter_mut().zip(&work.dq[row * pitch..]) {
                        *to = x * scale;
                    }
                }
            }
        });
        for token in 0..self.span.row_count {
            self.row(dk, token).iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// This head's part of a token's row of dk or dv. Callers drop it before they ask for it again.
    fn row<'b>(&self, part: &Parts<'b, f32>, token: usize) -> &'b mut [f32] {
        let at = (self.span.first_row + token) * self.given.pages.shape.kv_heads + self.head;
        // SAFETY: spans do not overlap (`check`), so this (token, kv head) belongs to this task alone, which holds one
        // row at a time.
        unsafe { part.range(at * self.dims(), self.dims()) }
    }

    fn load_queries(&self, work: &mut Work<'_>, first: usize, count: usize) {
        let dims = self.dims();
        work.dq.fill(0.0);
        let Given { q, out, dout, .. } = self.given;
        let place = |row: usize| self.place(first + row) * dims..(self.place(first + row) + 1) * dims;
        for row in 0..count {
            work.dot[row] = dot(self.isa, &dout[place(row)], &out[place(row)]);
        }
        for (from, columns, rows) in
            [(q, &mut *work.q, &mut *work.q_rows), (dout, &mut *work.dout, &mut *work.dout_rows)]
        {
            for row in 0..count {
                for (n, from) in from[place(row)].chunks(GROUP).enumerate() {
                    let to = &mut columns[(n * BLOCK + row) * GROUP..][..GROUP];
                    to[..from.len()].copy_from_slice(from);
                    to[from.len()..].fill(0.0);
                }
            }
            for start in (0..count).step_by(ROWS) {
                let width = ROWS.min(count - start);
                let to = &mut rows[start * dims..][..width * dims];
                widen::interleave(width, |r| &from[place(start + r)], 1.0, to);
            }
        }
    }

    /// Widens the keys from position `first` on and takes up their dK and dV.
    fn load_keys(&self, keys: &mut Keys<'_>, first: usize, dk: &Parts<'_, f32>, dv: &Parts<'_, f32>) {
        let KvPages { shape, bytes, .. } = self.given.pages;
        let (dims, pitch) = (self.dims(), self.pitch());
        let count = KEYS.min(self.span.row_count - first);
        let stretch =
            widen::Stretch { bytes, shape, table: self.span.block_table, head: self.head, first, keys: count };
        let groups = count.next_multiple_of(GROUP);
        keys.k[groups * dims..].fill(0.0);
        widen::keys(self.isa, stretch, keys.k);
        widen::keys_to_values(self.isa, keys.k, dims, keys.k_columns, KEYS);
        widen::values(self.isa, stretch, keys.v_columns, KEYS);
        widen::values_to_keys(self.isa, keys.v_columns, dims, keys.v, KEYS);
        keys.v[groups * dims..].fill(0.0);
        keys.v_scales.fill(1.0);
        stretch.v_scales(keys.v_scales);
        keys.k_scales.fill(1.0);
        if stretch.k_scales(keys.k_scales).is_some() {
            // dQ sums over keys of different scales, so it needs their values: the products are exact.
            for column in keys.k_columns.chunks_exact_mut(KEYS * GROUP) {
                for (key, &scale) in column.chunks_exact_mut(GROUP).zip(&*keys.k_scales) {
                    key.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
        for token in 0..count {
            keys.dk[token * pitch..][..dims].copy_from_slice(self.row(dk, first + token));
            keys.dv[token * pitch..][..dims].copy_from_slice(self.row(dv, first + token));
        }
    }

    /// One block of rows over one block of keys.
    fn pair(&self, work: &mut Work<'_>, keys: &mut Keys<'_>, first: usize, count: usize, key: usize) {
        let (dims, pitch, isa) = (self.dims(), self.pitch(), self.isa);
        let (vectors, groups) = (pitch / GROUP, KEYS / GROUP);
        let (k, v) = (Source::wide_keys(keys.k, dims), Source::wide_keys(keys.v, dims));
        let pages = &self.given.pages;
        let scale = pages.k_scale(self.head) * self.given.shape.softmax_scale;
        let v_scale = pages.v_scale(self.head);
        // Rows before this one see none of these keys.
        let start = (key * self.group()).saturating_sub(first) / ROWS * ROWS;
        for row in (start..count).step_by(ROWS) {
            let rows = ROWS.min(count - row);
            let at = row * dims..(row + rows) * dims;
            scores(isa, rows, &work.q_rows[at.clone()], &k, groups, &mut work.p[row * KEYS..], KEYS);
            scores(isa, rows, &work.dout_rows[at], &v, groups, &mut work.ds[row * KEYS..], KEYS);
            for row in row..row + rows {
                let position = (first + row) / self.group();
                let seen = (position + 1).saturating_sub(key).min(KEYS);
                let lse = self.given.lse[self.place(first + row)];
                let (p, ds) = (&mut work.p[row * KEYS..][..KEYS], &mut work.ds[row * KEYS..][..KEYS]);
                weights(isa, p, ds, seen, keys.k_scales, keys.v_scales, scale, v_scale, lse, work.dot[row]);
            }
            let dq = &mut work.dq[row * pitch..];
            let columns = Source::wide_values(keys.k_columns, KEYS);
            mix::<KEYS, 1>(isa, rows, &work.ds[row * KEYS..], &columns, 0..KEYS, vectors, dq, pitch);
        }
        let (q, dout) = (Source::wide_values(work.q, BLOCK), Source::wide_values(work.dout, BLOCK));
        for j in (0..KEYS).step_by(ROWS) {
            let rows = ROWS.min(KEYS - j);
            let (dk, dv) = (&mut keys.dk[j * pitch..], &mut keys.dv[j * pitch..]);
            mix::<1, KEYS>(isa, rows, &work.p[j..], &dout, start..count, vectors, dv, pitch);
            mix::<1, KEYS>(isa, rows, &work.ds[j..], &q, start..count, vectors, dk, pitch);
        }
    }
}

by_isa! {
    /// Scores to probabilities and dP to dS, in place; zero from `seen` on.
    fn weights(
        p: &mut [f32], ds: &mut [f32], seen: usize, k_scales: &[f32], v_scales: &[f32], scale: f32, v_scale: f32,
        lse: f32, dot: f32,
    ) {
        let scales = k_scales[..seen].iter().zip(&v_scales[..seen]);
        for ((p, ds), (k, v)) in p[..seen].iter_mut().zip(&mut ds[..seen]).zip(scales) {
            *p = exp(*p * k * scale - lse);
            *ds = *p * (*ds * v * v_scale - dot);
        }
        p[seen..].fill(0.0);
        ds[seen..].fill(0.0);
    }
}

by_isa! {
    /// `sum(a * b)`: 16 strided sums and the fixed tree.
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut sums = [0.0_f32; GROUP];
        for (a, b) in a.chunks(GROUP).zip(b.chunks(GROUP)) {
            for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
                *sum = a.mul_add(b, *sum);
            }
        }
        tree16(&sums)
    }
}
