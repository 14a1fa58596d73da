//! The forward pass: launches alone, which read ids, positions, slots and block tables from device memory.

use ptx::cuda::{CudaError, Gpu, Mem, Out, Pages, View};
use ptx::kv_tile::KvShape;
use ptx::ops::kv_append::cuda::COUNTS;
use ptx::ops::linear::cuda::{self as linear, Epilogue};
use ptx::ops::{attention, embedding, kv_append, rmsnorm, rope, swiglu};

use super::weights::{DeviceLayer, DeviceModel, Products};
use super::workspace::{Workspace, kinds};
use crate::config::ModelConfig;
use crate::model::attention_shape;

/// All that a pass takes beside the weights.
pub(super) struct Pass<'a> {
    pub gpu: &'a Gpu,
    pub c: &'a ModelConfig,
    pub rows: usize,
    pub shapes: &'a [KvShape],
    pub pools: &'a [Mem<u8>],
    pub counts: View<u64>,
    pub inv_freq: View<f32>,
    pub w: &'a Workspace,
}

impl Pass<'_> {
    /// Leaves the residual stream behind the last layer in the workspace, and keys and values in their slots.
    pub fn run(&self, model: &DeviceModel) -> Result<(), CudaError> {
        let &Pass { gpu, c, rows, w, .. } = self;
        let (hidden, q_len, half) = (c.hidden, c.heads * c.head_dim, c.head_dim / 2);
        let qkv_len = q_len + 2 * c.kv_heads * c.head_dim;
        let x = w.x.view().part(0, rows * hidden);
        let (cos, sin, factor) = (w.cos.view(), w.sin.view(), c.rope.attention_factor());
        embedding::cuda::forward(gpu, w.ids(rows), rows, &model.embed, x)?;
        rope::cuda::tables(gpu, rows, w.positions(rows), half, self.inv_freq, factor, cos, sin)?;
        for (index, layer) in model.layers.iter().enumerate() {
            let pages = pages(self.shapes[index], &self.pools[index], layer);
            let norm = |gain, out: Out| rmsnorm::cuda::forward(gpu, rows, hidden, x, gain, c.eps, out);

            self.project(&layer.qkv, hidden, w.qkv.view(), qkv_len, Epilogue::Write, |out| {
                norm(layer.attn_norm(), out)
            })?;
            let q = w.q.view().part(0, rows * q_len);
            kv_append::cuda::forward(gpu, rows, &self.append(index, layer), &pages, w.qkv.view(), qkv_len, q)?;
            self.project(&layer.o, q_len, x, hidden, Epilogue::Add, |out| {
                attention::cuda::forward(gpu, attention_shape(c), &pages, &w.batch, q, out, w.attention.view())
            })?;

            self.project(&layer.gate_up, hidden, w.gate_up.view(), 2 * c.ffn, Epilogue::Write, |out| {
                norm(layer.mlp_norm(), out)
            })?;
            self.project(&layer.down, c.ffn, x, hidden, Epilogue::Add, |out| {
                swiglu::cuda::forward(gpu, rows, c.ffn, w.gate_up.view(), 2 * c.ffn, out)
            })?;
        }
        Ok(())
    }

    /// Products of the input `[rows, width]` that `fill` computes, each rounded as the product wants it.
    fn project(
        &self,
        products: &Products,
        width: usize,
        y: View<f32>,
        y_stride: usize,
        epilogue: Epilogue,
        fill: impl FnOnce(Out) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let &Pass { gpu, rows, w, .. } = self;
        let (codes, bf16) = kinds(products);
        fill(w.inputs.out(rows, width, codes))?;
        w.inputs.round(gpu, rows, width, codes, bf16)?;
        for product in &products.groups {
            let input = w.inputs.input(product.activations, rows, width);
            let y = y.part(product.column, y.len() - product.column);
            linear::forward(gpu, rows, input, &product.matrices, y, y_stride, epilogue)?;
        }
        Ok(())
    }

    fn append(&self, index: usize, layer: &DeviceLayer) -> kv_append::cuda::Step {
        let &Pass { c, rows, w, .. } = self;
        let gains = layer.qk_norm();
        let counts = COUNTS * c.kv_heads;
        kv_append::cuda::Step {
            heads: c.heads,
            slots: w.slots(rows),
            cos: w.cos.view(),
            sin: w.sin.view(),
            q_gain: gains.map(|(q, _)| q),
            k_gain: gains.map(|(_, k)| k),
            eps: c.eps,
            counts: Some(self.counts.part(index * counts, counts)),
        }
    }
}

/// The pages of a layer with the scales of one weights version.
pub(super) fn pages(shape: KvShape, pool: &Mem<u8>, layer: &DeviceLayer) -> Pages {
    Pages::new(shape, pool.view(), Some(layer.k_scales()), Some(layer.v_scales()))
}
