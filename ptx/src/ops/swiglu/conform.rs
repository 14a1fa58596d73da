//! On a CUDA device: the CPU's bits.

use super::{cuda, forward};
use crate::Cpu;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, Out};
use crate::dtype::bf16_from_f32;

/// Rows, columns and the stride beyond gate and up: one value, rows that are no vectors, strides that are none, more
/// columns than a block takes.
const SHAPES: &[(usize, usize, usize)] =
    &[(0, 4, 0), (1, 1, 0), (5, 3, 1), (3, 64, 0), (2, 100, 2), (7, 512, 4), (2, 3072, 0), (65, 96, 0)];

/// Gates at which exp overflows, underflows or is subnormal, zeros and what is not finite.
const EDGES: [f32; 16] = [
    0.0,
    -0.0,
    88.0,
    88.8,
    89.5,
    -87.4,
    -88.8,
    -103.9,
    -104.5,
    1e-40,
    -1e-40,
    1e4,
    -1e4,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for &(rows, ffn, more) in SHAPES {
        let stride = 2 * ffn + more;
        let mut gate_up = normals(1, rows * stride);
        // Columns beyond gate and up may hold anything.
        for (row, columns) in gate_up.chunks_exact_mut(stride).enumerate() {
            columns[2 * ffn..].fill(f32::NAN);
            columns[..ffn].iter_mut().for_each(|gate| *gate *= [1.0, 30.0, 1e-20][row % 3]);
            if row % 2 == 1 {
                columns[..ffn].iter_mut().zip(EDGES).for_each(|(gate, edge)| *gate = edge);
            }
        }
        check(gpu, rows, ffn, stride, &gate_up, each)?;
    }
    // Every 2^15-th float as a gate.
    let gates: Vec<f32> = (0..1_u32 << 17).map(|i| f32::from_bits(i << 15)).collect();
    let (rows, ffn) = (32, 4096);
    let mut gate_up = vec![1.0; rows * 2 * ffn];
    gate_up
        .chunks_exact_mut(2 * ffn)
        .zip(gates.chunks_exact(ffn))
        .for_each(|(to, from)| to[..ffn].copy_from_slice(from));
    check(gpu, rows, ffn, 2 * ffn, &gate_up, each)?;
    // Those have few places behind the leading one; these have all.
    let mut gate_up = normals(2, 8 * 2 * ffn);
    gate_up.chunks_exact_mut(2 * ffn).for_each(|row| row[..ffn].iter_mut().for_each(|gate| *gate *= 4.0));
    check(gpu, 8, ffn, 2 * ffn, &gate_up, each)
}

fn check(
    gpu: &Gpu,
    rows: usize,
    ffn: usize,
    stride: usize,
    gate_up: &[f32],
    each: &mut dyn FnMut(Outcome),
) -> Result<(), CudaError> {
    let mut case = Case::new("swiglu", format!("[{rows}, {ffn}], stride {stride}"), each);
    let part = |first: usize| -> Vec<f32> {
        gate_up.chunks_exact(stride).flat_map(|row| row[first..][..ffn].iter().copied()).collect()
    };
    let mut want = vec![0.0; rows * ffn];
    forward(&Cpu::new(1), &part(0), &part(ffn), &mut want);
    let from = Guarded::of(gpu, gate_up)?;
    let (wide, narrow) = (Guarded::new(gpu, rows * ffn)?, Guarded::new(gpu, rows * ffn)?);
    cuda::forward(gpu, rows, ffn, from.view(), stride, Out::F32(wide.view()))?;
    cuda::forward(gpu, rows, ffn, from.view(), stride, Out::Bf16(narrow.view()))?;
    let (got, guards) = wide.take(gpu)?;
    case.fail("f32", guards);
    case.same_bits("f32", &got, &want);
    let (got, guards) = narrow.take(gpu)?;
    case.fail("bf16", guards);
    let nan_is_one = |x: &f32| if x.is_nan() { 0x7fff } else { bf16_from_f32(*x) };
    case.equal("bf16", &got, &want.iter().map(nan_is_one).collect::<Vec<u16>>());
    case.end();
    Ok(())
}
