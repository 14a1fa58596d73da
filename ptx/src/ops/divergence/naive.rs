//! The slow truth, in f64, on z (logits over temperature) of the valid columns of one row.

use super::Kind;
use crate::ops::log_softmax::naive::logprobs;

/// KL(p || q) = sum p ln(p/q).
#[must_use]
pub fn kl(p: &[f64], q: &[f64]) -> f64 {
    let (lp, lq) = (logprobs(p), logprobs(q));
    lp.iter().zip(&lq).map(|(&lp, &lq)| if lp == f64::NEG_INFINITY { 0.0 } else { lp.exp() * (lp - lq) }).sum()
}

/// The loss of one row of unit weight.
#[must_use]
pub fn loss(kind: Kind, student: &[f64], teacher: &[f64]) -> f64 {
    match kind {
        Kind::ReverseKl => kl(student, teacher),
        Kind::ForwardKl => kl(teacher, student),
    }
}

/// d(loss)/dz of one row of unit weight; times weight / T it is the gradient to the logits.
#[must_use]
pub fn gradient(kind: Kind, student: &[f64], teacher: &[f64]) -> Vec<f64> {
    let (lp, lq) = (logprobs(student), logprobs(teacher));
    let kl = kl(student, teacher);
    let one = |(&lp, &lq): (&f64, &f64)| match kind {
        Kind::ReverseKl if lp == f64::NEG_INFINITY => 0.0,
        Kind::ReverseKl => lp.exp() * (lp - lq - kl),
        Kind::ForwardKl => lp.exp() - lq.exp(),
    };
    lp.iter().zip(&lq).map(one).collect()
}

/// Entropy.
#[must_use]
pub fn entropy(z: &[f64]) -> f64 {
    logprobs(z).iter().map(|&lp| if lp == f64::NEG_INFINITY { 0.0 } else { -lp.exp() * lp }).sum()
}
