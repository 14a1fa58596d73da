//! Device memory of an engine beside its KV pages, from the configuration alone.

use ptx::cuda::Gpu;
use ptx::ops::attention::BatchLimits;
use ptx::ops::linear::cuda::Weights as Matrices;
use ptx::ops::log_softmax::cuda as log_softmax;

use super::sampling::draw_bytes;
use super::support::{Unsupported, check};
use crate::config::ModelConfig;
use crate::engine::{LOGIT_ROWS, PAGE_LEN};
use crate::recipe::{Activations, LayerRecipe, Proj, Recipe, WeightFormat};

/// Device bytes of weights and buffers for steps of up to `rows` rows and sequences of up to `tokens` tokens. Allocations
/// are rounded up, which is not in it; nor are retained weights versions.
pub fn fixed_bytes(
    gpu: &Gpu,
    c: &ModelConfig,
    recipe: &Recipe,
    rows: usize,
    tokens: usize,
    valid: usize,
) -> Result<usize, Unsupported> {
    check(c, recipe)?;
    let head = if c.tied { 0 } else { matrix(recipe.head.weights, c.vocab, c.hidden, false) };
    let embed = matrix(recipe.embed, c.vocab, c.hidden, false);
    let layers: usize = recipe.layers.iter().map(|formats| layer(c, formats)).sum();
    Ok(embed + head + layers + workspace(gpu, c, recipe, rows, tokens) + logits(c, recipe, valid))
}

fn layer(c: &ModelConfig, formats: &LayerRecipe) -> usize {
    let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let of = |proj: Proj| match proj {
        Proj::Q => (q_len, c.hidden, c.qkv_bias),
        Proj::K | Proj::V => (kv_len, c.hidden, c.qkv_bias),
        Proj::O => (c.hidden, q_len, c.o_bias),
        Proj::Gate | Proj::Up => (c.ffn, c.hidden, c.mlp_bias),
        Proj::Down => (c.hidden, c.ffn, c.mlp_bias),
    };
    let matrices = Proj::ALL.into_iter().map(|proj| {
        let (n, k, bias) = of(proj);
        matrix(formats[proj].weights, n, k, bias)
    });
    matrices.sum::<usize>() + (2 * c.hidden + 2 * c.head_dim + 2 * c.kv_heads) * size_of::<f32>()
}

fn matrix(format: WeightFormat, n: usize, k: usize, bias: bool) -> usize {
    Matrices::bytes_for(format.dtype, format.scale, &[n], k, bias)
}

fn workspace(gpu: &Gpu, c: &ModelConfig, recipe: &Recipe, rows: usize, tokens: usize) -> usize {
    let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let (heads, kv_heads, head_dim) = (c.heads, c.kv_heads, c.head_dim);
    let pages = tokens.div_ceil(PAGE_LEN).next_power_of_two();
    let limits = BatchLimits { spans: rows, rows, pages, page_len: PAGE_LEN, heads, kv_heads, head_dim };
    let floats = c.hidden + c.head_dim + q_len + 2 * kv_len + q_len + 2 * c.ffn;
    let widest = c.hidden.max(q_len).max(c.ffn);
    let codes = recipe.layers.iter().any(|l| l.projections.iter().any(|p| p.activations == Activations::E4m3));
    let inputs = widest * (2 + if codes { 5 } else { 0 });
    let words = rows * (3 + 4 + pages + 4) + limits.workspace_max(gpu);
    rows * (floats * size_of::<f32>() + inputs) + words * size_of::<u32>()
}

fn logits(c: &ModelConfig, recipe: &Recipe, valid: usize) -> usize {
    let codes = if recipe.head.activations == Activations::E4m3 { 5 } else { 0 };
    let partials = log_softmax::partials_len(LOGIT_ROWS, valid);
    let rows = LOGIT_ROWS * ((c.hidden + c.vocab) * size_of::<f32>() + c.hidden * (2 + codes));
    rows + partials * size_of::<f32>() + draw_bytes(valid)
}
