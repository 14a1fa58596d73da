//! RMS norm over rows: `y = (x * inv) * gain`, `inv = 1 / sqrt(mean(x^2) + eps)`.
//!
//! Shapes: `x`, `y`: `[rows, dim]`; `gain`: `[dim]`; `inv_rms`: `[rows]`. Hidden norms take a token per row, QK-norm a
//! head per row with `dim = head_dim`.
//!
//! Order: 16 strided f32 sums (sum `i` takes elements `j` with `j % 16 == i`, ascending, by FMA), then
//! [`tree16`](crate::math::tree16); a row's bits depend on that row alone. Backward: the same sums within a row; `dgain`
//! is summed over row blocks whose size follows from the shape, ascending within and between blocks.
//!
//! Bytes: forward reads 4 and writes 4 per element; backward reads 8 and writes 4, bound by memory.
//!
//! CUDA ([`cuda`], forward alone): the same bits, f32 or rounded once more to bf16. The 16 sums run as they do here, so a row
//! takes `dim / 16` dependent steps: under 1 % of a decode step, for which the devices agree.
//!
//! Accuracy: the sum of squares has a relative error of at most `dim / 16 + 5` units of rounding, which the root
//! halves; then three roundings to `y`.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// Row count of `[rows, dim]` elements.
fn rows_of(dim: usize, elements: usize) -> usize {
    assert!(dim > 0, "rows of no elements have no norm");
    assert_eq!(elements % dim, 0, "{elements} elements are no rows of {dim}");
    elements / dim
}

/// `y = rmsnorm(x) * gain`; `x`, `y`: `[rows, dim]`, `gain`: `[dim]`. `inv_rms`, where wanted, takes 1/rms of each row
/// (`[rows]`), which the backward needs.
///
/// # Panics
/// When a length does not fit the shape.
pub fn forward(cpu: &Cpu, dim: usize, x: &[f32], gain: &[f32], eps: f32, y: &mut [f32], inv_rms: Option<&mut [f32]>) {
    let rows = rows_of(dim, x.len());
    assert_eq!(gain.len(), dim, "gain");
    assert_eq!(y.len(), x.len(), "y");
    assert!(inv_rms.as_ref().is_none_or(|inv| inv.len() == rows), "inv_rms has not one element per row of {rows}");
    cpu::forward(cpu, dim, x, gain, eps, y, inv_rms.unwrap_or_default());
}

/// [`forward`] with `y` in the place of `x`; the same bits.
///
/// # Panics
/// When a length does not fit the shape.
pub fn forward_in_place(cpu: &Cpu, dim: usize, x: &mut [f32], gain: &[f32], eps: f32, inv_rms: Option<&mut [f32]>) {
    let rows = rows_of(dim, x.len());
    assert_eq!(gain.len(), dim, "gain");
    assert!(inv_rms.as_ref().is_none_or(|inv| inv.len() == rows), "inv_rms has not one element per row of {rows}");
    cpu::forward_in_place(cpu, dim, x, gain, eps, inv_rms.unwrap_or_default());
}

/// Gradients of [`forward`], from its input `x` and its `inv_rms`: `dx` is written, or added to with `accumulate_dx`;
/// `dgain` is added to. `x`, `dy`, `dx`: `[rows, dim]`; `gain`, `dgain`: `[dim]`; `inv_rms`: `[rows]`.
///
/// # Panics
/// When a length does not fit the shape.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    cpu: &Cpu,
    dim: usize,
    x: &[f32],
    gain: &[f32],
    inv_rms: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    accumulate_dx: bool,
    dgain: &mut [f32],
) {
    let rows = rows_of(dim, x.len());
    assert_eq!(gain.len(), dim, "gain");
    assert_eq!(inv_rms.len(), rows, "inv_rms");
    assert_eq!(dy.len(), x.len(), "dy");
    assert_eq!(dx.len(), x.len(), "dx");
    assert_eq!(dgain.len(), dim, "dgain");
    cpu::backward(cpu, dim, x, gain, inv_rms, dy, dx, accumulate_dx, dgain);
}
