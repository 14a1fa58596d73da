//! Both 8-bit formats against `ml_dtypes`: every code, and an encoding on either side of every rounding boundary, on every
//! path and instruction set (tests/golden/float8.json; its README says how it was made).
//!
//! `ml_dtypes` makes numbers past the range NaN (e4m3fn) or infinite (e5m2); the file marks those rows, and here they are
//! the largest finite code of their sign, because the codecs saturate.

use ptx::dtype::{e4m3_from_f32, e4m3_to_f32, e5m2_from_f32, e5m2_to_f32};
use ptx::kv_tile::{KvPages, KvPagesMut, KvScale, KvShape, Span};
use ptx::ops::{attention, kv_append};
use ptx::{Cpu, DType, Isa};
use serde_json::Value;

struct Format {
    dtype: DType,
    decode: fn(u8) -> f32,
    encode: fn(f32) -> u8,
    /// By code.
    values: Vec<f32>,
    /// Number and saturating code.
    encodings: Vec<(f32, u8)>,
}

#[allow(clippy::cast_possible_truncation)] // every number of the file is an f32
fn number(value: &Value) -> f32 {
    match value.as_str() {
        Some(name) => name.parse().expect("inf, -inf or nan"),
        None => value.as_f64().expect("a number") as f32,
    }
}

fn formats() -> [Format; 2] {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/float8.json");
    let text = std::fs::read_to_string(path).expect("the fixture is committed");
    let file: Value = serde_json::from_str(&text).expect("the fixture is sound");
    let read = |name: &str, dtype, decode, encode, last: u8| {
        let values: Vec<f32> = file[name]["values"].as_array().unwrap().iter().map(number).collect();
        let row = |row: &Value| {
            let (x, code) = (number(&row[0]), u8::try_from(row[1].as_u64().unwrap()).unwrap());
            (x, if row[2].is_null() { code } else { code & 0x80 | last })
        };
        let encodings: Vec<(f32, u8)> = file[name]["encodings"].as_array().unwrap().iter().map(row).collect();
        assert!(values.len() == 256 && encodings.len() > 1000, "{name}");
        Format { dtype, decode, encode, values, encodings }
    };
    [
        read("e4m3fn", DType::E4m3, e4m3_to_f32, e4m3_from_f32, 0x7e),
        read("e5m2", DType::E5m2, e5m2_to_f32, e5m2_from_f32, 0x7b),
    ]
}

fn same(got: f32, want: f32) -> bool {
    got == want || (got.is_nan() && want.is_nan())
}

/// The file holds what the test is for: all boundaries of each format, with both neighbours and both signs.
#[test]
fn the_file_has_every_boundary() {
    for Format { dtype, values, encodings, .. } in formats() {
        let mut finite: Vec<f32> = values.iter().copied().filter(|x| x.is_finite() && *x >= 0.0).collect();
        finite.sort_by(f32::total_cmp);
        finite.dedup();
        let last = finite.len() - 1;
        finite.push(2.0 * finite[last] - finite[last - 1]);
        for pair in finite.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            for bits in [middle.to_bits() - 1, middle.to_bits(), middle.to_bits() + 1] {
                for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                    assert!(encodings.iter().any(|e| e.0 == x), "{dtype}: no encoding of {x:e}");
                }
            }
        }
    }
}

#[test]
fn the_scalar_codecs_agree() {
    for Format { dtype, decode, encode, values, encodings } in formats() {
        for (code, &want) in (0..=u8::MAX).zip(&values) {
            let got = decode(code);
            assert!(same(got, want), "{dtype} code {code:#04x}: {got}, want {want}");
            assert!(want.is_nan() || got.is_sign_negative() == (code & 0x80 != 0), "{dtype}: sign of {code:#04x}");
        }
        for (x, want) in encodings {
            assert_eq!(encode(x), want, "{dtype} of {x:e}");
        }
        assert_eq!([encode(f32::NAN) & 0x7f, encode(-f32::NAN) & 0x7f], [0x7f; 2], "{dtype} of NaN");
    }
}

/// Appending to pages, K and V, at scale 1 and at others that take the numbers along.
#[test]
fn tiles_are_written_alike() {
    const DIMS: usize = 80;
    for Format { dtype, encodings, .. } in formats() {
        for scale in [1.0_f32, 0.25, 1024.0] {
            // Numbers that the scale's product does not keep say nothing here.
            let kept = encodings.iter().filter(|(x, _)| x * scale / scale == *x || x.is_infinite());
            let (mut rows, mut want): (Vec<f32>, Vec<u8>) = kept.map(|&(x, code)| (x * scale, code)).unzip();
            let tokens = rows.len().div_ceil(DIMS);
            rows.resize(tokens * DIMS, 0.0);
            want.resize(tokens * DIMS, 0);
            let shape =
                KvShape { kv_heads: 1, head_dim: DIMS, page_len: 16, k: dtype, v: dtype, scale: KvScale::Static };
            for isa in Isa::available() {
                let mut bytes = vec![0; shape.page_bytes()];
                let mut pages =
                    KvPagesMut { shape, bytes: &mut bytes, k_scales: &[scale], v_scales: &[scale], counts: None };
                let span = Span { first_row: 0, row_count: tokens, first_position: 0, block_table: &[0] };
                kv_append::forward(&Cpu::with_isa(1, isa), &mut pages, &[span], &rows, &rows);
                for (i, &code) in want.iter().enumerate() {
                    let (token, dim) = (i / DIMS, i % DIMS);
                    let k = bytes[shape.k_tile(0, 0).start + dim * 16 + token];
                    let v = bytes[shape.v_tile(0, 0).start + i];
                    assert_eq!((k, v), (code, code), "{dtype} of {:e} at scale {scale}, {}", rows[i], isa.name());
                }
            }
        }
    }
}

/// Attention over a single key gives its value and, for a query that is one in a single dim, its key: from pages in place
/// (few rows), and widened first (many rows, small pages).
#[test]
fn tiles_are_read_alike() {
    const DIMS: usize = 16;
    for Format { dtype, values, .. } in formats() {
        for (page_len, heads) in [(16, 1), (16, 8), (64, 2), (16, 16), (4, 1), (1, 2)] {
            let shape = KvShape { kv_heads: 1, head_dim: DIMS, page_len, k: dtype, v: dtype, scale: KvScale::Static };
            // Page i has one token, of the codes 16 i .. 16 i + 16; keys only those that are finite, for a sum to show.
            let mut bytes = vec![0xff; 16 * shape.page_bytes()];
            let finite = |code: usize| if values[code].is_finite() { code } else { 0 };
            for (page, i) in (0..16_u32).zip(0..16_usize) {
                for dim in 0..DIMS {
                    let code = i * DIMS + dim;
                    bytes[shape.k_tile(page, 0).start + dim * page_len] = u8::try_from(finite(code)).unwrap();
                    bytes[shape.v_tile(page, 0).start + dim] = u8::try_from(code).unwrap();
                }
            }
            let tables: Vec<[u32; 1]> = (0..16).map(|page| [page]).collect();
            let spans: Vec<Span<'_>> = tables
                .iter()
                .enumerate()
                .map(|(i, table)| Span { first_row: i, row_count: 1, first_position: 0, block_table: table })
                .collect();
            for isa in Isa::available() {
                for first in (0..DIMS).step_by(heads) {
                    // Head h asks for dim first + h of the key.
                    let mut q = vec![0.0; 16 * heads * DIMS];
                    for (row, q) in q.chunks_exact_mut(DIMS).enumerate() {
                        q[first + row % heads] = 1.0;
                    }
                    let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; 16 * heads]);
                    let pages = KvPages { shape, bytes: &bytes, k_scales: &[1.0], v_scales: &[1.0] };
                    let ask = attention::Shape { heads, softmax_scale: 1.0 };
                    attention::forward(&Cpu::with_isa(1, isa), ask, pages, &spans, &q, &mut out, Some(&mut lse));
                    for (row, (out, &lse)) in out.chunks_exact(DIMS).zip(&lse).enumerate() {
                        let (page, what) = (row / heads, format!("{shape:?}, {heads} heads, {}", isa.name()));
                        let key = values[finite(page * DIMS + first + row % heads)];
                        assert!(lse == key, "{what}: a key of {key} reads as {lse}");
                        for (&got, &want) in out.iter().zip(&values[page * DIMS..]) {
                            assert!(same(got, want), "{what}: a value of {want} reads as {got}");
                        }
                    }
                }
            }
        }
    }
}
