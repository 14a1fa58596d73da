//! What a run computes, counted and not measured: two operations a weight of a matrix for every token of a forward pass,
//! twice as many again backward. Attention and norms are left out, as is what only measures: mismatch, distances,
//! evaluation.

use serde::Serialize;

use engine::rollout::Rollout;

use crate::source::Asked;

/// Floating-point operations of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FlopReport {
    /// Sampling: 2 N for every token of a completion, and for every prompt once, whose samples share it.
    pub rollout: f64,
    /// Scoring: 2 N of the teacher for every token of prompts and completions; 0 where the loss needs no teacher.
    pub teacher: f64,
    /// The update: 6 N for every token of prompts and completions.
    pub train: f64,
}

/// N of the models that take part.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Of the student.
    pub student: usize,
    /// Of the teachers, in the run's order.
    pub teachers: Vec<usize>,
}

/// Who does what in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The student samples, the teacher scores.
    Distill,
    /// The student samples and is rewarded.
    Reinforce,
    /// The teacher samples and scores.
    Offline,
    /// The teacher samples, and its text alone is learnt from.
    Text,
}

impl Sizes {
    /// Of an update on `rollouts`, `samples` of each prompt.
    #[allow(clippy::cast_precision_loss)] // counts far below 2^53
    pub fn flop(&self, work: Work, samples: u32, rollouts: &[(Asked, Rollout)]) -> FlopReport {
        let mut flop = FlopReport::default();
        for (asked, rollout) in rollouts {
            let (teacher, student) = (self.teachers[asked.teacher] as f64, self.student as f64);
            let sampler = if matches!(work, Work::Offline | Work::Text) { teacher } else { student };
            let (prompt, completion) = (asked.prompt.len() as f64, rollout.ids.len() as f64);
            let asked_once = if rollout.sample % u64::from(samples) == 0 { prompt } else { 0.0 };
            flop.rollout += 2.0 * sampler * (asked_once + completion);
            flop.teacher +=
                if matches!(work, Work::Reinforce | Work::Text) { 0.0 } else { 2.0 * teacher * (prompt + completion) };
            flop.train += 6.0 * student * (prompt + completion);
        }
        flop
    }
}
