//! Causal attention over paged keys and values, grouped-query, forward and backward.
//!
//! q, out: `[tokens, heads * head_dim]`; query head `h` reads kv head `h / (heads / kv_heads)`. The query at position
//! `t` sees positions `0..=t`, whose keys and values already stand in the pages, its own included.
//!
//! # Order
//! The bits of an output depend on its query and the keys and values it sees, on nothing else:
//! * score `s_j`: one FMA chain over ascending dim of `q * code`, from +0.0; with scales by token then the product with
//!   that of key j; then one product with `k_scale * softmax_scale` (itself rounded once);
//! * keys in chunks of [`CHUNK`] at absolute positions. In a chunk, over the keys the query sees: `m_c` the largest
//!   score; `p_j = exp(s_j - m_c)`; `l_c` = 16 strided sums of p (lane = index in the chunk mod 16) and the fixed tree;
//!   `o_c[d]` one FMA chain over ascending keys of `w_j * code`, from +0.0, where `w_j` is `p_j`, or with scales by token
//!   the product of `p_j` and that of value j;
//! * chunks combine in ascending order. The first is taken as it is; then `M' = max(M, m_c)`, `a = exp(M - M')`,
//!   `b = exp(m_c - M')`, `L = fma(L, a, l_c * b)`, `O[d] = fma(O[d], a, o_c[d] * b)`, `M = M'`;
//! * `out[d] = (O[d] / L) * v_scale` and `lse = M + ln(L)`.
//!
//! `k_scale` and `v_scale` are the static scales of the kv head, and 1 where there are none. A token's scale is a power of
//! two, so the products with it are exact unless they leave the range of normal numbers.
//!
//! A key beyond the query's position is absent: its score is not looked at and its value is not multiplied, so free
//! slots may hold anything, NaN included, and their exponent bytes too.
//!
//! # Cost
//! Forward: 4 flops for each query head, dim and key seen. Decode reads each page's tiles once and is bound by memory;
//! prefill is bound by FMA. Backward: 10 flops for each.
//!
//! # Accuracy
//! With u = 2^-24: a score is within `(head_dim + 2) u sum|q k| softmax_scale`, and an output within twice the largest
//! such error plus `(CHUNK + 32) u`, relative to the largest |v| seen; the tests hold it to that. Chains run over codes,
//! which under scales by token reach the format's largest value in every row: the sum of |q| times that (448, or 57344 in
//! e5m2) must stay below 2^128.

use crate::kv_tile::{KvPages, KvShape, Span, check};
use crate::{Cpu, Scratch};

mod backward;
mod batch;
pub mod cases;
mod conform;
pub mod cuda;
mod forward;
mod lanes;
pub mod naive;
mod rows;
#[cfg(test)]
mod tests;
mod widen;

pub use batch::{Batch, BatchLimits, Plan};
pub(crate) use conform::conform;

/// Keys of a chunk.
pub const CHUNK: usize = 256;

/// What the pages do not say.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query heads, a multiple of the kv heads.
    pub heads: usize,
    /// What scores are multiplied by, most often `1 / sqrt(head_dim)`.
    pub softmax_scale: f32,
}

/// What [`forward`] keeps per thread for up to `spans` spans of `tokens` tokens in all.
#[must_use]
pub fn scratch(heads: usize, kv_heads: usize, head_dim: usize, tokens: usize, spans: usize) -> Scratch {
    forward::scratch(head_dim, tokens.saturating_mul(heads / kv_heads), spans)
}

/// Attention of every span's rows; rows in no span are left alone.
///
/// q, out: `[tokens, heads * head_dim]`. `lse`: `[tokens, heads]`, the natural log of the sum of exponentials of the
/// scaled scores, which [`backward`] takes. Spans are in ascending order of rows and do not overlap.
///
/// # Panics
/// When shapes disagree, spans overlap or lack pages, or a scale is missing.
pub fn forward(
    cpu: &Cpu,
    shape: Shape,
    pages: KvPages<'_>,
    spans: &[Span<'_>],
    q: &[f32],
    out: &mut [f32],
    lse: Option<&mut [f32]>,
) {
    let tokens = check_rows(shape, &pages.shape, q);
    assert_eq!(out.len(), q.len(), "out and q differ in size");
    if let Some(lse) = &lse {
        assert_eq!(lse.len(), tokens * shape.heads, "lse is not [{tokens}, {}]", shape.heads);
    }
    check(&pages.shape, pages.bytes.len(), pages.k_scales, pages.v_scales, spans, tokens);
    forward::forward(cpu, shape, pages, spans, q, out, lse);
}

/// Gradients of whole sequences: every span starts at position 0.
///
/// q, out, dout, dq: `[tokens, heads * head_dim]`; lse: `[tokens, heads]`; dk, dv: `[tokens, kv_heads * head_dim]`, the
/// gradients of the values that the pages hold. `out` and `lse` are [`forward`]'s; probabilities are recomputed as
/// `exp(s - lse)`, with s as in [`forward`]. The rows of every span in dq, dk and dv are written; other rows are left alone. The order is fixed
/// by the span alone: queries in blocks of rows, keys in blocks, each sum one ascending FMA chain.
///
/// # Panics
/// When shapes disagree, spans overlap, lack pages or start after position 0, or a scale is missing.
#[allow(clippy::too_many_arguments)] // the gradients' inputs and outputs, each a buffer of its own
pub fn backward(
    cpu: &Cpu,
    shape: Shape,
    pages: KvPages<'_>,
    spans: &[Span<'_>],
    q: &[f32],
    out: &[f32],
    lse: &[f32],
    dout: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let tokens = check_rows(shape, &pages.shape, q);
    let width = pages.shape.kv_heads * pages.shape.head_dim;
    for (name, len) in [("out", out.len()), ("dout", dout.len()), ("dq", dq.len())] {
        assert_eq!(len, q.len(), "{name} and q differ in size");
    }
    for (name, len) in [("dk", dk.len()), ("dv", dv.len())] {
        assert_eq!(len, tokens * width, "{name} is not [{tokens}, {width}]");
    }
    assert_eq!(lse.len(), tokens * shape.heads, "lse is not [{tokens}, {}]", shape.heads);
    assert!(spans.iter().all(|s| s.first_position == 0), "gradients need whole sequences, from position 0");
    check(&pages.shape, pages.bytes.len(), pages.k_scales, pages.v_scales, spans, tokens);
    let given = backward::Given { shape, pages, q, out, lse, dout };
    backward::backward(cpu, given, spans, dq, dk, dv);
}

/// Checks q's width and returns its rows.
fn check_rows(shape: Shape, pages: &KvShape, q: &[f32]) -> usize {
    let (heads, kv_heads) = (shape.heads, pages.kv_heads);
    assert!(heads > 0 && heads.is_multiple_of(kv_heads), "{heads} query heads do not share {kv_heads} kv heads");
    let scale = shape.softmax_scale;
    assert!(scale.is_finite() && scale > 0.0, "a softmax scale of {scale}");
    let width = heads * pages.head_dim;
    assert!(q.len().is_multiple_of(width), "q has {} elements, not rows of {width}", q.len());
    q.len() / width
}
