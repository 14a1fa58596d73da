//! The forward pass: prefill, decode, scoring and the trainer's own forward are this one function.

use kv::KvCache;
use ptx::Cpu;
use ptx::dtype::e4m3_to_f32;
use ptx::kv_tile::{KvCounts, KvPages, KvPagesMut, KvShape, Span};
use ptx::ops::attention;
use ptx::ops::linear::{self, Codes8, Job};
use ptx::ops::{embedding, kv_append, residual, rmsnorm, rope, round, swiglu};

use super::tape::Acts;
use super::{Layer, Model, Tape, buffer};
use crate::config::ModelConfig;
use crate::recipe::{Activations, LayerRecipe, Proj, Projection, Recipe};

/// Tokens of one step: new tokens of several sequences, each a [`Span`] whose places in the cache are reserved.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids, `[tokens]`.
    pub ids: &'a [u32],
    /// Their positions, `[tokens]`.
    pub positions: &'a [u32],
    /// Which rows belong to which sequence, and where its pages are.
    pub spans: &'a [Span<'a>],
}

/// Buffers of a step; they grow to the largest step seen and are reused.
#[derive(Debug, Default)]
pub struct Workspace {
    x: Vec<f32>,
    y: Vec<f32>,       // a sublayer's output, before it joins the residual stream
    rounded: Vec<f32>, // a matmul's input where the unrounded value is kept
    eight: Eight,
    cos: Vec<f32>,
    sin: Vec<f32>,
    acts: Acts,
    /// What rounding keys and values to 8 bits lost since the counts were last cleared, `[layers, kv_heads]`.
    pub counts: Vec<KvCounts>,
    /// Result: the last norm's output, rounded as the head wants it, `[tokens, hidden]`.
    pub hidden: Vec<f32>,
}

/// A matmul's input as e4m3 codes with a scale a row; empty where no recipe asks for it.
#[derive(Debug, Default)]
struct Eight {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Eight {
    fn round(&mut self, cpu: &Cpu, width: usize, x: &[f32]) -> Codes8<'_> {
        let (codes, scales) = (&mut self.codes[..x.len()], &mut self.scales[..x.len() / width]);
        round::e4m3_rows(cpu, width, x, codes, scales);
        Codes8 { codes, scales }
    }
}

impl Workspace {
    fn resize(&mut self, model: &Model, tokens: usize) {
        let c = &model.config;
        let eight = eight_width(c, model.layers.iter().map(|l| &l.formats), model.recipe.head);
        buffer::size(&mut self.eight.codes, tokens * eight);
        buffer::size(&mut self.eight.scales, if eight > 0 { tokens } else { 0 });
        for (buffer, width) in self.buffers().into_iter().zip(Workspace::widths(c)) {
            buffer::size(buffer, tokens * width);
        }
        self.counts.resize(c.layers * c.kv_heads, KvCounts::default());
    }

    fn buffers(&mut self) -> [&mut Vec<f32>; 6] {
        [&mut self.x, &mut self.y, &mut self.rounded, &mut self.cos, &mut self.sin, &mut self.hidden]
    }

    /// Floats a token of every buffer but the activations, in the order of the fields.
    fn widths(c: &ModelConfig) -> [usize; 6] {
        let half = c.head_dim / 2;
        [c.hidden, c.hidden, c.ffn.max(c.heads * c.head_dim), half, half, c.hidden]
    }

    /// Bytes that it holds after a step of `tokens` tokens without a tape.
    #[must_use]
    pub fn bytes_for(c: &ModelConfig, recipe: &Recipe, tokens: usize) -> usize {
        let floats = Workspace::widths(c).iter().chain(&Acts::widths(c, false)).sum::<usize>();
        let eight = match eight_width(c, recipe.layers.iter(), recipe.head) {
            0 => 0,
            width => width + size_of::<f32>(),
        };
        let counts = (c.layers * c.kv_heads).saturating_mul(size_of::<KvCounts>());
        tokens.saturating_mul(floats * size_of::<f32>() + eight).saturating_add(counts)
    }

    /// Bytes that it holds.
    #[cfg(test)]
    pub(crate) fn bytes(&mut self) -> usize {
        let own: usize = self.buffers().iter().map(|buffer| buffer.capacity()).sum();
        let acts: usize = self.acts.buffers().iter().map(|buffer| buffer.capacity()).sum();
        let eight = self.eight.codes.capacity() + self.eight.scales.capacity() * size_of::<f32>();
        (own + acts) * size_of::<f32>() + eight + self.counts.capacity() * size_of::<KvCounts>()
    }
}

/// Codes a token of the widest matmul input, where some recipe's matmul takes such; else 0.
fn eight_width<'a>(c: &ModelConfig, layers: impl Iterator<Item = &'a LayerRecipe>, head: Projection) -> usize {
    let mut inputs = layers.flat_map(|layer| layer.projections).chain([head]);
    if inputs.any(|p| p.activations == Activations::E4m3) { c.hidden.max(c.ffn).max(c.heads * c.head_dim) } else { 0 }
}

/// Looks on while a forward pass runs; no bit depends on it.
pub trait Observe {
    /// The residual stream `[tokens, hidden]` at the input of decoder layer `layer`.
    fn stream(&mut self, _layer: usize, _x: &[f32]) {}

    /// Keys after norm and rotation and values of a layer, `[tokens, kv_heads * head_dim]`, as they are written to pages.
    fn keys_values(&mut self, _layer: usize, _k: &[f32], _v: &[f32]) {}
}

/// Looks at nothing.
impl Observe for () {}

/// Runs the model over `batch`, writes its keys and values to `kv`, and leaves the last hidden rows in `ws.hidden`.
/// With a tape it also records what [`super::backward`] needs; no bit of the result depends on it.
pub fn forward(
    cpu: &Cpu,
    model: &Model,
    kv: &mut KvCache,
    batch: Batch<'_>,
    ws: &mut Workspace,
    tape: Option<&mut Tape>,
) {
    model.assert_complete();
    run(cpu, model, kv, batch, ws, tape, None, &mut ());
}

/// As [`forward`], with somebody looking on. With `from`, a decoder layer and the residual stream at its input, the
/// layers before it are left out: their pages are not written, and the result is what the whole pass would give.
pub fn forward_observed(
    cpu: &Cpu,
    model: &Model,
    kv: &mut KvCache,
    batch: Batch<'_>,
    ws: &mut Workspace,
    from: Option<(usize, &[f32])>,
    observe: &mut dyn Observe,
) {
    model.assert_complete();
    run(cpu, model, kv, batch, ws, None, from, observe);
}

/// The one function behind both. Scales of the cache in `kv` must be set, all else of the model be complete.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    cpu: &Cpu,
    model: &Model,
    kv: &mut KvCache,
    batch: Batch<'_>,
    ws: &mut Workspace,
    tape: Option<&mut Tape>,
    from: Option<(usize, &[f32])>,
    observe: &mut dyn Observe,
) {
    let (c, tokens) = (&model.config, batch.ids.len());
    ws.resize(model, tokens);
    let mut tape = tape;
    match &mut tape {
        Some(tape) => {
            model.assert_has_gradients();
            tape.resize(c, tokens);
        }
        None => ws.acts.resize(c, tokens, false),
    }
    match from {
        Some((_, x)) => ws.x.copy_from_slice(x),
        None => embedding::forward(cpu, |id, row| model.embed.row(id as usize, row), c.hidden, batch.ids, &mut ws.x),
    }
    rope::tables(cpu, batch.positions, &model.inv_freq, c.rope.attention_factor(), &mut ws.cos, &mut ws.sin);
    let first = from.map_or(0, |(layer, _)| layer);
    for (index, layer) in model.layers.iter().enumerate().skip(first) {
        let shape = kv.layout().layers()[index];
        let pages = kv.arena_mut().layer_mut(index);
        let step = LayerStep { cpu, c, layer, batch, shape, cos: &ws.cos, sin: &ws.sin };
        observe.stream(index, &ws.x);
        let keep = tape.is_some();
        let acts = match &mut tape {
            Some(tape) => &mut tape.layers[index],
            None => &mut ws.acts,
        };
        let counts = &mut ws.counts[index * c.kv_heads..][..c.kv_heads];
        step.run(&mut ws.x, &mut ws.y, &mut ws.rounded, &mut ws.eight, pages, counts, acts, keep);
        let acts = tape.as_ref().map_or(&ws.acts, |tape| &tape.layers[index]);
        observe.keys_values(index, &acts.k, &acts.v);
    }
    let inv = tape.map(|tape| {
        tape.x_last.copy_from_slice(&ws.x);
        &mut tape.x_last_inv[..]
    });
    rmsnorm::forward(cpu, c.hidden, &ws.x, &model.norm, c.eps, &mut ws.hidden, inv);
    match model.recipe.head.activations {
        // The values of the codes, not the codes: by the contract of `linear` both give the same logits to the last bit,
        // and whoever runs the head, here and in the loss, takes rows of one kind.
        Activations::E4m3 => {
            let rounded = ws.eight.round(cpu, c.hidden, &ws.hidden);
            let rows = ws.hidden.chunks_exact_mut(c.hidden).zip(rounded.codes.chunks_exact(c.hidden));
            for ((row, codes), scale) in rows.zip(rounded.scales) {
                row.iter_mut().zip(codes).for_each(|(x, &code)| *x = e4m3_to_f32(code) * scale);
            }
        }
        activations => round_for(cpu, activations, &mut ws.hidden),
    }
}

/// Rounds the input of a matmul in place.
///
/// # Panics
/// When it is to become codes, which [`project`] makes.
pub(super) fn round_for(cpu: &Cpu, activations: Activations, x: &mut [f32]) {
    match activations {
        Activations::F32 => {}
        Activations::Bf16 => round::bf16(cpu, x),
        Activations::E4m3 => panic!("codes and scales are no f32 rows"),
    }
}

/// Products that share the input `x`, which each takes rounded in its own way. `x` is left rounded to bf16 if one of
/// them wants that, else as it was. No result depends on what the others take.
fn project<const N: usize>(
    cpu: &Cpu,
    tokens: usize,
    x: &mut [f32],
    eight: &mut Eight,
    mut jobs: [(Activations, Job<'_>); N],
) {
    // Rounding in place comes last.
    let order = |activations: Activations| match activations {
        Activations::F32 => 0,
        Activations::E4m3 => 1,
        Activations::Bf16 => 2,
    };
    jobs.sort_unstable_by_key(|(activations, _)| order(*activations));
    let kinds = jobs.each_ref().map(|(activations, _)| *activations);
    let mut jobs = jobs.map(|(_, job)| job);
    let mut first = 0;
    for kind in kinds.chunk_by(|a, b| a == b) {
        let jobs = &mut jobs[first..first + kind.len()];
        first += kind.len();
        match kind[0] {
            Activations::E4m3 => {
                let codes = eight.round(cpu, jobs[0].w.k(), x);
                linear::forward_e4m3(cpu, tokens, codes, jobs);
            }
            activations => {
                round_for(cpu, activations, x);
                linear::forward(cpu, tokens, x, jobs);
            }
        }
    }
}

struct LayerStep<'a> {
    cpu: &'a Cpu,
    c: &'a ModelConfig,
    layer: &'a Layer,
    batch: Batch<'a>,
    shape: KvShape,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl LayerStep<'_> {
    #[allow(clippy::too_many_arguments)] // the buffers of a step
    fn run(
        &self,
        x: &mut [f32],
        y: &mut [f32],
        rounded: &mut [f32],
        eight: &mut Eight,
        pages: &mut [u8],
        counts: &mut [KvCounts],
        a: &mut Acts,
        keep: bool,
    ) {
        let &LayerStep { cpu, c, layer: l, batch, shape, cos, sin } = self;
        let tokens = batch.ids.len();
        let (q_len, d) = (c.heads * c.head_dim, c.head_dim);
        if keep {
            a.x0.copy_from_slice(x);
        }
        rmsnorm::forward(cpu, c.hidden, x, &l.attn_norm, c.eps, &mut a.xn, Some(&mut a.xn_inv));
        let of = |proj: Proj| l.formats[proj].activations;
        let bias = |i: usize| l.qkv_bias.as_ref().map(|b| &b[i][..]);
        let jobs = [
            (of(Proj::Q), Job { w: &l.q, bias: bias(0), y: &mut a.q }),
            (of(Proj::K), Job { w: &l.k, bias: bias(1), y: &mut a.k }),
            (of(Proj::V), Job { w: &l.v, bias: bias(2), y: &mut a.v }),
        ];
        project(cpu, tokens, &mut a.xn, eight, jobs);
        if let Some([q_gain, k_gain]) = &l.qk_norm {
            if keep {
                a.q_raw.copy_from_slice(&a.q);
                a.k_raw.copy_from_slice(&a.k);
            }
            rmsnorm::forward_in_place(cpu, d, &mut a.q, q_gain, c.eps, Some(&mut a.q_inv));
            rmsnorm::forward_in_place(cpu, d, &mut a.k, k_gain, c.eps, Some(&mut a.k_inv));
        }
        rope::forward(cpu, c.heads, d, &mut a.q, cos, sin);
        rope::forward(cpu, c.kv_heads, d, &mut a.k, cos, sin);
        let (k_scales, v_scales) = (&l.k_scales[..], &l.v_scales[..]);
        let mut write = KvPagesMut { shape, bytes: pages, k_scales, v_scales, counts: Some(counts) };
        kv_append::forward(cpu, &mut write, batch.spans, &a.k, &a.v);
        let read = KvPages { shape, bytes: write.bytes, k_scales, v_scales };
        let lse = keep.then_some(&mut a.lse[..]);
        attention::forward(cpu, attention_shape(c), read, batch.spans, &a.q, &mut a.attn, lse);
        let input = &mut rounded[..tokens * q_len];
        input.copy_from_slice(&a.attn);
        let jobs = [(of(Proj::O), Job { w: &l.o, bias: l.o_bias.as_deref(), y: &mut *y })];
        project(cpu, tokens, input, eight, jobs);
        residual::add(cpu, x, y);

        if keep {
            a.x1.copy_from_slice(x);
        }
        rmsnorm::forward(cpu, c.hidden, x, &l.mlp_norm, c.eps, &mut a.mn, Some(&mut a.mn_inv));
        let bias = |i: usize| l.mlp_bias.as_ref().map(|b| &b[i][..]);
        let jobs = [
            (of(Proj::Gate), Job { w: &l.gate, bias: bias(0), y: &mut a.gate }),
            (of(Proj::Up), Job { w: &l.up, bias: bias(1), y: &mut a.up }),
        ];
        project(cpu, tokens, &mut a.mn, eight, jobs);
        let input = &mut rounded[..tokens * c.ffn];
        swiglu::forward(cpu, &a.gate, &a.up, input);
        project(cpu, tokens, input, eight, [(of(Proj::Down), Job { w: &l.down, bias: bias(2), y: &mut *y })]);
        residual::add(cpu, x, y);
    }
}

/// Heads, and the scale of scores: 1 / sqrt(head_dim).
#[allow(clippy::cast_precision_loss)] // head_dim is small
pub(crate) fn attention_shape(c: &ModelConfig) -> attention::Shape {
    attention::Shape { heads: c.heads, softmax_scale: 1.0 / (c.head_dim as f32).sqrt() }
}
