//! What work must do at least, from the configuration alone: the flops of its products, and the bytes that it must read.

use engine::config::ModelConfig;
use engine::plan::Weights;
use engine::recipe::Recipe;
use kv::Layout;

/// Flops and bytes of one piece of work. 0 is what a limit says nothing about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Of matrix products and attention, a multiply-add being two.
    pub flops: f64,
    /// That must come from memory: weights once, and the keys and values of those that decode.
    pub bytes: f64,
}

impl Cost {
    /// A step of `batch` sequences that hold `context` tokens each.
    #[must_use]
    pub fn decode(config: &ModelConfig, recipe: &Recipe, layout: &Layout, batch: usize, context: usize) -> Cost {
        let products = 2.0 * config.matmul_parameters() as f64;
        let seen = (context + 1) as f64; // its own token included
        let flops = batch as f64 * (products + attention(config) * seen);
        Cost { flops, bytes: weights(config, recipe) + batch as f64 * layout.token_bytes_total() * seen }
    }

    /// A prompt of `tokens` tokens from an empty cache to its next token.
    #[must_use]
    pub fn prefill(config: &ModelConfig, recipe: &Recipe, tokens: usize) -> Cost {
        Cost { flops: layers(config, tokens) + head(config), bytes: weights(config, recipe) }
    }

    /// Logprobs of a row of `tokens` ids.
    #[must_use]
    pub fn score(config: &ModelConfig, recipe: &Recipe, tokens: usize) -> Cost {
        let heads = tokens.saturating_sub(1) as f64 * head(config);
        Cost { flops: layers(config, tokens) + heads, bytes: weights(config, recipe) }
    }

    /// New weights from a source of `stored` bytes: those are read, and the recipe's formats written.
    #[must_use]
    pub fn update(config: &ModelConfig, recipe: &Recipe, stored: usize) -> Cost {
        Cost { flops: 0.0, bytes: stored as f64 + Weights::of(config, recipe).total() as f64 }
    }

    /// A training step of `tokens` tokens, as it is commonly counted: six flops a parameter and token, attention and the
    /// optimizer left out.
    #[must_use]
    pub fn train(config: &ModelConfig, tokens: usize) -> Cost {
        Cost { flops: 6.0 * config.matmul_parameters() as f64 * tokens as f64, bytes: 0.0 }
    }
}

/// Flops of all layers for a whole row of `tokens` tokens.
fn layers(config: &ModelConfig, tokens: usize) -> f64 {
    let (parameters, count) = (config.matmul_parameters() - config.vocab * config.hidden, tokens as f64);
    2.0 * parameters as f64 * count + attention(config) * count * (count + 1.0) / 2.0
}

/// Flops of the head for one row.
fn head(config: &ModelConfig) -> f64 {
    2.0 * config.vocab as f64 * config.hidden as f64
}

/// Flops of attention in all layers for one query and one key that it sees.
fn attention(config: &ModelConfig) -> f64 {
    4.0 * (config.layers * config.heads * config.head_dim) as f64
}

/// Bytes of the weights that a forward pass reads: an embedding that is not the head too is only looked up.
fn weights(config: &ModelConfig, recipe: &Recipe) -> f64 {
    let weights = Weights::of(config, recipe);
    (weights.total() - if config.tied { 0 } else { weights.embed }) as f64
}
