//! The gradient against the f64 truth, and the truth against finite differences.

use super::*;
use crate::DType;
use crate::ops::attention::{backward, naive};

const U: f64 = 1.0 / 16_777_216.0;

struct Gradients {
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

fn dout(len: usize) -> Vec<f32> {
    let mut stream = Stream::new(6, Purpose::Test, len as u64);
    (0..len).map(|_| stream.normal()).collect()
}

fn run(all: &Sequences, cpu: &Cpu, parts: &[(usize, usize, usize)], dout: &[f32]) -> Gradients {
    let (spans, q) = all.batch(parts);
    let (out, lse) = all.run(cpu, parts);
    let kv = q.len() / all.heads * all.shape.kv_heads;
    let (mut dq, mut dk, mut dv) = (vec![f32::NAN; q.len()], vec![f32::NAN; kv], vec![f32::NAN; kv]);
    backward(cpu, all.attention(), all.pages(), &spans, &q, &out, &lse, dout, &mut dq, &mut dk, &mut dv);
    Gradients { dq, dk, dv }
}

const fn shape(kv_heads: usize, head_dim: usize, page_len: usize, dtype: DType) -> KvShape {
    KvShape { kv_heads, head_dim, page_len, k: dtype, v: dtype, scale: crate::kv_tile::KvScale::Static }
}

/// Scales by token, and any two formats.
const fn mixed(kv_heads: usize, head_dim: usize, page_len: usize, k: DType, v: DType) -> KvShape {
    KvShape { kv_heads, head_dim, page_len, k, v, scale: crate::kv_tile::KvScale::Token }
}

/// Sequences that start at position 0: one token, tails of blocks of keys (64) and of rows (192), several at once.
const GRADIENTS: &[Case] = &[
    Case { heads: 2, pages: shape(1, 16, 16, DType::F32), spans: &[(0, 1)] },
    Case { heads: 3, pages: shape(1, 32, 4, DType::F32), spans: &[(0, 64), (0, 5), (0, 65)] },
    Case { heads: 4, pages: shape(2, 64, 16, DType::Bf16), spans: &[(0, 130)] },
    Case { heads: 7, pages: shape(1, 20, 2, DType::E4m3), spans: &[(0, 33)] },
    Case { heads: 4, pages: shape(4, 48, 16, DType::E4m3), spans: &[(0, 200), (0, 17)] },
    Case { heads: 2, pages: shape(1, 128, 64, DType::Bf16), spans: &[(0, 97)] },
    Case { heads: 4, pages: shape(2, 48, 16, DType::E5m2), spans: &[(0, 70), (0, 17)] },
    Case { heads: 7, pages: mixed(1, 20, 2, DType::E4m3, DType::E4m3), spans: &[(0, 33)] },
    Case { heads: 4, pages: mixed(2, 64, 16, DType::E5m2, DType::E4m3), spans: &[(0, 130), (0, 5)] },
    Case { heads: 2, pages: mixed(2, 33, 256, DType::E4m3, DType::Bf16), spans: &[(0, 66)] },
    Case { heads: 3, pages: mixed(1, 32, 8, DType::F32, DType::E5m2), spans: &[(0, 65)] },
];

/// With e the error of a score: a probability is off by a factor of at most 2 e + 8 u, dP and the rows' dot products by
/// their chains of dims, and each gradient by the chain that sums it. Relative to the sum of the magnitudes of all that
/// is added up, that makes 4 e + (2 dims + terms + 64) u.
#[test]
#[allow(clippy::cast_precision_loss)]
fn agrees_with_the_naive_gradient() {
    for case in GRADIENTS {
        let all = Sequences::of_case(case, 3);
        let (spans, q) = all.batch(&parts(case));
        let dout = dout(q.len());
        let got = run(&all, &Cpu::new(1), &parts(case), &dout);
        let (dims, shape) = (all.shape.head_dim, all.attention());
        let (width, kv_width) = (all.heads * dims, all.shape.kv_heads * dims);
        for span in &spans {
            let plain = naive::Plain::from_pages(all.pages(), span);
            let rows = span.first_row..span.first_row + span.row_count;
            let q = wide(&q[rows.start * width..rows.end * width]);
            let dout = wide(&dout[rows.start * width..rows.end * width]);
            let (dq, dk, dv) = naive::backward(shape, &plain, &q, &dout);
            let (mq, mk, mv) = magnitudes(shape, &plain, &q, &dout);
            let error = (0..q.len() / dims)
                .map(|i| {
                    let kv_head = i % all.heads / (all.heads / all.shape.kv_heads);
                    let q = &q[i * dims..][..dims];
                    super::truth::score_error(shape, &plain, q, i / all.heads, kv_head)
                })
                .fold(0.0, f64::max);
            let terms = span.row_count * all.heads / all.shape.kv_heads;
            let relative = 4.0 * error + (2 * dims + terms + 64) as f64 * U;
            let (kv, q) = (rows.start * kv_width..rows.end * kv_width, rows.start * width..rows.end * width);
            for (name, got, want, magnitude) in
                [("dq", &got.dq[q], dq, mq), ("dk", &got.dk[kv.clone()], dk, mk), ("dv", &got.dv[kv], dv, mv)]
            {
                for (i, (&g, w)) in got.iter().zip(&want).enumerate() {
                    let allowed = relative * magnitude[i];
                    let off = (f64::from(g) - w).abs();
                    assert!(off <= allowed, "{case:?}: {name}[{i}] is {g}, want {w} within {allowed:e}");
                }
            }
        }
    }
}

/// The sums of `naive::backward` with every term's magnitude.
fn magnitudes(shape: Shape, plain: &naive::Plain, q: &[f64], dout: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let dims = plain.head_dim;
    let (out, lse) = naive::forward(shape, plain, 0, q);
    let (mut mq, mut mk, mut mv) = (vec![0.0; q.len()], vec![0.0; plain.k.len()], vec![0.0; plain.v.len()]);
    for (index, &lse) in lse.iter().enumerate() {
        let (position, head) = (index / shape.heads, index % shape.heads);
        let kv_head = head / (shape.heads / plain.kv_heads);
        let row = index * dims;
        let dot: f64 = (row..row + dims).map(|i| (out[i] * dout[i]).abs()).sum();
        for (j, s) in plain.scores(shape, &q[row..row + dims], position, kv_head).iter().enumerate() {
            let at = (j * plain.kv_heads + kv_head) * dims;
            let p = (s - lse).exp();
            let dp: f64 = (0..dims).map(|d| (dout[row + d] * plain.v[at + d]).abs()).sum();
            let ds = p * (dp + dot) * f64::from(shape.softmax_scale);
            for d in 0..dims {
                mv[at + d] += p * dout[row + d].abs();
                mq[row + d] += ds * plain.k[at + d].abs();
                mk[at + d] += ds * q[row + d].abs();
            }
        }
    }
    (mq, mk, mv)
}

/// Central differences in f64 with a step of 1e-5: the truncation error is about step^2, the rounding about 1e-16 / step.
#[test]
fn the_naive_gradient_meets_finite_differences() {
    const STEP: f64 = 1e-5;
    for (heads, kv_heads, tokens) in [(1, 1, 4), (4, 2, 7), (3, 1, 5)] {
        let pages = KvShape {
            kv_heads,
            head_dim: 4,
            page_len: 4,
            k: DType::F32,
            v: DType::F32,
            scale: crate::kv_tile::KvScale::Static,
        };
        let all = Sequences::new(heads, pages, &[tokens], 1);
        let shape = all.attention();
        let q = wide(&all.q[0]);
        let dout = wide(&dout(q.len()));
        let mut plain = naive::Plain { kv_heads, head_dim: 4, k: wide(&all.k[0]), v: wide(&all.v[0]) };
        let (dq, dk, dv) = naive::backward(shape, &plain, &q, &dout);
        let loss = |plain: &naive::Plain, q: &[f64]| -> f64 {
            naive::forward(shape, plain, 0, q).0.iter().zip(&dout).map(|(o, d)| o * d).sum()
        };
        let check = |name: &str, i: usize, up: f64, down: f64, want: f64| {
            let slope = (up - down) / (2.0 * STEP);
            assert!((slope - want).abs() < 1e-7, "{name}[{i}]: slope {slope}, gradient {want}");
        };
        for i in 0..q.len() {
            let at = |step: f64| {
                let mut q = q.clone();
                q[i] += step;
                loss(&plain, &q)
            };
            check("dq", i, at(STEP), at(-STEP), dq[i]);
        }
        for i in 0..dk.len() {
            let (k, v) = (plain.k[i], plain.v[i]);
            plain.k[i] = k + STEP;
            let up = loss(&plain, &q);
            plain.k[i] = k - STEP;
            check("dk", i, up, loss(&plain, &q), dk[i]);
            plain.k[i] = k;
            plain.v[i] = v + STEP;
            let up = loss(&plain, &q);
            plain.v[i] = v - STEP;
            check("dv", i, up, loss(&plain, &q), dv[i]);
            plain.v[i] = v;
        }
    }
}

#[test]
fn gradient_bits_do_not_depend_on_isa_threads_batch_or_page_order() {
    for case in GRADIENTS {
        let (all, elsewhere) = (Sequences::of_case(case, 3), Sequences::of_case(case, 4));
        let (_, q) = all.batch(&parts(case));
        let dout = dout(q.len());
        let want = run(&all, &Cpu::new(1), &parts(case), &dout);
        let mut runs = vec![];
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let from = if threads == 2 { &elsewhere } else { &all };
                let got = run(from, &Cpu::with_isa(threads, isa), &parts(case), &dout);
                runs.push((format!("{}, {threads} threads", isa.name()), got));
            }
        }
        let mut alone = Gradients { dq: vec![], dk: vec![], dv: vec![] };
        let mut row = 0;
        for part in parts(case) {
            let width = all.heads * all.shape.head_dim;
            let got = run(&all, &Cpu::new(1), &[part], &dout[row * width..][..part.2 * width]);
            row += part.2;
            alone.dq.extend(got.dq);
            alone.dk.extend(got.dk);
            alone.dv.extend(got.dv);
        }
        runs.push(("alone".to_owned(), alone));
        for (what, got) in runs {
            same(&got.dq, &want.dq, &format!("dq, {case:?}, {what}"));
            same(&got.dk, &want.dk, &format!("dk, {case:?}, {what}"));
            same(&got.dv, &want.dv, &format!("dv, {case:?}, {what}"));
        }
    }
}
