//! The size of a gradient: its sum of squares for clipping, and the search for what is not finite.
//!
//! Shapes: one buffer of any length; the caller adds the sums of several tensors in a fixed order.
//!
//! Order: blocks of [`BLOCK`] elements; within a block 16 strided f32 FMA sums and
//! [`tree16`](crate::math::tree16), then the blocks' sums are added in f64, ascending.
//!
//! Bytes: reads 4 per element, bound by memory.
//!
//! Accuracy: relative error at most `BLOCK / 16 + 4` units of f32 rounding, 1.6e-5; squares beyond f32 give infinity,
//! squares below 1e-45 nothing.

pub mod cases;
mod cpu;
pub mod naive;
#[cfg(test)]
mod tests;

use crate::Cpu;

/// Elements that are summed in f32 before f64 takes over.
pub const BLOCK: usize = 4096;

/// Sum of the squares of `x`.
#[must_use]
pub fn sum_of_squares(cpu: &Cpu, x: &[f32]) -> f64 {
    cpu::sum_of_squares(cpu, x)
}

/// Index of the first element of `x` that is infinite or NaN; `None` when all are finite.
#[must_use]
pub fn all_finite(cpu: &Cpu, x: &[f32]) -> Option<usize> {
    cpu::first_not_finite(cpu, x)
}
