//! On a CUDA device: the f64 truth within a derived tolerance, and equal bits however the same tokens are computed.

use super::{CHUNK, naive};
use crate::DType;
use crate::conformance::Outcome;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::dtype::round_bf16;
use crate::kv_tile::{KvScale, KvShape};

mod codes;
mod sequences;

use sequences::{How, Part, Sequences};

/// Heads, shape of the pages, and the (first position, rows) of each sequence's span.
struct Row {
    heads: usize,
    shape: KvShape,
    spans: &'static [(usize, usize)],
}

impl Row {
    fn name(&self) -> String {
        let s = self.shape;
        format!(
            "{} heads on {} of {}, {} and {} by {:?}, pages of {}, spans {:?}",
            self.heads, s.kv_heads, s.head_dim, s.k, s.v, s.scale, s.page_len, self.spans
        )
    }
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

/// Heads on one kv head, page_len, formats, kind of scale and spans, for every head_dim.
type SweepRow = (usize, usize, (DType, DType), KvScale, &'static [(usize, usize)]);

/// Runs them.
pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for row in CASES {
        let mut case = Case::new("attention", row.name(), each);
        agrees(gpu, row, &mut case)?;
        case.end();
    }
    // Every kernel with both sizes of elements: whole groups of 16 keys in a page and the last ones, few rows and many,
    // rows of which some see a chunk that others do not, and a third chunk.
    let sweep: [SweepRow; 6] = [
        (4, 32, (Bf16, Bf16), Static, &[(36, 1), (26, 4), (90, 1)]),
        (8, 64, (Bf16, Bf16), Static, &[(36, 1), (290, 1)]),
        (8, 4, (E4m3, E5m2), Token, &[(36, 1), (255, 1)]),
        (4, 4, (E5m2, E4m3), Token, &[(290, 1), (508, 5)]),
        (4, 32, (E4m3, E4m3), Static, &[(21, 1), (26, 9)]),
        (2, 8, (Bf16, E4m3), Static, &[(255, 2)]),
    ];
    for (head_dim, (heads, page_len, formats, scale, spans)) in
        [16, 32, 64, 96, 128].into_iter().flat_map(|d| sweep.map(|s| (d, s)))
    {
        let shape = KvShape { kv_heads: 1, head_dim, page_len, k: formats.0, v: formats.1, scale };
        let row = Row { heads, shape, spans };
        let mut case = Case::new("attention", row.name(), each);
        agrees(gpu, &row, &mut case)?;
        case.end();
    }
    for (formats, scale, dims) in
        [((Bf16, Bf16), Static, 96), ((E4m3, E4m3), Static, 128), ((E5m2, E5m2), Static, 64), ((E4m3, E4m3), Token, 16)]
    {
        let name = |what: &str| format!("{what}, {} by {scale:?}", formats.0);
        let mut case = Case::new("attention", name("decode, prefill, pieces"), each);
        let head_dim = if scale == Token { 32 } else { 64 };
        unity(gpu, KvShape { kv_heads: 1, head_dim, page_len: 4, k: formats.0, v: formats.1, scale }, &mut case)?;
        case.end();
        let mut case = Case::new("attention", name("NaN that was written"), each);
        let shape = KvShape { kv_heads: 2, head_dim: dims, page_len: 16, k: formats.0, v: formats.1, scale };
        written_nan(gpu, shape, &mut case)?;
        case.end();
    }
    for dtype in [E4m3, E5m2] {
        let mut case = Case::new("attention", format!("{dtype} by Token, sizes at both ends"), each);
        extremes(gpu, dtype, &mut case)?;
        case.end();
    }
    let mut case = Case::new("attention", "every code of a value".into(), each);
    codes::value_codes(gpu, &mut case)?;
    case.end();
    // Narrow tiles of one and of two fours of columns, and wide ones.
    for (head_dim, (rows, dtype)) in [16, 32, 64, 96, 128]
        .into_iter()
        .flat_map(|d| [(4, Bf16), (8, E4m3), (8, Bf16), (4, E5m2), (16, Bf16), (16, E4m3)].map(|tile| (d, tile)))
    {
        let name = format!("who sees what is not finite, {dtype}, head of {head_dim}, {rows} rows");
        let mut case = Case::new("attention", name, each);
        sees_broken(gpu, head_dim, rows, dtype, &mut case)?;
        case.end();
    }
    for (head_dim, (heads, rows)) in
        [16, 32, 64, 96, 128].into_iter().flat_map(|d| [(1, 1), (8, 1), (8, 2)].map(|tile| (d, tile)))
    {
        let name = format!("codes of a key, {heads} heads of {head_dim}, {rows} rows");
        let mut case = Case::new("attention", name, each);
        codes::key_codes(gpu, head_dim, heads, rows, &mut case)?;
        case.end();
    }
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
fn written_nan(gpu: &Gpu, shape: KvShape, case: &mut Case<'_>) -> Result<(), CudaError> {
    const AT: usize = 20;
    let (dims, dim, width) = (shape.head_dim, shape.head_dim / 2 + 3, 4 * shape.head_dim);
    let clean = {
        let mut all = Sequences::new(4, shape, &[40], 1);
        all.append(&[40]);
        let on = all.upload(gpu)?;
        all.run(gpu, &on, &[(0, 0, 40)], How::Together)?.0
    };
    for in_k in [true, false] {
        let mut all = Sequences::new(4, shape, &[40], 1);
        let x = if in_k { &mut all.k[0] } else { &mut all.v[0] };
        x[AT * 2 * dims + dim] = f32::NAN; // of kv head 0, which query heads 0 and 1 read
        all.append(&[40]);
        let on = all.upload(gpu)?;
        let (prefill, _) = all.run(gpu, &on, &[(0, 0, 40)], How::Together)?;
        let what = format!("NaN in {}", if in_k { "k" } else { "v" });
        case.same_bits(&what, &prefill[..AT * width], &clean[..AT * width]);
        for position in AT..40 {
            let (hit, rest) = prefill[position * width..][..width].split_at(2 * dims);
            case.same_bits(&format!("{what}, other heads"), rest, &clean[position * width..][2 * dims..4 * dims]);
            let wrong = (0..2 * dims).find(|i| hit[*i].is_nan() != (in_k || i % dims == dim));
            case.fail(&what, wrong.map(|i| format!("position {position}, element {i} is {:e}", hit[i])));
        }
        for position in [AT - 1, AT, AT + 1, 39] {
            let (got, _) = all.run(gpu, &on, &[(0, position, 1)], How::Apart)?;
            case.same_bits(&format!("{what}, row {position} decoded"), &got, &prefill[position * width..][..width]);
        }
    }
    Ok(())
}

/// Values that are not finite, or whose sum is not, at every place among the last keys: NaN for exactly the rows that see
/// them, in their dim, and no other bit changes.
fn sees_broken(gpu: &Gpu, dims: usize, rows: usize, dtype: DType, case: &mut Case<'_>) -> Result<(), CudaError> {
    const BEFORE: usize = 29;
    let length = BEFORE + rows;
    let shape = KvShape { kv_heads: 1, head_dim: dims, page_len: 16, k: dtype, v: dtype, scale: Static };
    // All weights are 1, so that two values of 3e38 are too much.
    let outputs = |broken: &[(usize, usize, f32)], how| {
        let mut all = Sequences::new(1, shape, &[length], 1);
        all.q[0].fill(0.0);
        for &(position, dim, value) in broken {
            all.v[0][position * dims + dim] = value;
        }
        all.append(&[length]);
        let on = all.upload(gpu)?;
        Ok(all.run(gpu, &on, &[(0, BEFORE, rows)], how)?.0)
    };
    let clean = outputs(&[], How::Together)?;
    for place in 0..rows {
        let (position, dim) = (BEFORE + place, (place * 7 + 5) % dims);
        let mut kinds = vec![vec![(position, dim, f32::NAN)]];
        if dtype == Bf16 {
            kinds.push(vec![(position - 20, dim, 3e38), (position, dim, 3e38)]);
        }
        for (broken, how) in kinds.into_iter().zip([How::Together, How::Apart]) {
            let got = outputs(&broken, how)?;
            let sees = |i: usize| i % dims == dim && i / dims >= place;
            let wrong = (0..got.len()).find(|&i| {
                let large = broken.len() > 1 && i % dims == dim; // sees the first of the two
                if sees(i) {
                    !got[i].is_nan()
                } else {
                    !large && got[i].to_bits() != clean[i].to_bits() || got[i].is_nan()
                }
            });
            let name = |i| format!("{broken:?}, {how:?}: row {}, dim {} is {:e}", i / dims, i % dims, got[i]);
            case.fail("out", wrong.map(name));
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
