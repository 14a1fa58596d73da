//! The slow truth in f64, forward and gradient, for one sequence of plain keys and values.

use super::Shape;
use crate::element::code;
use crate::kv_tile::{KvPages, Span};

/// Keys and values of one sequence, `[positions, kv_heads * head_dim]`.
pub struct Plain {
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Keys.
    pub k: Vec<f64>,
    /// Values.
    pub v: Vec<f64>,
}

impl Plain {
    /// What `span`'s sequence holds in its pages up to the span's end, element by element.
    #[must_use]
    pub fn from_pages(pages: KvPages<'_>, span: &Span<'_>) -> Plain {
        let shape = pages.shape;
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for position in 0..span.end_position() {
            let (page, slot) = (span.block_table[position / shape.page_len], position % shape.page_len);
            for head in 0..shape.kv_heads {
                let k_tile = &pages.bytes[shape.k_tile(page, head)];
                let v_tile = &pages.bytes[shape.v_tile(page, head)];
                // At most one of the two is not 1: a static scale, or the token's own.
                let k_scale = f64::from(pages.k_scale(head)) * f64::from(pages.k_token_scale(page, head, slot));
                let v_scale = f64::from(pages.v_scale(head)) * f64::from(pages.v_token_scale(page, head, slot));
                for dim in 0..shape.head_dim {
                    let k_code = code(shape.k, k_tile, dim * shape.page_len + slot);
                    let v_code = code(shape.v, v_tile, slot * shape.head_dim + dim);
                    k.push(f64::from(k_code) * k_scale);
                    v.push(f64::from(v_code) * v_scale);
                }
            }
        }
        Plain { kv_heads: shape.kv_heads, head_dim: shape.head_dim, k, v }
    }

    /// Where head `head` of position `position` starts in `k` and `v`.
    fn at(&self, position: usize, head: usize) -> usize {
        (position * self.kv_heads + head) * self.head_dim
    }

    /// Scores of one query head for the keys at `0..=position`.
    #[must_use]
    pub fn scores(&self, shape: Shape, q: &[f64], position: usize, kv_head: usize) -> Vec<f64> {
        (0..=position)
            .map(|j| {
                let k = &self.k[self.at(j, kv_head)..][..self.head_dim];
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(shape.softmax_scale)
            })
            .collect()
    }
}

/// Outputs `[rows, heads * head_dim]` and log-sum-exps `[rows, heads]` of the queries `q` at positions
/// `first_position..`.
#[must_use]
pub fn forward(shape: Shape, plain: &Plain, first_position: usize, q: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let dims = plain.head_dim;
    let (mut out, mut lse) = (vec![0.0; q.len()], Vec::new());
    for (index, (q, out)) in q.chunks(dims).zip(out.chunks_mut(dims)).enumerate() {
        let (position, head) = (first_position + index / shape.heads, index % shape.heads);
        let kv_head = head / (shape.heads / plain.kv_heads);
        let s = plain.scores(shape, q, position, kv_head);
        let largest = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = s.iter().map(|s| (s - largest).exp()).sum();
        for (j, s) in s.iter().enumerate() {
            let p = (s - largest).exp() / total;
            for (dim, out) in out.iter_mut().enumerate() {
                *out += p * plain.v[plain.at(j, kv_head) + dim];
            }
        }
        lse.push(largest + total.ln());
    }
    (out, lse)
}

/// Gradients (dq, dk, dv) of `sum(dout * out)` for a whole sequence, from the definition of softmax.
#[must_use]
pub fn backward(shape: Shape, plain: &Plain, q: &[f64], dout: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dims = plain.head_dim;
    let scale = f64::from(shape.softmax_scale);
    let (out, lse) = forward(shape, plain, 0, q);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; plain.k.len()], vec![0.0; plain.v.len()]);
    for (index, &lse) in lse.iter().enumerate() {
        let (position, head) = (index / shape.heads, index % shape.heads);
        let kv_head = head / (shape.heads / plain.kv_heads);
        let row = index * dims..(index + 1) * dims;
        let s = plain.scores(shape, &q[row.clone()], position, kv_head);
        let dot: f64 = row.clone().map(|i| out[i] * dout[i]).sum();
        for (j, s) in s.iter().enumerate() {
            let at = plain.at(j, kv_head);
            let p = (s - lse).exp();
            let dp: f64 = (0..dims).map(|d| dout[row.start + d] * plain.v[at + d]).sum();
            let ds = p * (dp - dot) * scale;
            for d in 0..dims {
                dv[at + d] += p * dout[row.start + d];
                dq[row.start + d] += ds * plain.k[at + d];
                dk[at + d] += ds * q[row.start + d];
            }
        }
    }
    (dq, dk, dv)
}
