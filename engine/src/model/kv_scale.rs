//! Static scales of the 8-bit KV cache, one power of two for each kv head's keys and one for its values. They are part
//! of a weights version: every update sets them anew, and fails rather than keep another version's.
//!
//! By default they come from the weights alone, so that they need no data and never saturate. After RMSNorm a hidden
//! row has norm at most sqrt(h), so by Cauchy-Schwarz a projected element is at most `sqrt(h) |w * gain| + |b|`.
//! Rotation mixes the two elements of a pair, whose joint norm bounds either. With QK-norm a key element is at most
//! `sqrt(d) max |gain|` whatever the weights. Two per cent are added for rounded inputs. Inputs rounded to e4m3 may gain
//! up to a sixteenth of their norm, for which 6.5 % are added.
//!
//! A recipe may take them from the checkpoint instead, rounded up to powers of two, or from given tokens
//! (`calibrate.rs`).

use ptx::DType;
use ptx::dtype::scale_pow2;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::Packed;

use crate::config::ModelConfig;
use crate::model::Layer;
use crate::recipe::{Activations, LayerRecipe, Proj};

/// What rounding a matmul's input may add to its norm.
fn margin(activations: Activations) -> f64 {
    match activations {
        Activations::F32 | Activations::Bf16 => 1.02,
        // Half a step of 3 mantissa bits is 2^-4 of the value, and 2^-10 of the scale for what is subnormal.
        Activations::E4m3 => 1.065,
    }
}

/// Formats of keys and values that have static scales, with their largest code.
pub(super) fn largest_codes(row: &LayerRecipe) -> [Option<f32>; 2] {
    let of = |dtype: DType| dtype.largest_code().filter(|_| row.kv_scale == KvScale::Static);
    [of(row.k), of(row.v)]
}

/// Sets the scales of `layer` from its weights; nothing when a bound is beyond f32, as weights that diverged give it.
pub(super) fn set_from_weights(config: &ModelConfig, layer: &mut Layer) -> Option<()> {
    let (dim, formats) = (config.head_dim, layer.formats);
    let [k_code, v_code] = largest_codes(&formats);
    if let Some(code) = k_code {
        let rope = f64::from(config.rope.attention_factor());
        let norms = weighted_norms(&layer.k, &layer.attn_norm);
        let bias = layer.qkv_bias.as_ref().map(|b| &b[1]);
        // A norm of its own takes away what rounding added.
        let margin = margin(if config.qk_norm { Activations::Bf16 } else { formats[Proj::K].activations });
        for (head, scale) in layer.k_scales.iter_mut().enumerate() {
            let bound = match &layer.qk_norm {
                Some([_, gain]) => root(dim) * gain.iter().fold(0.0_f64, |max, &g| max.max(f64::from(g).abs())),
                None => (0..dim / 2).fold(0.0_f64, |max, i| {
                    let (i, j) = (head * dim + i, head * dim + i + dim / 2);
                    let of = |b: &Vec<f32>| f64::from(b[i]).hypot(f64::from(b[j]));
                    max.max(root(config.hidden) * norms[i].hypot(norms[j]) + bias.map_or(0.0, of))
                }),
            };
            *scale = scale_for(bound * rope * margin, code)?;
        }
    }
    if let Some(code) = v_code {
        let norms = weighted_norms(&layer.v, &layer.attn_norm);
        let bias = layer.qkv_bias.as_ref().map(|b| &b[2]);
        let margin = margin(formats[Proj::V].activations);
        for (head, scale) in layer.v_scales.iter_mut().enumerate() {
            let bound = (head * dim..(head + 1) * dim).fold(0.0_f64, |max, i| {
                max.max(root(config.hidden) * norms[i] + bias.map_or(0.0, |b| f64::from(b[i]).abs()))
            });
            *scale = scale_for(bound * margin, code)?;
        }
    }
    Some(())
}

/// Sets the scales of `layer` to a checkpoint's (K, V), each rounded up to a power of two: so nothing saturates that
/// would not under the checkpoint's own. Nothing when that is beyond f32.
pub(super) fn set_from_checkpoint(scales: (f32, f32), layer: &mut Layer) -> Option<()> {
    let codes = largest_codes(&layer.formats);
    for ((code, own), into) in
        codes.into_iter().zip([scales.0, scales.1]).zip([&mut layer.k_scales, &mut layer.v_scales])
    {
        if code.is_some() {
            let scale = Some(scale_pow2(own, 1.0)).filter(|scale| scale.is_finite())?;
            into.fill(scale);
        }
    }
    Some(())
}

/// The scale under which values up to `bound` do not exceed the code `largest`; none for a bound beyond f32.
#[allow(clippy::cast_possible_truncation)] // a bound beyond f32 becomes infinite
pub(super) fn scale_for(bound: f64, largest: f32) -> Option<f32> {
    let bound = bound as f32;
    bound.is_finite().then(|| scale_pow2(bound, largest))
}

#[allow(clippy::cast_precision_loss)] // sizes of models
fn root(n: usize) -> f64 {
    (n as f64).sqrt()
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
