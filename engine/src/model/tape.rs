//! What a forward pass leaves behind: the buffers of one layer, and for training those of every layer.

use super::buffer;
use crate::config::ModelConfig;

/// Activations of one layer, each `[tokens, its own width]`. A rollout reuses one set for all layers; training keeps
/// one a layer.
#[derive(Debug, Default)]
pub(crate) struct Acts {
    /// Residual stream at the layer's input (training only).
    pub x0: Vec<f32>,
    /// Residual stream between attention and MLP (training only).
    pub x1: Vec<f32>,
    /// Normed and rounded input of q, k, v, and its inverse RMS by token.
    pub xn: Vec<f32>,
    pub xn_inv: Vec<f32>,
    /// Queries, keys, values; q and k after norm and rotation.
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// q and k before their norm (training with QK-norm only), and inverse RMS by token and head.
    pub q_raw: Vec<f32>,
    pub k_raw: Vec<f32>,
    pub q_inv: Vec<f32>,
    pub k_inv: Vec<f32>,
    /// Attention output before rounding, and log-sum-exp by token and head (training only).
    pub attn: Vec<f32>,
    pub lse: Vec<f32>,
    /// Normed and rounded input of gate and up, and its inverse RMS.
    pub mn: Vec<f32>,
    pub mn_inv: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
}

impl Acts {
    /// Sizes every buffer for `tokens` tokens; grows only, so a warmed step allocates nothing.
    pub fn resize(&mut self, c: &ModelConfig, tokens: usize, training: bool) {
        for (buffer, width) in self.buffers().into_iter().zip(Acts::widths(c, training)) {
            buffer::size(buffer, tokens * width);
        }
    }

    /// Every buffer, in the order of the fields.
    pub fn buffers(&mut self) -> [&mut Vec<f32>; 17] {
        [
            &mut self.x0,
            &mut self.x1,
            &mut self.xn,
            &mut self.xn_inv,
            &mut self.q,
            &mut self.k,
            &mut self.v,
            &mut self.q_raw,
            &mut self.k_raw,
            &mut self.q_inv,
            &mut self.k_inv,
            &mut self.attn,
            &mut self.lse,
            &mut self.mn,
            &mut self.mn_inv,
            &mut self.gate,
            &mut self.up,
        ]
    }

    /// Floats a token of each of [`Acts::buffers`].
    pub fn widths(c: &ModelConfig, training: bool) -> [usize; 17] {
        let (hidden, ffn, heads, kv_heads) = (c.hidden, c.ffn, c.heads, c.kv_heads);
        let (q, kv) = (heads * c.head_dim, kv_heads * c.head_dim);
        let kept = |n: usize| if training { n } else { 0 };
        let raw = |n: usize| if training && c.qk_norm { n } else { 0 };
        [
            kept(hidden),
            kept(hidden),
            hidden,
            1,
            q,
            kv,
            kv,
            raw(q),
            raw(kv),
            heads,
            kv_heads,
            q,
            kept(heads),
            hidden,
            1,
            ffn,
            ffn,
        ]
    }
}

/// Everything that the backward pass needs of a forward pass.
#[derive(Debug, Default)]
pub struct Tape {
    pub(crate) layers: Vec<Acts>,
    /// Input of the last norm and its inverse RMS.
    pub(crate) x_last: Vec<f32>,
    pub(crate) x_last_inv: Vec<f32>,
}

impl Tape {
    /// An empty tape; it grows with the batches it records.
    #[must_use]
    pub fn new() -> Tape {
        Tape::default()
    }

    pub(crate) fn resize(&mut self, config: &ModelConfig, tokens: usize) {
        self.layers.resize_with(config.layers, Acts::default);
        for acts in &mut self.layers {
            acts.resize(config, tokens, true);
        }
        buffer::size(&mut self.x_last, tokens * config.hidden);
        buffer::size(&mut self.x_last_inv, tokens);
    }
}
