//! Forward: near the truth, in the order of the contract, the same bits everywhere.

use super::*;

#[test]
fn forward_is_near_the_truth() {
    let cpu = Cpu::new(2);
    for &Case { m, n, k } in CASES {
        for format in FORMATS {
            let (x, w, bias) = (normal(2, m * k), packed(format, n, k), normal(3, n));
            let all = rows(&w);
            let abs = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).collect::<Vec<_>>();
            let depth = if format == FORMATS[4] { k.min(128) + k.div_ceil(128) } else { k };
            let want = naive::forward(m, n, k, &wide(&x), &wide(&all), Some(&wide(&bias)));
            let size = naive::forward(m, n, k, &abs(&x), &abs(&all), Some(&abs(&bias)));
            close(&format!("{format:?} {m} {n} {k}"), &run(&cpu, m, &x, &w, Some(&bias)), &want, &size, depth);
        }
    }
}

/// The order of the contract, written out: chain, scale, bias; or by block chains and their fused sum, bias.
#[test]
fn forward_is_the_chain_of_the_contract() {
    for (m, n, k) in [(15, 45, 301), (26, 131, 130), (3, 257, 256)] {
        let (x, bias, source) = (normal(4, m * k), normal(5, n), weights(n, k));
        for format in FORMATS {
            let w = packed(format, n, k);
            let scales = scales(format, n, k, &source);
            let chain = |x: &[f32], o: usize, inputs: std::ops::Range<usize>| {
                inputs.fold(0.0_f32, |acc, j| {
                    let i = o * k + j;
                    x[j].mul_add(code(format, source[i], scales[i]), acc)
                })
            };
            let mut want = Vec::new();
            for x in x.chunks_exact(k) {
                for o in 0..n {
                    let y = if format == FORMATS[4] {
                        (0..k)
                            .step_by(128)
                            .fold(0.0_f32, |y, at| chain(x, o, at..k.min(at + 128)).mul_add(scales[o * k + at], y))
                    } else {
                        chain(x, o, 0..k) * scales[o * k]
                    };
                    want.push(y + bias[o]);
                }
            }
            for cpu in devices() {
                assert!(bits(&run(&cpu, m, &x, &w, Some(&bias))) == bits(&want), "{format:?} {m} {n} {k} on {cpu}");
                let first = run(&cpu, 1, &x[..k], &w, Some(&bias));
                assert!(bits(&first) == bits(&want[..n]), "{format:?} {m} {n} {k} on {cpu}, alone");
            }
        }
    }
}

#[test]
fn forward_bits_do_not_depend_on_device_or_batch() {
    let plain = Cpu::with_isa(1, Isa::Portable);
    for &Case { m, n, k } in CASES {
        for format in FORMATS {
            let (x, w) = (normal(6, m * k), packed(format, n, k));
            let want = bits(&run(&plain, m, &x, &w, None));
            for cpu in devices() {
                assert!(bits(&run(&cpu, m, &x, &w, None)) == want, "{format:?} {m} {n} {k} on {cpu}");
            }
            let fast = Cpu::new(1);
            for row in [0, m / 2, m - 1] {
                let alone = run(&fast, 1, &x[row * k..(row + 1) * k], &w, None);
                assert!(bits(&alone) == want[row * n..(row + 1) * n], "{format:?} {m} {n} {k}: row {row} alone");
            }
        }
    }
}

/// Every number of rows gives the bits of its rows alone: all tile heights, both paths, and the border between them.
#[test]
fn every_row_count_gives_the_same_rows() {
    let (n, k, most) = (40, 150, 40);
    let x = normal(7, most * k);
    for format in FORMATS {
        let w = packed(format, n, k);
        let alone: Vec<u32> =
            x.chunks_exact(k).flat_map(|x| bits(&run(&Cpu::with_isa(1, Isa::Portable), 1, x, &w, None))).collect();
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(2, isa);
            for m in 1..=most {
                let got = bits(&run(&cpu, m, &x[..m * k], &w, None));
                assert!(got == alone[..m * n], "{format:?}, {m} rows on {cpu}");
            }
        }
    }
}

#[test]
fn jobs_together_give_the_bits_of_jobs_apart() {
    let k = 160;
    let ws: Vec<Packed> = (0..10).map(|i| packed(FORMATS[i % 5], [64, 33, 200, 1][i % 4], k)).collect();
    for cpu in devices() {
        for m in [1, 4, 20] {
            let x = normal(8, m * k);
            let mut ys: Vec<Vec<f32>> = ws.iter().map(|w| vec![f32::NAN; m * w.n()]).collect();
            let mut jobs: Vec<Job<'_>> = ws.iter().zip(&mut ys).map(|(w, y)| Job { w, bias: None, y }).collect();
            forward(&cpu, m, &x, &mut jobs);
            for (w, y) in ws.iter().zip(&ys) {
                assert!(bits(y) == bits(&run(&cpu, m, &x, w, None)), "{w:?}, {m} rows on {cpu}");
            }
        }
    }
}

/// The factors of 256 that ride along with e4m3 do not show: every code times one, exactly.
#[test]
fn every_code_is_multiplied_exactly() {
    // Row i holds code i (but the NaN codes) and, in a second place, 448, so that its scale is 1.
    let codes: Vec<u8> = (0..=u8::MAX).filter(|c| c & 0x7f != 0x7f).collect();
    let values: Vec<f32> = codes.iter().flat_map(|&c| [dtype::e4m3_to_f32(c), 448.0]).collect();
    for (format, cpu) in FORMATS[2..].iter().flat_map(|format| devices().into_iter().map(move |cpu| (format, cpu))) {
        let w = pack(&cpu, *format, codes.len(), 2, &values);
        assert!(w.scales().is_some_and(|s| s.iter().all(|&s| s == 1.0)));
        for m in [1, 2, 3, 13] {
            let y = run(&cpu, m, &[1.0, 0.0].repeat(m), &w, None);
            for y in y.chunks_exact(codes.len()) {
                for (y, values) in y.iter().zip(values.chunks_exact(2)) {
                    assert_eq!(*y, values[0], "{m} rows on {cpu}");
                }
            }
        }
    }
}

/// Inputs on either side of the bound to which codes are widened in registers, and products far below one: all within the same
/// rows, alone and beside others, and the same bits everywhere.
#[test]
fn large_and_tiny_inputs_keep_the_chain_of_e4m3() {
    let (n, k) = (70, 150);
    let portable = Cpu::with_isa(1, Isa::Portable);
    for format in &FORMATS[2..] {
        for (case, large) in [1.0_f32, 255.99, 256.0, -300.0, 2.0_f32.powi(100)].into_iter().enumerate() {
            for m in [1, 2, 3, 5, 8, 13, 24] {
                let mut x = normal(20 + case as u64, m * k);
                x[k / 2] = large;
                for x in x.iter_mut().skip(3).step_by(7) {
                    *x *= 2.0_f32.powi(-120);
                }
                let want = bits(&run(&portable, m, &x, &packed(*format, n, k), None));
                for cpu in devices() {
                    let got = bits(&run(&cpu, m, &x, &pack(&cpu, *format, n, k, &weights(n, k)), None));
                    assert!(got == want, "{format:?}, {m} rows with {large} on {cpu}");
                }
            }
        }
    }
}

/// What shares a scale with a value that is not finite becomes NaN, and nothing else does.
#[test]
fn a_value_that_is_not_finite_cannot_pass_unnoticed() {
    let (n, k) = (130, 140);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut source = vec![1.0; n * k];
        source[40 * k + 7] = bad;
        for (format, lost) in FORMATS[2..].iter().zip([0..n, 40..41, 0..128]) {
            let w = pack(&Cpu::new(2), *format, n, k, &source);
            for cpu in devices() {
                for m in [1, 3, 26] {
                    let y = run(&cpu, m, &vec![1.0; m * k], &w, None);
                    for (o, y) in y.iter().enumerate() {
                        let (o, near) = (o % n, (y - 140.0).abs() < 1e-3);
                        assert!(
                            if lost.contains(&o) { y.is_nan() } else { near },
                            "{format:?} {bad}: {o} is {y} on {cpu}"
                        );
                    }
                }
            }
        }
    }
}
