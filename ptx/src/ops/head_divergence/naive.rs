//! The slow truth, in f64 and over whole `[rows, vocab]`: on z (logits over temperature) of the valid columns of one row.

use super::Kind;
use crate::ops::log_softmax::naive::logprobs;

/// p x, and 0 where p = e^lp is 0.
fn expected(lp: f64, x: f64) -> f64 {
    if lp == f64::NEG_INFINITY { 0.0 } else { lp.exp() * x }
}

/// KL of two distributions, given by their logprobs.
pub(crate) fn kl(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| expected(a, a - b)).sum()
}

/// ln(share b + (1 - share) a) of every column.
fn mixed(share: f64, b: &[f64], a: &[f64]) -> Vec<f64> {
    b.iter().zip(a).map(|(b, a)| (share * b.exp() + (1.0 - share) * a.exp()).ln()).collect()
}

/// The loss of one row.
#[must_use]
pub fn loss(kind: Kind, student: &[f64], teacher: &[f64], target: usize) -> f64 {
    let p = logprobs(student);
    let q = if kind.needs_teacher() { logprobs(teacher) } else { Vec::new() };
    match kind.plain() {
        Kind::Reverse => kl(&p, &q),
        Kind::Forward => kl(&q, &p),
        Kind::Jsd { beta } => {
            let m = mixed(beta, &q, &p);
            kl(&q, &m) / (1.0 - beta) + kl(&p, &m) / beta
        }
        Kind::SkewedReverse { alpha } => kl(&p, &mixed(alpha, &q, &p)),
        Kind::SkewedForward { alpha } => kl(&q, &mixed(alpha, &p, &q)),
        Kind::CrossEntropy => -p[target],
    }
}

/// d(loss)/dz of one row of unit weight, as dL/dp through the softmax.
#[must_use]
pub fn gradient(kind: Kind, student: &[f64], teacher: &[f64], target: usize) -> Vec<f64> {
    let p = logprobs(student);
    if kind == Kind::CrossEntropy {
        return p.iter().enumerate().map(|(i, lp)| if i == target { lp.exp_m1() } else { lp.exp() }).collect();
    }
    let q = logprobs(teacher);
    let slopes: Vec<f64> = match kind.plain() {
        Kind::Reverse => p.iter().zip(&q).map(|(p, q)| p - q + 1.0).collect(),
        Kind::Forward => return p.iter().zip(&q).map(|(p, q)| p.exp() - q.exp()).collect(),
        Kind::Jsd { beta } => p.iter().zip(mixed(beta, &q, &p)).map(|(p, m)| (p - m) / beta).collect(),
        Kind::SkewedReverse { alpha } => {
            let m = mixed(alpha, &q, &p);
            p.iter().zip(m).map(|(p, m)| p - m + 1.0 - (1.0 - alpha) * (p - m).exp()).collect()
        }
        Kind::SkewedForward { alpha } => {
            q.iter().zip(mixed(alpha, &p, &q)).map(|(q, m)| -alpha * (q - m).exp()).collect()
        }
        Kind::CrossEntropy => unreachable!("taken above"),
    };
    let mean: f64 = p.iter().zip(&slopes).map(|(&p, &g)| expected(p, g)).sum();
    p.iter().zip(&slopes).map(|(&p, &g)| expected(p, g - mean)).collect()
}

/// sum mu^2 / p - 1.
#[must_use]
pub fn chi_square(mu: &[f64], p: &[f64]) -> f64 {
    let (mu, p) = (logprobs(mu), logprobs(p));
    // (mu - p)^2 / p, since what that adds to mu^2 / p sums to -1.
    let one = |(&mu, &p): (&f64, &f64)| {
        if mu == f64::NEG_INFINITY { p.exp() } else { p.exp() * (mu - p).exp_m1().powi(2) }
    };
    mu.iter().zip(&p).map(one).sum()
}

/// Logits `[rows, vocab]` of hidden rows `[rows, hidden]` and a head `[vocab, hidden]`.
#[must_use]
pub fn logits(hidden: usize, rows: &[f64], head: &[f64]) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    rows.chunks(hidden).map(|row| head.chunks(hidden).map(|w| dot(row, w)).collect()).collect()
}
