//! Writes the keys and values of new tokens to their slots in the pages.
//!
//! k, v: `[tokens, kv_heads * head_dim]`, f32. The token of row `r` in a span goes to position
//! `first_position + r - first_row`. Elements are rounded to the pages' format, nearest even; for e4m3 the code is
//! `e4m3(x / scale)`, and the scale is a power of two, so the division is exact.
//!
//! Bytes: the rows read once, the codes written once; bound by memory. No reduction. All other slots stay untouched.
//! When several spans name the same slot the last span wins.

use crate::Cpu;
use crate::kv_tile::{KvPagesMut, Span, check};

pub mod cases;
mod cpu;
pub mod naive;
#[cfg(test)]
mod tests;

/// Writes every span's rows of `k` and `v`, each `[tokens, kv_heads * head_dim]`, to their slots.
///
/// # Panics
/// When shapes disagree, a span lacks pages or a scale is missing.
pub fn forward(cpu: &Cpu, pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let width = pages.shape.kv_heads * pages.shape.head_dim;
    assert_eq!(k.len(), v.len(), "k and v differ in size");
    assert!(k.len().is_multiple_of(width), "k has {} elements, not rows of {width}", k.len());
    check(&pages.shape, pages.bytes.len(), pages.k_scales, pages.v_scales, spans, k.len() / width);
    cpu::forward(cpu, pages, spans, k, v);
}
