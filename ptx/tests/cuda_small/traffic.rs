//! What the row and element kernels ask of memory, from the counters of the simulated device. None of it is a time.

use ptx::cuda::{CudaError, Gpu, Mem, Out};
use ptx::ops::log_softmax::cuda::{self as logits, Block, Lses};
use ptx::ops::sample::cuda::{Draw, draw_rows};
use ptx::ops::{residual, rmsnorm, rope, round, sample, swiglu};

/// The traffic of one call, in bytes.
#[derive(Clone, Debug)]
pub struct Figures {
    pub name: &'static str,
    pub shape: String,
    /// What its inputs and outputs have, each once.
    pub least: u64,
    /// 32-byte sectors that the warps' loads and stores touched, instruction by instruction.
    pub asked: u64,
    /// Different sectors touched, launch by launch: what memory moves at least.
    pub moved: u64,
    /// Instructions that warps issued.
    pub issued: u64,
    /// Passes through shared memory, and what they would be without bank conflicts.
    pub wavefronts: u64,
    pub wavefronts_least: u64,
}

impl Figures {
    /// The share of the sectors asked for that was needed.
    #[allow(clippy::cast_precision_loss)]
    pub fn efficiency(&self) -> f64 {
        self.least as f64 / self.asked as f64
    }
}

/// Sizes: a step of `rows` tokens.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub rows: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub vocab: usize,
}

fn floats(n: usize, spread: f32) -> Vec<f32> {
    let part = |i: usize| u16::try_from(i.wrapping_mul(2_654_435_761) >> 7 & 0xffff).expect("16 bits");
    // The sum of three is near enough to a normal.
    (0..n).map(|i| spread * (0..3).map(|j| f32::from(part(3 * i + j)) / 32_768.0 - 1.0).sum::<f32>()).collect()
}

/// Counts one call.
fn count(
    gpu: &Gpu,
    name: &'static str,
    shape: String,
    least: usize,
    call: impl FnOnce() -> Result<(), CudaError>,
) -> Result<Figures, CudaError> {
    let simulator = gpu.simulator().expect("a simulated device");
    simulator.reset_counters()?;
    call()?;
    gpu.synchronize()?;
    let counters = simulator.counters()?;
    Ok(Figures {
        name,
        shape,
        least: least as u64,
        asked: 32 * (counters.get("load sectors") + counters.get("store sectors")),
        moved: 32 * (counters.get("load unique sectors") + counters.get("store unique sectors")),
        issued: counters.get("warp instructions"),
        wavefronts: counters.get("shared wavefronts"),
        wavefronts_least: counters.get("shared wavefronts least"),
    })
}

/// The kernels of a layer.
pub fn layer(gpu: &Gpu, sizes: Sizes) -> Result<Vec<Figures>, CudaError> {
    let Sizes { rows, hidden, ffn, .. } = sizes;
    let n = rows * hidden;
    let x = gpu.upload(&floats(n, 1.0))?;
    let gain = gpu.upload(&floats(hidden, 1.0))?;
    let (y, narrow) = (gpu.alloc::<f32>(n)?, gpu.alloc::<u16>(n)?);
    let (codes, scales) = (gpu.alloc::<u8>(n)?, gpu.alloc::<f32>(rows)?);
    let gate_up = gpu.upload(&floats(rows * 2 * ffn, 1.0))?;
    let product = gpu.alloc::<u16>(rows * ffn)?;
    let half = 64;
    let positions = gpu.upload(&(0..u32::try_from(rows).expect("few rows")).collect::<Vec<u32>>())?;
    let inv_freq = gpu.upload(&vec![0.5_f32; half])?;
    let (cos, sin) = (gpu.alloc::<f32>(rows * half)?, gpu.alloc::<f32>(rows * half)?);
    let wide = format!("[{rows}, {hidden}]");
    Ok(vec![
        count(gpu, "rmsnorm_f32", wide.clone(), 8 * n + 4 * rows * hidden, || {
            rmsnorm::cuda::forward(gpu, rows, hidden, x.view(), gain.view(), 1e-6, Out::F32(y.view()))
        })?,
        count(gpu, "rmsnorm_bf16", wide.clone(), 6 * n + 4 * rows * hidden, || {
            rmsnorm::cuda::forward(gpu, rows, hidden, x.view(), gain.view(), 1e-6, Out::Bf16(narrow.view()))
        })?,
        count(gpu, "round_bf16", wide.clone(), 6 * n, || round::cuda::bf16(gpu, n, x.view(), narrow.view()))?,
        count(gpu, "round_e4m3_rows", wide.clone(), 5 * n + 4 * rows, || {
            round::cuda::e4m3_rows(gpu, rows, hidden, x.view(), codes.view(), scales.view())
        })?,
        count(gpu, "residual_add", wide, 12 * n, || residual::cuda::add(gpu, n, y.view(), x.view()))?,
        count(gpu, "swiglu_bf16", format!("[{rows}, {ffn}]"), 10 * rows * ffn, || {
            swiglu::cuda::forward(gpu, rows, ffn, gate_up.view(), 2 * ffn, Out::Bf16(product.view()))
        })?,
        count(gpu, "rope_tables", format!("[{rows}, {half}]"), 8 * rows * half, || {
            rope::cuda::tables(gpu, rows, positions.view(), half, inv_freq.view(), 1.0, cos.view(), sin.view())
        })?,
    ])
}

/// What is done with logits, `least` being one read of them.
pub fn head(gpu: &Gpu, sizes: Sizes) -> Result<Vec<Figures>, CudaError> {
    let Sizes { rows, vocab, .. } = sizes;
    let x = gpu.upload(&floats(rows * vocab, 4.0))?;
    let inv_temps = gpu.upload(&vec![1.0_f32; rows])?;
    let partials = gpu.alloc(logits::partials_len(rows, vocab))?;
    let workspace = gpu.alloc(logits::workspace_len(rows, vocab))?;
    let block =
        Block { rows, vocab, valid: vocab, logits: x.view(), inv_temps: inv_temps.view(), partials: partials.view() };
    let ids = gpu.upload(&vec![7_u32; rows])?;
    let (logprobs, status) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<u32>(rows)?);
    let lses = gpu.alloc::<f32>(2 * rows)?;
    let (drawn, tokens) = (gpu.alloc(rows)?, gpu.alloc::<u32>(rows)?);
    let uniforms = gpu.upload(&vec![0.5_f32; rows])?;
    let k = 20;
    let offsets: Vec<u32> = (0..=rows).map(|row| u32::try_from(row * k).expect("few rows")).collect();
    let offsets = gpu.upload(&offsets)?;
    let (top, best, raw) = (gpu.alloc::<u32>(rows * k)?, gpu.alloc::<f32>(rows * k)?, gpu.alloc::<f32>(rows * k)?);
    let shape = format!("[{rows}, {vocab}]");
    let least = 4 * rows * vocab;
    let plain = sample::Params::default();
    let all = |params: sample::Params| gpu.upload(&vec![Draw::of(&params).expect("within range"); rows]);
    let (whole, cut) = (all(plain)?, all(sample::Params { top_p: 0.95, ..plain })?);
    let draw = |draws: &Mem<Draw>, cut| {
        draw_rows(gpu, &block, draws.view(), uniforms.view(), cut, workspace.view(), drawn.view(), tokens.view())
    };
    Ok(vec![
        count(gpu, "gather", shape.clone(), least, || {
            logits::gather(gpu, &block, ids.view(), logprobs.view(), status.view())
        })?,
        count(gpu, "normalizers", shape.clone(), least, || logits::normalizers(gpu, &block, lses.view()))?,
        count(gpu, "top_k, 20", shape.clone(), least, || {
            let from = Lses::Normalizers(lses.view());
            logits::top_k(gpu, &block, offsets.view(), from, workspace.view(), top.view(), best.view(), raw.view())
        })?,
        count(gpu, "draw", shape.clone(), least, || draw(&whole, false))?,
        count(gpu, "draw, top-p 0.95", shape, least, || draw(&cut, true))?,
    ])
}
