//! The forward pass against the f64 truth.

use super::*;
use crate::ops::attention::{CHUNK, naive};

const U: f64 = 1.0 / 16_777_216.0;

/// The largest error of a score: its chain of `dims` roundings, its scale and the product with it.
#[allow(clippy::cast_precision_loss)]
pub(super) fn score_error(shape: Shape, plain: &naive::Plain, q: &[f64], position: usize, kv_head: usize) -> f64 {
    let magnitudes = naive::Plain {
        kv_heads: plain.kv_heads,
        head_dim: plain.head_dim,
        k: plain.k.iter().map(|k| k.abs()).collect(),
        v: Vec::new(),
    };
    let q: Vec<f64> = q.iter().map(|q| q.abs()).collect();
    let largest = magnitudes.scores(shape, &q, position, kv_head).into_iter().fold(0.0, f64::max);
    (plain.head_dim + 2) as f64 * U * largest
}

/// An error of e in every score changes a softmax weight by a factor of at most exp(2 e); exp is good to 2 ulp (4 u), a
/// chain over a chunk has CHUNK roundings, each combination 4, and there are a few more at the end.
#[test]
#[allow(clippy::cast_precision_loss)]
fn agrees_with_the_naive_sum() {
    for case in CASES {
        let all = Sequences::of_case(case, 3);
        let (got, got_lse) = all.run(&Cpu::new(1), &parts(case));
        let (spans, q) = all.batch(&parts(case));
        let (dims, shape) = (all.shape.head_dim, all.attention());
        for span in &spans {
            let plain = naive::Plain::from_pages(all.pages(), span);
            let heads = span.first_row * all.heads..(span.first_row + span.row_count) * all.heads;
            let q = wide(&q[heads.start * dims..heads.end * dims]);
            let (want, want_lse) = naive::forward(shape, &plain, span.first_position, &q);
            for (i, at) in heads.enumerate() {
                let (position, head) = (span.first_position + i / all.heads, i % all.heads);
                let kv_head = head / (all.heads / all.shape.kv_heads);
                let error = score_error(shape, &plain, &q[i * dims..][..dims], position, kv_head);
                let chunks = (position / CHUNK + 1) as f64;
                let relative = 2.0 * error + (CHUNK as f64 + 8.0 * chunks + 24.0) * U;
                let reach = (0..=position)
                    .flat_map(|j| &plain.v[(j * plain.kv_heads + kv_head) * dims..][..dims])
                    .fold(0.0_f64, |m, v| m.max(v.abs()));
                for d in 0..dims {
                    let (g, w) = (f64::from(got[at * dims + d]), want[i * dims + d]);
                    assert!(
                        (g - w).abs() <= relative * reach,
                        "{case:?}, position {position}, head {head}, dim {d}: {g}, want {w} within {:e}",
                        relative * reach
                    );
                }
                let (g, w) = (f64::from(got_lse[at]), want_lse[i]);
                let allowed = error + relative + 4.0 * U * (1.0 + w.abs());
                assert!((g - w).abs() <= allowed, "{case:?}, lse {at}: {g}, want {w} within {allowed:e}");
            }
        }
    }
}

/// One key: the output is its value and the log-sum-exp its score, exactly.
#[test]
fn a_single_key_gives_its_value() {
    let shape = KvShape {
        kv_heads: 2,
        head_dim: 32,
        page_len: 16,
        k: crate::DType::F32,
        v: crate::DType::F32,
        scale: crate::kv_tile::KvScale::Static,
    };
    let mut all = Sequences::new(4, shape, &[1], 1);
    all.append(0, 0, 1);
    let (out, _) = all.run(&Cpu::new(1), &[(0, 0, 1)]);
    for head in 0..4 {
        assert_eq!(&out[head * 32..][..32], &all.v[0][head / 2 * 32..][..32], "head {head}");
    }
}
