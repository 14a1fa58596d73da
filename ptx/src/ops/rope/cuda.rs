//! The launcher of the tables; heads are turned where keys are appended.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, View, count};

/// Fills `cos` and `sin` `[tokens, half]` for `positions` `[tokens]`, which are at most 2^24, and `inv_freq` `[half]`
/// (radians per position, at most 1), each value times `factor`: the bits of [`tables`](super::tables).
///
/// # Panics
/// When a view is shorter.
#[allow(clippy::too_many_arguments)]
pub fn tables(
    gpu: &Gpu,
    tokens: usize,
    positions: View<u32>,
    half: usize,
    inv_freq: View<f32>,
    factor: f32,
    cos: View<f32>,
    sin: View<f32>,
) -> Result<(), CudaError> {
    let n = tokens * half;
    assert!(half > 0 && inv_freq.len() >= half, "{} frequencies of {half}", inv_freq.len());
    assert!(positions.len() >= tokens, "positions");
    assert!(cos.len() >= n && sin.len() >= n, "the tables are not [{tokens}, {half}]");
    if n == 0 {
        return Ok(());
    }
    let launch = Launch { grid: [count(n).div_ceil(128), 1, 1], threads: 128, shared_bytes: 0 };
    let (n, half) = (count(n), count(half));
    let args = [positions.into(), inv_freq.into(), cos.into(), sin.into(), n.into(), half.into(), factor.into()];
    gpu.launch(Kernel { op: "rope", entry: "rope_tables" }, launch, &args)
}
