use super::cases::{CASES, Case};
use super::*;
use crate::rng::{Purpose, Stream};
use crate::{Isa, dtype};

const DTYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::E4m3];
const EPS: f64 = 1.0 / 16_777_216.0; // 2^-24, half a last place

fn normal(index: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(11, Purpose::Test, index);
    (0..len).map(|_| stream.normal()).collect()
}

/// Weights whose rows have very different magnitudes, and one of zeros.
fn weights(n: usize, k: usize) -> Vec<f32> {
    let mut w = normal(1, n * k);
    for (row, w) in w.chunks_exact_mut(k).enumerate() {
        let size = [0.02, 1.0, 30.0, 0.0, 1e-3][row % 5];
        w.iter_mut().for_each(|w| *w *= size);
    }
    w
}

fn packed(dtype: DType, n: usize, k: usize) -> Packed {
    let mut w = Packed::new(dtype, WeightScale::Channel, n, k);
    w.set_rows(&Cpu::with_isa(1, Isa::Portable), 0, &weights(n, k));
    w
}

fn rows(w: &Packed) -> Vec<f32> {
    let mut all = vec![0.0; w.n() * w.k()];
    all.chunks_exact_mut(w.k()).enumerate().for_each(|(i, row)| w.row(i, row));
    all
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn run(cpu: &Cpu, m: usize, x: &[f32], w: &Packed, bias: Option<&[f32]>) -> Vec<f32> {
    let mut y = vec![f32::NAN; m * w.n()];
    forward(cpu, m, x, &mut [Job { w, bias, y: &mut y }]);
    y
}

fn devices() -> Vec<Cpu> {
    Isa::available().into_iter().flat_map(|isa| [1, 2, 3].map(|threads| Cpu::with_isa(threads, isa))).collect()
}

/// A chain of `depth` fused steps errs by at most gamma(depth) times the sum of magnitudes; each later rounding (scale,
/// bias, what it was added to) by one more EPS of what it rounds, which `size` includes.
#[allow(clippy::cast_precision_loss)]
fn close(what: &str, got: &[f32], want: &[f64], size: &[f64], depth: usize) {
    let n = depth as f64 + 3.0;
    let gamma = n * EPS / (1.0 - n * EPS);
    let mut worst = (0.0, 0);
    for i in 0..want.len() {
        let error = (f64::from(got[i]) - want[i]).abs() / (gamma * size[i] + f64::from(f32::MIN_POSITIVE));
        if error > worst.0 || error.is_nan() {
            worst = (error, i);
        }
    }
    let (error, i) = worst;
    assert!(error <= 1.0, "{what}: element {i}: got {}, want {}, {error} of the bound", got[i], want[i]);
}

#[test]
fn forward_is_near_the_truth() {
    let cpu = Cpu::new(2);
    for &Case { m, n, k } in CASES {
        for dtype in DTYPES {
            let (x, w, bias) = (normal(2, m * k), packed(dtype, n, k), normal(3, n));
            let all = rows(&w);
            let abs = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).collect::<Vec<_>>();
            let want = naive::forward(m, n, k, &wide(&x), &wide(&all), Some(&wide(&bias)));
            let size = naive::forward(m, n, k, &abs(&x), &abs(&all), Some(&abs(&bias)));
            close(&format!("{dtype} {m} {n} {k}"), &run(&cpu, m, &x, &w, Some(&bias)), &want, &size, k);
        }
    }
}

/// The order of the contract, written out: chain, scale, bias.
#[test]
fn forward_is_the_chain_of_the_contract() {
    let (m, n, k) = (15, 45, 301);
    let (x, bias) = (normal(4, m * k), normal(5, n));
    for dtype in DTYPES {
        let source = weights(n, k);
        let w = packed(dtype, n, k);
        let mut want = vec![0.0_f32; m * n];
        for row in 0..m {
            for o in 0..n {
                let from = &source[o * k..(o + 1) * k];
                let amax = from.iter().fold(0.0_f32, |a, w| a.max(w.abs()));
                let scale = if amax == 0.0 || dtype != DType::E4m3 { 1.0 } else { amax / 448.0 };
                let mut acc = 0.0_f32;
                for j in 0..k {
                    let value = match dtype {
                        DType::F32 => from[j],
                        DType::Bf16 => dtype::round_bf16(from[j]),
                        _ => dtype::e4m3_to_f32(dtype::e4m3_from_f32(from[j] / scale)),
                    };
                    acc = x[row * k + j].mul_add(value, acc);
                }
                want[row * n + o] = acc * scale + bias[o];
            }
        }
        for cpu in devices() {
            assert!(bits(&run(&cpu, m, &x, &w, Some(&bias))) == bits(&want), "{dtype} on {cpu}");
            let first = run(&cpu, 1, &x[..k], &w, Some(&bias));
            assert!(bits(&first) == bits(&want[..n]), "{dtype} on {cpu}, alone");
        }
    }
}

#[test]
fn forward_bits_do_not_depend_on_device_or_batch() {
    let plain = Cpu::with_isa(1, Isa::Portable);
    for &Case { m, n, k } in CASES {
        for dtype in DTYPES {
            let (x, w) = (normal(6, m * k), packed(dtype, n, k));
            let want = bits(&run(&plain, m, &x, &w, None));
            for cpu in devices() {
                assert!(bits(&run(&cpu, m, &x, &w, None)) == want, "{dtype} {m} {n} {k} on {cpu}");
            }
            let fast = Cpu::new(1);
            for row in [0, m / 2, m - 1] {
                let alone = run(&fast, 1, &x[row * k..(row + 1) * k], &w, None);
                assert!(bits(&alone) == want[row * n..(row + 1) * n], "{dtype} {m} {n} {k}: row {row} alone");
            }
        }
    }
}

/// Every number of rows gives the bits of its rows alone: all tile heights, both paths, and the border between them.
#[test]
fn every_row_count_gives_the_same_rows() {
    let (n, k, most) = (40, 150, 40);
    let x = normal(7, most * k);
    for dtype in DTYPES {
        let w = packed(dtype, n, k);
        let alone: Vec<u32> =
            x.chunks_exact(k).flat_map(|x| bits(&run(&Cpu::with_isa(1, Isa::Portable), 1, x, &w, None))).collect();
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(2, isa);
            for m in 1..=most {
                let got = bits(&run(&cpu, m, &x[..m * k], &w, None));
                assert!(got == alone[..m * n], "{dtype}, {m} rows on {cpu}");
            }
        }
    }
}

#[test]
fn jobs_together_give_the_bits_of_jobs_apart() {
    let k = 96;
    let ws: Vec<Packed> = (0..10).map(|i| packed(DTYPES[i % 3], [64, 33, 200, 1][i % 4], k)).collect();
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
    let mut w = Packed::new(DType::E4m3, WeightScale::Channel, codes.len(), 2);
    w.set_rows(&Cpu::new(1), 0, &values);
    assert!(w.scales().is_some_and(|s| s.iter().all(|&s| s == 1.0)));
    for cpu in devices() {
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

#[test]
fn packing_in_pieces_gives_the_same_matrix() {
    let cpu = Cpu::new(2);
    for (n, k) in [(1, 1), (31, 33), (33, 100), (100, 31), (70, 576)] {
        let source = weights(n, k);
        let halves: Vec<u16> = source.iter().map(|&w| dtype::bf16_from_f32(w)).collect();
        let widened: Vec<f32> = halves.iter().map(|&h| dtype::bf16_to_f32(h)).collect();
        for dtype in DTYPES {
            let mut whole = Packed::new(dtype, WeightScale::Channel, n, k);
            whole.set_rows(&cpu, 0, &source);
            for isa in Isa::available() {
                let mut pieces = Packed::new(dtype, WeightScale::Channel, n, k);
                pieces.set_rows(&cpu, 0, &normal(9, n * k)); // to be overwritten
                let mut at = n;
                for r in [5, 1, 40, 3, 33, 7, 64].into_iter().cycle() {
                    let r: usize = at.min(r);
                    at -= r;
                    pieces.set_rows(&Cpu::with_isa(2, isa), at, &source[at * k..(at + r) * k]);
                    if at == 0 {
                        break;
                    }
                }
                assert!(bits(&rows(&pieces)) == bits(&rows(&whole)), "{dtype} [{n}, {k}] in pieces");
                assert_eq!(pieces.scales(), whole.scales());
                let x = normal(10, k);
                assert!(bits(&run(&cpu, 1, &x, &pieces, None)) == bits(&run(&cpu, 1, &x, &whole, None)));
            }
            let (mut from_half, mut from_f32) =
                (Packed::new(dtype, WeightScale::Channel, n, k), Packed::new(dtype, WeightScale::Channel, n, k));
            from_half.set_rows_bf16(&cpu, 0, &halves);
            from_f32.set_rows(&cpu, 0, &widened);
            assert!(bits(&rows(&from_half)) == bits(&rows(&from_f32)), "{dtype} [{n}, {k}] from bf16");
        }
    }
}

#[test]
fn rows_are_the_rounded_source() {
    let (n, k) = (37, 90);
    let source = weights(n, k);
    for dtype in DTYPES {
        let w = packed(dtype, n, k);
        let scales = w.scales().map(<[f32]>::to_vec);
        assert_eq!(scales.is_some(), dtype == DType::E4m3);
        for (i, (got, from)) in rows(&w).chunks_exact(k).zip(source.chunks_exact(k)).enumerate() {
            let amax = from.iter().fold(0.0_f32, |a, w| a.max(w.abs()));
            for (got, from) in got.iter().zip(from) {
                let want = match dtype {
                    DType::F32 => *from,
                    DType::Bf16 => dtype::round_bf16(*from),
                    _ => {
                        let scale = if amax == 0.0 { 1.0 } else { amax / 448.0 };
                        assert_eq!(scales.as_ref().map(|s| s[i]), Some(scale));
                        dtype::e4m3_to_f32(dtype::e4m3_from_f32(from / scale)) * scale
                    }
                };
                assert_eq!(got.to_bits(), want.to_bits(), "{dtype}, row {i}");
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_cannot_pass_unnoticed() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut source = vec![1.0; 3 * 40];
        source[40 + 7] = bad;
        let mut w = Packed::new(DType::E4m3, WeightScale::Channel, 3, 40);
        w.set_rows(&Cpu::new(1), 0, &source);
        for cpu in devices() {
            for m in [1, 20] {
                let y = run(&cpu, m, &vec![1.0; m * 40], &w, None);
                for y in y.chunks_exact(3) {
                    assert!(y[0] == 40.0 && y[1].is_nan() && y[2] == 40.0, "{bad}: {y:?} on {cpu}");
                }
            }
        }
    }
}

#[test]
fn gradients_are_near_the_truth() {
    let cpu = Cpu::new(2);
    let abs = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).collect::<Vec<_>>();
    let sum = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    for &Case { m, n, k } in CASES {
        let (x, dy) = (normal(12, m * k), normal(13, m * n));
        for dtype in DTYPES {
            let w = packed(dtype, n, k);
            let all = rows(&w);
            let want = naive::backward_input(m, n, k, &wide(&dy), &wide(&all));
            let size = naive::backward_input(m, n, k, &abs(&dy), &abs(&all));
            let mut dx = vec![f32::NAN; m * k];
            backward_input(&cpu, m, &dy, &w, &mut dx, false);
            close(&format!("dx {dtype} {m} {n} {k}"), &dx, &want, &size, n);
            let before = normal(14, m * k);
            dx.copy_from_slice(&before);
            backward_input(&cpu, m, &dy, &w, &mut dx, true);
            let (want, size) = (sum(want, &wide(&before)), sum(size, &abs(&before)));
            close(&format!("dx {dtype} {m} {n} {k} added"), &dx, &want, &size, n);
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
    let run = |cpu: &Cpu, Case { m, n, k }, dtype| {
        let (x, dy, w) = (normal(16, m * k), normal(17, m * n), packed(dtype, n, k));
        let (mut dx, mut dw, mut db) = (normal(18, m * k), normal(19, n * k), normal(20, n));
        backward_input(cpu, m, &dy, &w, &mut dx, dtype == DType::Bf16);
        backward_weight(cpu, m, n, k, &x, &dy, &mut dw);
        backward_bias(cpu, m, n, &dy, &mut db);
        [bits(&dx), bits(&dw), bits(&db)]
    };
    for (i, &case) in CASES.iter().enumerate() {
        let dtype = DTYPES[i % 3];
        let want = run(&Cpu::with_isa(1, Isa::Portable), case, dtype);
        for cpu in devices() {
            assert!(run(&cpu, case, dtype) == want, "{case:?} {dtype} on {cpu}");
        }
    }
}

/// Central differences of sum(g y) through the f64 forward; it is bilinear, so they are exact up to f64 rounding.
#[test]
fn gradients_meet_finite_differences() {
    let (m, n, k) = (3, 35, 6);
    let cpu = Cpu::new(1);
    let (x, g, w) = (normal(21, m * k), normal(22, m * n), packed(DType::F32, n, k));
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

#[test]
fn nothing_to_do() {
    let cpu = Cpu::new(2);
    let w = packed(DType::Bf16, 5, 7);
    forward(&cpu, 0, &[], &mut [Job { w: &w, bias: None, y: &mut [] }]);
    forward(&cpu, 3, &[], &mut []);
    let (mut dw, mut db) = ([1.0; 35], [2.0; 5]);
    backward_input(&cpu, 0, &[], &w, &mut [], false);
    backward_weight(&cpu, 0, 5, 7, &[], &[], &mut dw);
    backward_bias(&cpu, 0, 5, &[], &mut db);
    assert!(dw == [1.0; 35] && db == [2.0; 5]);
}

#[test]
fn bytes_count_codes_padding_and_scales() {
    let cases = [(DType::F32, 64 * 100 * 4), (DType::Bf16, 64 * 100 * 2), (DType::E4m3, 64 * 100 + 64 * 4)];
    for (dtype, bytes) in cases {
        assert_eq!(Packed::new(dtype, WeightScale::Channel, 33, 100).bytes(), bytes, "{dtype}");
    }
    assert_eq!(Packed::new(DType::Bf16, WeightScale::Channel, 1024, 4096).bytes(), 8 << 20, "mapped memory");
}

#[test]
#[should_panic(expected = "job 0: y is not [2, 5]")]
fn a_wrong_shape_is_refused() {
    let w = packed(DType::F32, 5, 7);
    forward(&Cpu::new(1), 2, &[0.0; 14], &mut [Job { w: &w, bias: None, y: &mut [0.0; 5] }]);
}
