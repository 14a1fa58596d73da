//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, View, count};

/// `x += y` for `n` elements.
///
/// # Panics
/// When a view is shorter.
pub fn add(gpu: &Gpu, n: usize, x: View<f32>, y: View<f32>) -> Result<(), CudaError> {
    assert!(x.len() >= n && y.len() >= n, "x has {}, y {} of {n} elements", x.len(), y.len());
    if n == 0 {
        return Ok(());
    }
    let vectors = if x.aligned_16() && y.aligned_16() { n / 4 } else { 0 };
    let launch = Launch { grid: [count(n - 3 * vectors).div_ceil(256), 1, 1], threads: 256, shared_bytes: 0 };
    let kernel = Kernel { op: "residual", entry: "residual_add" };
    gpu.launch(kernel, launch, &[x.into(), y.into(), count(n).into(), count(vectors).into()])
}
