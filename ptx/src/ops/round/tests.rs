use super::cases::LENGTHS;
use super::*;
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
