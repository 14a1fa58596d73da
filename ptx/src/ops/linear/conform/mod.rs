//! The products on a device against the f64 truth, and against themselves with other rows around.

mod data;

use self::data::{FORMATS, Format, INPUTS, Rows, normals, pack, run, values, weights};
use super::cases::{CASES, Case};
use super::cuda::{Weights, part_len};
use super::{Packed, WeightScale, naive};
use crate::conformance::Outcome;
use crate::cuda::{CudaError, Gpu};
use crate::{DType, dtype};

/// 2^-24, half a last place of f32.
const EPS: f64 = 1.0 / 16_777_216.0;
/// Row counts around which another kernel runs.
const COUNTS: [usize; 8] = [1, 8, 9, 17, 33, 64, 65, 135];
/// One, three and all eight parts of k in the kernels of few rows, all eight in the others; and k that end where a
/// thread's eight values do.
const DEEP: [Case; 14] = [
    Case { m: 20, n: 70, k: 40 },
    Case { m: 3, n: 70, k: 72 },
    Case { m: 16, n: 70, k: 128 },
    Case { m: 30, n: 70, k: 128 },
    Case { m: 60, n: 70, k: 128 },
    Case { m: 16, n: 17, k: 384 },
    Case { m: 30, n: 17, k: 384 },
    Case { m: 60, n: 17, k: 384 },
    Case { m: 8, n: 17, k: 1024 },
    Case { m: 16, n: 17, k: 1024 },
    Case { m: 30, n: 17, k: 1024 },
    Case { m: 60, n: 17, k: 1024 },
    Case { m: 70, n: 17, k: 1024 },
    Case { m: 3, n: 17, k: 1021 },
];

/// Runs all checks of this op.
pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    // A scale for the whole matrix differs from scales by channel on the host alone: it takes turns with inputs.
    let rare = |i: usize, format: Format, input: DType| format.1 == WeightScale::Tensor && INPUTS[i % 2] == input;
    for (i, &case) in CASES.iter().chain(&DEEP).enumerate() {
        for format in FORMATS {
            for input in INPUTS {
                if rare(i, format, input) {
                    continue;
                }
                let what = format!("[{}, {}] x [{}, {}]", case.m, case.k, case.n, case.k);
                let found = against_truth(gpu, i, case, format, input)?;
                each(outcome(&what, format, input, found));
            }
        }
    }
    for format in FORMATS {
        for input in INPUTS {
            if format.1 != WeightScale::Tensor {
                // Five parts with a tail in the last; and rows that are read value by value.
                for (n, k) in [(40, 1040), (20, 77)] {
                    let found = same_bits(gpu, format, input, n, k)?;
                    each(outcome(&format!("rows alone and together, [{n}, {k}]"), format, input, found));
                }
            }
            each(outcome("sums that are exact", format, input, exact(gpu, format, input)?));
            each(outcome("every code", format, input, every_code(gpu, format, input)?));
            each(outcome("what is not finite", format, input, not_finite(gpu, format, input)?));
        }
        each(outcome("stacked, and put in place anew", format, DType::Bf16, stacked(gpu, format)?));
    }
    Ok(())
}

/// The largest error as a share of what is allowed, or what is wrong.
type Found = Result<f64, String>;

fn outcome(what: &str, format: Format, input: DType, found: Found) -> Outcome {
    let scale = if format.0 == DType::E4m3 { format!(" by {:?}", format.1).to_lowercase() } else { String::new() };
    let case = format!("{what}: weights {}{scale}, inputs {input}", format.0);
    let (worst, failure) = match found {
        Ok(worst) => (worst, None),
        Err(failure) => (f64::INFINITY, Some(failure)),
    };
    Outcome { op: "linear", case, worst, failure }
}

/// How far a device may be off, as a share of the sum of magnitudes of all that is added.
///
/// A matrix instruction adds d products and what was there: hardware may align them to the largest and cut what is below
/// the last place kept, so each of d + 1 addends and the result may lose one such place of the sum of magnitudes. f32
/// sums keep 24 bits, e4m3 sums on hardware about 13. Then there are the roundings of chains into parts, of parts into
/// the sum, and of scales, bias and y.
#[allow(clippy::cast_precision_loss)] // small counts
fn allowed(gpu: &Gpu, format: Format, input: DType, k: usize) -> f64 {
    let both = format.0 == DType::E4m3 && input == DType::E4m3;
    let chained = both || format == (DType::E4m3, WeightScale::Block128);
    let part = k.min(part_len(k));
    let chain = if chained { part.min(128) } else { part };
    let (depth, place) = if both && gpu.has_fp8() { (32, 1.0 / 4096.0) } else { (16, 2.0 * EPS) };
    let instructions = chain.div_ceil(depth) as f64 * (depth as f64 + 2.0) * place;
    let roundings = (part.div_ceil(chain) + k.div_ceil(part) + 8) as f64 * EPS;
    instructions + roundings
}

#[allow(clippy::cast_possible_truncation)] // biases are f32
fn against_truth(gpu: &Gpu, i: usize, case: Case, format: Format, input: DType) -> Result<Found, CudaError> {
    let Case { m, n, k } = case;
    let packed = pack(format, n, k, &weights(n, k));
    let bias = (i % 2 == 1).then(|| normals(3, n));
    let before = (i / 2 % 2 == 1).then(|| normals(4, m * n));
    let w = Weights::new(gpu, &[&packed], bias.as_deref().map(|bias| [bias]).as_ref().map(|b| &b[..]))?;
    let x = Rows::normal(input, m, k);
    let y = match run(gpu, &x, &w, before.as_deref())? {
        Ok(y) => y,
        Err(failure) => return Ok(Err(failure)),
    };
    let (x, w) = (x.values(k), values(&packed));
    let add = |y: &mut [f64], magnitude: bool| {
        for (y, before) in y.iter_mut().zip(before.iter().flatten()) {
            *y += f64::from(if magnitude { before.abs() } else { *before });
        }
    };
    let magnitudes = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let bias: Option<Vec<f64>> = bias.map(|bias| bias.iter().map(|&b| f64::from(b)).collect());
    let mut want = naive::forward(m, n, k, &x, &w, bias.as_deref());
    add(&mut want, false);
    let bias = bias.map(|bias| magnitudes(&bias));
    let mut size = naive::forward(m, n, k, &magnitudes(&x), &magnitudes(&w), bias.as_deref());
    add(&mut size, true);
    let allowed = allowed(gpu, format, input, k);
    let mut worst = (0.0, 0);
    for i in 0..want.len() {
        let share = (f64::from(y[i]) - want[i]).abs() / (allowed * size[i] + f64::from(f32::MIN_POSITIVE));
        if share > worst.0 || share.is_nan() {
            worst = (share, i);
        }
    }
    let (share, i) = worst;
    Ok(if share <= 1.0 {
        Ok(share)
    } else {
        let (row, output) = (i / n, i % n);
        Err(format!("row {row}, output {output}: {:e}, want {:e}, {share} of what is allowed", y[i], want[i]))
    })
}

/// A row gives the same bits alone, among others and at other places.
fn same_bits(gpu: &Gpu, format: Format, input: DType, n: usize, k: usize) -> Result<Found, CudaError> {
    let bias = normals(3, n);
    let w = Weights::new(gpu, &[&pack(format, n, k, &weights(n, k))], Some(&[&bias]))?;
    let most = COUNTS[COUNTS.len() - 1];
    let x = Rows::normal(input, most, k);
    let before = normals(4, most * n);
    let all = match run(gpu, &x, &w, Some(&before))? {
        Ok(all) => all,
        Err(failure) => return Ok(Err(failure)),
    };
    if all.iter().any(|y| !y.is_finite()) {
        return Ok(Err("what should be finite is not".into()));
    }
    // Counts from the first row on; then 65 others backwards, and the last alone.
    let counts = COUNTS.map(|count| (0..count).collect::<Vec<_>>());
    for rows in counts.into_iter().chain([(60..125).rev().collect(), vec![most - 1]]) {
        let before: Vec<f32> = rows.iter().flat_map(|row| before[row * n..][..n].iter().copied()).collect();
        let some = match run(gpu, &x.pick(k, &rows), &w, Some(&before))? {
            Ok(some) => some,
            Err(failure) => return Ok(Err(failure)),
        };
        for (i, y) in some.iter().enumerate() {
            let want = all[rows[i / n] * n + i % n];
            if y.to_bits() != want.to_bits() {
                let (row, output) = (rows[i / n], i % n);
                return Ok(Err(format!(
                    "row {row}, output {output}: {y:e} among {} rows, {want:e} among {most}",
                    rows.len()
                )));
            }
        }
    }
    Ok(Ok(0.0))
}

/// Compares y with what it is exactly.
fn exactly(y: Result<Vec<f32>, String>, want: &[f64]) -> Found {
    let y = y?;
    match (0..want.len()).find(|&i| f64::from(y[i]) != want[i]) {
        Some(i) => Err(format!("element {i} is {:e}, exactly it is {:e}", y[i], want[i])),
        None => Ok(0.0),
    }
}

/// Small powers of two, whose sums any hardware forms exactly: what goes wrong here is not a rounding.
fn exact(gpu: &Gpu, format: Format, input: DType) -> Result<Found, CudaError> {
    let (m, n, k) = (70, 150, 400);
    let of = |from: &[f32], index: u64, len: usize| -> Vec<f32> {
        normals(index, len).iter().map(|x| from[(x.to_bits() >> 8) as usize % from.len()]).collect()
    };
    // 3.5 = 448 / 128 in every block makes each scale 2^-7, and meets a zero of x.
    let mut w = of(&[0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0], 5, n * k);
    let mut x = of(&[0.0, 1.0, -1.0, 2.0, -2.0], 6, m * k);
    w.iter_mut().enumerate().filter(|(i, _)| i % k % 128 == 0).for_each(|(_, w)| *w = 3.5);
    x.iter_mut().enumerate().filter(|(i, _)| i % k % 128 == 0).for_each(|(_, x)| *x = 0.0);
    let packed = pack(format, n, k, &w);
    let device = Weights::new(gpu, &[&packed], None)?;
    let x = Rows::of(input, k, &x);
    let want = naive::forward(m, n, k, &x.values(k), &values(&packed), None);
    // Few rows and many.
    for rows in [5, 20, m] {
        let found = exactly(run(gpu, &x.pick(k, &(0..rows).collect::<Vec<_>>()), &device, None)?, &want[..rows * n]);
        if found.is_err() {
            return Ok(found);
        }
    }
    Ok(Ok(0.0))
}

/// The 254 finite codes as weights, then as inputs: each meets a single 1, so y is the value.
fn every_code(gpu: &Gpu, format: Format, input: DType) -> Result<Found, CudaError> {
    let codes: Vec<f32> = (0..=u8::MAX).filter(|c| c & 0x7f != 0x7f).map(dtype::e4m3_to_f32).collect();
    let (count, k, ones) = (codes.len(), 32, 8);
    // 448 in every row makes each scale 1.
    let at = |i: usize| if i.is_multiple_of(k) { 448.0 } else { codes[(i / k + i % k) % count] };
    let rows: Vec<f32> = (0..count * k).map(at).collect();
    let units: Vec<f32> = (0..ones * k).map(|i| f32::from(u8::from(i % k == i / k + 1))).collect();
    let value = |row: usize, one: usize| f64::from(codes[(row + one + 1) % count]);

    let w = Weights::new(gpu, &[&pack(format, count, k, &rows)], None)?;
    let want: Vec<f64> = (0..ones * count).map(|i| value(i % count, i / count)).collect();
    let found = exactly(run(gpu, &Rows::of(input, k, &units), &w, None)?, &want);
    if found.is_err() {
        return Ok(found);
    }
    // A unit alone has a scale that rounds; 448 beside it makes that 1, and meets a zero of x.
    let last = |i: usize| i % k == k - 1;
    let units: Vec<f32> = units.iter().enumerate().map(|(i, &u)| if last(i) { 448.0 } else { u }).collect();
    let rows: Vec<f32> = rows.iter().enumerate().map(|(i, &v)| if last(i) { 0.0 } else { v }).collect();
    let w = Weights::new(gpu, &[&pack(format, ones, k, &units)], None)?;
    let want: Vec<f64> = (0..count * ones).map(|i| value(i / ones, i % ones)).collect();
    Ok(exactly(run(gpu, &Rows::of(input, k, &rows), &w, None)?, &want))
}

/// A value that is not finite makes NaN of what its scale covers, and of nothing beside.
fn not_finite(gpu: &Gpu, format: Format, input: DType) -> Result<Found, CudaError> {
    let (n, k) = (150, 144);
    let (bad_output, bad_row) = (130, 2);
    let mut w = weights(n, k);
    w[bad_output * k + 5] = f32::INFINITY;
    let device = Weights::new(gpu, &[&pack(format, n, k, &w)], None)?;
    let mut x = normals(2, 70 * k);
    x[bad_row * k + 7] = f32::NAN;
    let is_hit = |output: usize| match format {
        (DType::E4m3, WeightScale::Tensor) => true,
        (DType::E4m3, WeightScale::Block128) => output / 128 == bad_output / 128,
        _ => output == bad_output,
    };
    for rows in [3, 70] {
        let x = Rows::of(input, k, &x[..rows * k]);
        let y = match run(gpu, &x, &device, None)? {
            Ok(y) => y,
            Err(failure) => return Ok(Err(failure)),
        };
        for (i, y) in y.iter().enumerate() {
            // bf16 weights keep the infinity.
            if y.is_finite() == (is_hit(i % n) || i / n == bad_row) {
                return Ok(Err(format!("row {}, output {} among {rows} rows: {y}", i / n, i % n)));
            }
        }
    }
    Ok(Ok(0.0))
}

/// Matrices stacked give the bits that each gives alone, before and after other values have taken their places.
fn stacked(gpu: &Gpu, format: Format) -> Result<Found, CudaError> {
    let (k, outputs) = (176, [144, 16, 21]);
    let n: usize = outputs.iter().sum();
    let matrices = |seed: f32| -> Vec<Packed> {
        let scaled = |n: usize, size: f32| weights(n, k).iter().map(|w| w * size).collect::<Vec<_>>();
        outputs.iter().zip([seed, 2.0, -0.7]).map(|(&n, size)| pack(format, n, k, &scaled(n, size))).collect()
    };
    let biases = [(5, outputs[0]), (6, outputs[1]), (7, outputs[2])].map(|(seed, n)| normals(seed, n));
    let biases: Vec<&[f32]> = biases.iter().map(|bias| &bias[..]).collect();
    let x = Rows::normal(DType::Bf16, 11, k);
    let mut together: Option<Weights> = None;
    for seed in [1.0, 3.0] {
        let packed = matrices(seed);
        let all: Vec<&Packed> = packed.iter().collect();
        match &together {
            Some(together) => together.update(gpu, &all, Some(&biases))?,
            None => together = Some(Weights::new(gpu, &all, Some(&biases))?),
        }
        let stack = together.as_ref().expect("it was just made");
        let bytes: usize = Weights::sizes_for(format.0, format.1, &outputs, k, true).iter().sum();
        if stack.bytes() != bytes || stack.n() != n {
            return Ok(Err(format!("{} bytes for {} outputs, {bytes} were foretold", stack.bytes(), stack.n())));
        }
        let y = match run(gpu, &x, stack, None)? {
            Ok(y) => y,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut first = 0;
        for (i, w) in all.iter().enumerate() {
            let alone = match run(gpu, &x, &Weights::new(gpu, &[w], Some(&biases[i..=i]))?, None)? {
                Ok(alone) => alone,
                Err(failure) => return Ok(Err(failure)),
            };
            for (at, alone) in alone.iter().enumerate() {
                let (row, output) = (at / w.n(), at % w.n());
                let y = y[row * n + first + output];
                if y.to_bits() != alone.to_bits() {
                    return Ok(Err(format!("matrix {i}, row {row}, output {output}: {y:e}, alone {alone:e}")));
                }
            }
            first += w.n();
        }
    }
    Ok(Ok(0.0))
}
