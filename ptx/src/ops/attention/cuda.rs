//! The launcher.

use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, Out, Pages, View, count};

use super::{Batch, Shape};

/// Attention of every span's rows, prefill and decode alike; rows in no span are left alone.
///
/// q, out: `[tokens, heads * head_dim]`, q in f32 and 16-byte aligned. `workspace`: at least
/// [`BatchLimits::workspace_len`](super::BatchLimits::workspace_len) floats, of no meaning before and after. The kernels
/// allocate nothing and read spans, tables and tiles from the batch's buffers, so they can be captured in a graph and
/// played for other batches that were [set](Batch::set_as) by the same plan.
///
/// # Panics
/// When shapes disagree or the workspace is too small.
pub fn forward(
    gpu: &Gpu,
    shape: Shape,
    pages: &Pages,
    batch: &Batch,
    q: View<f32>,
    out: Out,
    workspace: View<f32>,
) -> Result<(), CudaError> {
    let (kv, limits, plan) = (pages.shape(), batch.limits(), batch.plan());
    assert_eq!(shape.heads, limits.heads, "query heads of the batch");
    assert_eq!((kv.kv_heads, kv.head_dim, kv.page_len), (limits.kv_heads, limits.head_dim, limits.page_len), "pages");
    assert!(shape.softmax_scale.is_finite() && shape.softmax_scale > 0.0, "a softmax scale of {}", shape.softmax_scale);
    let width = shape.heads * kv.head_dim;
    assert!(q.len().is_multiple_of(width), "q has {} elements, not rows of {width}", q.len());
    assert_eq!(out.len(), q.len(), "out and q differ in size");
    assert!(u32::try_from(q.len()).is_ok(), "q has 2^32 elements or more");
    let need = limits.workspace_len(plan);
    assert!(workspace.len() >= need, "a workspace of {} floats, {need} are needed", workspace.len());
    let flags = pages.flags() | if matches!(out, Out::Bf16(_)) { OUT_BF16 } else { 0 };
    let parts =
        [(plan.narrow, plan.chunks, limits.narrow_width(), 0), (plan.wide, 0, limits.wide_width(), plan.narrow)];
    for (tiles, chunks, n, first) in parts {
        if tiles == 0 {
            continue;
        }
        let list = batch.tiles.view().part(2 * first, 2 * tiles);
        let kernel = Kernel { op: "attention", entry: entry(kv.head_dim, n) };
        let launch = Launch {
            grid: [count(tiles), count(kv.kv_heads), count(chunks.max(1))],
            threads: 128,
            shared_bytes: count(shared_bytes(kv.head_dim, n, kv.k.bytes().max(kv.v.bytes()))),
        };
        let [k_scales, v_scales] = pages.scale_args();
        let group = count(limits.group());
        let split = if chunks > 0 { SPLIT } else { 0 };
        let args: [Arg; 16] = [
            out.arg(),
            workspace.into(),
            pages.tiles().into(),
            pages.exponents().into(),
            k_scales,
            v_scales,
            q.into(),
            batch.spans.view().into(),
            batch.tables.view().into(),
            list.into(),
            count(kv.kv_heads).into(),
            group.into(),
            pages.page_shift().into(),
            count(limits.pages).into(),
            shape.softmax_scale.into(),
            (flags | split).into(),
        ];
        gpu.launch(kernel, launch, &args)?;
        if chunks > 0 {
            let kernel = Kernel { op: "attention", entry: "attention_combine" };
            let blocks = (n * kv.head_dim).div_ceil(32);
            let launch =
                Launch { grid: [count(tiles), count(kv.kv_heads), count(blocks)], threads: 128, shared_bytes: 0 };
            let args = [
                out.arg(),
                workspace.into(),
                v_scales,
                batch.spans.view().into(),
                list.into(),
                group.into(),
                count(n).into(),
                count(kv.head_dim).into(),
                count(chunks).into(),
                flags.into(),
            ];
            gpu.launch(kernel, launch, &args)?;
        }
    }
    Ok(())
}

/// Bits of `Flags` in `attention.cu`, beside those of the pages.
const OUT_BF16: u32 = 8;
const SPLIT: u32 = 16;

fn entry(head_dim: usize, n: usize) -> &'static str {
    match (head_dim, n) {
        (16, 1) => "attention_d16_n1",
        (16, 2) => "attention_d16_n2",
        (32, 1) => "attention_d32_n1",
        (32, 2) => "attention_d32_n2",
        (64, 1) => "attention_d64_n1",
        (64, 2) => "attention_d64_n2",
        (64, 4) => "attention_d64_n4",
        (96, 1) => "attention_d96_n1",
        (96, 2) => "attention_d96_n2",
        (128, 1) => "attention_d128_n1",
        (128, 2) => "attention_d128_n2",
        (128, 4) => "attention_d128_n4",
        _ => unreachable!("no kernel for heads of {head_dim} in tiles of {n}"),
    }
}

/// Dynamic shared memory of a block: `Layout` in `attention.cu`. `size` is the larger of the bytes of an element of K and V.
fn shared_bytes(head_dim: usize, n: usize, size: usize) -> usize {
    let (warps, tiles, tile, words_by_warp, words) = (4, 4, 16, 3, 7);
    let scores = n * super::CHUNK * 16;
    let queries = 8 * n * head_dim * 2;
    let columns = (words_by_warp * warps + words) * 16 * n;
    let broken = warps * head_dim * 4;
    scores + queries + columns + broken + warps * tiles * tile * head_dim * size
}
