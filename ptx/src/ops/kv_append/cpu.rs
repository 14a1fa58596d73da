//! One task for each kv head: heads own their tiles, whatever the spans are. A token's row is encoded with the lanes
//! across dims and then laid into the dim-major K tile.

use crate::isa::by_isa;
use crate::kv_tile::{Bf16, E4m3, Element, F32, KvPagesMut, Span, scale};
use crate::parallel::Parts;
use crate::{Cpu, DType};

/// Elements below which threads cost more than they bring.
const SHARE_FROM: usize = 1 << 14;
/// Dims encoded at a time.
const BLOCK: usize = 64;

pub(super) fn forward(cpu: &Cpu, pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let shape = pages.shape;
    let (dims, page_len) = (shape.head_dim, shape.page_len);
    let width = shape.kv_heads * dims;
    let (k_scales, v_scales) = (pages.k_scales, pages.v_scales);
    let bytes = Parts::new(pages.bytes);
    let rows: usize = spans.iter().map(|s| s.row_count).sum();
    cpu.for_each_if(rows * width >= SHARE_FROM, shape.kv_heads, |head| {
        let (k_scale, v_scale) = (scale(shape.k, k_scales, head), scale(shape.v, v_scales, head));
        for span in spans {
            let mut done = 0;
            while done < span.row_count {
                let position = span.first_position + done;
                let (page, slot) = (span.block_table[position / page_len], position % page_len);
                let run = (page_len - slot).min(span.row_count - done);
                let at = (span.first_row + done) * width + head * dims;
                let tile = shape.k_tile(page, head);
                // SAFETY: tiles of different heads are disjoint, and this task drops each before it takes the next.
                let tile = unsafe { bytes.range(tile.start, tile.len()) };
                put_keys(cpu.isa(), shape.k, k_scale, &k[at..], width, run, tile, dims, slot);
                let tile = shape.v_tile(page, head);
                // SAFETY: as above.
                let tile = unsafe { bytes.range(tile.start, tile.len()) };
                put_values(cpu.isa(), shape.v, v_scale, &v[at..], width, run, tile, dims, slot);
                done += run;
            }
        }
    });
}

by_isa! {
    /// `run` rows, `width` apart, into slots `slot..` of a `[dims][page_len]` tile.
    fn put_keys(dtype: DType, scale: f32, rows: &[f32], width: usize, run: usize, tile: &mut [u8], dims: usize, slot: usize) {
        match dtype {
            DType::F32 => keys::<F32>(scale, rows, width, run, tile, dims, slot),
            DType::Bf16 => keys::<Bf16>(scale, rows, width, run, tile, dims, slot),
            DType::E4m3 => keys::<E4m3>(scale, rows, width, run, tile, dims, slot),
            DType::F16 | DType::E5m2 => unreachable!("refused by `check`"),
        }
    }
}

by_isa! {
    /// `run` rows, `width` apart, into rows `slot..` of a `[page_len][dims]` tile.
    fn put_values(dtype: DType, scale: f32, rows: &[f32], width: usize, run: usize, tile: &mut [u8], dims: usize, slot: usize) {
        match dtype {
            DType::F32 => values::<F32>(scale, rows, width, run, tile, dims, slot),
            DType::Bf16 => values::<Bf16>(scale, rows, width, run, tile, dims, slot),
            DType::E4m3 => values::<E4m3>(scale, rows, width, run, tile, dims, slot),
            DType::F16 | DType::E5m2 => unreachable!("refused by `check`"),
        }
    }
}

#[inline(always)]
fn keys<E: Element>(scale: f32, rows: &[f32], width: usize, run: usize, tile: &mut [u8], dims: usize, slot: usize) {
    let page_bytes = tile.len() / dims; // of one dim
    for i in 0..run {
        for first in (0..dims).step_by(BLOCK) {
            let row = &rows[i * width + first..][..BLOCK.min(dims - first)];
            let mut codes = [0_u8; 4 * BLOCK];
            encode::<E>(row, scale, &mut codes[..row.len() * E::BYTES]);
            let lines = tile[first * page_bytes..].chunks_exact_mut(page_bytes);
            for (line, code) in lines.zip(codes.chunks_exact(E::BYTES).take(row.len())) {
                line[(slot + i) * E::BYTES..][..E::BYTES].copy_from_slice(code);
            }
        }
    }
}

#[inline(always)]
fn values<E: Element>(scale: f32, rows: &[f32], width: usize, run: usize, tile: &mut [u8], dims: usize, slot: usize) {
    for i in 0..run {
        let codes = &mut tile[(slot + i) * dims * E::BYTES..][..dims * E::BYTES];
        encode::<E>(&rows[i * width..][..dims], scale, codes);
    }
}

#[inline(always)]
fn encode<E: Element>(row: &[f32], scale: f32, codes: &mut [u8]) {
    for (&x, code) in row.iter().zip(codes.chunks_exact_mut(E::BYTES)) {
        E::write(x / scale, code);
    }
}
