//! Seeded inputs and weights of the device checks, and launches whose surroundings are watched.

use crate::cuda::{CudaError, Gpu, Mem};
use crate::ops::linear::cuda::{Epilogue, Input, Weights, forward};
use crate::ops::linear::{Packed, WeightScale, amax};
use crate::ops::round;
use crate::rng::{Purpose, Stream};
use crate::{Cpu, DType, dtype};

/// Weights' formats.
pub(super) type Format = (DType, WeightScale);

/// All that have kernels; a scale is ignored but for e4m3.
pub(super) const FORMATS: [Format; 4] = [
    (DType::Bf16, WeightScale::Channel),
    (DType::E4m3, WeightScale::Tensor),
    (DType::E4m3, WeightScale::Channel),
    (DType::E4m3, WeightScale::Block128),
];
/// Formats of x.
pub(super) const INPUTS: [DType; 2] = [DType::Bf16, DType::E4m3];

/// What stands around and between the rows of y, and must stay: not a number that anything computes.
const GUARD: u32 = 0xdead_beef;
const GAP: usize = 3;

pub(super) fn normals(index: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(17, Purpose::Test, index);
    (0..len).map(|_| stream.normal()).collect()
}

/// Weights whose rows have very different magnitudes, every fifth of zeros.
pub(super) fn weights(n: usize, k: usize) -> Vec<f32> {
    let mut w = normals(1, n * k);
    for (row, w) in w.chunks_exact_mut(k).enumerate() {
        let size = [0.02, 1.0, 30.0, 0.0, 1e-3][row % 5];
        w.iter_mut().for_each(|w| *w *= size);
    }
    w
}

pub(super) fn pack(format: Format, n: usize, k: usize, source: &[f32]) -> Packed {
    let cpu = Cpu::new(1);
    let mut w = Packed::new(format.0, format.1, n, k);
    if w.granularity() == Some(WeightScale::Tensor) {
        w.set_amax(amax(&cpu, source));
    }
    w.set_rows(&cpu, 0, source);
    w
}

/// The values of a matrix, not rounded: code x scale in f64.
pub(super) fn values(w: &Packed) -> Vec<f64> {
    let (n, k) = (w.n(), w.k());
    let mut row = vec![0.0; k];
    let mut all = Vec::with_capacity(n * k);
    for r in 0..n {
        w.row(r, &mut row);
        // A code has 4 bits, so code x scale rounded to f32 leads back to the code.
        for (c, &v) in row.iter().enumerate() {
            let scale = match (w.granularity(), w.scales()) {
                (Some(WeightScale::Tensor), Some(s)) => s[0],
                (Some(WeightScale::Channel), Some(s)) => s[r],
                (Some(WeightScale::Block128), Some(s)) => s[r / 128 * k.div_ceil(128) + c / 128],
                _ => 1.0,
            };
            let code = if scale == 1.0 { v } else { dtype::e4m3_to_f32(dtype::e4m3_from_f32(v / scale)) };
            all.push(f64::from(code) * f64::from(scale));
        }
    }
    all
}

/// Rows of x on the host, in the format in which a kernel takes them.
#[derive(Clone)]
pub(super) enum Rows {
    Bf16(Vec<u16>),
    E4m3 { codes: Vec<u8>, scales: Vec<f32> },
}

impl Rows {
    pub(super) fn of(input: DType, k: usize, x: &[f32]) -> Rows {
        if input == DType::Bf16 {
            return Rows::Bf16(x.iter().map(|&x| dtype::bf16_from_f32(x)).collect());
        }
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / k]);
        round::e4m3_rows(&Cpu::new(1), k, x, &mut codes, &mut scales);
        Rows::E4m3 { codes, scales }
    }

    /// Normal rows of different magnitudes, every seventh of zeros.
    pub(super) fn normal(input: DType, rows: usize, k: usize) -> Rows {
        let mut x = normals(2, rows * k);
        for (row, x) in x.chunks_exact_mut(k).enumerate() {
            let size = [1.0, 1e-4, 300.0, 1.0, 0.3, 1.0, 0.0][row % 7];
            x.iter_mut().for_each(|x| *x *= size);
        }
        Rows::of(input, k, &x)
    }

    /// Some of the rows, in this order.
    pub(super) fn pick(&self, k: usize, rows: &[usize]) -> Rows {
        fn of<T: Copy>(all: &[T], k: usize, rows: &[usize]) -> Vec<T> {
            rows.iter().flat_map(|row| all[row * k..][..k].iter().copied()).collect()
        }
        match self {
            Rows::Bf16(x) => Rows::Bf16(of(x, k, rows)),
            Rows::E4m3 { codes, scales } => Rows::E4m3 { codes: of(codes, k, rows), scales: of(scales, 1, rows) },
        }
    }

    pub(super) fn count(&self, k: usize) -> usize {
        match self {
            Rows::Bf16(x) => x.len() / k,
            Rows::E4m3 { scales, .. } => scales.len(),
        }
    }

    pub(super) fn values(&self, k: usize) -> Vec<f64> {
        match self {
            Rows::Bf16(x) => x.iter().map(|&x| f64::from(dtype::bf16_to_f32(x))).collect(),
            Rows::E4m3 { codes, scales } => {
                let value = |(i, &c): (usize, &u8)| f64::from(dtype::e4m3_to_f32(c)) * f64::from(scales[i / k]);
                codes.iter().enumerate().map(value).collect()
            }
        }
    }

    fn upload(&self, gpu: &Gpu) -> Result<DeviceRows, CudaError> {
        Ok(match self {
            Rows::Bf16(x) => DeviceRows::Bf16(gpu.upload(x)?),
            Rows::E4m3 { codes, scales } => DeviceRows::E4m3 { codes: gpu.upload(codes)?, scales: gpu.upload(scales)? },
        })
    }
}

enum DeviceRows {
    Bf16(Mem<u16>),
    E4m3 { codes: Mem<u8>, scales: Mem<f32> },
}

/// y `[rows, n]` of one launch. `before`, `[rows, n]`, is what y holds and is added to; without it y is written.
///
/// The inner error says where something else than y was written.
pub(super) fn run(
    gpu: &Gpu,
    x: &Rows,
    w: &Weights,
    before: Option<&[f32]>,
) -> Result<Result<Vec<f32>, String>, CudaError> {
    let (n, rows) = (w.n(), x.count(w.k()));
    let stride = n + GAP;
    let mut bits = vec![GUARD; (rows + 1) * stride];
    if let Some(before) = before {
        for (to, from) in bits.chunks_exact_mut(stride).zip(before.chunks_exact(n)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_bits());
        }
    }
    let y = gpu.upload::<f32>(bytemuck::cast_slice(&bits))?;
    let x = x.upload(gpu)?;
    let input = match &x {
        DeviceRows::Bf16(x) => Input::Bf16(x.view()),
        DeviceRows::E4m3 { codes, scales } => Input::E4m3 { codes: codes.view(), scales: scales.view() },
    };
    let epilogue = if before.is_some() { Epilogue::Add } else { Epilogue::Write };
    forward(gpu, rows, input, w, y.view(), stride, epilogue)?;
    gpu.read(y.view(), bytemuck::cast_slice_mut::<u32, f32>(&mut bits))?;
    let is_y = |i: usize| i / stride < rows && i % stride < n;
    if let Some(i) = (0..bits.len()).find(|&i| !is_y(i) && bits[i] != GUARD) {
        return Ok(Err(format!("wrote {:#x} beside y, at row {} column {}", bits[i], i / stride, i % stride)));
    }
    Ok(Ok((0..bits.len()).filter(|&i| is_y(i)).map(|i| f32::from_bits(bits[i])).collect()))
}
