use super::cases::{LENGTHS, ROWS};
use super::*;
use crate::dtype::e4m3_to_f32;
use crate::ops::twins::{assert_same_bits, devices, normals};

#[test]
fn values_are_the_nearest_bf16() {
    // Every 4099-th float of both signs, infinities and the values around them included.
    let mut x: Vec<f32> = (0..=0x7f80_0000_u32).step_by(4099).map(f32::from_bits).collect();
    x.extend([f32::MAX, f32::INFINITY, 1.003_906_2, 1.011_718_8, 3.389_531_4e38, 3.396_17e38, 1e-45]);
    x.extend(x.clone().iter().map(|x| -x));
    let mut y = x.clone();
    bf16(&Cpu::new(2), &mut y);
    for (x, y) in x.iter().zip(&y) {
        assert!(f64::from(*y) == naive::bf16(*x), "{x:e} gives {y:e}, want {:e}", naive::bf16(*x));
    }
}

#[test]
fn bits_do_not_depend_on_device() {
    for &len in LENGTHS {
        let x = normals(1, len);
        let want: Vec<f32> = x.iter().map(|x| crate::dtype::round_bf16(*x)).collect();
        for cpu in devices() {
            let mut y = x.clone();
            bf16(&cpu, &mut y);
            assert_same_bits(&format!("{len} on {cpu}"), &y, &want);
            bf16(&cpu, &mut y);
            assert_same_bits("twice", &y, &want);
        }
    }
}

#[test]
fn nan_stays_nan() {
    let mut x = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)];
    bf16(&Cpu::new(1), &mut x);
    assert!(x.iter().all(|x| x.is_nan()), "{x:?}");
}

/// Rows from the smallest magnitudes to near the largest, and some of zeros.
fn rows(rows: usize, width: usize) -> Vec<f32> {
    let mut x = normals(2, rows * width);
    for (row, x) in x.chunks_exact_mut(width).enumerate() {
        let size = [1.0, 1e-42, 0.0, 3e37, 1e-30, 448.0][row % 6];
        x.iter_mut().for_each(|x| *x *= size);
    }
    x
}

fn e4m3(cpu: &Cpu, width: usize, x: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0xaa; x.len()], vec![-1.0; x.len() / width]);
    e4m3_rows(cpu, width, x, &mut codes, &mut scales);
    (codes, scales)
}

#[test]
fn rows_are_the_nearest_codes_at_the_least_scale() {
    for &(count, width) in ROWS {
        let x = rows(count, width);
        let (codes, scales) = e4m3(&Cpu::new(2), width, &x);
        let (values, want) = naive::e4m3_rows(width, &x);
        for (row, (&scale, want)) in scales.iter().zip(want).enumerate() {
            assert_eq!(f64::from(scale), want, "the scale of row {row}, [{count}, {width}]");
        }
        for (i, (&code, want)) in codes.iter().zip(values).enumerate() {
            let got = f64::from(e4m3_to_f32(code)) * f64::from(scales[i / width]);
            assert_eq!(got, want, "{:e}, element {i} of [{count}, {width}]", x[i]);
        }
    }
}

#[test]
fn codes_and_scales_do_not_depend_on_device_or_neighbours() {
    for &(count, width) in ROWS {
        let x = rows(count, width);
        let want = e4m3(&Cpu::with_isa(1, crate::Isa::Portable), width, &x);
        for cpu in devices() {
            assert!(e4m3(&cpu, width, &x) == want, "[{count}, {width}] on {cpu}");
        }
        if let (Some(x), Some(scale)) = (x.chunks_exact(width).last(), want.1.last()) {
            let alone = e4m3(&Cpu::new(1), width, x);
            assert!(alone.0 == want.0[want.0.len() - width..] && alone.1 == [*scale], "[{count}, {width}], alone");
        }
    }
}

#[test]
fn golden_rows() {
    // The scale is 2^ceil(log2(amax / 448)): 448 fits 1, the next number up does not.
    for (top, scale, code) in
        [(448.0, 1.0, 0x7e), (448.0_f32.next_up(), 2.0, 0x76), (0.0, 1.0, 0), (-7.0, 0.015_625, 0xfe)]
    {
        assert_eq!(e4m3(&Cpu::new(1), 3, &[0.0, top, 0.0]), (vec![0, code, 0], vec![scale]), "{top}");
    }
}

#[test]
fn a_row_that_is_not_finite_has_the_scale_nan_and_its_neighbours_do_not() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![1.0; 3 * 20];
        x[33] = bad;
        for cpu in devices() {
            let (_, scales) = e4m3(&cpu, 20, &x);
            assert!(scales[1].is_nan() && scales[0] == scales[2] && scales[0] == 0.003_906_25, "{scales:?} on {cpu}");
        }
    }
}

#[test]
#[should_panic(expected = "the codes are not [2, 3]")]
fn codes_of_another_shape_are_refused() {
    e4m3_rows(&Cpu::new(1), 3, &[0.0; 6], &mut [0; 5], &mut [0.0; 2]);
}
