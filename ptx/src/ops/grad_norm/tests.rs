use super::cases::LENGTHS;
use super::*;
use crate::ops::twins::{devices, normals};

#[test]
fn sums_meet_the_truth_with_the_same_bits_everywhere() {
    let devices = devices();
    for &len in LENGTHS {
        let x = normals(1, len);
        let (want, first) = (naive::sum_of_squares(&x), sum_of_squares(&devices[0], &x));
        assert!((first - want).abs() <= 1.6e-5 * want, "{len}: {first}, want {want}");
        for cpu in &devices {
            let got = sum_of_squares(cpu, &x);
            assert_eq!(got.to_bits(), first.to_bits(), "{len} on {cpu}: {got}, want {first}");
        }
    }
}

/// The order contract written out again: later changes of the fast path may not change a bit.
#[test]
fn blocks_are_summed_in_f64() {
    let x = normals(2, 2 * BLOCK + 77);
    let mut want = 0.0_f64;
    for block in x.chunks(BLOCK) {
        let mut sums = [0.0_f32; 16];
        block.iter().enumerate().for_each(|(j, x)| sums[j % 16] = x.mul_add(*x, sums[j % 16]));
        want += f64::from(crate::math::tree16(&sums));
    }
    assert_eq!(sum_of_squares(&Cpu::new(2), &x).to_bits(), want.to_bits());
}

#[test]
fn the_first_that_is_not_finite_is_found() {
    for cpu in devices() {
        for &len in LENGTHS {
            let mut x = normals(3, len);
            assert_eq!(all_finite(&cpu, &x), None, "{len} on {cpu}");
            for (bad, at) in [(f32::NAN, len.wrapping_sub(1)), (f32::NEG_INFINITY, len / 2), (f32::INFINITY, 0)] {
                if at < len {
                    x[at] = bad;
                    assert_eq!(all_finite(&cpu, &x), naive::all_finite(&x), "{len} on {cpu}");
                    assert_eq!(all_finite(&cpu, &x), Some(at), "{len} on {cpu}");
                }
            }
        }
        assert_eq!(all_finite(&cpu, &[f32::MAX, -f32::MAX, 1e-45, -0.0]), None);
    }
}
