use super::cases::LENGTHS;
use super::*;
use crate::ops::twins::{assert_close, assert_same_bits, devices, normals, widen};

#[test]
fn sums_round_once_on_every_device() {
    for &len in LENGTHS {
        let (x, y) = (normals(1, len), normals(2, len));
        let exact = naive::add(&widen(&x), &widen(&y));
        #[allow(clippy::cast_possible_truncation)]
        let want: Vec<f32> = exact.iter().map(|&s| s as f32).collect();
        for cpu in devices() {
            let mut got = x.clone();
            add(&cpu, &mut got, &y);
            assert_same_bits(&format!("{len} on {cpu}"), &got, &want);
            assert_close("sum", &got, &exact, |i| exact[i].abs() * f64::from(f32::EPSILON) / 2.0);
        }
    }
}

#[test]
#[should_panic(expected = "failed: y")]
fn lengths_must_agree() {
    add(&Cpu::new(1), &mut [0.0; 2], &[0.0; 3]);
}
