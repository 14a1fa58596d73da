//! Rows of the packed table on a device against those that the CPU reads out of it: equal bits.

use super::cases::{CASES, Case};
use super::cuda::forward;
use crate::conformance::Outcome;
use crate::cuda::{CudaError, Gpu};
use crate::ops::linear::cuda::Weights;
use crate::ops::linear::{Packed, WeightScale, amax};
use crate::rng::{Purpose, Stream};
use crate::{Cpu, DType};

const FORMATS: [(DType, WeightScale); 4] = [
    (DType::Bf16, WeightScale::Channel),
    (DType::E4m3, WeightScale::Tensor),
    (DType::E4m3, WeightScale::Channel),
    (DType::E4m3, WeightScale::Block128),
];
/// What stands behind x and must stay.
const GUARD: u32 = 0xdead_beef;

/// Whole vectors, and more of them than a block has threads.
const WIDE: Case = Case { tokens: 3, vocab: 11, hidden: 1032 };

/// Runs all checks of this op.
pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for &case in CASES.iter().chain([&WIDE]) {
        for format in FORMATS {
            let failure = compare(gpu, case, format)?.err();
            let worst = if failure.is_some() { f64::INFINITY } else { 0.0 };
            let name = format!("{case:?}: {} by {:?}", format.0, format.1);
            each(Outcome { op: "embedding", case: name, worst, failure });
        }
    }
    Ok(())
}

fn compare(gpu: &Gpu, case: Case, (dtype, scale): (DType, WeightScale)) -> Result<Result<(), String>, CudaError> {
    let Case { tokens, vocab, hidden } = case;
    let cpu = Cpu::new(1);
    let mut stream = Stream::new(17, Purpose::Test, 0);
    let source: Vec<f32> = (0..vocab as usize * hidden).map(|_| stream.normal()).collect();
    let mut table = Packed::new(dtype, scale, vocab as usize, hidden);
    if table.granularity() == Some(WeightScale::Tensor) {
        table.set_amax(amax(&cpu, &source));
    }
    table.set_rows(&cpu, 0, &source);
    let weights = Weights::new(gpu, &[&table], None)?;

    // The last token's id is beyond the table.
    let ids: Vec<u32> = (0..tokens).map(|t| if t + 1 == tokens { vocab } else { stream.below(vocab) }).collect();
    let device_ids = gpu.upload(&ids)?;
    let mut bits = vec![GUARD; tokens * hidden + 64];
    let x = gpu.upload::<f32>(bytemuck::cast_slice(&bits))?;
    forward(gpu, device_ids.view(), tokens, &weights, x.view())?;
    gpu.read(x.view(), bytemuck::cast_slice_mut::<u32, f32>(&mut bits))?;

    let (rows, guards) = bits.split_at(tokens * hidden);
    if guards.iter().any(|&bits| bits != GUARD) {
        return Ok(Err("wrote past the end".into()));
    }
    let mut row = vec![0.0; hidden];
    for (t, (got, &id)) in rows.chunks_exact(hidden).zip(&ids).enumerate() {
        if id == vocab {
            if got.iter().any(|&bits| !f32::from_bits(bits).is_nan()) {
                return Ok(Err(format!("token {t} has no row, and got one")));
            }
            continue;
        }
        table.row(id as usize, &mut row);
        if let Some(i) = (0..hidden).find(|&i| got[i] != row[i].to_bits()) {
            let got = f32::from_bits(got[i]);
            return Ok(Err(format!("token {t}, row {id}, element {i}: {got:e}, want {:e}", row[i])));
        }
    }
    Ok(Ok(()))
}
