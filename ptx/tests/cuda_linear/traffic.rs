//! What a product with few rows moves, from the counters of the simulated device. None of it is a time.

use ptx::cuda::{CudaError, Gpu};
use ptx::ops::linear::cuda::{Epilogue, Input, Weights, forward};
use ptx::ops::linear::{Packed, WeightScale, amax};
use ptx::{Cpu, DType, dtype};

/// y\[rows, n\] of x\[rows, k\].
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub rows: usize,
    pub n: usize,
    pub k: usize,
    pub weights: DType,
    pub scale: WeightScale,
    /// Format of x.
    pub input: DType,
}

/// Sums over one launch, in bytes but for the last two.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Of codes and scales as they lie in memory.
    pub held: u64,
    /// Sectors of them that instructions asked for.
    pub weights_asked: u64,
    /// Sectors of x and its scales asked for.
    pub inputs_asked: u64,
    /// What lanes asked for, and the sectors it lay in, of all loads.
    pub loaded: u64,
    pub load_sectors: u64,
    pub stored: u64,
    pub store_sectors: u64,
    /// Passes through shared memory, and what they would be without bank conflicts.
    pub wavefronts: u64,
    pub wavefronts_least: u64,
}

#[allow(clippy::cast_precision_loss)]
pub fn share(of: u64, whole: u64) -> f64 {
    of as f64 / whole as f64
}

/// Runs the product and reads the counters.
pub fn run(gpu: &Gpu, p: Product) -> Result<Figures, CudaError> {
    let cpu = Cpu::new(1);
    let value = |i: usize| f32::from(i16::try_from(i * 7919 % 251).expect("small") - 125) / 64.0;
    let source: Vec<f32> = (0..p.n * p.k).map(value).collect();
    let mut packed = Packed::new(p.weights, p.scale, p.n, p.k);
    if packed.granularity() == Some(WeightScale::Tensor) {
        packed.set_amax(amax(&cpu, &source));
    }
    packed.set_rows(&cpu, 0, &source);
    let w = Weights::new(gpu, &[&packed], None)?;
    let x: Vec<f32> = (0..p.rows * p.k).map(|i| value(i + 3)).collect();
    let halves = gpu.upload(&x.iter().map(|&x| dtype::bf16_from_f32(x)).collect::<Vec<_>>())?;
    let codes = gpu.upload(&x.iter().map(|&x| dtype::e4m3_from_f32(x)).collect::<Vec<_>>())?;
    let scales = gpu.upload(&vec![1.0_f32; p.rows])?;
    let y = gpu.alloc::<f32>(p.rows * p.n)?;
    let input = match p.input {
        DType::Bf16 => Input::Bf16(halves.view()),
        _ => Input::E4m3 { codes: codes.view(), scales: scales.view() },
    };
    let simulator = gpu.simulator().expect("a simulated device");
    simulator.reset_counters()?;
    forward(gpu, p.rows, input, &w, y.view(), p.n, Epilogue::Write)?;
    assert!(gpu.download(y.view())?.iter().all(|y| y.is_finite()), "{p:?}: outputs that are not finite");

    let counters = simulator.counters()?;
    let of = |name: &str| counters.get(name);
    let asked = "load sectors";
    let inputs =
        counters.of(halves.view(), asked) + counters.of(codes.view(), asked) + counters.of(scales.view(), asked);
    let inputs_asked = 32 * inputs;
    Ok(Figures {
        held: w.bytes() as u64,
        weights_asked: 32 * of("load sectors") - inputs_asked,
        inputs_asked,
        loaded: of("load bytes"),
        load_sectors: 32 * of("load sectors"),
        stored: of("store bytes"),
        store_sectors: 32 * of("store sectors"),
        wavefronts: of("shared wavefronts"),
        wavefronts_least: of("shared wavefronts least"),
    })
}
