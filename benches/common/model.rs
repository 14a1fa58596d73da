//! Random models.

use std::path::Path;

use engine::checkpoint::CheckpointError;
use engine::config::{Arch, ModelConfig};
use engine::init::{InitSpec, random};
use engine::model::{Model, WeightSource};
use engine::recipe::{Precision, Recipe};
use ptx::{Cpu, DType};
use serde_json::json;

/// Longest sequence of all models here.
const CONTEXT: usize = 4096;

/// A decoder's shape.
#[derive(Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub vocab: usize,
}

impl Shape {
    /// Qwen3-0.6B.
    pub const QWEN3_06B: Shape =
        Shape { hidden: 1024, layers: 28, heads: 16, kv_heads: 8, head_dim: 128, ffn: 3072, vocab: 151_936 };
    /// 107 million parameters.
    pub const M107: Shape =
        Shape { hidden: 768, layers: 12, heads: 12, kv_heads: 4, head_dim: 64, ffn: 2304, vocab: 32_000 };
    /// For showing that a bench runs.
    pub const SMOKE: Shape = Shape { hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 256 };

    /// A Qwen3 of this shape with a tied head.
    pub fn config(self) -> ModelConfig {
        let raw = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "max_position_embeddings": CONTEXT,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": true,
            "attention_bias": false,
            "vocab_size": self.vocab,
        });
        ModelConfig::parse(&raw.to_string()).expect("a Qwen3 configuration")
    }

    /// Parameters of the layers' matrices.
    pub fn layer_parameters(self) -> usize {
        let attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads);
        self.layers * (attention + 3 * self.hidden * self.ffn)
    }
}

/// Weights from a seed: uniform, of the deviation that keeps activations near 1; norms are ones.
pub struct Seeded {
    pub state: u64,
}

impl WeightSource for Seeded {
    fn rows(&mut self, name: &str, _first: usize, _rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        if name.contains("norm") {
            out.fill(1.0);
            return Ok(());
        }
        for x in out {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *x = ((self.state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.04;
        }
        Ok(())
    }
}

/// A model with weights from a seed.
pub fn model(cpu: &Cpu, shape: Shape, recipe: &str, precision: Precision) -> Model {
    let config = shape.config();
    let recipe = Recipe::built_in(recipe, precision, &config).expect("a built-in recipe");
    let mut model = Model::empty(config, recipe);
    model.update(cpu, 0, &mut Seeded { state: 1 }).expect("it reads from memory");
    model
}

/// A model folder with random weights in bf16, without a tokenizer.
pub fn folder(dir: &Path, shape: Shape) {
    let Shape { hidden, layers, heads, kv_heads, head_dim, ffn, vocab } = shape;
    let spec = InitSpec {
        arch: Arch::Qwen3,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        tied: true,
        seed: 1,
        dtype: DType::Bf16,
        max_positions: CONTEXT,
        rope_theta: 1e6,
        std: 0.02,
    };
    random(dir, &spec, None).expect("the folder can be written");
}
