//! On a CUDA device: a copy, bit for bit.

use super::cuda;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for (width, rows) in [(1, &[0_u32][..]), (7, &[2, 0, 2, 1]), (64, &[1, 1]), (515, &[0, 2]), (1028, &[2, 1, 0])] {
        let mut case = Case::new("select", format!("{} rows of {width}", rows.len()), each);
        let x = normals(1, 3 * width);
        let (on_x, on_rows) = (Guarded::of(gpu, &x)?, Guarded::of(gpu, rows)?);
        let y = Guarded::new(gpu, rows.len() * width)?;
        cuda::rows(gpu, rows.len(), width, on_x.view(), on_rows.view(), y.view())?;
        let want: Vec<f32> = rows.iter().flat_map(|&row| &x[row as usize * width..][..width]).copied().collect();
        let (got, guards) = y.take(gpu)?;
        case.fail("y", guards);
        case.same_bits("y", &got, &want);
        case.end();
    }
    Ok(())
}
