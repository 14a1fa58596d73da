use super::cases::{CASES, Case};
use super::{forward, naive};
use crate::dtype::{E4M3_MAX, E5M2_MAX};
use crate::kv_tile::{FormatCounts, KvCounts, KvPagesMut, KvScale, KvShape, Span};
use crate::rng::{Purpose, Stream};
use crate::{Cpu, DType, Isa};

/// Rows of every size from 2^-30 to 2^30, with zeros, NaN, infinities and whole rows of zeros.
fn draw(case: &Case, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut stream = Stream::new(11, Purpose::Test, seed);
    let rows: usize = case.spans.iter().map(|s| s.1).sum();
    let (heads, dims) = (case.pages.kv_heads, case.pages.head_dim);
    let mut draw = || -> Vec<f32> {
        let mut all = Vec::new();
        for row in 0..rows * heads {
            let size = [100.0, 1.0, 1e-9, 1e9, 0.0, 1e4, 1e-2][row % 7];
            all.extend((0..dims).map(|_| stream.normal() * size));
        }
        all
    };
    let (mut k, mut v) = (draw(), draw());
    k[0] = f32::NAN;
    k[dims - 1] = -0.0;
    v[dims / 2] = f32::NEG_INFINITY;
    if rows * heads > 5 {
        v[5 * dims..6 * dims].fill(f32::NAN);
        v[2 * dims] = f32::MAX;
        k[3 * dims + 1] = f32::from_bits(1);
        k[4 * dims + 2] = f32::from_bits(3); // the only element of its row that is not zero
    }
    (k, v)
}

/// Exact codes in exactly the right bytes: the whole arena is compared, so that a stray write shows. So are the counts,
/// which add to what was there, and the bytes without them.
#[test]
fn writes_the_codes_of_the_naive_loop_and_nothing_else() {
    for (index, case) in CASES.iter().enumerate() {
        let shape = case.pages;
        let (k, v) = draw(case, index as u64);
        let scales: Vec<f32> = (0..shape.kv_heads).map(|h| [0.25, 2.0, 1.0][h % 3]).collect();
        // Pages in descending order, so that neighbours in the sequence are not neighbours in memory.
        let need: Vec<u32> = case
            .spans
            .iter()
            .map(|&(first, rows)| u32::try_from((first + rows).div_ceil(shape.page_len)).unwrap())
            .collect();
        let mut next: u32 = need.iter().sum();
        let bytes = vec![0xa5_u8; next as usize * shape.page_bytes()];
        let tables: Vec<Vec<u32>> = need
            .iter()
            .map(|&n| {
                next -= n;
                (next..next + n).rev().collect()
            })
            .collect();
        let mut row = 0;
        let spans: Vec<Span<'_>> = case
            .spans
            .iter()
            .zip(&tables)
            .map(|(&(first_position, row_count), block_table)| {
                row += row_count;
                Span { first_row: row - row_count, row_count, first_position, block_table }
            })
            .collect();
        let before = vec![
            KvCounts { k: FormatCounts { elements: 7, ..Default::default() }, ..Default::default() };
            shape.kv_heads
        ];
        let (mut want, mut want_counts) = (bytes.clone(), before.clone());
        let mut pages = KvPagesMut {
            shape,
            bytes: &mut want,
            k_scales: &scales,
            v_scales: &scales,
            counts: Some(&mut want_counts),
        };
        naive::forward(&mut pages, &spans, &k, &v);
        assert!(want != bytes);
        for (c, (dtype, earlier)) in want_counts.iter().flat_map(|c| [(c.k, (shape.k, 7)), (c.v, (shape.v, 0))]) {
            let elements = if dtype.bytes() == 1 { row * shape.head_dim } else { 0 };
            assert_eq!(c.elements, earlier + elements as u64, "{case:?}");
        }
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                for counted in [false, true] {
                    let (mut got, mut counts) = (bytes.clone(), before.clone());
                    let mut pages = KvPagesMut {
                        shape,
                        bytes: &mut got,
                        k_scales: &scales,
                        v_scales: &scales,
                        counts: counted.then_some(&mut counts[..]),
                    };
                    forward(&Cpu::with_isa(threads, isa), &mut pages, &spans, &k, &v);
                    let what = format!("{case:?}, {}, {threads} threads, counted: {counted}", isa.name());
                    if let Some(at) = (0..want.len()).find(|&i| want[i] != got[i]) {
                        panic!("{what}: byte {at} is {:#x}, want {:#x}", got[at], want[at]);
                    }
                    assert_eq!(counts, *if counted { &want_counts } else { &before }, "{what}");
                }
            }
        }
    }
}

/// The counts of single elements at the edges, in each format, with the code that goes with each.
#[test]
fn what_counts_as_saturated_and_underflowed() {
    // (input, counted as saturated, as underflowed), at a static scale of 1.
    let least = [2.0_f32.powi(-10), 2.0_f32.powi(-17)]; // the middle between zero and the smallest code
    let up = |x: f32| f32::from_bits(x.to_bits() + 1);
    let rows = [
        (DType::E4m3, vec![(448.0, 0, 0), (464.0, 0, 0), (up(464.0), 1, 0), (465.0, 1, 0), (f32::MAX, 1, 0)]),
        (DType::E5m2, vec![(E5M2_MAX, 0, 0), (61_439.996, 0, 0), (61_440.0, 1, 0), (f32::MAX, 1, 0)]),
        (DType::E4m3, vec![(least[0], 0, 1), (up(least[0]), 0, 0), (f32::from_bits(1), 0, 1), (0.0, 0, 0)]),
        (DType::E5m2, vec![(least[1], 0, 1), (up(least[1]), 0, 0), (f32::from_bits(1), 0, 1), (0.0, 0, 0)]),
        (DType::E4m3, vec![(f32::INFINITY, 1, 0), (f32::NAN, 0, 0)]),
        (DType::E5m2, vec![(f32::INFINITY, 1, 0), (f32::NAN, 0, 0)]),
    ];
    for (dtype, xs) in rows {
        let shape = KvShape { kv_heads: 1, head_dim: 16, page_len: 1, k: dtype, v: dtype, scale: KvScale::Static };
        for (x, saturated, underflowed) in xs {
            for x in [x, -x] {
                let mut bytes = vec![0; shape.page_bytes()];
                let mut counts = [KvCounts::default()];
                let mut row = [1.0; 16];
                row[5] = x;
                let mut pages = KvPagesMut {
                    shape,
                    bytes: &mut bytes,
                    k_scales: &[1.0],
                    v_scales: &[1.0],
                    counts: Some(&mut counts),
                };
                let span = Span { first_row: 0, row_count: 1, first_position: 0, block_table: &[0] };
                forward(&Cpu::new(1), &mut pages, &[span], &row, &row);
                let want = FormatCounts { elements: 16, saturated, underflowed };
                assert_eq!(counts, [KvCounts { k: want, v: want }], "{dtype} of {x:e}");
                let (magnitude, last) = (bytes[5] & 0x7f, if dtype == DType::E4m3 { 0x7e } else { 0x7b });
                assert!(saturated == 0 || magnitude == last, "{dtype} of {x:e}");
                assert_eq!(x != 0.0 && magnitude == 0, underflowed == 1, "{dtype} of {x:e}");
            }
        }
    }
}

/// Scales by token lose nothing to saturation that is finite and below the clamp, whatever the size of the row.
#[test]
fn scales_by_token_fit_every_row() {
    for (dtype, max) in [(DType::E4m3, E4M3_MAX), (DType::E5m2, E5M2_MAX)] {
        let shape = KvShape { kv_heads: 1, head_dim: 3, page_len: 256, k: dtype, v: dtype, scale: KvScale::Token };
        let rows: Vec<f32> = (0..256)
            .flat_map(|e| {
                let size = f32::from_bits((e << 23) | 0x1234);
                if size.is_finite() { [size, -size / 3.0, 0.0] } else { [f32::NAN, -f32::NAN, f32::NAN] }
            })
            .collect();
        let mut bytes = vec![0xff; shape.page_bytes()];
        let mut counts = [KvCounts::default()];
        let mut pages =
            KvPagesMut { shape, bytes: &mut bytes, k_scales: &[], v_scales: &[], counts: Some(&mut counts) };
        let span = Span { first_row: 0, row_count: 256, first_position: 0, block_table: &[0] };
        forward(&Cpu::new(1), &mut pages, &[span], &rows, &rows);
        assert_eq!((counts[0].k.saturated, counts[0].v.saturated), (0, 0), "{dtype}");
        let exponents = &bytes[shape.v_exponents(0, 0).unwrap()];
        let codes = &bytes[shape.v_tile(0, 0)];
        assert!(codes[255 * 3..].iter().all(|code| code & 0x7f == 0x7f), "NaN stays NaN: {:x?}", &codes[255 * 3..]);
        assert_eq!(exponents[255], 127, "a row without a magnitude");
        for (token, (x, &e)) in rows.chunks_exact(3).zip(exponents).enumerate().take(255) {
            let scale = 2.0_f64.powi(i32::from(e) - 127);
            let share = f64::from(x[0]) / (f64::from(max) * scale);
            assert!(
                share <= 1.0 && (share > 0.5 || e == 1),
                "{dtype}, token {token}: {:e} under 2^{}",
                x[0],
                i32::from(e) - 127
            );
        }
    }
}
