//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, Out, View, count};

/// Columns of a row that a block keeps in shared memory, with their gains; a wider row is read twice.
const KEPT: usize = 4096;

/// `y = rmsnorm(x) * gain`; `x`, `y`: `[rows, width]`, `gain`: `[width]`. The bits of [`forward`](super::forward). `y` is
/// `x` or apart from it.
///
/// # Panics
/// When a view is shorter.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    gpu: &Gpu,
    rows: usize,
    width: usize,
    x: View<f32>,
    gain: View<f32>,
    eps: f32,
    y: Out,
) -> Result<(), CudaError> {
    assert!(width > 0, "rows of no elements have no norm");
    assert!(x.len() >= rows * width, "x is not [{rows}, {width}]");
    assert!(y.len() >= rows * width, "y is not [{rows}, {width}]");
    assert!(gain.len() >= width, "{} gains of {width}", gain.len());
    if rows == 0 {
        return Ok(());
    }
    let aligned = width.is_multiple_of(4) && x.aligned_16() && gain.aligned_16() && y.aligned_4();
    let vectors = if aligned { width / 4 } else { 0 };
    let kept = if width <= KEPT { 2 * width.next_multiple_of(4) } else { KEPT };
    let launch = Launch { grid: [count(rows), 1, 1], threads: 256, shared_bytes: count(16 + 4 * kept) };
    let entry = match y {
        Out::F32(_) => "rmsnorm_f32",
        Out::Bf16(_) => "rmsnorm_bf16",
    };
    let args = [x.into(), gain.into(), y.arg(), count(width).into(), count(vectors).into(), eps.into()];
    gpu.launch(Kernel { op: "rmsnorm", entry }, launch, &args)
}
