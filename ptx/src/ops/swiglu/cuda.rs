//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, Out, View, count};

/// `y = silu(gate) * up`: `gate_up` `[rows, stride]` holds gate in columns `0..ffn` and up in `ffn..2 ffn`; `y`
/// `[rows, ffn]`.
///
/// # Panics
/// When a view is shorter, or the stride too small.
pub fn forward(gpu: &Gpu, rows: usize, ffn: usize, gate_up: View<f32>, stride: usize, y: Out) -> Result<(), CudaError> {
    if rows == 0 {
        return Ok(());
    }
    assert!(ffn > 0 && stride >= 2 * ffn, "rows of {stride} hold no two times {ffn} columns");
    assert!(gate_up.len() >= (rows - 1) * stride + 2 * ffn, "gate and up are not [{rows}, {stride}]");
    assert!(y.len() >= rows * ffn, "y is not [{rows}, {ffn}]");
    let aligned = ffn.is_multiple_of(4) && stride.is_multiple_of(4) && gate_up.aligned_16() && y.aligned_4();
    let vectors = if aligned { ffn / 4 } else { 0 };
    let items = count(ffn - 3 * vectors);
    let launch = Launch { grid: [count(rows), items.div_ceil(128), 1], threads: 128, shared_bytes: 0 };
    let entry = match y {
        Out::F32(_) => "swiglu_f32",
        Out::Bf16(_) => "swiglu_bf16",
    };
    let args = [gate_up.into(), y.arg(), count(ffn).into(), count(stride).into(), count(vectors).into()];
    gpu.launch(Kernel { op: "swiglu", entry }, launch, &args)
}
