//! 8-bit inputs give the bits of the values they stand for.

use super::*;
use crate::ops::round;

/// Rows of very different magnitudes as codes and scales, and the values that these stand for.
fn inputs(m: usize, k: usize) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let mut x = normal(30, m * k);
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        let size = [1.0, 1e-6, 0.0, 3e4][row % 4];
        x.iter_mut().for_each(|x| *x *= size);
    }
    let (mut codes, mut scales) = (vec![0; m * k], vec![0.0; m]);
    round::e4m3_rows(&Cpu::new(1), k, &x, &mut codes, &mut scales);
    let values = codes.iter().enumerate().map(|(i, &c)| dtype::e4m3_to_f32(c) * scales[i / k]).collect();
    (codes, scales, values)
}

fn run_e4m3(cpu: &Cpu, codes: &[u8], scales: &[f32], w: &Packed, bias: Option<&[f32]>) -> Vec<f32> {
    let m = scales.len();
    let mut y = vec![f32::NAN; m * w.n()];
    forward_e4m3(cpu, m, Codes8 { codes, scales }, &mut [Job { w, bias, y: &mut y }]);
    y
}

#[test]
fn codes_give_the_bits_of_their_values() {
    for (n, k, counts) in [(45, 301, &[1, 2, 8, 24, 25, 40][..]), (131, 130, &[1, 7, 26]), (1, 1, &[1, 65])] {
        let bias = normal(31, n);
        for format in FORMATS {
            let w = packed(format, n, k);
            for &m in counts {
                let (codes, scales, values) = inputs(m, k);
                for cpu in devices() {
                    let want = run(&cpu, m, &values, &w, Some(&bias));
                    let got = run_e4m3(&cpu, &codes, &scales, &w, Some(&bias));
                    assert!(bits(&got) == bits(&want), "{format:?} {m} {n} {k} on {cpu}");
                }
            }
        }
    }
}

#[test]
fn jobs_of_all_formats_share_the_codes() {
    let (m, k) = (9, 140);
    let (codes, scales, _) = inputs(m, k);
    let ws = FORMATS.map(|format| packed(format, 70, k));
    for cpu in devices() {
        let mut ys = ws.each_ref().map(|w| vec![f32::NAN; m * w.n()]);
        let mut jobs: Vec<Job<'_>> = ws.iter().zip(&mut ys).map(|(w, y)| Job { w, bias: None, y }).collect();
        forward_e4m3(&cpu, m, Codes8 { codes: &codes, scales: &scales }, &mut jobs);
        for (w, y) in ws.iter().zip(&ys) {
            assert!(bits(y) == bits(&run_e4m3(&cpu, &codes, &scales, w, None)), "{w:?} on {cpu}");
        }
    }
}

/// From the least scale to large ones, every input code times every weight code is exact, factors of 256 or not.
#[test]
fn every_pair_of_codes_is_multiplied_exactly() {
    let codes: Vec<u8> = (0..=u8::MAX).filter(|c| c & 0x7f != 0x7f).collect();
    let values: Vec<f32> = codes.iter().flat_map(|&c| [dtype::e4m3_to_f32(c), 448.0]).collect();
    let x: Vec<u8> = codes.iter().flat_map(|&c| [c, 0]).collect();
    for cpu in devices() {
        for format in &FORMATS[2..] {
            let w = pack(&cpu, *format, codes.len(), 2, &values);
            for scale in [f32::MIN_POSITIVE, 0.25, 2.0_f32.powi(110)] {
                for rows in [1, 2, 12, codes.len()] {
                    let y = run_e4m3(&cpu, &x[..2 * rows], &vec![scale; rows], &w, None);
                    for (i, y) in y.iter().enumerate() {
                        let (a, b) = (codes[i / codes.len()], codes[i % codes.len()]);
                        let want =
                            f64::from(dtype::e4m3_to_f32(a)) * f64::from(dtype::e4m3_to_f32(b)) * f64::from(scale);
                        assert!(
                            f64::from(*y) == want,
                            "{a:#x} x {scale:e} times {b:#x} is {y:e}, want {want:e} on {cpu}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_cannot_pass_unnoticed() {
    let (n, k) = (5, 40);
    for bad in [f32::NAN, f32::INFINITY] {
        for m in [3, 30] {
            let mut x = vec![1.0; m * k];
            x[k + 7] = bad;
            let (mut codes, mut scales) = (vec![0; m * k], vec![0.0; m]);
            round::e4m3_rows(&Cpu::new(1), k, &x, &mut codes, &mut scales);
            for (format, cpu) in FORMATS.iter().zip(devices().iter().cycle().skip(2)) {
                let y = run_e4m3(cpu, &codes, &scales, &packed(*format, n, k), None);
                for (row, y) in y.chunks_exact(n).enumerate() {
                    assert!(y.iter().all(|y| y.is_nan() == (row == 1)), "{format:?} {bad}, row {row}: {y:?} on {cpu}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "row 1 of x: its scale 3e0 is no power of two")]
fn a_scale_that_is_no_power_of_two_is_refused() {
    run_e4m3(&Cpu::new(1), &[0; 14], &[2.0, 3.0], &packed(FORMATS[0], 5, 7), None);
}

#[test]
#[should_panic(expected = "the scales of x are not [2]")]
fn a_scale_for_each_row_is_asked_for() {
    let mut y = [0.0; 10];
    let w = packed(FORMATS[0], 5, 7);
    let x = Codes8 { codes: &[0; 14], scales: &[1.0] };
    forward_e4m3(&Cpu::new(1), 2, x, &mut [Job { w: &w, bias: None, y: &mut y }]);
}
