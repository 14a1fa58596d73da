//! The slow truth: one element at a time, wherever it goes.

use crate::DType;
use crate::dtype::{bf16_from_f32, e4m3_from_f32};
use crate::kv_tile::{KvPagesMut, Span, scale};

/// As [`super::forward`].
pub fn forward(pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let shape = pages.shape;
    let (page_len, dims) = (shape.page_len, shape.head_dim);
    for span in spans {
        for i in 0..span.row_count {
            let position = span.first_position + i;
            let (page, slot) = (span.block_table[position / page_len], position % page_len);
            for head in 0..shape.kv_heads {
                for dim in 0..dims {
                    let at = ((span.first_row + i) * shape.kv_heads + head) * dims + dim;
                    let k_at = shape.k_tile(page, head).start + (dim * page_len + slot) * shape.k.bytes();
                    let v_at = shape.v_tile(page, head).start + (slot * dims + dim) * shape.v.bytes();
                    put(shape.k, k[at], scale(shape.k, pages.k_scales, head), &mut pages.bytes[k_at..]);
                    put(shape.v, v[at], scale(shape.v, pages.v_scales, head), &mut pages.bytes[v_at..]);
                }
            }
        }
    }
}

fn put(dtype: DType, x: f32, scale: f32, to: &mut [u8]) {
    match dtype {
        DType::F32 => to[..4].copy_from_slice(&x.to_ne_bytes()),
        DType::Bf16 => to[..2].copy_from_slice(&bf16_from_f32(x).to_ne_bytes()),
        DType::E4m3 => to[0] = e4m3_from_f32(x / scale),
        DType::F16 | DType::E5m2 => unreachable!("refused by `check`"),
    }
}
