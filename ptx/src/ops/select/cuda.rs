//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, View, count};

/// `y[i] = x[rows[i]]` for `i` in `0..selected`; rows of x and y have `width` elements without gaps. The device does not
/// check that a row is one of x.
///
/// # Panics
/// When a view is shorter.
pub fn rows(
    gpu: &Gpu,
    selected: usize,
    width: usize,
    x: View<f32>,
    rows: View<u32>,
    y: View<f32>,
) -> Result<(), CudaError> {
    assert!(width > 0 && x.len() >= width, "x has no row of {width}");
    assert!(rows.len() >= selected && y.len() >= selected * width, "y is not [{selected}, {width}]");
    if selected == 0 {
        return Ok(());
    }
    let aligned = width.is_multiple_of(4) && x.aligned_16() && y.aligned_16();
    let vectors = if aligned { width / 4 } else { 0 };
    let launch = Launch { grid: [count(selected), 1, 1], threads: 256, shared_bytes: 0 };
    let args = [y.into(), x.into(), rows.into(), count(width).into(), count(vectors).into()];
    gpu.launch(Kernel { op: "select", entry: "select_rows" }, launch, &args)
}
