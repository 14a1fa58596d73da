//! Forward and backward against the f64 truth and, bit for bit, against themselves.

use super::cases::{CASES, Case};
use super::{Shape, forward};
use crate::kv_tile::{KvPages, KvPagesMut, KvShape, Span};
use crate::ops::kv_append;
use crate::rng::{Purpose, Stream};
use crate::{Cpu, Isa};

mod gradient;
mod truth;
mod unity;

/// Sequences in pages. Everything nothing was written to is NaN in every format.
struct Sequences {
    heads: usize,
    shape: KvShape,
    bytes: Vec<u8>,
    scales: Vec<f32>,
    tables: Vec<Vec<u32>>,
    /// Keys and values of each sequence, `[positions, kv_heads * head_dim]`.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// Queries of each sequence, `[positions, heads * head_dim]`.
    q: Vec<Vec<f32>>,
}

const FREE: u8 = 0xff;

impl Sequences {
    /// Sequences of `lengths`, none of it in the pages yet; `order` seeds which pages are whose.
    fn new(heads: usize, shape: KvShape, lengths: &[usize], order: u64) -> Sequences {
        let mut stream = Stream::new(5, Purpose::Test, lengths.iter().sum::<usize>() as u64);
        let mut draw = |width: usize| -> Vec<Vec<f32>> {
            lengths.iter().map(|n| (0..n * width).map(|_| stream.normal()).collect()).collect()
        };
        let kv = shape.kv_heads * shape.head_dim;
        let (k, v, q) = (draw(kv), draw(kv), draw(heads * shape.head_dim));
        let counts: Vec<usize> = lengths.iter().map(|n| n.div_ceil(shape.page_len)).collect();
        let total = counts.iter().sum::<usize>() + 2;
        let mut ids: Vec<u32> = (0..u32::try_from(total).unwrap()).collect();
        Stream::new(order, Purpose::Test, 1).shuffle(&mut ids);
        let tables = counts.iter().map(|&n| ids.split_off(ids.len() - n)).collect();
        let scales = (0..shape.kv_heads).map(|h| [1.0 / 64.0, 1.0 / 128.0][h % 2]).collect();
        Sequences { heads, shape, bytes: vec![FREE; total * shape.page_bytes()], scales, tables, k, v, q }
    }

    /// The sequences of a case, in the pages up to each span's end.
    fn of_case(case: &Case, order: u64) -> Sequences {
        let lengths: Vec<usize> = case.spans.iter().map(|s| s.0 + s.1).collect();
        let mut all = Sequences::new(case.heads, case.pages, &lengths, order);
        for (sequence, &n) in lengths.iter().enumerate() {
            all.append(sequence, 0, n);
        }
        all
    }

    fn attention(&self) -> Shape {
        #[allow(clippy::cast_precision_loss)]
        let dims = self.shape.head_dim as f32;
        Shape { heads: self.heads, softmax_scale: 1.0 / dims.sqrt() }
    }

    fn pages(&self) -> KvPages<'_> {
        KvPages { shape: self.shape, bytes: &self.bytes, k_scales: &self.scales, v_scales: &self.scales }
    }

    /// Writes the keys and values at `first..first + rows` to the pages.
    fn append(&mut self, sequence: usize, first: usize, rows: usize) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        let (k, v) = (&self.k[sequence][first * width..], &self.v[sequence][first * width..]);
        let span = Span { first_row: 0, row_count: rows, first_position: first, block_table: &self.tables[sequence] };
        let mut pages = KvPagesMut {
            shape: self.shape,
            bytes: &mut self.bytes,
            k_scales: &self.scales,
            v_scales: &self.scales,
            counts: None,
        };
        kv_append::forward(&Cpu::new(1), &mut pages, &[span], &k[..rows * width], &v[..rows * width]);
    }

    /// The (sequence, first position, rows) of `parts` as one batch: its spans, and its queries.
    fn batch(&self, parts: &[(usize, usize, usize)]) -> (Vec<Span<'_>>, Vec<f32>) {
        let width = self.heads * self.shape.head_dim;
        let (mut spans, mut q) = (Vec::new(), Vec::new());
        let mut row = 0;
        for &(sequence, first_position, row_count) in parts {
            spans.push(Span { first_row: row, row_count, first_position, block_table: &self.tables[sequence] });
            row += row_count;
            q.extend(&self.q[sequence][first_position * width..][..row_count * width]);
        }
        (spans, q)
    }

    /// Outputs and log-sum-exps of those parts.
    fn run(&self, cpu: &Cpu, parts: &[(usize, usize, usize)]) -> (Vec<f32>, Vec<f32>) {
        let (spans, q) = self.batch(parts);
        let mut out = vec![f32::NAN; q.len()];
        let mut lse = vec![f32::NAN; q.len() / self.shape.head_dim];
        forward(cpu, self.attention(), self.pages(), &spans, &q, &mut out, Some(&mut lse));
        (out, lse)
    }
}

fn parts(case: &Case) -> Vec<(usize, usize, usize)> {
    case.spans.iter().enumerate().map(|(i, s)| (i, s.0, s.1)).collect()
}

/// Asserts equal bits and names the first difference; any NaN equals any other.
fn same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()), "{what}: element {i} is {g:e}, want {w:e}");
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}
