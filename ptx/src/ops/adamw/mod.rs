//! AdamW with decoupled weight decay, as PyTorch defines it:
//! `p -= lr wd p`; `m += (1 - beta1) (g - m)`; `v = beta2 v + (1 - beta2) g^2`;
//! `p -= lr mhat / (sqrt(vhat) + eps)` with `mhat = m / (1 - beta1^t)`, `vhat = v / (1 - beta2^t)`.
//!
//! Shapes: all buffers have one length. State is f32; what depends on the update alone is computed in f64.
//!
//! Order: elementwise. Bytes: reads 16 and writes 12 per element, bound by memory.
//!
//! Accuracy: within 1e-6 of the step's size of an f64 update from the same state.

pub mod cases;
mod cpu;
pub mod naive;
#[cfg(test)]
mod tests;

use crate::Cpu;

/// The optimizer's settings.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate of this update.
    pub lr: f32,
    /// Decay of the gradient's running mean, in `0..1`.
    pub beta1: f32,
    /// Decay of the squared gradient's running mean, in `0..1`.
    pub beta2: f32,
    /// Added to the root, so that a parameter without gradients stays put.
    pub eps: f32,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
}

/// One update of `params` and of the running means `m` and `v`. `update` counts from 1; gradients are multiplied by
/// `grad_scale` (the clip factor; 1 for none) as they are read.
///
/// # Panics
/// When lengths differ, `update` is 0 or a beta is outside `0..1`.
#[allow(clippy::too_many_arguments)]
pub fn step(
    cpu: &Cpu,
    hyper: AdamW,
    update: u64,
    grad_scale: f32,
    params: &mut [f32],
    grads: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    assert!(update > 0, "updates count from 1");
    for (name, beta) in [("beta1", hyper.beta1), ("beta2", hyper.beta2)] {
        assert!((0.0..1.0).contains(&beta), "{name} is {beta}, not in 0..1");
    }
    assert_eq!(grads.len(), params.len(), "grads");
    assert_eq!(m.len(), params.len(), "m");
    assert_eq!(v.len(), params.len(), "v");
    cpu::step(cpu, hyper, update, grad_scale, params, grads, m, v);
}
