//! A block of rows: from logits to loss, gradient and what is reported, in f64, rows shared among the CPU's threads. Each
//! row is one task with its own outputs, so bits do not depend on the threads.

use std::sync::Mutex;

use ptx::Cpu;

use super::divergence::Drawn;
use super::{Moved, Objective, expected, kl, normalise};

/// The other side of a block: logits `[rows, vocab]` and the sampled ids `[rows]`.
#[derive(Clone, Copy, Debug)]
pub struct RowIn<'a> {
    /// The teacher's logits.
    pub teacher: &'a [f32],
    /// The reference's logits, where the target takes one.
    pub reference: Option<&'a [f32]>,
    /// The token that follows each row.
    pub tokens: &'a [u32],
    /// Weight of each row's gradient, `[rows]`.
    pub weights: &'a [f32],
    /// A number in [0, 1) for each row, for a divergence that draws.
    pub draws: Option<&'a [f32]>,
}

/// What one row gave, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowOut {
    /// The loss, unweighted.
    pub loss: f64,
    /// KL(student || teacher).
    pub kl_reverse: f64,
    /// KL(teacher || student).
    pub kl_forward: f64,
    /// Entropy of the student.
    pub entropy: f64,
    /// What the target did.
    pub moved: Moved,
}

/// Losses of a block into `out` `[rows]`; `student` `[rows, vocab]` holds logits before and the row's weight times the
/// gradient to the logits after, 0 beyond `valid`. An error is (row, what is wrong), and `student` then holds neither.
#[allow(clippy::too_many_arguments)]
pub fn rows(
    cpu: &Cpu,
    objective: Objective,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    student: &mut [f32],
    others: RowIn<'_>,
    out: &mut Vec<RowOut>,
) -> Result<(), (usize, String)> {
    let count = others.tokens.len();
    assert_eq!((student.len(), others.teacher.len()), (count * vocab, count * vocab), "blocks are [rows, vocab]");
    out.clear();
    out.resize(count, RowOut::default());
    // Nobody waits for these locks: each is taken once, by the task that owns the row.
    let cells: Vec<_> = student
        .chunks_exact_mut(vocab)
        .zip(out.iter_mut())
        .map(|(student, out)| Mutex::new((student, out, None::<String>)))
        .collect();
    cpu.for_each(count, |row| {
        let mut cell = cells[row].lock().expect("a row is one task's");
        let (student, out, fault) = &mut *cell;
        let at = row * vocab..row * vocab + valid;
        let reference = others.reference.map(|reference| &reference[at.clone()]);
        let drawn = Drawn { token: others.tokens[row] as usize, uniform: others.draws.map(|draws| draws[row]) };
        let weight = others.weights[row];
        match one(objective, inv_temp, weight, &mut student[..valid], &others.teacher[at], reference, drawn) {
            Ok(result) => **out = result,
            Err(what) => *fault = Some(what),
        }
        student[valid..].fill(0.0);
    });
    let faults = cells.into_iter().enumerate().find_map(|(row, cell)| {
        let (_, _, fault) = cell.into_inner().expect("no task panicked");
        fault.map(|what| (row, what))
    });
    faults.map_or(Ok(()), Err)
}

#[allow(clippy::cast_possible_truncation)] // the gradient is rounded to f32 at the end
fn one(
    objective: Objective,
    inv_temp: f32,
    weight: f32,
    student: &mut [f32],
    teacher: &[f32],
    reference: Option<&[f32]>,
    drawn: Drawn,
) -> Result<RowOut, String> {
    let logprobs = |whose: &str, logits: &[f32]| {
        let mut z: Vec<f64> = logits.iter().map(|&x| f64::from(x * inv_temp)).collect();
        if normalise(&mut z) { Ok(z) } else { Err(format!("the {whose}'s logits are no distribution")) }
    };
    let (lp, lq) = (logprobs("student", student)?, logprobs("teacher", teacher)?);
    let lref = reference.map(|logits| logprobs("reference", logits)).transpose()?;
    let (mut lt, mut g) = (Vec::with_capacity(lp.len()), vec![0.0; lp.len()]);
    let moved = objective.target.row(&lp, &lq, lref.as_deref(), &mut lt);
    let loss = objective.divergence.row(&lp, &lt, &lq, drawn, &mut g);
    // As the kernel does: what nothing is trained on may be infinitely far.
    if loss.is_nan() || (loss.is_infinite() && weight != 0.0) {
        return Err(format!("the loss is {loss}: the target excludes a token that the student allows"));
    }
    let scale = f64::from(weight) * f64::from(inv_temp);
    student.iter_mut().zip(&g).for_each(|(x, g)| *x = if weight == 0.0 { 0.0 } else { (scale * g) as f32 });
    let entropy = lp.iter().map(|&lp| expected(lp, -lp)).sum();
    Ok(RowOut { loss, kl_reverse: kl(&lp, &lq), kl_forward: kl(&lq, &lp), entropy, moved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::{Divergence, Target};

    /// A row that is masked has no gradient though it is infinitely far, and one that counts is an error.
    #[test]
    fn a_masked_row_may_be_infinitely_far() {
        let objective = super::super::Objective { target: Target::Teacher, divergence: Divergence::Reverse };
        let teacher = [1.0, 0.5, f32::NEG_INFINITY];
        let of = |weight: f32| {
            let mut student = [0.3, 0.2, 0.1];
            one(objective, 1.0, weight, &mut student, &teacher, None, Drawn { token: 0, uniform: None })
                .map(|out| (out.loss, student))
        };
        assert_eq!(of(0.0).expect("it counts for nothing"), (f64::INFINITY, [0.0; 3]));
        assert!(of(0.5).expect_err("infinite").contains("excludes a token"));
    }
}
