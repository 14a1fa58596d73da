//! Writes the keys and values of new tokens to their slots in the pages.
//!
//! k, v: `[tokens, kv_heads * head_dim]`, f32. The token of row `r` in a span goes to position
//! `first_position + r - first_row`. Elements are rounded to the pages' format, nearest even; for e4m3 and e5m2 the code
//! is that of `x / scale`, saturating, and the scale is a power of two, so the division is exact.
//!
//! With scales by token the row of a token and kv head has the scale `2^(e - 127)`: the least normal f32 under which the
//! row's largest magnitude does not exceed the format's, 1 for a row of zeros, and in any case so small that every code
//! has a finite value. NaN elements do not count as a magnitude and become NaN codes. An infinite element takes the
//! largest scale, and becomes the largest value there is under it. e is written to the page's exponent bytes.
//!
//! Bytes: the rows read once, the codes written once; bound by memory. The only reduction is the largest magnitude, in
//! which order does not matter. All other slots stay untouched. When several spans name the same slot the last span
//! wins. What 8-bit formats lost is added to `counts`, where given; codes and exponents do not depend on it.

use crate::Cpu;
use crate::kv_tile::{KvPagesMut, Span, check};

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

/// Writes every span's rows of `k` and `v`, each `[tokens, kv_heads * head_dim]`, to their slots.
///
/// # Panics
/// When shapes disagree, a span lacks pages, a scale is missing or `counts` has not one entry for each kv head.
pub fn forward(cpu: &Cpu, pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let width = pages.shape.kv_heads * pages.shape.head_dim;
    assert_eq!(k.len(), v.len(), "k and v differ in size");
    assert!(k.len().is_multiple_of(width), "k has {} elements, not rows of {width}", k.len());
    check(&pages.shape, pages.bytes.len(), pages.k_scales, pages.v_scales, spans, k.len() / width);
    if let Some(counts) = &pages.counts {
        assert_eq!(counts.len(), pages.shape.kv_heads, "counts need one entry for each kv head");
    }
    cpu::forward(cpu, pages, spans, k, v);
}
