//! On a CUDA device: the f64 truth within a derived tolerance, and equal bits however the same tokens are computed.

use super::{CHUNK, naive};
use crate::DType;
use crate::conformance::Outcome;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::dtype::round_bf16;
use crate::kv_tile::{KvScale, KvShape};

mod sequences;

use sequences::{How, Part, Sequences};

/// Heads, shape of the pages, and the (first position, rows) of each sequence's span.
struct Row {
    heads: usize,
    shape: KvShape,
    spans: &'static [(usize, usize)],
}

const fn row(
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    formats: (DType, DType),
    scale: KvScale,
    spans: &'static [(usize, usize)],
) -> Row {
    Row { heads, shape: KvShape { kv_heads, head_dim, page_len, k: formats.0, v: formats.1, scale }, spans }
}

use DType::{Bf16, E4m3, E5m2};
use KvScale::{Static, Token};

/// Every head_dim with both sizes of elements, groups of 1, 2, 3, 4, 7, 8 and 9 heads, edges of pages and chunks, every
/// format of K and of V with both kinds of scales.
const CASES: &[Row] = &[
    row(1, 1, 16, 16, (Bf16, Bf16), Static, &[(0, 1), (14, 1), (15, 1), (16, 1)]),
    row(2, 1, 16, 4, (E4m3, E4m3), Static, &[(0, 17), (254, 3), (3, 1)]),
    row(4, 1, 32, 4, (E4m3, E4m3), Token, &[(255, 1), (256, 1), (4, 1), (0, 9)]),
    row(8, 1, 32, 16, (Bf16, E4m3), Static, &[(0, 5), (256, 2)]),
    row(7, 1, 64, 16, (E4m3, E4m3), Static, &[(0, 16), (299, 1), (15, 2)]),
    row(14, 2, 64, 16, (Bf16, Bf16), Static, &[(0, 21), (255, 1)]),
    row(3, 1, 64, 4, (E5m2, E5m2), Token, &[(254, 1), (40, 7)]),
    row(9, 1, 64, 1, (E5m2, Bf16), Static, &[(20, 1), (0, 3)]),
    row(2, 2, 96, 16, (E5m2, E4m3), Static, &[(255, 1), (0, 6)]),
    row(4, 1, 96, 4, (Bf16, Bf16), Static, &[(257, 5), (31, 1)]),
    row(4, 2, 128, 16, (Bf16, Bf16), Static, &[(0, 10), (511, 2), (256, 1)]),
    row(8, 2, 128, 16, (E4m3, E4m3), Static, &[(0, 18), (520, 1), (255, 1)]),
    row(4, 1, 128, 256, (E4m3, Bf16), Token, &[(240, 20), (256, 1)]),
    row(2, 1, 128, 64, (Bf16, E5m2), Token, &[(0, 3), (300, 1)]),
    row(8, 1, 128, 16, (E4m3, E5m2), Token, &[(257, 1), (30, 4)]),
];

/// Runs them.
pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for row in CASES {
        let s = row.shape;
        let name = format!(
            "{} heads on {} of {}, {} and {} by {:?}, pages of {}, spans {:?}",
            row.heads, s.kv_heads, s.head_dim, s.k, s.v, s.scale, s.page_len, row.spans
        );
        let mut case = Case::new("attention", name, each);
        agrees(gpu, row, &mut case)?;
        case.end();
    }
    for (formats, scale) in
        [((Bf16, Bf16), Static), ((E4m3, E4m3), Static), ((E5m2, E5m2), Static), ((E4m3, E4m3), Token)]
    {
        let name = |what: &str| format!("{what}, {} by {scale:?}", formats.0);
        let mut case = Case::new("attention", name("decode, prefill, pieces"), each);
        let head_dim = if scale == Token { 32 } else { 64 };
        unity(gpu, KvShape { kv_heads: 1, head_dim, page_len: 4, k: formats.0, v: formats.1, scale }, &mut case)?;
        case.end();
        let mut case = Case::new("attention", name("NaN that was written"), each);
        written_nan(gpu, formats, scale, &mut case)?;
        case.end();
    }
    for dtype in [E4m3, E5m2] {
        let mut case = Case::new("attention", format!("{dtype} by Token, sizes at both ends"), each);
        extremes(gpu, dtype, &mut case)?;
        case.end();
    }
    let mut case = Case::new("attention", "every code of a value".into(), each);
    every_value_code(gpu, &mut case)?;
    case.end();
    let mut case = Case::new("attention", "every code of a key".into(), each);
    every_key_code(gpu, &mut case)?;
    case.end();
    Ok(())
}

fn ends(spans: &[(usize, usize)]) -> Vec<usize> {
    spans.iter().map(|s| s.0 + s.1).collect()
}

/// Against the truth; alone, on other pages and by other launches with the same bits.
fn agrees(gpu: &Gpu, row: &Row, case: &mut Case<'_>) -> Result<(), CudaError> {
    let lengths = ends(row.spans);
    let mut all = Sequences::new(row.heads, row.shape, &lengths, 3);
    all.append(&lengths);
    let parts: Vec<Part> = row.spans.iter().enumerate().map(|(i, s)| (i, s.0, s.1)).collect();
    let on = all.upload(gpu)?;
    let (got, guards) = all.run(gpu, &on, &parts, How::Together)?;
    case.fail("out", guards);
    let (want, tolerance) = truth(&all, &parts);
    case.close("out", &got, &want, |i| tolerance[i]);
    let (apart, guards) = all.run(gpu, &on, &parts, How::Apart)?;
    case.fail("out of separate chunks", guards);
    case.same_bits("out of separate chunks", &apart, &got);
    let (rounded, guards) = all.run(gpu, &on, &parts, How::Rounded)?;
    case.fail("rounded out", guards);
    case.same_bits("rounded out", &rounded, &got.iter().map(|&x| round_bf16(x)).collect::<Vec<_>>());
    let mut elsewhere = Sequences::new(row.heads, row.shape, &lengths, 4);
    elsewhere.append(&lengths);
    let on = elsewhere.upload(gpu)?;
    let mut alone = Vec::new();
    for part in &parts {
        alone.extend(elsewhere.run(gpu, &on, &[*part], How::Apart)?.0);
    }
    case.same_bits("alone, on other pages", &alone, &got);
    Ok(())
}

/// The f64 outputs and how far each may be off.
///
/// With u = 2^-24: a query's two parts are together within s of the largest element of the row (2^-21 in f16, where a power
/// of two brings it to 2^14) or of the element (2^-17 in bf16), so a score is within `s max|q| sum|k| scale` of the truth
/// and its sums within 2 dims u (a sum may be cut off instead of rounded). An error of e in every score changes a weight by
/// a factor of at most exp(2 e). The parts of a weight are within the same s of it; exp is good to 4 u, a chunk's sum has
/// CHUNK roundings, twice that where cut off, each fold 4, and there are a few more.
#[allow(clippy::cast_precision_loss)]
fn truth(all: &Sequences, parts: &[Part]) -> (Vec<f64>, Vec<f64>) {
    const U: f64 = 1.0 / 16_777_216.0;
    let (dims, shape) = (all.shape.head_dim, all.attention());
    let parts_of = |dtype: DType| if dtype == DType::Bf16 { 128.0 * U } else { 8.0 * U };
    let (spans, q) = all.batch(parts);
    let (mut want, mut tolerance) = (Vec::new(), Vec::new());
    for span in &spans {
        let plain = naive::Plain::from_pages(all.pages(), span);
        let q = &q[span.first_row * all.heads * dims..][..span.row_count * all.heads * dims];
        let q: Vec<f64> = q.iter().map(|&q| f64::from(q)).collect();
        want.extend(naive::forward(shape, &plain, span.first_position, &q).0);
        for (i, q) in q.chunks(dims).enumerate() {
            let (position, head) = (span.first_position + i / all.heads, i % all.heads);
            let kv_head = head / (all.heads / all.shape.kv_heads);
            let of = |x: &[f64], j: usize| x[(j * plain.kv_heads + kv_head) * dims..][..dims].to_vec();
            let largest_q = q.iter().fold(0.0_f64, |m, q| m.max(q.abs()));
            let (mut error, mut reach) = (0.0_f64, 0.0_f64);
            for j in 0..=position {
                let k = of(&plain.k, j);
                let split = parts_of(all.shape.k) * largest_q * k.iter().map(|k| k.abs()).sum::<f64>();
                let sums = 2.0 * (dims + 2) as f64 * U * k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum::<f64>();
                error = error.max((split + sums) * f64::from(shape.softmax_scale));
                reach = of(&plain.v, j).iter().fold(reach, |m, v| m.max(v.abs()));
            }
            let chunks = (position / CHUNK + 1) as f64;
            let rest = (2.0 * CHUNK as f64 + 8.0 * chunks + 24.0) * U;
            tolerance.extend(vec![(2.0 * error + parts_of(all.shape.v) + rest) * reach; dims]);
        }
    }
    (want, tolerance)
}

/// Token by token, in ragged pieces and whole, with free slots of NaN behind every end.
fn unity(gpu: &Gpu, shape: KvShape, case: &mut Case<'_>) -> Result<(), CudaError> {
    const LENGTH: usize = 262;
    let (heads, width) = (3, 3 * shape.head_dim);
    let mut whole = Sequences::new(heads, shape, &[LENGTH], 7);
    whole.append(&[LENGTH]);
    let on = whole.upload(gpu)?;
    let (want, guards) = whole.run(gpu, &on, &[(0, 0, LENGTH)], How::Together)?;
    case.fail("prefill", guards);
    // Two formats are cut here, two there.
    let cuts = if shape.k == E4m3 { [0, 1, 21, 250, 259] } else { [0, 15, 16, 255, 256] };
    for (i, &first) in cuts.iter().enumerate() {
        let end = cuts.get(i + 1).copied().unwrap_or(LENGTH);
        let mut so_far = Sequences::new(heads, shape, &[LENGTH], 8);
        so_far.append(&[end]);
        let on = so_far.upload(gpu)?;
        let (got, _) = so_far.run(gpu, &on, &[(0, first, end - first)], How::Apart)?;
        case.same_bits(&format!("rows {first}..{end} in pieces"), &got, &want[first * width..end * width]);
    }
    for position in [0, 3, 4, 15, 16, 17, 100, 254, 255, 256, 257, 261] {
        let mut so_far = Sequences::new(heads, shape, &[LENGTH], 9);
        so_far.append(&[position + 1]);
        let on = so_far.upload(gpu)?;
        let how = if position % 2 == 0 { How::Apart } else { How::Together };
        let (got, _) = so_far.run(gpu, &on, &[(0, position, 1)], how)?;
        case.same_bits(&format!("row {position} decoded"), &got, &want[position * width..][..width]);
    }
    Ok(())
}

/// NaN in a key or value reaches the queries that see it, in its head and dim, and no other; decode agrees with prefill.
fn written_nan(gpu: &Gpu, formats: (DType, DType), scale: KvScale, case: &mut Case<'_>) -> Result<(), CudaError> {
    const AT: usize = 20;
    let shape = KvShape { kv_heads: 2, head_dim: 32, page_len: 16, k: formats.0, v: formats.1, scale };
    let clean = {
        let mut all = Sequences::new(4, shape, &[40], 1);
        all.append(&[40]);
        let on = all.upload(gpu)?;
        all.run(gpu, &on, &[(0, 0, 40)], How::Together)?.0
    };
    for in_k in [true, false] {
        let mut all = Sequences::new(4, shape, &[40], 1);
        let x = if in_k { &mut all.k[0] } else { &mut all.v[0] };
        x[AT * 64 + 3] = f32::NAN; // head 0, dim 3
        all.append(&[40]);
        let on = all.upload(gpu)?;
        let (prefill, _) = all.run(gpu, &on, &[(0, 0, 40)], How::Together)?;
        let what = format!("NaN in {}", if in_k { "k" } else { "v" });
        case.same_bits(&what, &prefill[..AT * 128], &clean[..AT * 128]);
        for position in AT..40 {
            let row = &prefill[position * 128..][..128];
            case.same_bits(&format!("{what}, other head"), &row[64..], &clean[position * 128 + 64..][..64]);
            let hit = |d: usize| in_k || d == 3;
            let wrong = (0..64).find(|i| row[*i].is_nan() != hit(i % 32));
            case.fail(&what, wrong.map(|i| format!("position {position}, element {i} is {:e}", row[i])));
        }
        for position in [AT - 1, AT, AT + 1, 39] {
            let (got, _) = all.run(gpu, &on, &[(0, position, 1)], How::Apart)?;
            case.same_bits(&format!("{what}, row {position} decoded"), &got, &prefill[position * 128..][..128]);
        }
    }
    Ok(())
}

/// Tokens whose scales lie at both ends of what a byte can say, and queries as large as sums over codes allow: the truth all the same,
/// and the bits of decode.
fn extremes(gpu: &Gpu, dtype: DType, case: &mut Case<'_>) -> Result<(), CudaError> {
    const LENGTH: usize = 45;
    let shape = KvShape { kv_heads: 1, head_dim: 16, page_len: 16, k: dtype, v: dtype, scale: Token };
    for (what, sizes, q_size) in [
        ("tiny values", [1e-30_f32, 1e-36, 1e-38, 1e-41], 1.0),
        ("huge values", [1e30, 1e36, 1e37, 0.0], 1.0),
        ("huge queries", [1.0; 4], 1e31),
    ] {
        let mut all = Sequences::new(1, shape, &[LENGTH], 1);
        for (row, v) in all.v[0].chunks_exact_mut(16).enumerate() {
            v.iter_mut().for_each(|x| *x = (*x * sizes[row % 4]).clamp(f32::MIN, f32::MAX));
        }
        all.q[0].iter_mut().for_each(|q| *q *= q_size);
        all.k[0].iter_mut().for_each(|k| *k /= q_size);
        all.append(&[LENGTH]);
        let on = all.upload(gpu)?;
        let parts = [(0, 0, LENGTH)];
        let (prefill, guards) = all.run(gpu, &on, &parts, How::Together)?;
        case.fail(what, guards);
        let (want, tolerance) = truth(&all, &parts);
        // Beside errors relative to the largest value seen, weighted values are rounded as subnormals.
        case.close(what, &prefill, &want, |i| tolerance[i] + 4.0 * f64::from(f32::MIN_POSITIVE) / 8_388_608.0);
        for position in (0..LENGTH).step_by(11) {
            let (got, _) = all.run(gpu, &on, &[(0, position, 1)], How::Apart)?;
            case.same_bits(&format!("{what}, row {position} decoded"), &got, &prefill[position * 16..][..16]);
        }
    }
    Ok(())
}

/// One key: the output is its value, exactly, whatever its code. Every code stands in some value.
fn every_value_code(gpu: &Gpu, case: &mut Case<'_>) -> Result<(), CudaError> {
    for (dtype, value) in [(E4m3, crate::dtype::e4m3_to_f32 as fn(u8) -> f32), (E5m2, crate::dtype::e5m2_to_f32)] {
        let shape = KvShape { kv_heads: 2, head_dim: 128, page_len: 1, k: E4m3, v: dtype, scale: Static };
        let mut all = Sequences::new(2, shape, &[1], 1);
        all.append(&[1]);
        let page = all.tables[0][0];
        for code in 0..=u8::MAX {
            let head = usize::from(code) / 128;
            let tile = shape.v_tile(page, head);
            all.bytes[tile][usize::from(code) % 128] = code;
        }
        let on = all.upload(gpu)?;
        let (got, _) = all.run(gpu, &on, &[(0, 0, 1)], How::Together)?;
        // Infinity comes out as NaN: a sum of values that is not finite is.
        let want = (0..=u8::MAX).map(|code| value(code) * all.scales[usize::from(code) / 128]);
        let want: Vec<f32> = want.map(|x| if x.is_finite() { x + 0.0 } else { f32::NAN }).collect(); // -0 becomes 0
        case.same_bits(&format!("{dtype}"), &got, &want);
    }
    Ok(())
}

/// Two keys, zero and one of a single code c: with values 0 and 1 the output is the logistic function of c's score. The
/// query and the weights have more digits than one of their parts holds.
fn every_key_code(gpu: &Gpu, case: &mut Case<'_>) -> Result<(), CudaError> {
    let e4m3 = crate::dtype::e4m3_to_f32 as fn(u8) -> f32;
    let query = 1.0 + 2.0_f32.powi(-9) + 2.0_f32.powi(-13);
    for (k, v, value, scale) in [
        (E4m3, Bf16, e4m3, 2.0_f32.powi(-6)),
        (E5m2, E4m3, crate::dtype::e5m2_to_f32, 2.0_f32.powi(-13)),
        // bf16 holds those numbers too.
        (Bf16, E5m2, e4m3, 2.0_f32.powi(-6)),
    ] {
        let shape = KvShape { kv_heads: 1, head_dim: 16, page_len: 4, k, v, scale: Static };
        let mut all = Sequences::new(1, shape, &[2; 256], 1);
        all.scales = vec![scale];
        let code_dim = |code: usize| code * 5 % 16;
        for (code, (keys, values)) in (0..=u8::MAX).zip(all.k.iter_mut().zip(&mut all.v)) {
            let (index, at) = (usize::from(code), code_dim(usize::from(code)));
            keys.fill(0.0);
            keys[16 + at] = value(code) * scale;
            values.fill(0.0);
            values[16..].fill(scale); // a code of 1, or so rounded
            all.q[index].fill(0.0);
            all.q[index][16 + at] = 4.0 * query; // times the softmax scale of 1/4
        }
        all.append(&[2; 256]);
        for code in (0..=u8::MAX).filter(|_| k != Bf16) {
            let tile = shape.k_tile(all.tables[usize::from(code)][0], 0);
            all.bytes[tile][code_dim(usize::from(code)) * 4 + 1] = code;
        }
        let on = all.upload(gpu)?;
        let parts: Vec<Part> = (0..256).map(|i| (i, 1, 1)).collect();
        let (got, _) = all.run(gpu, &on, &parts, How::Together)?;
        let got: Vec<f32> = got.chunks(16).map(|row| row[0] / scale).collect();
        let score = |code: u8| f64::from(value(code)) * f64::from(scale) * f64::from(query);
        let what = format!("{k} and {v}");
        // Nothing writes the codes of infinity; what comes of them is open.
        let wrong =
            (0..=u8::MAX).find(|&c| !value(c).is_infinite() && got[usize::from(c)].is_nan() != value(c).is_nan());
        case.fail(&what, wrong.map(|c| format!("code {c:#04x} gives {:e}", got[usize::from(c)])));
        let finite: Vec<u8> = (0..=u8::MAX).filter(|&c| score(c).is_finite()).collect();
        let got: Vec<f32> = finite.iter().map(|&c| got[usize::from(c)]).collect();
        let want: Vec<f64> = finite.iter().map(|&c| 1.0 / (1.0 + (-score(c)).exp())).collect();
        // Parts of a weight in bf16 (128 u), exp to 4 u, a score of at most 7 to u, a sum and a quotient.
        case.close(&what, &got, &want, |_| 144.0 / 16_777_216.0);
    }
    Ok(())
}
