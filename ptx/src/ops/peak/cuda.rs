//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, View, count};

/// Threads of a block.
const THREADS: usize = 256;
/// Matrix instructions of a warp in one iteration, and their flops.
const SUMS: usize = 8;
const FLOPS: usize = 4096;

/// Floating point operations of a launch.
#[must_use]
pub fn flops(blocks: usize, iterations: usize) -> f64 {
    (blocks * THREADS / 32 * SUMS * FLOPS) as f64 * iterations as f64
}

/// Adds ones by the bf16 matrix instruction alone: `out`, one for each of 256 threads of every block, becomes 16 times
/// `iterations`.
///
/// # Panics
/// When the view is shorter, or there are 2^20 iterations or more, from which on sums would be rounded.
pub fn bf16(gpu: &Gpu, blocks: usize, iterations: usize, out: View<f32>) -> Result<(), CudaError> {
    assert!(out.len() >= blocks * THREADS, "{} results of {blocks} blocks", out.len());
    assert!(iterations < 1 << 20, "{iterations} iterations");
    if blocks == 0 {
        return Ok(());
    }
    let launch = Launch { grid: [count(blocks), 1, 1], threads: count(THREADS), shared_bytes: 0 };
    gpu.launch(Kernel { op: "peak", entry: "peak_bf16" }, launch, &[out.into(), count(iterations).into()])
}
