//! How near kernels come to what the device can do: time on the device against its own copy bandwidth and matrix peak,
//! measured in the same run. On a simulated device time says nothing, so nobody asks for it there but tests of this code.

use ptx::DType;
use ptx::cuda::{CudaError, Gpu, Out, Pages};
use ptx::kv_tile::{KvScale, KvShape, Span};
use ptx::ops::attention::{self, Batch, BatchLimits};
use ptx::ops::linear::cuda::{Epilogue, Input, Weights};
use ptx::ops::linear::{Packed, WeightScale, cuda as linear};
use ptx::ops::peak;
use ptx::{Cpu, cuda::Mem};

/// A rate of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What was done.
    pub name: &'static str,
    /// How much of it in a second.
    pub value: f64,
    /// In what: GB/s or TFLOP/s.
    pub unit: &'static str,
    /// Its share of the limit, which is the copy bandwidth or the matrix peak; nothing for those themselves.
    pub share: Option<f64>,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes that are copied.
    pub copy_bytes: usize,
    /// Iterations of the matrix instruction.
    pub iterations: usize,
    /// Outputs and inputs of the matrices: far beyond the cache.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Rows of a prefill.
    pub rows: usize,
    /// Sequences that decode.
    pub sequences: usize,
    /// Their length.
    pub context: usize,
    /// Launches between two events.
    pub repeats: usize,
}

impl Sizes {
    /// What a device needs to show what it can do.
    pub const FULL: Sizes = Sizes {
        copy_bytes: 512 << 20,
        iterations: 1 << 14,
        n: 16384,
        k: 8192,
        rows: 2048,
        sequences: 64,
        context: 4096,
        repeats: 10,
    };
}

/// Measures a device.
pub fn roofline(gpu: &Gpu, cpu: &Cpu, sizes: Sizes) -> Result<Vec<Rate>, CudaError> {
    let s = sizes;
    let mut rates = Vec::new();
    let (from, to) = (gpu.alloc::<u8>(s.copy_bytes)?, gpu.alloc::<u8>(s.copy_bytes)?);
    gpu.fill(from.view(), 0)?;
    let bandwidth = 2.0 * s.copy_bytes as f64 / seconds(gpu, s, || gpu.copy(to.view(), from.view()))? / 1e9;
    rates.push(Rate { name: "copy", value: bandwidth, unit: "GB/s", share: None });
    drop((from, to));

    let blocks = 2 * gpu.multiprocessors() as usize;
    let out = gpu.alloc(256 * blocks)?;
    let time = seconds(gpu, s, || peak::cuda::bf16(gpu, blocks, s.iterations, out.view()))?;
    let flops = peak::cuda::flops(blocks, s.iterations) / time / 1e12;
    rates.push(Rate { name: "matrix instruction, bf16", value: flops, unit: "TFLOP/s", share: None });

    for (dtype, one, many) in [
        (DType::Bf16, "product, bf16, 1 row", "product, bf16, prefill"),
        (DType::E4m3, "product, e4m3, 1 row", "product, e4m3, prefill"),
    ] {
        let weights = Products::new(gpu, cpu, s, dtype)?;
        let bytes = weights.matrices.bytes() as f64;
        let value = bytes / seconds(gpu, s, || weights.run(gpu, s, 1))? / 1e9;
        rates.push(Rate { name: one, value, unit: "GB/s", share: Some(value / bandwidth) });
        let work = 2.0 * (s.rows * s.n) as f64 * s.k as f64;
        let value = work / seconds(gpu, s, || weights.run(gpu, s, s.rows))? / 1e12;
        rates.push(Rate { name: many, value, unit: "TFLOP/s", share: Some(value / flops) });
    }
    for (dtype, name) in [(DType::Bf16, "attention, bf16, decoding"), (DType::E4m3, "attention, e4m3, decoding")] {
        let value = attention_bytes_s(gpu, s, dtype)? / 1e9;
        rates.push(Rate { name, value, unit: "GB/s", share: Some(value / bandwidth) });
    }
    Ok(rates)
}

/// Seconds of one call on the device: the median of five runs of several.
fn seconds(gpu: &Gpu, s: Sizes, mut call: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    call()?; // compiles it
    let mut times = Vec::new();
    for _ in 0..5 {
        let before = gpu.event()?;
        for _ in 0..s.repeats {
            call()?;
        }
        let after = gpu.event()?;
        times.push(f64::from(after.ms_since(&before)?) / 1e3 / s.repeats as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}

struct Products {
    matrices: Weights,
    x: Mem<u16>,
    y: Mem<f32>,
}

impl Products {
    fn new(gpu: &Gpu, cpu: &Cpu, s: Sizes, dtype: DType) -> Result<Products, CudaError> {
        let mut packed = Packed::new(dtype, WeightScale::Channel, s.n, s.k);
        // Which values they are does not matter to time; not all alike, so that nothing is saved on them.
        let row: Vec<f32> = (0..s.k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        for first in 0..s.n {
            packed.set_rows(cpu, first, &row);
        }
        let x = gpu.alloc(s.rows * s.k)?;
        gpu.fill(x.view(), 0x3c)?; // bf16 of 0.0115
        Ok(Products { matrices: Weights::new(gpu, &[&packed], None)?, x, y: gpu.alloc(s.rows * s.n)? })
    }

    fn run(&self, gpu: &Gpu, s: Sizes, rows: usize) -> Result<(), CudaError> {
        let x = Input::Bf16(self.x.view().part(0, rows * s.k));
        linear::forward(gpu, rows, x, &self.matrices, self.y.view(), s.n, Epilogue::Write)
    }
}

/// Bytes of keys and values that decoding sequences read in a second.
fn attention_bytes_s(gpu: &Gpu, s: Sizes, dtype: DType) -> Result<f64, CudaError> {
    let (heads, kv_heads, head_dim, page_len) = (32, 8, 128, 16);
    let shape = KvShape { kv_heads, head_dim, page_len, k: dtype, v: dtype, scale: KvScale::Static };
    let each = s.context.div_ceil(page_len);
    let pool = gpu.alloc::<u8>(s.sequences * each * shape.page_bytes())?;
    gpu.fill(pool.view(), 0)?;
    let ones = gpu.upload(&vec![1.0_f32; kv_heads])?;
    let pages = Pages::new(shape, pool.view(), Some(ones.view()), Some(ones.view()));
    let limits =
        BatchLimits { spans: s.sequences, rows: s.sequences, pages: each, page_len, heads, kv_heads, head_dim };
    let mut batch = Batch::new(gpu, limits)?;
    let tables: Vec<Vec<u32>> = (0..s.sequences)
        .map(|i| (i * each..(i + 1) * each).map(|page| u32::try_from(page).expect("few pages")).collect())
        .collect();
    let span = |(i, table)| Span { first_row: i, row_count: 1, first_position: s.context - 1, block_table: table };
    let spans: Vec<Span<'_>> = tables.iter().map(|table| &table[..]).enumerate().map(span).collect();
    batch.set(gpu, &spans)?;
    let width = s.sequences * heads * head_dim;
    let (q, out) = (gpu.alloc::<f32>(width)?, gpu.alloc::<f32>(width)?);
    gpu.fill(q.view(), 0)?;
    let workspace = gpu.alloc(limits.workspace_max(gpu))?;
    let shape_of = attention::Shape { heads, softmax_scale: 0.088_388_35 };
    let time = seconds(gpu, s, || {
        attention::cuda::forward(gpu, shape_of, &pages, &batch, q.view(), Out::F32(out.view()), workspace.view())
    })?;
    Ok((s.sequences * s.context * kv_heads * head_dim * 2 * dtype.bytes()) as f64 / time)
}
