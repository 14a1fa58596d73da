//! The residual stream: `x += y`, in f32.
//!
//! Order: elementwise, one rounding. Bytes: reads 8 and writes 4 per element, bound by memory. The gradient of a sum
//! is its own: both inputs take `dx` as it is, so there is no backward. CUDA ([`cuda`]): the same bits.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// `x += y`.
///
/// # Panics
/// When lengths differ.
pub fn add(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    assert_eq!(y.len(), x.len(), "y");
    cpu::add(cpu, x, y);
}
