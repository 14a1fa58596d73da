//! Seeded matrices in every format, and what they are compared by.

mod activations;
mod forward;
mod gradient;
mod packing;
mod parts;
mod tiles;

use super::cases::{CASES, Case};
use super::*;
use crate::rng::{Purpose, Stream};
use crate::{Isa, dtype};

type Format = (DType, WeightScale);

/// Every format; but for e4m3 the scale is ignored.
const FORMATS: [Format; 5] = [
    (DType::F32, WeightScale::Block128),
    (DType::Bf16, WeightScale::Channel),
    (DType::E4m3, WeightScale::Tensor),
    (DType::E4m3, WeightScale::Channel),
    (DType::E4m3, WeightScale::Block128),
];
const EPS: f64 = 1.0 / 16_777_216.0; // 2^-24, half a last place

fn normal(index: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(11, Purpose::Test, index);
    (0..len).map(|_| stream.normal()).collect()
}

/// Weights whose rows have very different magnitudes, every fifth of zeros, and a block of zeros where there is a second.
fn weights(n: usize, k: usize) -> Vec<f32> {
    let mut w = normal(1, n * k);
    for (row, w) in w.chunks_exact_mut(k).enumerate() {
        let size = [0.02, 1.0, 30.0, 0.0, 1e-3][row % 5];
        w.iter_mut().for_each(|w| *w *= size);
        if (128..256).contains(&row) {
            w[..k.min(128)].fill(0.0);
        }
    }
    w
}

/// A matrix of `source`, `[n, k]`.
fn pack(cpu: &Cpu, format: Format, n: usize, k: usize, source: &[f32]) -> Packed {
    let mut w = Packed::new(format.0, format.1, n, k);
    if w.granularity() == Some(WeightScale::Tensor) {
        w.set_amax(amax(cpu, source));
    }
    w.set_rows(cpu, 0, source);
    w
}

fn packed(format: Format, n: usize, k: usize) -> Packed {
    pack(&Cpu::with_isa(1, Isa::Portable), format, n, k, &weights(n, k))
}

/// The scale of every element by its definition, `[n, k]`: amax / 448 of what shares it.
fn scales(format: Format, n: usize, k: usize, source: &[f32]) -> Vec<f32> {
    let (high, wide) = match format {
        (DType::E4m3, WeightScale::Tensor) => (n, k),
        (DType::E4m3, WeightScale::Channel) => (1, k),
        (DType::E4m3, WeightScale::Block128) => (128, 128),
        _ => return vec![1.0; n * k],
    };
    let mut scales = vec![f32::NAN; n * k];
    for top in (0..n).step_by(high) {
        for left in (0..k).step_by(wide) {
            let right = k.min(left + wide);
            let each = || (top..n.min(top + high)).flat_map(|o| o * k + left..o * k + right);
            let amax = each().fold(0.0_f32, |amax, i| amax.max(source[i].abs()));
            each().for_each(|i| scales[i] = if amax == 0.0 { 1.0 } else { amax / 448.0 });
        }
    }
    scales
}

/// The value of the code of `x`.
fn code(format: Format, x: f32, scale: f32) -> f32 {
    match format.0 {
        DType::F32 => x,
        DType::Bf16 => dtype::round_bf16(x),
        _ => dtype::e4m3_to_f32(dtype::e4m3_from_f32(x / scale)),
    }
}

fn rows(w: &Packed) -> Vec<f32> {
    let mut all = vec![0.0; w.n() * w.k()];
    all.chunks_exact_mut(w.k()).enumerate().for_each(|(i, row)| w.row(i, row));
    all
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn run(cpu: &Cpu, m: usize, x: &[f32], w: &Packed, bias: Option<&[f32]>) -> Vec<f32> {
    let mut y = vec![f32::NAN; m * w.n()];
    forward(cpu, m, x, &mut [Job { w, bias, y: &mut y }]);
    y
}

fn devices() -> Vec<Cpu> {
    Isa::available().into_iter().flat_map(|isa| [1, 2, 3].map(|threads| Cpu::with_isa(threads, isa))).collect()
}

/// A chain of `depth` fused steps errs by at most gamma(depth) times the sum of magnitudes; each later rounding (scale,
/// bias, what it was added to) by one more EPS of what it rounds, which `size` includes.
#[allow(clippy::cast_precision_loss)]
fn close(what: &str, got: &[f32], want: &[f64], size: &[f64], depth: usize) {
    let n = depth as f64 + 3.0;
    let gamma = n * EPS / (1.0 - n * EPS);
    let mut worst = (0.0, 0);
    for i in 0..want.len() {
        let error = (f64::from(got[i]) - want[i]).abs() / (gamma * size[i] + f64::from(f32::MIN_POSITIVE));
        if error > worst.0 || error.is_nan() {
            worst = (error, i);
        }
    }
    let (error, i) = worst;
    assert!(error <= 1.0, "{what}: element {i}: got {}, want {}, {error} of the bound", got[i], want[i]);
}

#[test]
fn nothing_to_do() {
    let cpu = Cpu::new(2);
    let w = packed(FORMATS[1], 5, 7);
    forward(&cpu, 0, &[], &mut [Job { w: &w, bias: None, y: &mut [] }]);
    forward(&cpu, 3, &[], &mut []);
    let (mut dw, mut db) = ([1.0; 35], [2.0; 5]);
    backward_input(&cpu, 0, &[], &w, &mut [], false);
    backward_weight(&cpu, 0, 5, 7, &[], &[], &mut dw);
    backward_bias(&cpu, 0, 5, &[], &mut db);
    assert!(dw == [1.0; 35] && db == [2.0; 5]);
}

#[test]
#[should_panic(expected = "job 0: y is not [2, 5]")]
fn a_wrong_shape_is_refused() {
    let w = packed(FORMATS[0], 5, 7);
    forward(&Cpu::new(1), 2, &[0.0; 14], &mut [Job { w: &w, bias: None, y: &mut [0.0; 5] }]);
}
