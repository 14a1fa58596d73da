//! KL divergences and cross-entropy over the whole vocabulary, with their gradients to the logits, in place.
//!
//! **Shapes.** Blocks of logits are `[rows, vocab]`, row-major f32; only the columns `0..valid` are ids. Padding is
//! never read and its gradient is written as 0.
//!
//! **Definition.** z = logit * inv_temp in f32; p and q are the softmax of the student's and the teacher's z (or of the
//! two sides of [`kl`]). KL(p||q) = sum p ln(p/q), nats. Gradients to the logits, per unit of weight:
//! reverse p_i (ln(p_i/q_i) - KL) / T, forward (p_i - q_i) / T, cross-entropy p_i - \[i = target\].
//!
//! **How the sums are formed.** With x = ln(q_i/p_i) = (zq_i - zp_i) - (lse_q - lse_p), KL(p||q) is summed as
//! p_i (e^x - 1 - x): what this adds to p_i ln(p_i/q_i), namely q_i - p_i, sums to zero. Every term is at least 0, so
//! that nothing cancels and nothing has to be clamped, and the rounding of the two lse enters only squared. Equal logits
//! give x = 0 and exactly 0.0. A tile of 1024 columns is 16 strided f32 sums (column mod 16) and the fixed tree; tiles
//! are added in f64 in ascending order. Bits depend on the row alone.
//!
//! **Minus infinity.** Probability 0, and 0 ln 0 = 0: no NaN on either side or in the gradient. A token excluded by q
//! alone makes KL(p||q) infinite: [`kl`] and [`RowStats`] say so, a weighted loss is an error. Probabilities below f32's
//! range (1e-45) count as 0.
//!
//! **Cost.** [`dense`] reads each side twice or thrice and takes 5 (forward) or 6 (reverse) exps a column, [`kl`] 5:
//! bound by arithmetic.
//!
//! **Accuracy.** With u = 2^-24 and d the error of an lse (see [`super::log_softmax`]):
//! |KL - exact| <= KL (d + u (110 + 2 max|ln p|)) + sum |p_i - q_i| u (|zq_i - zp_i| + |lse_q - lse_p| + |x_i|) + 4 d^2,
//! the maximum over columns that matter (p_i > 1e-9). The absolute part is about 1e-11 however close the two sides are.
//! A gradient element is within p_i max(1, |x_i| + KL) (2 d + u (20 + 2 |ln p_i|)) + the same with q
//! + 1e-43, times weight / T.

use super::log_softmax::cpu::row_mass;
use super::log_softmax::{LogitError, check_block, check_targets, diagnose};
use crate::Cpu;

pub mod cases;
pub(crate) mod cpu;
pub mod naive;
#[cfg(test)]
mod tests;

/// Which divergence; the direction is in the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// KL(student || teacher): the mean under the student.
    ReverseKl,
    /// KL(teacher || student): the mean under the teacher.
    ForwardKl,
}

/// What one row gave, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// The row's part of the loss: its weight times the divergence asked for; 0 when the weight is 0.
    pub loss: f64,
    /// KL(student || teacher).
    pub kl_reverse: f64,
    /// KL(teacher || student).
    pub kl_forward: f64,
    /// Entropy of the student.
    pub entropy_student: f64,
    /// Entropy of the teacher.
    pub entropy_teacher: f64,
}

/// The loss sum over rows of weight * KL and its gradient: `student` `[rows, vocab]` holds logits before and
/// d(loss)/d(logits) after, the 1/T included. Rows of weight 0 are measured too and get a zero gradient.
/// After an error `student` holds neither.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim or a weight is not finite.
#[allow(clippy::too_many_arguments)]
pub fn dense(
    cpu: &Cpu,
    kind: Kind,
    rows: usize,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    student: &mut [f32],
    teacher: &[f32],
    weights: &[f32],
    stats: &mut [RowStats],
) -> Result<(), LogitError> {
    check_block(rows, vocab, valid, inv_temp, student);
    check_block(rows, vocab, valid, inv_temp, teacher);
    check_weights(rows, weights);
    assert_eq!(stats.len(), rows, "stats are not [{rows}]");
    cpu::dense(cpu, kind, vocab, valid, inv_temp, student, teacher, weights, stats);
    for (row, stats) in stats.iter().enumerate() {
        if stats.loss.is_nan() {
            // The row was left as it came.
            let at = row * vocab..row * vocab + valid;
            return Err(first_fault(cpu, [("student", student), ("teacher", teacher)], row, at, inv_temp));
        }
        if stats.loss.is_infinite() {
            return Err(LogitError::InfiniteLoss { row });
        }
    }
    Ok(())
}

/// KL(p || q) of each row into `out` `[rows]`, nats; 0.0 when the logits' bits are equal, infinite when q excludes a
/// token that p allows.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim.
#[allow(clippy::too_many_arguments)]
pub fn kl(
    cpu: &Cpu,
    rows: usize,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    p: &[f32],
    q: &[f32],
    out: &mut [f64],
) -> Result<(), LogitError> {
    check_block(rows, vocab, valid, inv_temp, p);
    check_block(rows, vocab, valid, inv_temp, q);
    assert_eq!(out.len(), rows, "out is not [{rows}]");
    cpu::kl(cpu, vocab, valid, inv_temp, p, q, out);
    match out.iter().position(|x| x.is_nan()) {
        Some(row) => Err(first_fault(cpu, [("p", p), ("q", q)], row, row * vocab..row * vocab + valid, inv_temp)),
        None => Ok(()),
    }
}

/// The cross-entropy of `targets` `[rows]` at temperature 1: `nll` `[rows]` is minus each target's logprob, unweighted
/// (the bits of [`super::log_softmax::gather`]); `logits` `[rows, vocab]` become the gradient of sum weight * nll.
/// After an error they are neither.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim or a weight is not finite.
#[allow(clippy::too_many_arguments)]
pub fn cross_entropy(
    cpu: &Cpu,
    rows: usize,
    vocab: usize,
    valid: usize,
    logits: &mut [f32],
    targets: &[u32],
    weights: &[f32],
    nll: &mut [f64],
) -> Result<(), LogitError> {
    check_block(rows, vocab, valid, 1.0, logits);
    check_weights(rows, weights);
    assert_eq!(targets.len(), rows, "targets are not [{rows}]");
    assert_eq!(nll.len(), rows, "nll is not [{rows}]");
    check_targets(targets, valid)?;
    cpu::cross_entropy(cpu, vocab, valid, logits, targets, weights, nll);
    for (row, (&nll, &weight)) in nll.iter().zip(weights).enumerate() {
        if nll.is_nan() {
            return Err(diagnose("logits", row, &logits[row * vocab..][..valid], 1.0));
        }
        if nll.is_infinite() && weight != 0.0 {
            return Err(LogitError::InfiniteLoss { row });
        }
    }
    Ok(())
}

fn check_weights(rows: usize, weights: &[f32]) {
    assert_eq!(weights.len(), rows, "weights are not [{rows}]");
    assert!(weights.iter().all(|w| w.is_finite()), "weights must be finite");
}

/// The error of whichever side has no distribution in `row`, the first side first.
fn first_fault(
    cpu: &Cpu,
    sides: [(&'static str, &[f32]); 2],
    row: usize,
    at: std::ops::Range<usize>,
    inv_temp: f32,
) -> LogitError {
    let [(first, a), (second, b)] = sides;
    if row_mass(cpu.isa(), &a[at.clone()], inv_temp).lse().is_nan() {
        diagnose(first, row, &a[at], inv_temp)
    } else {
        diagnose(second, row, &b[at], inv_temp)
    }
}
