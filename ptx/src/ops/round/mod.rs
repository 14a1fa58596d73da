//! Rounding: what a recipe's matmul inputs go through when its activations are narrower than f32.
//!
//! `bf16`: in place, elementwise, nearest even; NaN stays NaN. Bytes: reads and writes 4 per element, bound by memory.
//! Exact: the same function as [`dtype::round_bf16`](crate::dtype::round_bf16).
//!
//! `e4m3_rows`: each row of `width` values to codes and one scale, a power of two: the least at which no value exceeds
//! 448 ([`dtype::scale_pow2`](crate::dtype::scale_pow2) of the row's largest magnitude, 1 for zeros). code = e4m3(x /
//! scale), and x / scale is exact, but where it is subnormal, far below every code. A row with a value that is not
//! finite gets the scale NaN, so that it cannot pass unnoticed. Order: none, a row's scale is a maximum. Bytes: reads 4
//! and writes 1 per element. Accuracy: code x scale is within 2^-4 |x| of x, or within half the smallest subnormal, 2^-10
//! scale. Range: magnitudes from 1.9375 x 2^127 on round to 2^128, which reads back as infinity.
//!
//! CUDA ([`cuda`]): the same codes and scales; bf16 goes to a buffer of its own. NaN is 0x7fff in bf16, and of either sign
//! in codes.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// Rounds every element of `x` to bf16.
pub fn bf16(cpu: &Cpu, x: &mut [f32]) {
    cpu::bf16(cpu, x);
}

/// Rounds rows of `width` values, `[rows, width]`, to e4m3 `codes` `[rows, width]` with `scales` `[rows]`.
///
/// # Panics
/// When a shape does not fit.
pub fn e4m3_rows(cpu: &Cpu, width: usize, x: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    assert!(width > 0, "rows of no values");
    let rows = scales.len();
    assert_eq!(x.len(), rows * width, "x is not [{rows}, {width}]");
    assert_eq!(codes.len(), rows * width, "the codes are not [{rows}, {width}]");
    cpu::e4m3_rows(cpu, width, x, codes, scales);
}
