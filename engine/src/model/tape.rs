//! What a forward pass leaves behind: the buffers of one layer, and for training those of every layer.

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
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let kept = |n: usize| if training { n } else { 0 };
        let raw = |n: usize| if training && c.qk_norm { n } else { 0 };
        for (buffer, width) in [
            (&mut self.x0, kept(c.hidden)),
            (&mut self.x1, kept(c.hidden)),
            (&mut self.xn, c.hidden),
            (&mut self.xn_inv, 1),
            (&mut self.q, q),
            (&mut self.k, kv),
            (&mut self.v, kv),
            (&mut self.q_raw, raw(q)),
            (&mut self.k_raw, raw(kv)),
            (&mut self.q_inv, c.heads),
            (&mut self.k_inv, c.kv_heads),
            (&mut self.attn, q),
            (&mut self.lse, kept(c.heads)),
            (&mut self.mn, c.hidden),
            (&mut self.mn_inv, 1),
            (&mut self.gate, c.ffn),
            (&mut self.up, c.ffn),
        ] {
            buffer.resize(tokens * width, 0.0);
        }
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
        self.x_last.resize(tokens * config.hidden, 0.0);
        self.x_last_inv.resize(tokens, 0.0);
    }
}
