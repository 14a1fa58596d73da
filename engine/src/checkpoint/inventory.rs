//! The parameters of a model, by name and shape, in one order for reading, writing, random weights and training.

use crate::config::ModelConfig;

/// A parameter: a matrix `[rows, columns]` in row-major order, or a vector `[n]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// Name in the files.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
}

impl Param {
    /// Elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Name of the embedding.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the head, where it is not tied to the embedding.
pub const HEAD: &str = "lm_head.weight";

/// Name and shape of every parameter of `config`: the embedding, the layers from first to last, the final norm, and
/// the head unless it is tied.
#[must_use]
pub fn inventory(config: &ModelConfig) -> Vec<Param> {
    let (hidden, ffn) = (config.hidden, config.ffn);
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut params = Vec::new();
    let mut add = |name: String, shape: &[usize]| params.push(Param { name, shape: shape.to_vec() });

    add(EMBEDDING.into(), &[config.vocab, hidden]);
    for layer in 0..config.layers {
        let mut linear = |module: &str, rows: usize, columns: usize, bias: bool| {
            add(format!("model.layers.{layer}.{module}.weight"), &[rows, columns]);
            if bias {
                add(format!("model.layers.{layer}.{module}.bias"), &[rows]);
            }
        };
        linear("self_attn.q_proj", q, hidden, config.qkv_bias);
        linear("self_attn.k_proj", kv, hidden, config.qkv_bias);
        linear("self_attn.v_proj", kv, hidden, config.qkv_bias);
        linear("self_attn.o_proj", hidden, q, config.o_bias);
        linear("mlp.gate_proj", ffn, hidden, config.mlp_bias);
        linear("mlp.up_proj", ffn, hidden, config.mlp_bias);
        linear("mlp.down_proj", hidden, ffn, config.mlp_bias);
        let mut norm = |module: &str, width: usize| add(format!("model.layers.{layer}.{module}.weight"), &[width]);
        norm("input_layernorm", hidden);
        norm("post_attention_layernorm", hidden);
        if config.qk_norm {
            norm("self_attn.q_norm", config.head_dim);
            norm("self_attn.k_norm", config.head_dim);
        }
    }
    add("model.norm.weight".into(), &[hidden]);
    if !config.tied {
        add(HEAD.into(), &[config.vocab, hidden]);
    }
    params
}
