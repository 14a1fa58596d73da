//! Equal bits, however the same tokens are computed.

use super::*;
use crate::DType;
use crate::dtype::{e4m3_from_f32, e4m3_to_f32, e5m2_from_f32, e5m2_to_f32};
use crate::kv_tile::KvScale;

#[test]
fn bits_do_not_depend_on_isa_threads_batch_or_page_order() {
    for case in CASES {
        let all = Sequences::of_case(case, 3);
        let (want, want_lse) = all.run(&Cpu::with_isa(1, Isa::detect()), &parts(case));
        assert!(want.iter().all(|x| x.is_finite()), "{case:?}");
        let elsewhere = Sequences::of_case(case, 4);
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let cpu = Cpu::with_isa(threads, isa);
                let what = format!("{case:?}, {}, {threads} threads", isa.name());
                let (out, lse) = if threads == 2 { &elsewhere } else { &all }.run(&cpu, &parts(case));
                same(&out, &want, &what);
                same(&lse, &want_lse, &what);
            }
            let cpu = Cpu::with_isa(1, isa);
            let (mut out, mut lse) = (Vec::new(), Vec::new());
            for part in parts(case) {
                let (o, l) = all.run(&cpu, &[part]);
                out.extend(o);
                lse.extend(l);
            }
            same(&out, &want, &format!("{case:?}, {}, alone", isa.name()));
            same(&lse, &want_lse, &format!("{case:?}, {}, alone", isa.name()));
        }
    }
}

/// Shapes for the tests over many lengths: (heads, kv heads, head_dim, page_len, format of K, of V, scales).
const SHAPES: &[(usize, usize, usize, usize, DType, DType, KvScale)] = &[
    (1, 1, 32, 16, DType::F32, DType::F32, KvScale::Static),
    (2, 1, 16, 4, DType::F32, DType::F32, KvScale::Static),
    (3, 1, 16, 16, DType::Bf16, DType::Bf16, KvScale::Static),
    (4, 2, 48, 4, DType::Bf16, DType::Bf16, KvScale::Static),
    (7, 1, 16, 4, DType::E4m3, DType::E4m3, KvScale::Static),
    (4, 2, 64, 16, DType::E4m3, DType::E4m3, KvScale::Static),
    (2, 1, 32, 16, DType::E5m2, DType::E5m2, KvScale::Static),
    (2, 1, 32, 16, DType::E4m3, DType::E4m3, KvScale::Token),
    (3, 1, 16, 64, DType::E5m2, DType::E5m2, KvScale::Token),
    (2, 2, 16, 16, DType::E5m2, DType::Bf16, KvScale::Token),
    (1, 1, 12, 256, DType::F32, DType::E4m3, KvScale::Token),
];

/// Every format a test is run with, for K and V alike, with its scales.
const FORMATS: [(DType, KvScale); 6] = [
    (DType::F32, KvScale::Static),
    (DType::Bf16, KvScale::Static),
    (DType::E4m3, KvScale::Static),
    (DType::E4m3, KvScale::Token),
    (DType::E5m2, KvScale::Static),
    (DType::E5m2, KvScale::Token),
];

/// Token by token, in ragged pieces and whole, for lengths around the edges of pages and chunks.
#[test]
fn decode_equals_prefill_whole_and_in_pieces() {
    for &(heads, kv_heads, head_dim, page_len, k, v, scale) in SHAPES {
        let shape = KvShape { kv_heads, head_dim, page_len, k, v, scale };
        let cpu = Cpu::new(1);
        let mut decoded = Sequences::new(heads, shape, &[600], 7);
        let (mut want, mut want_lse) = (Vec::new(), Vec::new());
        for position in 0..600 {
            decoded.append(0, position, 1);
            let (out, lse) = decoded.run(&cpu, &[(0, position, 1)]);
            want.extend(out);
            want_lse.extend(lse);
        }
        for length in [1, 5, 16, 17, 255, 256, 257, 300, 600] {
            for cuts in [vec![0], vec![0, 1, 4, 21, 250, 259], vec![0, 15, 16, 255, 256, 513]] {
                if cuts.len() > 1 && length < 255 {
                    continue; // the longer ones begin with the same pieces
                }
                let mut all = Sequences::new(heads, shape, &[600], 8);
                let (mut got, mut got_lse) = (Vec::new(), Vec::new());
                for (i, &first) in cuts.iter().enumerate().filter(|c| *c.1 < length) {
                    let rows = cuts.get(i + 1).map_or(length, |&c| c.min(length)) - first;
                    all.append(0, first, rows);
                    let (out, lse) = all.run(&cpu, &[(0, first, rows)]);
                    got.extend(out);
                    got_lse.extend(lse);
                }
                let what = format!("{shape:?}, {heads} heads, {length} tokens cut at {cuts:?}");
                same(&got, &want[..got.len()], &what);
                same(&got_lse, &want_lse[..got_lse.len()], &what);
                assert_eq!(got_lse.len(), length * heads, "{what}");
            }
        }
    }
}

/// Slots that nothing was written to may hold NaN (as everywhere in these tests), infinities, zeros or numbers.
#[test]
fn free_slots_do_not_matter() {
    for (dtype, scale) in FORMATS {
        for (page_len, rows) in [(16, 1), (64, 40), (4, 3), (256, 2)] {
            let shape = KvShape { kv_heads: 1, head_dim: 32, page_len, k: dtype, v: dtype, scale };
            let run = |free: u8| {
                let mut all = Sequences::new(3, shape, &[261], 2);
                all.bytes.fill(free);
                all.append(0, 0, 261);
                all.run(&Cpu::new(1), &[(0, 261 - rows, rows)])
            };
            let want = run(FREE);
            for free in [0x00, 0x80, 0x7f, 0x3c] {
                let got = run(free);
                same(&got.0, &want.0, &format!("{shape:?}, free slots of {free:#x}"));
                same(&got.1, &want.1, &format!("{shape:?}, free slots of {free:#x}"));
            }
        }
    }
}

/// A NaN that was written is seen: the queries from its position on are NaN, those before are as if it were not there,
/// and decode, which reads pages in place, agrees with prefill.
#[test]
fn written_nan_reaches_its_head_and_later_queries_only() {
    for (dtype, scale) in FORMATS {
        for in_k in [true, false] {
            let shape = KvShape { kv_heads: 2, head_dim: 32, page_len: 16, k: dtype, v: dtype, scale };
            let cpu = Cpu::new(1);
            let clean = Sequences::of_case(&Case { heads: 4, pages: shape, spans: &[(0, 40)] }, 1);
            let mut all = Sequences::new(4, shape, &[40], 1);
            let x = if in_k { &mut all.k[0] } else { &mut all.v[0] };
            x[20 * 64 + 3] = f32::NAN; // position 20, head 0, dim 3
            all.append(0, 0, 40);
            let (prefill, _) = all.run(&cpu, &[(0, 0, 40)]);
            let (before, _) = clean.run(&cpu, &[(0, 0, 40)]);
            let what = format!("{dtype}, {scale:?}, in k: {in_k}");
            for position in 0..40 {
                let row = position * 128..(position + 1) * 128;
                let (decode, _) = all.run(&cpu, &[(0, position, 1)]);
                same(&decode, &prefill[row.clone()], &what);
                let (hit, rest) = if position < 20 { (0, 0) } else { (64, 64) };
                same(&decode[rest..], &before[row][rest..], &what);
                if hit > 0 {
                    assert!(decode[3].is_nan() && decode[32 + 3].is_nan(), "{what}, position {position}");
                }
            }
        }
    }
}

/// Queries so large that their product with the gain of e4m3 codes would overflow.
#[test]
fn huge_queries_decode_as_they_prefill() {
    for scale in [KvScale::Static, KvScale::Token] {
        let shape = KvShape { kv_heads: 1, head_dim: 16, page_len: 16, k: DType::E4m3, v: DType::E4m3, scale };
        let mut all = Sequences::new(1, shape, &[40], 1);
        all.k[0].iter_mut().for_each(|k| *k *= 1e-3);
        for (i, q) in all.q[0].iter_mut().enumerate() {
            *q *= if i % 16 == 0 { 3e36 } else { 1e-30 };
        }
        all.append(0, 0, 40);
        let (want, want_lse) = all.run(&Cpu::new(1), &[(0, 0, 40)]);
        assert!(want_lse.iter().any(|l| l.is_finite() && l.abs() > 1e32), "{shape:?}");
        for position in 0..40 {
            let (out, lse) = all.run(&Cpu::new(1), &[(0, position, 1)]);
            same(&out, &want[position * 16..][..16], "out");
            same(&lse, &want_lse[position..][..1], "lse");
        }
    }
}

/// Tokens whose scales lie at both ends of what a byte can say: weights times scales round to subnormals and reach
/// 2^119, and still decode, which multiplies e4m3 weights by a gain, agrees with prefill.
#[test]
fn extreme_token_scales_decode_as_they_prefill() {
    for dtype in [DType::E4m3, DType::E5m2] {
        let shape = KvShape { kv_heads: 1, head_dim: 16, page_len: 16, k: dtype, v: dtype, scale: KvScale::Token };
        for sizes in [[1e-30, 1e-36, 1e-38, 1e-41], [1e30, 1e36, 1e37, 0.0]] {
            let mut all = Sequences::new(1, shape, &[300], 1);
            for (v, row) in all.v[0].chunks_exact_mut(16).zip(0..) {
                v.iter_mut().for_each(|x| *x = (*x * sizes[row % 4]).clamp(f32::MIN, f32::MAX));
            }
            all.k[0].iter_mut().for_each(|k| *k *= 4.0);
            all.append(0, 0, 300);
            let (want, want_lse) = all.run(&Cpu::new(1), &[(0, 0, 300)]);
            assert!(want.iter().all(|x| x.is_finite()), "{shape:?}, {sizes:?}");
            for isa in Isa::available() {
                for position in (0..300).step_by(7) {
                    let (out, lse) = all.run(&Cpu::with_isa(1, isa), &[(0, position, 1)]);
                    let what = format!("{shape:?}, {sizes:?}, {}, position {position}", isa.name());
                    same(&out, &want[position * 16..][..16], &what);
                    same(&lse, &want_lse[position..][..1], &what);
                }
            }
        }
    }
}

/// A token's scale is a power of two, so a row of keys and values that is e4m3 already comes back as it was: scales by
/// token then give the bits of f32 pages.
#[test]
fn rows_that_fit_the_format_are_exact() {
    for (dtype, round) in [
        (DType::E4m3, (|x| e4m3_to_f32(e4m3_from_f32(x))) as fn(f32) -> f32),
        (DType::E5m2, |x| e5m2_to_f32(e5m2_from_f32(x))),
    ] {
        let of = |k, scale| KvShape { kv_heads: 2, head_dim: 32, page_len: 16, k, v: k, scale };
        let [mut token, mut plain] = [(dtype, KvScale::Token), (DType::F32, KvScale::Static)]
            .map(|(d, s)| Sequences::new(4, of(d, s), &[270], 1));
        for all in [&mut token, &mut plain] {
            for x in [&mut all.k[0], &mut all.v[0]] {
                for (row, x) in x.chunks_exact_mut(32).enumerate() {
                    // From 2^-3 to 2^3 times a normal draw, rounded to codes around 2^6 so that none is subnormal.
                    let size = [0.125, 1.0, 8.0][row % 3];
                    x.iter_mut().for_each(|x| *x = round(*x * 64.0) / 64.0 * size);
                }
            }
            all.append(0, 0, 270);
        }
        let cpu = Cpu::new(1);
        for part in [(0, 0, 270), (0, 269, 1)] {
            let (got, want) = (token.run(&cpu, &[part]), plain.run(&cpu, &[part]));
            same(&got.0, &want.0, &format!("{dtype}"));
            same(&got.1, &want.1, &format!("{dtype}"));
        }
    }
}
