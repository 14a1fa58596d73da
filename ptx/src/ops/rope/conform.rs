//! On a CUDA device: the CPU's tables, bit for bit.

use super::cases::CASES;
use super::{cuda, tables};
use crate::Cpu;
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::rng::{Purpose, Stream};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for case in CASES {
        let (tokens, half) = (case.tokens, case.head_dim / 2);
        let mut stream = Stream::new(5, Purpose::Test, 0);
        // The first positions, the last one, and any in between.
        let positions: Vec<u32> =
            (0..tokens).map(|i| [0, 1, 1 << 24].get(i).copied().unwrap_or_else(|| stream.below(1 << 24))).collect();
        #[allow(clippy::cast_precision_loss)]
        let inv_freq: Vec<f32> = (0..half).map(|i| crate::math::exp(-13.8 * i as f32 / half as f32)).collect();
        for factor in [1.0, 1.138_629_4] {
            let mut report = Case::new("rope", format!("{tokens} tokens, {half} pairs, factor {factor}"), each);
            let (mut cos, mut sin) = (vec![0.0; tokens * half], vec![0.0; tokens * half]);
            tables(&Cpu::new(1), &positions, &inv_freq, factor, &mut cos, &mut sin);
            let (at, freq) = (Guarded::of(gpu, &positions)?, Guarded::of(gpu, &inv_freq)?);
            let (to_cos, to_sin) = (Guarded::new(gpu, cos.len())?, Guarded::new(gpu, sin.len())?);
            cuda::tables(gpu, tokens, at.view(), half, freq.view(), factor, to_cos.view(), to_sin.view())?;
            for (what, on, want) in [("cos", to_cos, cos), ("sin", to_sin, sin)] {
                let (got, guards) = on.take(gpu)?;
                report.fail(what, guards);
                report.same_bits(what, &got, &want);
            }
            report.end();
        }
    }
    Ok(())
}
