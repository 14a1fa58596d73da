//! On a CUDA device: the CPU's bits.

use super::cases::LENGTHS;
use super::{add, cuda};
use crate::Cpu;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for &len in LENGTHS {
        // The second start is not aligned for vectors.
        for skip in [0, 1].into_iter().filter(|&skip| skip <= len) {
            let mut case = Case::new("residual", format!("{len} elements from {skip}"), each);
            let (mut x, y) = (normals(1, len), normals(2, len));
            let (on_x, on_y) = (Guarded::of(gpu, &x)?, Guarded::of(gpu, &y)?);
            let n = len - skip;
            cuda::add(gpu, n, on_x.view().part(skip, n), on_y.view().part(skip, n))?;
            add(&Cpu::new(1), &mut x[skip..], &y[skip..]);
            let (got, guards) = on_x.take(gpu)?;
            case.fail("x", guards);
            case.same_bits("x", &got, &x);
            case.end();
        }
    }
    Ok(())
}
