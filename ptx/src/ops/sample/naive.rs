//! The slow truth, in f64: sort everything, cut, walk.

use super::Params;
use crate::ops::log_softmax::naive::{logprobs, order};

/// The ids kept and their probabilities, the likeliest first, and how close the nearest decision was: the least distance
/// of a cumulative mass from `top_p`, or of a relative probability from `min_p`, that decided anything.
#[must_use]
pub fn kept(params: &Params, row: &[f32]) -> (Vec<(u32, f64)>, f64) {
    let z: Vec<f64> = row.iter().map(|&x| f64::from(x * params.inv_temp())).collect();
    let p: Vec<f64> = logprobs(&z).into_iter().map(f64::exp).collect();
    let mut ids = order(&z);
    let mut margin = f64::INFINITY;
    if params.top_k != 0 {
        ids.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let mass: f64 = ids.iter().map(|&id| p[id as usize]).sum();
        let mut sum = 0.0;
        let mut n = 0;
        while n == 0 || (n < ids.len() && sum < f64::from(params.top_p)) {
            sum += p[ids[n] as usize] / mass;
            margin = margin.min((sum - f64::from(params.top_p)).abs());
            n += 1;
        }
        ids.truncate(n);
    }
    let largest = p[ids[0] as usize];
    ids.retain(|&id| {
        let relative = p[id as usize] / largest;
        if params.min_p > 0.0 && params.min_p < 1.0 {
            margin = margin.min((relative / f64::from(params.min_p) - 1.0).abs());
        }
        // Below half of f32's least number a relative probability is 0.
        relative >= f64::from(params.min_p) && relative > 2.0_f64.powi(-150)
    });
    let mass: f64 = ids.iter().map(|&id| p[id as usize]).sum();
    (ids.into_iter().map(|id| (id, p[id as usize] / mass)).collect(), margin)
}
