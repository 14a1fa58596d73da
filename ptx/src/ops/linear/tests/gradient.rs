//! Gradients: near the truth, the same bits everywhere, and those of the forward.

use super::*;

#[test]
fn gradients_are_near_the_truth() {
    let cpu = Cpu::new(2);
    let abs = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).collect::<Vec<_>>();
    let sum = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    for &Case { m, n, k } in CASES {
        let (x, dy) = (normal(12, m * k), normal(13, m * n));
        for format in FORMATS {
            let w = packed(format, n, k);
            let all = rows(&w);
            let want = naive::backward_input(m, n, k, &wide(&dy), &wide(&all));
            let size = naive::backward_input(m, n, k, &abs(&dy), &abs(&all));
            let mut dx = vec![f32::NAN; m * k];
            backward_input(&cpu, m, &dy, &w, &mut dx, false);
            close(&format!("dx {format:?} {m} {n} {k}"), &dx, &want, &size, n);
            let before = normal(14, m * k);
            dx.copy_from_slice(&before);
            backward_input(&cpu, m, &dy, &w, &mut dx, true);
            let (want, size) = (sum(want, &wide(&before)), sum(size, &abs(&before)));
            close(&format!("dx {format:?} {m} {n} {k} added"), &dx, &want, &size, n);
        }
        let before = normal(15, n * k);
        let mut dw = before.clone();
        backward_weight(&cpu, m, n, k, &x, &dy, &mut dw);
        let want = sum(naive::backward_weight(m, n, k, &wide(&x), &wide(&dy)), &wide(&before));
        let size = sum(naive::backward_weight(m, n, k, &abs(&x), &abs(&dy)), &abs(&before));
        close(&format!("dw {m} {n} {k}"), &dw, &want, &size, m);
        let mut db = before[..n].to_vec();
        backward_bias(&cpu, m, n, &dy, &mut db);
        let want = sum(naive::backward_bias(m, n, &wide(&dy)), &wide(&before[..n]));
        let size = sum(naive::backward_bias(m, n, &abs(&dy)), &abs(&before[..n]));
        close(&format!("db {m} {n}"), &db, &want, &size, m);
    }
}

#[test]
fn gradient_bits_do_not_depend_on_the_device() {
    let run = |cpu: &Cpu, Case { m, n, k }, format: Format| {
        let (x, dy, w) = (normal(16, m * k), normal(17, m * n), packed(format, n, k));
        let (mut dx, mut dw, mut db) = (normal(18, m * k), normal(19, n * k), normal(20, n));
        backward_input(cpu, m, &dy, &w, &mut dx, format.0 == DType::Bf16);
        backward_weight(cpu, m, n, k, &x, &dy, &mut dw);
        backward_bias(cpu, m, n, &dy, &mut db);
        [bits(&dx), bits(&dw), bits(&db)]
    };
    for (i, &case) in CASES.iter().enumerate() {
        let format = FORMATS[i % 5];
        let want = run(&Cpu::with_isa(1, Isa::Portable), case, format);
        for cpu in devices() {
            assert!(run(&cpu, case, format) == want, "{case:?} {format:?} on {cpu}");
        }
    }
}

/// Central differences of sum(g y) through the f64 forward; it is bilinear, so they are exact up to f64 rounding.
#[test]
fn gradients_meet_finite_differences() {
    let (m, n, k) = (3, 35, 6);
    let cpu = Cpu::new(1);
    let (x, g, w) = (normal(21, m * k), normal(22, m * n), packed(FORMATS[0], n, k));
    let (w64, bias) = (wide(&rows(&w)), vec![0.5; n]);
    let loss = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
        naive::forward(m, n, k, x, w, Some(b)).iter().zip(&g).map(|(y, &g)| y * f64::from(g)).sum()
    };
    let slope = |at: &[f64], of: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        let h = 1e-3;
        (0..at.len())
            .map(|i| {
                let (mut up, mut down) = (at.to_vec(), at.to_vec());
                up[i] += h;
                down[i] -= h;
                (of(&up) - of(&down)) / (2.0 * h)
            })
            .collect()
    };
    let (mut dx, mut dw, mut db) = (vec![0.0; m * k], vec![0.0; n * k], vec![0.0; n]);
    backward_input(&cpu, m, &g, &w, &mut dx, false);
    backward_weight(&cpu, m, n, k, &x, &g, &mut dw);
    backward_bias(&cpu, m, n, &g, &mut db);
    let x64 = wide(&x);
    for (what, got, want) in [
        ("dx", dx, slope(&x64, &|x| loss(x, &w64, &bias))),
        ("dw", dw, slope(&w64, &|w| loss(&x64, w, &bias))),
        ("db", db, slope(&bias, &|b| loss(&x64, &w64, b))),
    ] {
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            // Sums of at most 35 products of size up to 100: f32 leaves 35 * 2^-24 * 3500 = 7e-3 at the very worst.
            assert!((f64::from(*got) - want).abs() < 1e-3, "{what} {i}: got {got}, want {want}");
        }
    }
}

/// The gradient by inputs takes code x scale rounded to f32: what `row` says, in one chain whatever the scales cover.
#[test]
fn the_gradient_by_inputs_is_the_chain_of_the_contract() {
    let (m, n, k) = (3, 261, 150);
    let dy = normal(23, m * n);
    for format in FORMATS {
        let w = packed(format, n, k);
        let all = rows(&w);
        let want: Vec<f32> = (0..m * k)
            .map(|i| (0..n).fold(0.0_f32, |acc, o| dy[i / k * n + o].mul_add(all[o * k + i % k], acc)))
            .collect();
        for cpu in devices() {
            let mut dx = vec![f32::NAN; m * k];
            backward_input(&cpu, m, &dy, &w, &mut dx, false);
            assert!(bits(&dx) == bits(&want), "{format:?} on {cpu}");
        }
    }
}
