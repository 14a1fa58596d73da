//! Rounding in place: what a recipe's matmul inputs go through when its activations are narrower than f32.
//!
//! Order: elementwise, nearest even; NaN stays NaN. Bytes: reads and writes 4 per element, bound by memory. Exact: the
//! same function as [`dtype::round_bf16`](crate::dtype::round_bf16).

pub mod cases;
mod cpu;
pub mod naive;
#[cfg(test)]
mod tests;

use crate::Cpu;

/// Rounds every element of `x` to bf16.
pub fn bf16(cpu: &Cpu, x: &mut [f32]) {
    cpu::bf16(cpu, x);
}
