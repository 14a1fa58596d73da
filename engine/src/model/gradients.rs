//! One f32 tensor for every parameter, in inventory order: gradients, and whatever else has the parameters' shape.

use std::collections::HashMap;

use crate::checkpoint::{Param, inventory};
use crate::config::ModelConfig;

/// Tensors of the parameters' shapes, row-major.
#[derive(Clone, Debug)]
pub struct Gradients {
    params: Vec<Param>,
    index: HashMap<String, usize>,
    data: Vec<Vec<f32>>,
    layers: Vec<LayerIndex>,
}

/// Where a layer's parameters stand in the inventory.
#[derive(Clone, Debug)]
pub(crate) struct LayerIndex {
    pub attn_norm: usize,
    pub q: usize,
    pub k: usize,
    pub v: usize,
    pub o: usize,
    pub qkv_bias: Option<[usize; 3]>,
    pub o_bias: Option<usize>,
    pub qk_norm: Option<[usize; 2]>,
    pub mlp_norm: usize,
    pub gate: usize,
    pub up: usize,
    pub down: usize,
    pub mlp_bias: Option<[usize; 3]>,
}

impl Gradients {
    /// All zeros, for a model of this configuration.
    ///
    /// # Panics
    /// When the inventory lacks a parameter of the configuration, which would be a bug.
    #[must_use]
    pub fn zeros(config: &ModelConfig) -> Gradients {
        let params = inventory(config);
        let index: HashMap<String, usize> = params.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let data = params.iter().map(|p| vec![0.0; p.shape.iter().product()]).collect();
        let layers = (0..config.layers)
            .map(|layer| {
                let at = |rest: &str| index[&format!("model.layers.{layer}.{rest}")];
                let attn = |unit: &str| at(&format!("self_attn.{unit}"));
                let mlp = |unit: &str| at(&format!("mlp.{unit}"));
                LayerIndex {
                    attn_norm: at("input_layernorm.weight"),
                    q: attn("q_proj.weight"),
                    k: attn("k_proj.weight"),
                    v: attn("v_proj.weight"),
                    o: attn("o_proj.weight"),
                    qkv_bias: config.qkv_bias.then(|| [attn("q_proj.bias"), attn("k_proj.bias"), attn("v_proj.bias")]),
                    o_bias: config.o_bias.then(|| attn("o_proj.bias")),
                    qk_norm: config.qk_norm.then(|| [attn("q_norm.weight"), attn("k_norm.weight")]),
                    mlp_norm: at("post_attention_layernorm.weight"),
                    gate: mlp("gate_proj.weight"),
                    up: mlp("up_proj.weight"),
                    down: mlp("down_proj.weight"),
                    mlp_bias: config
                        .mlp_bias
                        .then(|| [mlp("gate_proj.bias"), mlp("up_proj.bias"), mlp("down_proj.bias")]),
                }
            })
            .collect();
        Gradients { params, index, data, layers }
    }

    /// Names and shapes, in order.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The tensor at `index` of [`Gradients::params`].
    #[must_use]
    pub fn tensor(&self, index: usize) -> &[f32] {
        &self.data[index]
    }

    /// As [`Gradients::tensor`], for writing.
    #[must_use]
    pub fn tensor_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.data[index]
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&[f32]> {
        self.index.get(name).map(|&i| &self.data[i][..])
    }

    /// The embedding's.
    #[must_use]
    pub fn embed_mut(&mut self) -> &mut [f32] {
        let at = self.index["model.embed_tokens.weight"];
        &mut self.data[at]
    }

    /// The head's: the embedding's when tied.
    #[must_use]
    pub fn head_mut(&mut self) -> &mut [f32] {
        let at = self.index.get("lm_head.weight").copied().unwrap_or(self.index["model.embed_tokens.weight"]);
        &mut self.data[at]
    }

    pub(crate) fn last_norm_mut(&mut self) -> &mut [f32] {
        let at = self.index["model.norm.weight"];
        &mut self.data[at]
    }

    pub(crate) fn layer(&self, layer: usize) -> LayerIndex {
        self.layers[layer].clone()
    }

    /// Sets every element to zero.
    pub fn clear(&mut self) {
        for tensor in &mut self.data {
            tensor.fill(0.0);
        }
    }
}
