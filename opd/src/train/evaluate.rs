//! How a run is judged on the way.

use engine::rollout::Limits;
use ptx::ops::divergence::Kind;

use super::dynamics::Measured;
use super::{EvalReport, TrainError, Trainer, narrow};
use crate::eval::{EvalSettings, evaluate};
use crate::loss::Objective;

/// Held-out draws use sample indices from here, so that they never meet those of training.
pub(super) const EVAL_SAMPLES: u64 = 1 << 62;

impl Trainer {
    /// Accuracy on the test split's prompts at training precision, and the distance to the teacher on completions that the
    /// student samples for some of them.
    pub fn evaluate(&mut self) -> Result<EvalReport, TrainError> {
        self.evaluate_on(self.config.eval.kl_prompts as usize)
    }

    /// The same with the distance to the teacher on completions of up to `kl_prompts` of the evaluation's prompts.
    pub fn evaluate_on(&mut self, kl_prompts: usize) -> Result<EvalReport, TrainError> {
        let update = self.updates();
        let failed = |source| TrainError::Eval { update, source };
        let problems = self.config.eval.problems as usize;
        let problems = self.source.test_len().map_or(problems, |n| n.min(problems));
        let settings = EvalSettings {
            problems,
            temperature: narrow(self.config.eval.temperature),
            max_tokens: self.max_tokens(),
            seed: self.config.seed,
            first_sample: EVAL_SAMPLES,
        };
        let judged =
            evaluate(&mut self.policy, &self.source, settings, &self.stop_ids, Limits::default()).map_err(failed)?;
        let sampled = EvalSettings {
            problems: problems.min(kl_prompts),
            temperature: self.temperature(),
            first_sample: EVAL_SAMPLES + (1 << 32),
            ..settings
        };
        let mut rows =
            evaluate(&mut self.policy, &self.source, sampled, &self.stop_ids, Limits::default()).map_err(failed)?.rows;
        rows.sort_by_key(|row| row.teacher); // micro-batches are of one teacher
        // Its loss is not reported: what is, the distance to the teacher itself, is the same for every objective.
        let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 / self.temperature() };
        let Measured { sums, rows, kl, missing } = self.sums_of(update, &rows, None, objective)?;
        Ok(EvalReport {
            update,
            accuracy: judged.accuracy(),
            correct: judged.correct,
            judged: judged.judged,
            truncated: judged.truncated,
            kl_teacher: sums.kl_reverse / sums.tokens as f64,
            missing,
            kl_by_teacher: self.by_teacher(&rows, &kl),
        })
    }
}
