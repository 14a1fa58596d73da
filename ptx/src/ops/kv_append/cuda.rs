//! The launcher: QK-norm and rotation of queries and keys, and keys and values to their slots, in one kernel.

use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, Pages, View, count};
use crate::kv_tile::{FormatCounts, KvCounts};

/// The slot of a token whose key and value go nowhere, as in a batch that is filled up to a captured graph's size.
pub const NO_SLOT: u32 = u32::MAX;

/// Numbers that [`Step::counts`] has for each kv head.
pub const COUNTS: usize = 6;

/// What the rows of a step are and where they go.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Query heads.
    pub heads: usize,
    /// `[tokens]`: page * page_len + place in the page, or [`NO_SLOT`]; no slot twice.
    pub slots: View<u32>,
    /// `[tokens, head_dim / 2]`, from [`rope`](crate::ops::rope).
    pub cos: View<f32>,
    /// As `cos`.
    pub sin: View<f32>,
    /// Gain of the norm of each query head, `[head_dim]`, where the model has one.
    pub q_gain: Option<View<f32>>,
    /// Gain of the norm of each key head.
    pub k_gain: Option<View<f32>>,
    /// Epsilon of those norms.
    pub eps: f32,
    /// `[kv_heads, COUNTS]`, to which is added what 8-bit pages lost; see [`counts`]. The codes do not depend on it.
    pub counts: Option<View<u64>>,
}

/// Norms and turns queries and keys, writes the queries to `q`, `[tokens, heads * head_dim]`, and keys and values to the
/// pages. A row of `qkv` has the queries, then the keys, then the values, `[heads + 2 kv_heads, head_dim]`; rows are
/// `stride` apart. Bits are the CPU's, of norms too.
///
/// # Panics
/// When shapes disagree.
pub fn forward(
    gpu: &Gpu,
    tokens: usize,
    step: &Step,
    pages: &Pages,
    qkv: View<f32>,
    stride: usize,
    q: View<f32>,
) -> Result<(), CudaError> {
    let kv = pages.shape();
    let all = step.heads + 2 * kv.kv_heads;
    let half = kv.head_dim / 2;
    assert!(stride >= all * kv.head_dim, "rows {stride} apart have {} elements", all * kv.head_dim);
    assert!(step.heads.is_multiple_of(kv.kv_heads), "{} query heads on {} kv heads", step.heads, kv.kv_heads);
    let need = tokens.saturating_sub(1) * stride + all * kv.head_dim;
    assert!(tokens == 0 || qkv.len() >= need, "qkv has {} of {need} elements", qkv.len());
    assert!(q.len() >= tokens * step.heads * kv.head_dim, "q has {} elements", q.len());
    assert!(step.slots.len() >= tokens, "{} slots for {tokens} tokens", step.slots.len());
    for table in [step.cos, step.sin] {
        assert!(table.len() >= tokens * half, "a table of {} for {tokens} tokens", table.len());
    }
    for gain in [step.q_gain, step.k_gain].into_iter().flatten() {
        assert_eq!(gain.len(), kv.head_dim, "a gain's elements");
    }
    if let Some(counts) = step.counts {
        assert_eq!(counts.len(), COUNTS * kv.kv_heads, "counts");
    }
    if tokens == 0 {
        return Ok(());
    }
    let [k_scales, v_scales] = pages.scale_args();
    let address = |view: Option<View<f32>>| Arg::Pointer(view.map_or(0, |view| view.address()));
    let args = [
        q.into(),
        pages.tiles().into(),
        pages.exponents().into(),
        Arg::Pointer(step.counts.map_or(0, |view| view.address())),
        qkv.into(),
        step.slots.into(),
        step.cos.into(),
        step.sin.into(),
        address(step.q_gain),
        address(step.k_gain),
        k_scales,
        v_scales,
        step.eps.into(),
        count(stride).into(),
        count(step.heads).into(),
        count(kv.kv_heads).into(),
        count(kv.head_dim).into(),
        pages.page_shift().into(),
        pages.flags().into(),
    ];
    let launch = Launch { grid: [count(tokens), count(all.div_ceil(4)), 1], threads: 128, shared_bytes: 0 };
    gpu.launch(Kernel { op: "kv_append", entry: "kv_append" }, launch, &args)
}

/// The counts of each kv head out of what [`Step::counts`] holds.
#[must_use]
pub fn counts(words: &[u64]) -> Vec<KvCounts> {
    let (heads, _) = words.as_chunks::<COUNTS>();
    let format = |of: &[u64]| FormatCounts { elements: of[0], saturated: of[1], underflowed: of[2] };
    heads.iter().map(|of| KvCounts { k: format(&of[..3]), v: format(&of[3..]) }).collect()
}
