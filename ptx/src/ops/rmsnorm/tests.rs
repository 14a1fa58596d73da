use super::cases::CASES;
use super::*;
use crate::ops::twins::{assert_close, assert_gradient, assert_same_bits, devices, normals, widen};

const EPS: f32 = 1e-6;
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Relative error of a strided sum of positive terms.
#[allow(clippy::cast_precision_loss)]
fn sum_error(dim: usize) -> f64 {
    (dim as f64 / 16.0 + 5.0) * UNIT
}

struct Data {
    x: Vec<f32>,
    gain: Vec<f32>,
    dy: Vec<f32>,
}

fn data(rows: usize, dim: usize) -> Data {
    Data { x: normals(1, rows * dim), gain: normals(2, dim), dy: normals(3, rows * dim) }
}

fn run_forward(cpu: &Cpu, dim: usize, data: &Data) -> (Vec<f32>, Vec<f32>) {
    let (mut y, mut inv) = (vec![f32::NAN; data.x.len()], vec![f32::NAN; data.x.len() / dim]);
    forward(cpu, dim, &data.x, &data.gain, EPS, &mut y, Some(&mut inv));
    (y, inv)
}

/// (dx, dgain), accumulated onto ones when asked, `dgain` always onto zeros.
fn run_backward(cpu: &Cpu, dim: usize, data: &Data, inv: &[f32], accumulate: bool) -> (Vec<f32>, Vec<f32>) {
    let mut dx = vec![if accumulate { 1.0 } else { f32::NAN }; data.x.len()];
    let mut dgain = vec![0.0; dim];
    backward(cpu, dim, &data.x, &data.gain, inv, &data.dy, &mut dx, accumulate, &mut dgain);
    (dx, dgain)
}

#[test]
fn forward_meets_the_truth() {
    let cpu = Cpu::new(2);
    for case in CASES {
        let data = data(case.rows, case.dim);
        let (y, inv) = run_forward(&cpu, case.dim, &data);
        let x = widen(&data.x);
        let want = naive::forward(case.dim, &x, &widen(&data.gain), f64::from(EPS));
        let want_inv = naive::inv_rms(case.dim, &x, f64::from(EPS));
        // Half the sum's error; mean, eps, root and reciprocal round once each; then two products.
        let relative = sum_error(case.dim) / 2.0 + 4.0 * UNIT;
        assert_close(&format!("{case:?}, inv_rms"), &inv, &want_inv, |i| relative * want_inv[i]);
        let what = format!("{case:?}, y");
        assert_close(&what, &y, &want, |i| (relative + 2.0 * UNIT) * want[i].abs() + 1e-44);
    }
}

#[test]
fn gradients_meet_the_truth_and_finite_differences() {
    let cpu = Cpu::new(2);
    for case in CASES {
        let (dim, data) = (case.dim, data(case.rows, case.dim));
        let (_, inv) = run_forward(&cpu, dim, &data);
        let (x, gain, dy) = (widen(&data.x), widen(&data.gain), widen(&data.dy));
        let (want_dx, want_dgain) = naive::backward(dim, &x, &gain, f64::from(EPS), &dy);
        let (dx, dgain) = run_backward(&cpu, dim, &data, &inv, false);
        // dx = inv (dy gain - unit mean), unit = x inv, mean over the row of dy gain unit: an absolute error of the
        // strided sum, relative to the mean of magnitudes, and a few roundings of either term.
        let relative = sum_error(dim) / 2.0 + 6.0 * UNIT;
        #[allow(clippy::cast_precision_loss)]
        let mean = |row: usize| {
            (0..dim).map(|j| (dy[row * dim + j] * gain[j] * x[row * dim + j] * inv[row] as f64).abs()).sum::<f64>()
                / dim as f64
        };
        let means: Vec<f64> = (0..case.rows).map(mean).collect();
        let bound = |i: usize| {
            let (row, inv) = (i / dim, f64::from(inv[i / dim]));
            let terms = (dy[i] * gain[i % dim]).abs() * relative
                + (x[i] * inv).abs() * means[row] * (sum_error(dim) + 2.0 * relative);
            inv * terms + 1e-44
        };
        assert_close(&format!("{case:?}, dx"), &dx, &want_dx, bound);
        // A chain of at most `rows` additions, of terms that are each as good as inv.
        let column = |j: usize| -> f64 {
            (0..case.rows).map(|r| (dy[r * dim + j] * x[r * dim + j] * f64::from(inv[r])).abs()).sum()
        };
        #[allow(clippy::cast_precision_loss)]
        let relative = relative + (case.rows as f64 + 3.0) * UNIT;
        assert_close(&format!("{case:?}, dgain"), &dgain, &want_dgain, |j| relative * column(j) + 1e-44);

        let (added, _) = run_backward(&cpu, dim, &data, &inv, true);
        let want: Vec<f32> = dx.iter().map(|g| 1.0 + g).collect();
        assert_same_bits(&format!("{case:?}, accumulated dx"), &added, &want);
    }
    let (rows, dim) = (3, 7);
    let data = data(rows, dim);
    let (x, gain, dy) = (widen(&data.x), widen(&data.gain), widen(&data.dy));
    let eps = 1e-2;
    let loss = |x: &[f64], gain: &[f64]| naive::forward(dim, x, gain, eps).iter().zip(&dy).map(|(y, d)| y * d).sum();
    let (dx, dgain) = naive::backward(dim, &x, &gain, eps, &dy);
    assert_gradient("dx", &dx, &x, |x| loss(x, &gain));
    assert_gradient("dgain", &dgain, &gain, |gain| loss(&x, gain));
}

#[test]
fn bits_do_not_depend_on_device_or_batch() {
    let devices = devices();
    for case in CASES {
        let (dim, data) = (case.dim, data(case.rows, case.dim));
        let (y, inv) = run_forward(&devices[0], dim, &data);
        let (dx, dgain) = run_backward(&devices[0], dim, &data, &inv, false);
        for cpu in &devices {
            let what = format!("{case:?} on {cpu}");
            let (y2, inv2) = run_forward(cpu, dim, &data);
            assert_same_bits(&format!("{what}, y"), &y2, &y);
            assert_same_bits(&format!("{what}, inv_rms"), &inv2, &inv);
            let mut in_place = data.x.clone();
            forward_in_place(cpu, dim, &mut in_place, &data.gain, EPS, None);
            assert_same_bits(&format!("{what}, in place"), &in_place, &y);
            let (dx2, dgain2) = run_backward(cpu, dim, &data, &inv, false);
            assert_same_bits(&format!("{what}, dx"), &dx2, &dx);
            assert_same_bits(&format!("{what}, dgain"), &dgain2, &dgain);
        }
        for row in [0, case.rows / 2, case.rows.saturating_sub(1)].into_iter().filter(|&r| r < case.rows) {
            let mut alone = vec![0.0; dim];
            forward(&devices[0], dim, &data.x[row * dim..][..dim], &data.gain, EPS, &mut alone, None);
            assert_same_bits(&format!("{case:?}, row {row} alone"), &alone, &y[row * dim..][..dim]);
        }
    }
}

/// The order contract written out again: later changes of the fast path may not change a bit.
#[test]
fn sums_are_strided_by_sixteen() {
    let x = normals(4, 1000);
    let mut sums = [0.0_f32; 16];
    x.iter().enumerate().for_each(|(j, &x)| sums[j % 16] = x.mul_add(x, sums[j % 16]));
    let inv = 1.0 / (crate::math::tree16(&sums) / 1000.0 + EPS).sqrt();
    let (mut y, mut got) = (vec![0.0; 1000], [0.0]);
    forward(&Cpu::new(1), 1000, &x, &vec![1.0; 1000], EPS, &mut y, Some(&mut got));
    assert_eq!(got[0].to_bits(), inv.to_bits());
}

#[test]
fn a_zero_row_stays_zero() {
    let (mut y, mut inv) = ([1.0_f32; 32], [0.0; 2]);
    forward(&Cpu::new(1), 16, &[0.0; 32], &[3.0; 16], EPS, &mut y, Some(&mut inv));
    assert!(y == [0.0; 32] && (inv[0] - 1000.0).abs() < 1e-3, "{y:?}, {inv:?}");
}

#[test]
#[should_panic(expected = "are no rows of")]
fn ragged_input_is_refused() {
    forward(&Cpu::new(1), 4, &[0.0; 6], &[1.0; 4], EPS, &mut [0.0; 6], None);
}
