//! The slow truth: one element at a time, wherever it goes.

use std::ops::Range;

use crate::DType;
use crate::dtype::{bf16_from_f32, e4m3_from_f32, e5m2_from_f32};
use crate::kv_tile::{FormatCounts, KvPagesMut, Span, scale};

/// As [`super::forward`].
pub fn forward(pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let shape = pages.shape;
    let (page_len, dims) = (shape.page_len, shape.head_dim);
    for span in spans {
        for i in 0..span.row_count {
            let position = span.first_position + i;
            let (page, slot) = (span.block_table[position / page_len], position % page_len);
            for head in 0..shape.kv_heads {
                let row = ((span.first_row + i) * shape.kv_heads + head) * dims..;
                let (k, v) = (&k[row.clone()][..dims], &v[row][..dims]);
                let k_scale = row_scale(shape.k, k, shape.k_exponents(page, head), slot, pages)
                    .unwrap_or_else(|| scale(&shape, shape.k, pages.k_scales, head));
                let v_scale = row_scale(shape.v, v, shape.v_exponents(page, head), slot, pages)
                    .unwrap_or_else(|| scale(&shape, shape.v, pages.v_scales, head));
                for dim in 0..dims {
                    let k_at = shape.k_tile(page, head).start + (dim * page_len + slot) * shape.k.bytes();
                    let v_at = shape.v_tile(page, head).start + (slot * dims + dim) * shape.v.bytes();
                    put(shape.k, k[dim], k_scale, &mut pages.bytes[k_at..]);
                    put(shape.v, v[dim], v_scale, &mut pages.bytes[v_at..]);
                    if let Some(counts) = &mut pages.counts {
                        count(shape.k, k[dim], k_scale, &mut counts[head].k);
                        count(shape.v, v[dim], v_scale, &mut counts[head].v);
                    }
                }
            }
        }
    }
}

/// The row's own scale, if rows have one, found by trying them all; its exponent byte is written.
fn row_scale(
    dtype: DType,
    row: &[f32],
    exponents: Option<Range<usize>>,
    slot: usize,
    pages: &mut KvPagesMut<'_>,
) -> Option<f32> {
    let exponents = exponents?;
    let max = f64::from(dtype.largest_code().expect("only 8-bit formats have exponents"));
    let largest = row.iter().filter(|x| !x.is_nan()).fold(0.0_f64, |m, x| m.max(f64::from(x.abs())));
    let fits = |&e: &u8| max * 2.0_f64.powi(i32::from(e) - 127) <= f64::from(f32::MAX);
    let enough = |&e: &u8| max * 2.0_f64.powi(i32::from(e) - 127) >= largest;
    let e = if largest == 0.0 {
        127
    } else {
        (1..=254).filter(fits).find(enough).or((1..=254).rfind(fits)).expect("small scales fit")
    };
    pages.bytes[exponents][slot] = e;
    Some(2.0_f32.powi(i32::from(e) - 127))
}

fn put(dtype: DType, x: f32, scale: f32, to: &mut [u8]) {
    match dtype {
        DType::F32 => to[..4].copy_from_slice(&x.to_ne_bytes()),
        DType::Bf16 => to[..2].copy_from_slice(&bf16_from_f32(x).to_ne_bytes()),
        DType::E4m3 => to[0] = e4m3_from_f32(x / scale),
        DType::E5m2 => to[0] = e5m2_from_f32(x / scale),
        DType::F16 => unreachable!("refused by `check`"),
    }
}

fn count(dtype: DType, x: f32, scale: f32, counts: &mut FormatCounts) {
    // Whether a format of the same step, but without a largest value, would have gone beyond it.
    let magnitude = f64::from(x.abs()) / f64::from(scale);
    let (clipped, code) = match dtype {
        DType::E4m3 => (magnitude > 464.0, e4m3_from_f32(x / scale)),
        DType::E5m2 => (magnitude >= 61_440.0, e5m2_from_f32(x / scale)),
        _ => return,
    };
    counts.elements += 1;
    counts.saturated += u64::from(clipped);
    counts.underflowed += u64::from(x != 0.0 && code & 0x7f == 0);
}
