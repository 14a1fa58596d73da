//! SwiGLU: `y = silu(gate) * up`, `silu(x) = x * sigmoid(x)`.
//!
//! Shapes: all buffers have one length, `[tokens, ffn]` in use.
//!
//! Order: elementwise, `y = (gate * s) * up` with `s =` [`sigmoid`](crate::math::sigmoid)`(gate)`. Backward:
//! `dup = dy * (gate * s)`, `dgate = (dy * up) * (s * fma(gate, 1 - s, 1))`.
//!
//! CUDA ([`cuda`], forward alone): the same bits, f32 or rounded once more to bf16; gate and up lie in one row.
//!
//! Bytes: forward reads 8 and writes 4 per element, backward reads 12 and writes 8; bound by memory where exp is
//! vectorised.
//!
//! Accuracy: forward within 6 ulp (exp 2, sum and reciprocal 1 each, two products); `dgate` the same relative to
//! `|dy up s| (1 + |gate| (1 - s))`.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// `y = silu(gate) * up`.
///
/// # Panics
/// When lengths differ.
pub fn forward(cpu: &Cpu, gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert_eq!(up.len(), gate.len(), "up");
    assert_eq!(y.len(), gate.len(), "y");
    cpu::forward(cpu, gate, up, y);
}

/// Gradients of [`forward`], written to `dgate` and `dup`.
///
/// # Panics
/// When lengths differ.
pub fn backward(cpu: &Cpu, gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    assert_eq!(up.len(), gate.len(), "up");
    assert_eq!(dy.len(), gate.len(), "dy");
    assert_eq!(dgate.len(), gate.len(), "dgate");
    assert_eq!(dup.len(), gate.len(), "dup");
    cpu::backward(cpu, gate, up, dy, dgate, dup);
}
