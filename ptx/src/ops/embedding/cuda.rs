//! Rows of the packed table on a CUDA device: the CPU's bits.

use crate::DType;
use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, View};
use crate::ops::linear::WeightScale;
use crate::ops::linear::cuda::Weights;

/// x\[t\] = the value of row ids\[t\] of `table`, for `t` in `0 .. tokens`; x is `[tokens, k]` without gaps.
///
/// An id beyond the table, which only the device sees, gives a row of NaN.
///
/// # Panics
/// When a view is too short, or x is not 16-byte aligned although its rows are multiples of 4.
pub fn forward(gpu: &Gpu, ids: View<u32>, tokens: usize, table: &Weights, x: View<f32>) -> Result<(), CudaError> {
    if tokens == 0 {
        return Ok(());
    }
    let (n, k) = (table.n(), table.k());
    assert!(ids.len() >= tokens, "{} ids for {tokens} tokens", ids.len());
    assert!(x.len() >= tokens * k, "x of {} is not [{tokens}, {k}]", x.len());
    assert!(!k.is_multiple_of(4) || x.address().is_multiple_of(16), "x is not 16-byte aligned");
    let entry = if table.dtype() == DType::Bf16 { "embedding_bf16" } else { "embedding_e4m3" };
    let by_block = table.granularity() == Some(WeightScale::Block128);
    let scales = Arg::Pointer(table.scales().map_or(0, |scales| scales.address()));
    let narrow = |x: usize| u32::try_from(x).expect("shapes of a launch fit 32 bits");
    let args = [
        x.into(),
        ids.into(),
        table.codes().into(),
        scales,
        narrow(n).into(),
        narrow(k).into(),
        u32::from(by_block).into(),
    ];
    let launch = Launch { grid: [narrow(tokens), 1, 1], threads: 128, shared_bytes: 0 };
    gpu.launch(Kernel { op: "embedding", entry }, launch, &args)
}
