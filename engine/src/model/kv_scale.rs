//! Static scales of the 8-bit KV cache from the weights alone, so that they need no data and never saturate.
//!
//! After RMSNorm a hidden row has norm at most sqrt(h), so by Cauchy-Schwarz a projected element is at most
//! `sqrt(h) |w * gain| + |b|`. Rotation mixes the two elements of a pair, whose joint norm bounds either. With QK-norm
//! a key element is at most `sqrt(d) max |gain|` whatever the weights. Two per cent are added for rounded inputs.

use ptx::DType;
use ptx::dtype::{E4M3_MAX, scale_pow2};
use ptx::ops::linear::Packed;

use crate::config::ModelConfig;
use crate::model::Layer;
use crate::recipe::LayerRecipe;

const MARGIN: f64 = 1.02;

/// Sets the scales of `layer` from its weights; nothing when a bound is beyond f32, as weights that diverged give it.
pub(crate) fn set(config: &ModelConfig, recipe: &LayerRecipe, layer: &mut Layer) -> Option<()> {
    let dim = config.head_dim;
    if recipe.k == DType::E4m3 {
        let rope = f64::from(config.rope.attention_factor());
        let norms = weighted_norms(&layer.k, &layer.attn_norm);
        let bias = layer.qkv_bias.as_ref().map(|b| &b[1]);
        for (head, scale) in layer.k_scales.iter_mut().enumerate() {
            let bound = match &layer.qk_norm {
                Some([_, gain]) => root(dim) * gain.iter().fold(0.0_f64, |max, &g| max.max(f64::from(g).abs())),
                None => (0..dim / 2).fold(0.0_f64, |max, i| {
                    let (i, j) = (head * dim + i, head * dim + i + dim / 2);
                    let of = |b: &Vec<f32>| f64::from(b[i]).hypot(f64::from(b[j]));
                    max.max(root(config.hidden) * norms[i].hypot(norms[j]) + bias.map_or(0.0, of))
                }),
            };
            *scale = scale_for(bound * rope)?;
        }
    }
    if recipe.v == DType::E4m3 {
        let norms = weighted_norms(&layer.v, &layer.attn_norm);
        let bias = layer.qkv_bias.as_ref().map(|b| &b[2]);
        for (head, scale) in layer.v_scales.iter_mut().enumerate() {
            let bound = (head * dim..(head + 1) * dim).fold(0.0_f64, |max, i| {
                max.max(root(config.hidden) * norms[i] + bias.map_or(0.0, |b| f64::from(b[i]).abs()))
            });
            *scale = scale_for(bound)?;
        }
    }
    Some(())
}

#[allow(clippy::cast_precision_loss)] // sizes of models
fn root(n: usize) -> f64 {
    (n as f64).sqrt()
}

#[allow(clippy::cast_possible_truncation)] // a bound beyond f32 becomes infinite
fn scale_for(bound: f64) -> Option<f32> {
    let bound = (bound * MARGIN) as f32;
    bound.is_finite().then(|| scale_pow2(bound, E4M3_MAX))
}

/// `norm(w_i * gain)` of every row, of the weights as they are stored.
fn weighted_norms(w: &Packed, gain: &[f32]) -> Vec<f64> {
    let mut row = vec![0.0; w.k()];
    let mut norms = Vec::with_capacity(w.n());
    for i in 0..w.n() {
        w.row(i, &mut row);
        let sum: f64 = row.iter().zip(gain).map(|(&w, &g)| (f64::from(w) * f64::from(g)).powi(2)).sum();
        norms.push(sum.sqrt());
    }
    norms
}
