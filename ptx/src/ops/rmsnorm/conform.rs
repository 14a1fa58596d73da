//! On a CUDA device: the CPU's bits, at any alignment and in place.

use super::cases::{CASES, Case as Rows};
use super::{cuda, forward};
use crate::Cpu;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, Out};
use crate::dtype::bf16_from_f32;

const EPS: f32 = 1e-6;

/// Where the kernel takes another way: the widest row that it keeps, and the next ones, without and with vectors. And rows
/// enough for every rounding to matter in one of them.
const EDGES: [Rows; 5] = [
    Rows { rows: 2, dim: 4096 },
    Rows { rows: 2, dim: 4097 },
    Rows { rows: 2, dim: 4100 },
    Rows { rows: 64, dim: 11 },
    Rows { rows: 64, dim: 44 },
];

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for case in CASES.iter().chain(&EDGES) {
        let (rows, dim) = (case.rows, case.dim);
        let mut x = normals(1, rows * dim);
        let sizes = [1.0, 1e-12, 1e18, 0.0];
        x.chunks_exact_mut(dim)
            .zip(sizes.iter().cycle())
            .for_each(|(row, size)| row.iter_mut().for_each(|x| *x *= size));
        let gain = normals(2, dim);
        let mut want = vec![0.0; x.len()];
        forward(&Cpu::new(1), dim, &x, &gain, EPS, &mut want, None);
        let mut report = Case::new("rmsnorm", format!("[{rows}, {dim}]"), each);
        let (from, gains) = (Guarded::of(gpu, &x)?, Guarded::of(gpu, &gain)?);
        let (wide, narrow) = (Guarded::new(gpu, x.len())?, Guarded::new(gpu, x.len())?);
        cuda::forward(gpu, rows, dim, from.view(), gains.view(), EPS, Out::F32(wide.view()))?;
        cuda::forward(gpu, rows, dim, from.view(), gains.view(), EPS, Out::Bf16(narrow.view()))?;
        cuda::forward(gpu, rows, dim, from.view(), gains.view(), EPS, Out::F32(from.view()))?;
        for (what, on) in [("f32", wide), ("in place", from)] {
            let (got, guards) = on.take(gpu)?;
            report.fail(what, guards);
            report.same_bits(what, &got, &want);
        }
        let (got, guards) = narrow.take(gpu)?;
        report.fail("bf16", guards);
        report.equal("bf16", &got, &want.iter().map(|&x| bf16_from_f32(x)).collect::<Vec<u16>>());
        // The last row alone, from where no vector can be loaded: its bits depend on nothing else.
        if rows > 0 {
            let shifted: Vec<f32> = std::iter::once(f32::NAN).chain(x[x.len() - dim..].iter().copied()).collect();
            let (from, alone) = (Guarded::of(gpu, &shifted)?, Guarded::new(gpu, dim)?);
            cuda::forward(gpu, 1, dim, from.view().part(1, dim), gains.view(), EPS, Out::F32(alone.view()))?;
            let (got, guards) = alone.take(gpu)?;
            report.fail("alone", guards);
            report.same_bits("alone", &got, &want[want.len() - dim..]);
            let narrow = Guarded::new(gpu, dim)?;
            cuda::forward(gpu, 1, dim, from.view().part(1, dim), gains.view(), EPS, Out::Bf16(narrow.view()))?;
            let (got, guards) = narrow.take(gpu)?;
            report.fail("alone, bf16", guards);
            let want: Vec<u16> = want[want.len() - dim..].iter().map(|&x| bf16_from_f32(x)).collect();
            report.equal("alone, bf16", &got, &want);
        }
        report.end();
    }
    Ok(())
}
