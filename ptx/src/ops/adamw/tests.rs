use super::cases::LENGTHS;
use super::naive::{Parameter, Settings};
use super::*;
use crate::ops::twins::{assert_same_bits, devices, normals};

const HYPER: AdamW = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };
const SETTINGS: Settings = Settings { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };

struct State {
    p: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
}

fn fresh(len: usize) -> State {
    State { p: normals(1, len), m: vec![0.0; len], v: vec![0.0; len] }
}

fn updates(cpu: &Cpu, len: usize, count: u64) -> State {
    let mut s = fresh(len);
    for update in 1..=count {
        let g = normals(10 + update, len);
        step(cpu, HYPER, update, 0.5, &mut s.p, &g, &mut s.m, &mut s.v);
    }
    s
}

#[test]
fn fifty_updates_follow_the_f64_optimizer() {
    let (len, cpu) = (300, Cpu::new(2));
    let mut got = fresh(len);
    // Gradients of very different sizes, as parameters of one model have.
    let size = |i: usize| 10.0_f32.powf(f32::from(u8::try_from(i % 9).unwrap()) - 6.0);
    let mut want: Vec<Parameter> = got.p.iter().map(|&p| Parameter { p: p.into(), m: 0.0, v: 0.0 }).collect();
    for update in 1..=50_u32 {
        let g: Vec<f32> = normals(10 + u64::from(update), len).iter().enumerate().map(|(i, g)| g * size(i)).collect();
        step(&cpu, HYPER, update.into(), 0.5, &mut got.p, &g, &mut got.m, &mut got.v);
        for (want, g) in want.iter_mut().zip(&g) {
            *want = naive::step(SETTINGS, update, f64::from(g * 0.5), *want);
        }
        for (i, want) in want.iter().enumerate() {
            // Each update rounds p (below 5) twice; m and v once or twice, and they forget by a tenth and a thousandth,
            // so m's error stays within ten roundings of its largest value, here bounded by sqrt(v / (1 - beta2)).
            let unit = f64::from(f32::EPSILON) / 2.0;
            let t = f64::from(update);
            let bounds =
                [5.0 * 2.0 * unit * t + 1e-9 * t, 30.0 * unit * (want.v * 1000.0).sqrt(), 3.0 * unit * t * want.v];
            let pairs = [(got.p[i], want.p, "p"), (got.m[i], want.m, "m"), (got.v[i], want.v, "v")];
            for ((got, want, name), bound) in pairs.into_iter().zip(bounds) {
                let error = (f64::from(got) - want).abs();
                assert!(error <= bound, "update {update}, {name}[{i}]: {got:e}, want {want:e}, bound {bound:e}");
            }
        }
    }
}

/// From zero the new value is the step itself, so its relative error shows.
#[test]
fn a_step_agrees_to_a_millionth() {
    let len = 1000;
    let hyper = AdamW { beta2: 0.95, ..HYPER };
    let settings = Settings { beta2: 0.95, ..SETTINGS };
    for (hyper, settings) in [(HYPER, SETTINGS), (hyper, settings)] {
        for update in [1, 2, 17, 1000, 100_000] {
            let (g, m) = (normals(1, len), normals(2, len));
            let v: Vec<f32> = normals(3, len).iter().map(|x| x * x).collect();
            let (mut p, mut new_m, mut new_v) = (vec![0.0; len], m.clone(), v.clone());
            step(&Cpu::new(1), hyper, update.into(), 1.0, &mut p, &g, &mut new_m, &mut new_v);
            for i in 0..len {
                let [g, m, v] = [g[i], m[i], v[i]].map(f64::from);
                let want = naive::step(settings, update, g, Parameter { p: 0.0, m, v }).p;
                // m and the gradient may cancel: the error is relative to the step that their magnitudes give.
                let scale = naive::step(settings, update, g.abs(), Parameter { p: 0.0, m: m.abs(), v }).p.abs();
                let got = f64::from(p[i]);
                assert!((got - want).abs() <= 1e-6 * scale, "update {update}, element {i}: {got:e}, want {want:e}");
            }
        }
    }
}

/// By hand: the first update moves every parameter by the learning rate against its gradient, after the decay.
#[test]
fn the_first_update_is_a_signed_step() {
    let (mut p, mut m, mut v) = ([1.0_f32, -2.0, 3.0], [0.0; 3], [0.0; 3]);
    step(&Cpu::new(1), HYPER, 1, 1.0, &mut p, &[0.5, -4.0, 0.0], &mut m, &mut v);
    for (p, want) in p.iter().zip([1.0 - 1e-4 - 1e-3, -2.0 + 2e-4 + 1e-3, 3.0 - 3e-4]) {
        assert!((f64::from(*p) - want).abs() < 3e-7, "{p}, want {want}");
    }
    assert!((m[1] + 0.4).abs() < 1e-7 && (v[1] - 0.016).abs() < 1e-8, "{m:?} {v:?}");
}

/// Late in training the corrections are 1 and steps stay finite, also at updates that f32 could not count.
#[test]
fn late_updates_need_no_correction() {
    for update in [1_000_000, 1 << 40] {
        let (mut p, mut m, mut v) = ([1.0_f32], [0.25], [0.0625]);
        let hyper = AdamW { weight_decay: 0.0, ..HYPER };
        step(&Cpu::new(1), hyper, update, 1.0, &mut p, &[0.25], &mut m, &mut v);
        assert!((p[0] - 0.999).abs() < 1e-7, "update {update}: {}", p[0]);
    }
}

#[test]
fn bits_do_not_depend_on_device() {
    let devices = devices();
    for &len in LENGTHS {
        let want = updates(&devices[0], len, 2);
        for cpu in &devices {
            let got = updates(cpu, len, 2);
            assert_same_bits(&format!("p of {len} on {cpu}"), &got.p, &want.p);
            assert_same_bits(&format!("m of {len} on {cpu}"), &got.m, &want.m);
            assert_same_bits(&format!("v of {len} on {cpu}"), &got.v, &want.v);
        }
    }
}

#[test]
#[should_panic(expected = "beta2 is 1")]
fn a_beta_of_one_is_refused() {
    let hyper = AdamW { beta2: 1.0, ..HYPER };
    step(&Cpu::new(1), hyper, 1, 1.0, &mut [1.0], &[1.0], &mut [0.0], &mut [0.0]);
}
