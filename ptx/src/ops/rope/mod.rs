//! Rotary position embedding in the rotate-half layout of Hugging Face: element `i` of a head turns with element
//! `i + head_dim / 2`, by the angle `position * inv_freq[i]`.
//!
//! Shapes: `x`: `[tokens, heads, head_dim]`; `cos`, `sin`: `[tokens, head_dim / 2]`, made once per step by [`tables`].
//!
//! Order: elementwise. The angle is one f32 product, as `transformers` computes it; sine and cosine are
//! [`sin_cos`](crate::math::sin_cos), times the attention factor of the scaling rule (YaRN; 1 elsewhere). The turn is
//! `y1 = fma(x1, cos, -(x2 * sin))`, `y2 = fma(x2, cos, x1 * sin)`; the backward turns back with the same form.
//!
//! CUDA ([`cuda`]): the tables, with the same bits; heads are turned where keys are appended.
//!
//! Bytes: reads and writes 4 per element, bound by memory; the tables are shared by the heads.
//!
//! Accuracy: two roundings per product and sum, relative to `|x1 cos| + |x2 sin|`.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// Fills `cos` and `sin`, both `[tokens, head_dim / 2]`, for `positions` (`[tokens]`) and `inv_freq`
/// (`[head_dim / 2]`, radians per position, at most 1), each value times `factor`.
///
/// # Panics
/// When a length does not fit the shape or a position is beyond 2^24, which f32 cannot count.
pub fn tables(cpu: &Cpu, positions: &[u32], inv_freq: &[f32], factor: f32, cos: &mut [f32], sin: &mut [f32]) {
    assert!(!inv_freq.is_empty(), "no frequencies");
    assert_eq!(cos.len(), positions.len() * inv_freq.len(), "cos");
    assert_eq!(sin.len(), cos.len(), "sin");
    if let Some(far) = positions.iter().find(|&&p| p > 1 << 24) {
        panic!("position {far} is beyond 2^24: f32 angles end there");
    }
    cpu::tables(cpu, positions, inv_freq, factor, cos, sin);
}

/// Turns every head of `x` (`[tokens, heads, head_dim]`) in place.
///
/// # Panics
/// When a length does not fit the shape.
pub fn forward(cpu: &Cpu, heads: usize, head_dim: usize, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    check(heads, head_dim, x, cos, sin);
    cpu::turn::<false>(cpu, heads, head_dim, x, cos, sin);
}

/// The gradient through [`forward`], in place: from that of its output to that of its input.
///
/// # Panics
/// When a length does not fit the shape.
pub fn backward(cpu: &Cpu, heads: usize, head_dim: usize, dx: &mut [f32], cos: &[f32], sin: &[f32]) {
    check(heads, head_dim, dx, cos, sin);
    cpu::turn::<true>(cpu, heads, head_dim, dx, cos, sin);
}

fn check(heads: usize, head_dim: usize, x: &[f32], cos: &[f32], sin: &[f32]) {
    assert!(head_dim > 0 && head_dim.is_multiple_of(2), "a head of {head_dim} has no pairs");
    assert!(heads > 0, "no heads");
    assert_eq!(x.len() % (heads * head_dim), 0, "{} elements are no tokens of {heads} x {head_dim}", x.len());
    let tokens = x.len() / (heads * head_dim);
    assert_eq!(cos.len(), tokens * head_dim / 2, "cos");
    assert_eq!(sin.len(), cos.len(), "sin");
}
