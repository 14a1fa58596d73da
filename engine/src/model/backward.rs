//! The backward pass. Rounding is passed straight through: gradients are f32, weights and inputs are the rounded ones
//! that the forward pass used.

use kv::KvCache;
use ptx::Cpu;
use ptx::kv_tile::KvPages;
use ptx::ops::attention;
use ptx::ops::{embedding, linear, rmsnorm, rope, swiglu};

use super::forward::{attention_shape, round_for};
use super::{Batch, Gradients, Model, Tape};
use crate::recipe::Proj;

/// Buffers of the backward pass; they grow and are reused.
#[derive(Debug, Default)]
pub struct BackwardWorkspace {
    dx: Vec<f32>,
    dnormed: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    dq_raw: Vec<f32>,
    dk_raw: Vec<f32>,
    dattn: Vec<f32>,
    attn: Vec<f32>,
    act: Vec<f32>,
    dact: Vec<f32>,
    dgate: Vec<f32>,
    dup: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Adds to `gradients` those of the batch that `tape` recorded, given `dhidden`, the gradient of the loss with respect
/// to the forward pass's result, `[tokens, hidden]`. Every span must start at position 0, and `kv` must still hold the
/// keys and values that the forward pass wrote.
#[allow(clippy::too_many_arguments)] // what the forward pass had, what it left, and where the result goes
pub fn backward(
    cpu: &Cpu,
    model: &Model,
    kv: &KvCache,
    batch: Batch<'_>,
    tape: &Tape,
    dhidden: &[f32],
    gradients: &mut Gradients,
    ws: &mut BackwardWorkspace,
) {
    let (c, tokens) = (&model.config, batch.ids.len());
    let (q_len, kv_len, d) = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.head_dim);
    for (buffer, width) in [
        (&mut ws.dx, c.hidden),
        (&mut ws.dnormed, c.hidden),
        (&mut ws.dq, q_len),
        (&mut ws.dk, kv_len),
        (&mut ws.dv, kv_len),
        (&mut ws.dq_raw, q_len),
        (&mut ws.dk_raw, kv_len),
        (&mut ws.dattn, q_len),
        (&mut ws.attn, q_len),
        (&mut ws.act, c.ffn),
        (&mut ws.dact, c.ffn),
        (&mut ws.dgate, c.ffn),
        (&mut ws.dup, c.ffn),
        (&mut ws.cos, d / 2),
        (&mut ws.sin, d / 2),
    ] {
        buffer.resize(tokens * width, 0.0);
    }
    let BackwardWorkspace { dx, dnormed, dq, dk, dv, dq_raw, dk_raw, dattn, attn, act, dact, dgate, dup, cos, sin } =
        ws;
    rope::tables(cpu, batch.positions, &model.inv_freq, c.rope.attention_factor(), cos, sin);
    rmsnorm::backward(
        cpu,
        c.hidden,
        &tape.x_last,
        &model.norm,
        &tape.x_last_inv,
        dhidden,
        dx,
        false,
        gradients.last_norm_mut(),
    );
    for (index, layer) in model.layers.iter().enumerate().rev() {
        let (a, at) = (&tape.layers[index], gradients.layer(index));
        // x2 = x1 + down(swiglu(gate(mn), up(mn)))
        swiglu::forward(cpu, &a.gate, &a.up, act);
        round_for(cpu, layer.formats[Proj::Down].activations, act);
        linear::backward_weight(cpu, tokens, c.hidden, c.ffn, act, dx, gradients.tensor_mut(at.down));
        linear::backward_input(cpu, tokens, dx, &layer.down, dact, false);
        swiglu::backward(cpu, &a.gate, &a.up, dact, dgate, dup);
        linear::backward_weight(cpu, tokens, c.ffn, c.hidden, &a.mn, dgate, gradients.tensor_mut(at.gate));
        linear::backward_weight(cpu, tokens, c.ffn, c.hidden, &a.mn, dup, gradients.tensor_mut(at.up));
        if let Some([gate, up, down]) = at.mlp_bias {
            linear::backward_bias(cpu, tokens, c.ffn, dgate, gradients.tensor_mut(gate));
            linear::backward_bias(cpu, tokens, c.ffn, dup, gradients.tensor_mut(up));
            linear::backward_bias(cpu, tokens, c.hidden, dx, gradients.tensor_mut(down));
        }
        linear::backward_input(cpu, tokens, dgate, &layer.gate, dnormed, false);
        linear::backward_input(cpu, tokens, dup, &layer.up, dnormed, true);
        let dgain = gradients.tensor_mut(at.mlp_norm);
        rmsnorm::backward(cpu, c.hidden, &a.x1, &layer.mlp_norm, &a.mn_inv, dnormed, dx, true, dgain);

        // x1 = x0 + o(attention(q, k, v))
        attn.copy_from_slice(&a.attn);
        round_for(cpu, layer.formats[Proj::O].activations, attn);
        linear::backward_weight(cpu, tokens, c.hidden, q_len, attn, dx, gradients.tensor_mut(at.o));
        if let Some(bias) = at.o_bias {
            linear::backward_bias(cpu, tokens, c.hidden, dx, gradients.tensor_mut(bias));
        }
        linear::backward_input(cpu, tokens, dx, &layer.o, dattn, false);
        let pages = KvPages {
            shape: kv.layout().layers()[index],
            bytes: kv.arena().layer(index),
            k_scales: &layer.k_scales,
            v_scales: &layer.v_scales,
        };
        attention::backward(cpu, attention_shape(c), pages, batch.spans, &a.q, &a.attn, &a.lse, dattn, dq, dk, dv);
        rope::backward(cpu, c.heads, d, dq, cos, sin);
        rope::backward(cpu, c.kv_heads, d, dk, cos, sin);
        if let (Some([q_gain, k_gain]), Some([q_at, k_at])) = (&layer.qk_norm, at.qk_norm) {
            rmsnorm::backward(cpu, d, &a.q_raw, q_gain, &a.q_inv, dq, dq_raw, false, gradients.tensor_mut(q_at));
            rmsnorm::backward(cpu, d, &a.k_raw, k_gain, &a.k_inv, dk, dk_raw, false, gradients.tensor_mut(k_at));
            std::mem::swap(dq, dq_raw);
            std::mem::swap(dk, dk_raw);
        }
        if let Some([q, k, v]) = at.qkv_bias {
            linear::backward_bias(cpu, tokens, q_len, dq, gradients.tensor_mut(q));
            linear::backward_bias(cpu, tokens, kv_len, dk, gradients.tensor_mut(k));
            linear::backward_bias(cpu, tokens, kv_len, dv, gradients.tensor_mut(v));
        }
        linear::backward_weight(cpu, tokens, q_len, c.hidden, &a.xn, dq, gradients.tensor_mut(at.q));
        linear::backward_weight(cpu, tokens, kv_len, c.hidden, &a.xn, dk, gradients.tensor_mut(at.k));
        linear::backward_weight(cpu, tokens, kv_len, c.hidden, &a.xn, dv, gradients.tensor_mut(at.v));
        linear::backward_input(cpu, tokens, dq, &layer.q, dnormed, false);
        linear::backward_input(cpu, tokens, dk, &layer.k, dnormed, true);
        linear::backward_input(cpu, tokens, dv, &layer.v, dnormed, true);
        let dgain = gradients.tensor_mut(at.attn_norm);
        rmsnorm::backward(cpu, c.hidden, &a.x0, &layer.attn_norm, &a.xn_inv, dnormed, dx, true, dgain);
    }
    embedding::backward(cpu, c.hidden, batch.ids, dx, gradients.embed_mut());
}
