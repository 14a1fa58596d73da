//! What decode attention moves and issues, from the counters of the simulated device. None of it is a time.

use ptx::DType;
use ptx::cuda::{CudaError, Gpu, Out, Pages};
use ptx::kv_tile::{KvScale, KvShape, Span};
use ptx::ops::attention::{Batch, BatchLimits, Shape, cuda};

/// A decode step: one row of each sequence.
#[derive(Clone, Copy, Debug)]
pub struct Decode {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Of keys and values.
    pub dtype: DType,
    pub sequences: usize,
    /// Keys that each row sees.
    pub length: usize,
}

/// Sums over the launches of a step; the test holds some of them to a bound, the bench prints all.
#[allow(dead_code)]
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Bytes of the keys and values seen, each once.
    pub kv_bytes: u64,
    /// 32-byte sectors of pages that instructions asked for, in bytes.
    pub kv_asked: u64,
    /// Other sectors asked for, in bytes: queries, tables, partial sums.
    pub other_asked: u64,
    /// Bytes stored.
    pub stored: u64,
    /// Instructions that warps issued.
    pub issued: u64,
    /// Matrix instructions among them.
    pub mma: u64,
    /// Passes through shared memory, and what they would be without bank conflicts.
    pub wavefronts: u64,
    pub wavefronts_least: u64,
}

impl Figures {
    #[allow(clippy::cast_precision_loss)]
    pub fn share(of: u64, whole: u64) -> f64 {
        of as f64 / whole as f64
    }
}

/// Runs the step and reads the counters.
pub fn run(gpu: &Gpu, d: Decode) -> Result<Figures, CudaError> {
    const PAGE_LEN: usize = 16;
    let shape = KvShape {
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        page_len: PAGE_LEN,
        k: d.dtype,
        v: d.dtype,
        scale: KvScale::Static,
    };
    let each = d.length.div_ceil(PAGE_LEN);
    let count = each * d.sequences;
    // Codes of numbers between 2^-3 and 2 in either format, of either sign.
    let code = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) & 0xff;
    let bytes: Vec<u8> = (0..count * shape.page_bytes())
        .map(|i| {
            let byte =
                if d.dtype.bytes() == 1 { 0x20 | code(i) & 0x9f } else { [code(i), 0x3e | code(i) & 0x81][i % 2] };
            u8::try_from(byte).expect("a byte")
        })
        .collect();
    let on_pages = gpu.upload(&bytes)?;
    let scales = gpu.upload(&vec![1.0_f32; d.kv_heads])?;
    let pages = Pages::new(shape, on_pages.view(), Some(scales.view()), Some(scales.view()));
    let table: Vec<u32> = (0..u32::try_from(count).expect("few pages")).rev().collect();
    let spans: Vec<Span<'_>> = table
        .chunks(each)
        .enumerate()
        .map(|(i, table)| Span { first_row: i, row_count: 1, first_position: d.length - 1, block_table: table })
        .collect();
    let limits = BatchLimits {
        spans: d.sequences,
        rows: d.sequences,
        pages: each,
        page_len: PAGE_LEN,
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
    };
    let mut batch = Batch::new(gpu, limits)?;
    batch.set(gpu, &spans)?;
    let width = d.heads * d.head_dim;
    let q: Vec<f32> =
        (0..d.sequences * width).map(|i| f32::from(u16::try_from(i * 7 % 41).expect("small")) / 20.0 - 1.0).collect();
    let on_q = gpu.upload(&q)?;
    let out = gpu.alloc::<f32>(q.len())?;
    let workspace = gpu.alloc(limits.workspace_len(batch.plan()))?;
    let simulator = gpu.simulator().expect("a simulated device");
    simulator.reset_counters()?;
    let attention = Shape { heads: d.heads, softmax_scale: 0.125 };
    cuda::forward(gpu, attention, &pages, &batch, on_q.view(), Out::F32(out.view()), workspace.view())?;
    let out = gpu.download(out.view())?;
    assert!(out.iter().all(|x| x.is_finite()), "outputs that are not finite");
    let counters = simulator.counters()?;
    let of = |name: &str| counters.get(name);
    let kv_asked = 32 * counters.of(on_pages.view(), "load sectors");
    let page_bytes = (d.sequences * d.length * d.kv_heads * d.head_dim * 2 * d.dtype.bytes()) as u64;
    Ok(Figures {
        kv_bytes: page_bytes,
        kv_asked,
        other_asked: 32 * of("load sectors") - kv_asked,
        stored: of("store bytes"),
        issued: of("warp instructions"),
        mma: of("mma warp instructions"),
        wavefronts: of("shared wavefronts"),
        wavefronts_least: of("shared wavefronts least"),
    })
}
