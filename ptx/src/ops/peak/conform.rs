//! On a CUDA device: every instruction that is counted was done, and gave the exact sum.

use super::cuda;
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for (blocks, iterations, want) in [(1, 0, 0.0), (2, 1, 16.0), (1, 37, 592.0)] {
        let mut case = Case::new("peak", format!("{iterations} iterations"), each);
        let out = Guarded::new(gpu, blocks * 256)?;
        cuda::bf16(gpu, blocks, iterations, out.view())?;
        let (got, guards) = out.take(gpu)?;
        case.fail("out", guards);
        case.same_bits("out", &got, &vec![want; blocks * 256]);
        case.end();
    }
    Ok(())
}
