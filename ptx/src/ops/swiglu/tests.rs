use super::cases::LENGTHS;
use super::*;
use crate::ops::twins::{assert_close, assert_gradient, assert_same_bits, devices, normals, widen};

const ULP: f64 = f32::EPSILON as f64;

/// (gate, up, dy): gates of both signs up to some 40.
fn data(len: usize) -> [Vec<f32>; 3] {
    [normals(1, len).iter().map(|x| x * 10.0).collect(), normals(2, len), normals(3, len)]
}

fn run(cpu: &Cpu, [gate, up, dy]: &[Vec<f32>; 3]) -> [Vec<f32>; 3] {
    let nan = vec![f32::NAN; gate.len()];
    let [mut y, mut dgate, mut dup] = [nan.clone(), nan.clone(), nan];
    forward(cpu, gate, up, &mut y);
    backward(cpu, gate, up, dy, &mut dgate, &mut dup);
    [y, dgate, dup]
}

#[test]
fn values_and_gradients_meet_the_truth() {
    for &len in LENGTHS {
        let data = data(len);
        let [y, dgate, dup] = run(&Cpu::new(2), &data);
        let [gate, up, dy] = data.map(|x| widen(&x));
        let want = naive::forward(&gate, &up);
        assert_close("y", &y, &want, |i| 6.0 * ULP * want[i].abs() + 1e-44);
        let (want_gate, want_up) = naive::backward(&gate, &up, &dy);
        assert_close("dup", &dup, &want_up, |i| 6.0 * ULP * want_up[i].abs() + 1e-44);
        // The slope is a sum of 1 and gate (1 - s), which cancel where gate is negative. 1 - s is exact to one
        // rounding of s, whose absolute error is 4 ulp.
        assert_close("dgate", &dgate, &want_gate, |i| {
            let s = 1.0 / (1.0 + (-gate[i]).exp());
            8.0 * ULP * (dy[i] * up[i] * s).abs() * (1.0 + gate[i].abs()) + 1e-44
        });
    }
}

#[test]
fn gradients_meet_finite_differences() {
    let [gate, up, dy] = data(20).map(|x| widen(&x));
    let gate: Vec<f64> = gate.iter().map(|g| g * 0.2).collect();
    let loss = |gate: &[f64], up: &[f64]| naive::forward(gate, up).iter().zip(&dy).map(|(y, d)| y * d).sum();
    let (dgate, dup) = naive::backward(&gate, &up, &dy);
    assert_gradient("dgate", &dgate, &gate, |gate| loss(gate, &up));
    assert_gradient("dup", &dup, &up, |up| loss(&gate, up));
}

#[test]
fn bits_do_not_depend_on_device_or_place() {
    let devices = devices();
    for &len in LENGTHS {
        let data = data(len);
        let want = run(&devices[0], &data);
        for cpu in &devices {
            for (name, (got, want)) in ["y", "dgate", "dup"].iter().zip(run(cpu, &data).iter().zip(&want)) {
                assert_same_bits(&format!("{name} of {len} on {cpu}"), got, want);
            }
        }
        let tail = len / 3;
        let alone = run(&devices[0], &data.map(|x| x[tail..].to_vec()));
        for (got, want) in alone.iter().zip(&want) {
            assert_same_bits("the tail alone", got, &want[tail..]);
        }
    }
}

#[test]
fn far_gates_saturate() {
    let (mut y, mut dgate, mut dup) = ([f32::NAN; 3], [f32::NAN; 3], [f32::NAN; 3]);
    let (gate, ones) = ([-1e4, 0.0, 1e4], [1.0; 3]);
    forward(&Cpu::new(1), &gate, &ones, &mut y);
    backward(&Cpu::new(1), &gate, &ones, &ones, &mut dgate, &mut dup);
    assert_eq!((y, dgate, dup), ([0.0, 0.0, 1e4], [0.0, 0.5, 1.0], [0.0, 0.0, 1e4]));
}

#[test]
#[should_panic(expected = "failed: up")]
fn lengths_must_agree() {
    forward(&Cpu::new(1), &[0.0; 3], &[0.0; 2], &mut [0.0; 3]);
}
