use super::cases::{CASES, Case};
use super::*;
use crate::ops::twins::{assert_close, assert_gradient, assert_same_bits, devices, normals, widen};

const UNIT: f64 = f32::EPSILON as f64 / 2.0;
const FACTOR: f32 = 1.25;

/// Positions from 0 to beyond 100,000, and the usual frequencies.
fn angles(case: &Case) -> (Vec<u32>, Vec<f32>) {
    #[allow(clippy::cast_possible_truncation)]
    let positions = (0..case.tokens as u32).map(|t| t * 997 % 131_072).collect();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let inv_freq =
        (0..case.head_dim / 2).map(|i| 1e6_f64.powf(-2.0 * i as f64 / case.head_dim as f64) as f32).collect();
    (positions, inv_freq)
}

fn run_tables(cpu: &Cpu, case: &Case) -> (Vec<f32>, Vec<f32>) {
    let (positions, inv_freq) = angles(case);
    let len = positions.len() * inv_freq.len();
    let (mut cos, mut sin) = (vec![f32::NAN; len], vec![f32::NAN; len]);
    tables(cpu, &positions, &inv_freq, FACTOR, &mut cos, &mut sin);
    (cos, sin)
}

/// The angles as the contract defines them: one f32 product.
#[allow(clippy::cast_precision_loss)]
fn true_angles(case: &Case) -> Vec<f64> {
    let (positions, inv_freq) = angles(case);
    positions.iter().flat_map(|&p| inv_freq.iter().map(move |f| f64::from(p as f32 * f))).collect()
}

#[test]
fn both_directions_meet_the_truth() {
    let cpu = Cpu::new(2);
    for case in CASES {
        let (heads, dim) = (case.heads, case.head_dim);
        let (cos, sin) = run_tables(&cpu, case);
        let angles = true_angles(case);
        let factor = f64::from(FACTOR);
        // sin_cos is off by at most 1e-7; the product with the factor rounds once.
        let bound = factor * (1e-7 + UNIT);
        let want: Vec<f64> = angles.iter().map(|a| a.cos() * factor).collect();
        assert_close(&format!("{case:?}, cos"), &cos, &want, |_| bound);
        let want: Vec<f64> = angles.iter().map(|a| a.sin() * factor).collect();
        assert_close(&format!("{case:?}, sin"), &sin, &want, |_| bound);

        let x = normals(1, case.tokens * heads * dim);
        // Two products of |x| below 6 with such a table value, and two roundings.
        let bound = 2.0 * 6.0 * (bound + 2.0 * UNIT * factor);
        let mut y = x.clone();
        forward(&cpu, heads, dim, &mut y, &cos, &sin);
        let want = naive::forward(heads, dim, &widen(&x), &angles, factor);
        assert_close(&format!("{case:?}, forward"), &y, &want, |_| bound);
        let mut dx = x.clone();
        backward(&cpu, heads, dim, &mut dx, &cos, &sin);
        let want = naive::backward(heads, dim, &widen(&x), &angles, factor);
        assert_close(&format!("{case:?}, backward"), &dx, &want, |_| bound);
    }
}

#[test]
fn the_gradient_meets_finite_differences() {
    let case = Case { tokens: 3, heads: 2, head_dim: 6 };
    let angles = true_angles(&case);
    let (x, dy) = (widen(&normals(2, 36)), widen(&normals(3, 36)));
    let loss = |x: &[f64]| naive::forward(2, 6, x, &angles, 1.25).iter().zip(&dy).map(|(y, d)| y * d).sum();
    assert_gradient("dx", &naive::backward(2, 6, &dy, &angles, 1.25), &x, loss);
}

#[test]
fn bits_do_not_depend_on_device_or_batch() {
    let devices = devices();
    for case in CASES {
        let (heads, dim) = (case.heads, case.head_dim);
        let (cos, sin) = run_tables(&devices[0], case);
        let x = normals(4, case.tokens * heads * dim);
        let run = |cpu: &Cpu| {
            let (mut y, mut dx) = (x.clone(), x.clone());
            forward(cpu, heads, dim, &mut y, &cos, &sin);
            backward(cpu, heads, dim, &mut dx, &cos, &sin);
            (y, dx)
        };
        let (y, dx) = run(&devices[0]);
        for cpu in &devices {
            let what = format!("{case:?} on {cpu}");
            let (cos2, sin2) = run_tables(cpu, case);
            assert_same_bits(&format!("{what}, cos"), &cos2, &cos);
            assert_same_bits(&format!("{what}, sin"), &sin2, &sin);
            let (y2, dx2) = run(cpu);
            assert_same_bits(&format!("{what}, forward"), &y2, &y);
            assert_same_bits(&format!("{what}, backward"), &dx2, &dx);
        }
        if let Some(last) = case.tokens.checked_sub(1) {
            let (width, half) = (heads * dim, dim / 2);
            let mut alone = x[last * width..].to_vec();
            forward(&devices[0], heads, dim, &mut alone, &cos[last * half..], &sin[last * half..]);
            assert_same_bits(&format!("{case:?}, last token alone"), &alone, &y[last * width..]);
        }
    }
}

/// A head of four at angles of a quarter and a half turn pairs 0 with 2 and 1 with 3.
#[test]
fn halves_are_rotated_not_neighbours() {
    let mut x = [1.0, 2.0, 3.0, 4.0];
    forward(&Cpu::new(1), 1, 4, &mut x, &[0.0, -1.0], &[1.0, 0.0]);
    assert_eq!(x, [-3.0, -2.0, 1.0, -4.0]);
}

#[test]
#[should_panic(expected = "has no pairs")]
fn an_odd_head_is_refused() {
    forward(&Cpu::new(1), 1, 3, &mut [0.0; 3], &[], &[]);
}

#[test]
#[should_panic(expected = "position 16777217 is beyond")]
fn a_position_that_f32_cannot_count_is_refused() {
    tables(&Cpu::new(1), &[16_777_217], &[1.0], 1.0, &mut [0.0], &mut [0.0]);
}
