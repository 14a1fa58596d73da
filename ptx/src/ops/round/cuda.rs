//! The launchers.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, View, count};

/// Columns that a block keeps in registers; a wider row is read twice.
const REGISTERS: usize = 12_288;

/// Rounds `n` elements to bf16.
///
/// # Panics
/// When a view is shorter.
pub fn bf16(gpu: &Gpu, n: usize, x: View<f32>, y: View<u16>) -> Result<(), CudaError> {
    assert!(x.len() >= n && y.len() >= n, "x has {}, y {} of {n} elements", x.len(), y.len());
    if n == 0 {
        return Ok(());
    }
    let vectors = if x.aligned_16() && y.address().is_multiple_of(8) { n / 4 } else { 0 };
    let launch = Launch { grid: [count(n - 3 * vectors).div_ceil(256), 1, 1], threads: 256, shared_bytes: 0 };
    let kernel = Kernel { op: "round", entry: "round_bf16" };
    gpu.launch(kernel, launch, &[x.into(), y.into(), count(n).into(), count(vectors).into()])
}

/// Rounds rows of `width` values, `[rows, width]`, to e4m3 `codes` `[rows, width]` with `scales` `[rows]`.
///
/// # Panics
/// When a view is shorter.
pub fn e4m3_rows(
    gpu: &Gpu,
    rows: usize,
    width: usize,
    x: View<f32>,
    codes: View<u8>,
    scales: View<f32>,
) -> Result<(), CudaError> {
    assert!(width > 0, "rows of no values");
    assert!(x.len() >= rows * width, "x is not [{rows}, {width}]");
    assert!(codes.len() >= rows * width, "the codes are not [{rows}, {width}]");
    assert!(scales.len() >= rows, "the scales are not [{rows}]");
    if rows == 0 {
        return Ok(());
    }
    let aligned = width.is_multiple_of(4) && x.aligned_16() && codes.address().is_multiple_of(4);
    let vectors = if aligned && width <= REGISTERS { width / 4 } else { 0 };
    let launch = Launch { grid: [count(rows), 1, 1], threads: 256, shared_bytes: 32 };
    let args = [x.into(), codes.into(), scales.into(), count(width).into(), count(vectors).into()];
    gpu.launch(Kernel { op: "round", entry: "round_e4m3_rows" }, launch, &args)
}
