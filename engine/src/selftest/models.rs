//! Small models that the checks run, made from seeds.

use std::path::Path;

use ptx::rng::{Purpose, Stream};
use serde_json::json;

use crate::checkpoint::CheckpointError;
use crate::config::ModelConfig;
use crate::model::WeightSource;
use crate::recipe::Recipe;

/// A model and the formats it runs in.
#[derive(Clone, Debug)]
pub struct Small {
    /// Family and recipe.
    pub name: &'static str,
    /// Its architecture.
    pub config: ModelConfig,
    /// Its formats.
    pub recipe: Recipe,
    /// Its weights: many tokens are likely.
    pub weights: Seeded,
}

/// Weights from a seed: matrices and biases normal, gains about 1. A row depends on the seed, the parameter's name and its
/// own number.
#[derive(Clone, Debug)]
pub struct Seeded {
    /// Key of all draws; another one is another weights version.
    pub seed: u64,
    /// Standard deviation of the matrices of layers.
    pub std: f32,
    /// That of embedding and head: how far apart logits lie.
    pub head_std: f32,
}

impl WeightSource for Seeded {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let width = out.len() / rows;
        // A head that is the embedding's values, tied or not.
        let name = if name == "lm_head.weight" { "model.embed_tokens.weight" } else { name };
        let index = name.bytes().fold(0, |h, b| h * 31 % 1_000_003 + u64::from(b));
        let (std, mean) = match name {
            _ if name.ends_with("norm.weight") => (0.1, 1.0),
            _ if name.ends_with(".bias") => (0.1, 0.0),
            "model.embed_tokens.weight" => (self.head_std, 0.0),
            _ => (self.std, 0.0),
        };
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let mut stream = Stream::new(self.seed, Purpose::Test, index << 32 | (first + row) as u64);
            out.iter_mut().for_each(|x| *x = std * stream.normal() + mean);
        }
        Ok(())
    }
}

/// Ids of the models, and how many of them are real.
pub const VOCAB: usize = 200;
pub(super) const VALID: usize = VOCAB - 3;

/// The models: every family, head widths of two kernels, tied and untied heads, and every format that a device runs.
#[must_use]
pub fn models() -> Vec<Small> {
    let layer_1 = "[[layer]]\nmatch = 'layers.1'\n";
    let token = format!(
        "[default]\nweights = 'e4m3'\nk = 'e4m3'\nv = 'e5m2'\nkv_scale = 'token'\n{layer_1}k = 'bf16'\nv = 'bf16'\n"
    );
    let w8a8 = format!(
        "[default]\nweights = 'e4m3'\nweights_scale = 'block128'\nactivations = 'e4m3'\nk = 'e5m2'\nv = 'bf16'\n\
         {layer_1}weights = 'bf16'\nactivations = 'bf16'\n[lm_head]\nweights = 'bf16'\nactivations = 'e4m3'\n"
    );
    vec![
        small("qwen3 kv8", "qwen3", 32, true, "[default]\nweights = 'bf16'\nk = 'e4m3'\nv = 'e4m3'\n"),
        small("qwen2 fp8 by token", "qwen2", 16, true, &token),
        small("llama bf16", "llama", 64, false, "[default]\nweights = 'bf16'\n"),
        small("llama w8a8", "llama", 32, false, &w8a8),
    ]
}

fn small(name: &'static str, family: &str, head_dim: usize, tied: bool, recipe: &str) -> Small {
    let (heads, kv_heads) = if head_dim == 64 { (2, 1) } else { (4, 2) };
    let config = ModelConfig::parse(
        &json!({
            "model_type": family, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "max_position_embeddings": 1024,
            "rope_theta": 1e4, "tie_word_embeddings": tied, "attention_bias": false, "use_sliding_window": false,
        })
        .to_string(),
    )
    .expect("the configuration is ours");
    let recipe = Recipe::parse(recipe, Path::new("selftest.toml"), &config).expect("the recipe is ours");
    Small { name, config, recipe, weights: Seeded { seed: 1, std: 0.2, head_std: 0.15 } }
}
