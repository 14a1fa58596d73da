//! What an update, an evaluation and a whole run report. Sums are kept as numerators and denominators, so that a mean
//! over the run is the mean over its tokens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use engine::rollout::Rollout;

use super::dynamics::DynamicsReport;
use super::flop::FlopReport;
use super::noise::NoiseReport;
use super::past::token_versions;
use crate::objective::Moved;
use crate::objective::policy::{GrpoReport, WeightReport};
use crate::source::Asked;

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UpdateReport {
    /// Number of the update, from 1.
    pub update: u64,
    /// Weights version after it.
    pub version: u64,
    /// `offline` where it trained on the teacher's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// Loss, nats per completion token.
    pub loss: f64,
    /// KL(student || teacher), nats per token.
    pub kl_teacher: f64,
    /// The same for the prompts of each teacher, of a run that has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_by_teacher: Option<BTreeMap<String, f64>>,
    /// KL(teacher || student), nats per token.
    pub kl_forward: f64,
    /// Entropy of the student, nats per token.
    pub entropy: f64,
    /// D = KL(rollout || student), exact over the vocabulary, nats per token.
    pub mismatch_nats: f64,
    /// The same by where it comes from.
    pub by_source: BySource,
    /// Its estimate from the sampled tokens alone.
    pub k3: f64,
    /// What the target did; absent where it is the teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// How old its tokens were, where rollouts run ahead of updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<AgeReport>,
    /// The noise that its rollouts were sampled under; absent without, and for staleness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseReport>,
    /// What the update did beyond the prefixes that it trained on, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamics: Option<DynamicsReport>,
    /// What weights did; absent where tokens are not weighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightReport>,
    /// Rewards and groups; absent where the loss has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpo: Option<GrpoReport>,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Completion tokens.
    pub tokens: u64,
    /// Completions.
    pub rollouts: u64,
    /// How many of them are right, where that can be judged.
    pub correct: Option<u64>,
    /// Completions that the teacher has no scores of: they were not trained on, and no count here has them.
    pub missing: u64,
    /// How many of them were cut off by length.
    pub truncated: u64,
    /// Operations that it took, by count.
    pub flop: FlopReport,
    /// Seconds sampling.
    pub rollout_s: f64,
    /// Seconds in the teacher's forward pass.
    pub teacher_s: f64,
    /// Seconds in the forward pass that measures mismatch.
    pub behaviour_s: f64,
    /// Seconds in the student's forward and backward pass and the optimizer.
    pub train_s: f64,
    /// Seconds swapping weights.
    pub sync_s: f64,
}

/// How old the tokens of an update were when it trained on them, and how the stages stood.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AgeReport {
    /// Mean age, versions.
    pub mean: f64,
    /// The largest.
    pub max: u64,
    /// Tokens by age, from 0 on.
    pub tokens: Vec<u64>,
    /// Tokens whose mismatch could not be measured exactly, since their version is not held any more; the k3 estimate
    /// has them.
    pub unmeasured: u64,
    /// Seconds that the learner waited for the stages.
    pub wait_s: f64,
    /// Prompts that were sampled and scored and waited for a later update.
    pub waiting: u64,
    /// Prompts that were sampled again because they would have been too old.
    pub again: u64,
}

/// What the target of an update did, over its predicting rows. The anchor is the teacher, or for a trust region the student.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TargetReport {
    /// Mean of KL(target || anchor), nats.
    pub kl_mean: f64,
    /// Its largest, nats.
    pub kl_max: f64,
    /// Mean of lambda - 1, u or beta.
    pub step_mean: f64,
    /// Share of rows whose step the bound did not hold back.
    pub at_cap: f64,
    /// The 5 % quantile of lambda* of an extrapolated target; null where it is infinite, and for others.
    pub lambda_star: Option<f64>,
}

impl TargetReport {
    /// Over all rows of an update; none where the target was the teacher.
    #[allow(clippy::cast_precision_loss)] // counts
    pub(super) fn of(rows: &[Moved]) -> Option<TargetReport> {
        if rows.is_empty() {
            return None;
        }
        let mean = |of: &dyn Fn(&Moved) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
        let mut cliffs: Vec<f64> = rows.iter().map(|row| row.cliff).collect();
        let (_, star, _) = cliffs.select_nth_unstable_by(rows.len() / 20, f64::total_cmp);
        Some(TargetReport {
            kl_mean: mean(&|row| row.kl),
            kl_max: rows.iter().map(|row| row.kl).fold(0.0, f64::max),
            step_mean: mean(&|row| row.step),
            at_cap: mean(&|row| f64::from(u8::from(row.at_cap))),
            lambda_star: Some(*star).filter(|star| star.is_finite()),
        })
    }
}

/// One evaluation, on held-out prompts; on all of them where a file is too small to hold any out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalReport {
    /// Updates done.
    pub update: u64,
    /// Share of right completions, where they can be judged.
    pub accuracy: Option<f64>,
    /// Right completions.
    pub correct: u64,
    /// Judged completions.
    pub judged: u64,
    /// Completions cut off by length.
    pub truncated: u64,
    /// KL(student || teacher) on the student's own completions, nats per token.
    pub kl_teacher: f64,
    /// Completions that the teacher has no scores of, which that distance leaves out.
    #[serde(default)]
    pub missing: u64,
    /// The same for the prompts of each teacher, of a run that has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_by_teacher: Option<BTreeMap<String, f64>>,
}

/// D by where it comes from, nats per token; the parts add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BySource {
    /// Between two ways of computing one version: the recipe's rounding, and another device's order of sums.
    pub numerics: f64,
    /// Of tokens whose weights version was not the one that is trained. Their rounding is in it.
    pub staleness: f64,
    /// Injected noise, in whose place there are no `numerics` then: rounding is in it. Absent without noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
}

/// A whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Updates done by this process.
    pub updates: u64,
    /// Completion tokens.
    pub tokens: u64,
    /// Exact D over all tokens of the run, nats per token.
    pub mismatch_nats: f64,
    /// The same by where it comes from.
    pub by_source: BySource,
    /// The largest update's.
    pub mismatch_nats_max: f64,
    /// Operations by count.
    pub flop: FlopReport,
    /// Seconds by stage.
    pub rollout_s: f64,
    /// Seconds by stage.
    pub teacher_s: f64,
    /// Seconds by stage.
    pub behaviour_s: f64,
    /// Seconds by stage.
    pub train_s: f64,
    /// Seconds by stage.
    pub sync_s: f64,
    /// Seconds that the learner waited for the stages.
    pub wait_s: f64,
}

/// Mismatch of one update, or of several.
#[derive(Debug, Default)]
pub(super) struct Mismatch {
    /// Of tokens of the version that is trained, and of others.
    d: [f64; 2],
    measured: u64,
    k3: f64,
    tokens: u64,
    /// Tokens by age.
    by_age: Vec<u64>,
    /// Whether they were drawn under injected noise.
    disturbed: bool,
}

impl Mismatch {
    /// Nothing yet, of tokens that are drawn under injected noise or not.
    pub(super) fn under(disturbed: bool) -> Mismatch {
        Mismatch { disturbed, ..Mismatch::default() }
    }

    /// Adds a micro-batch that trains `version`: the logprobs of its tokens by the trainer, and its exact D by token, NaN
    /// or absent where it could not be measured.
    #[allow(clippy::cast_possible_truncation)] // ages are a few versions
    pub(super) fn add(&mut self, version: u64, rollouts: &[(Asked, Rollout)], train: &[f32], exact: &[f64]) {
        let logprobs = rollouts.iter().flat_map(|(_, rollout)| &rollout.logprobs);
        for (&rollout, &train) in logprobs.zip(train) {
            let log_ratio = (f64::from(train) - f64::from(rollout)).clamp(-20.0, 20.0);
            self.k3 += log_ratio.exp() - 1.0 - log_ratio;
            self.tokens += 1;
        }
        let mut exact = exact.iter();
        for of in rollouts.iter().flat_map(|(_, rollout)| token_versions(rollout)) {
            let age = version.saturating_sub(of) as usize;
            if self.by_age.len() <= age {
                self.by_age.resize(age + 1, 0);
            }
            self.by_age[age] += 1;
            if let Some(d) = exact.next().filter(|d| !d.is_nan()) {
                self.d[usize::from(age > 0)] += d;
                self.measured += 1;
            }
        }
    }

    /// Exact D, nats per token; not a number, null in JSON, where none of the versions that sampled was held any more.
    pub(super) fn d_nats(&self) -> f64 {
        self.per_measured(self.d[0] + self.d[1])
    }

    fn per_measured(&self, sum: f64) -> f64 {
        if self.measured == 0 { f64::NAN } else { per(sum, self.measured) }
    }

    pub(super) fn by_source(&self) -> BySource {
        let (present, staleness) = (self.per_measured(self.d[0]), self.per_measured(self.d[1]));
        if self.disturbed {
            BySource { numerics: 0.0, staleness, noise: Some(present) }
        } else {
            BySource { numerics: present, staleness, noise: None }
        }
    }

    /// The sampled estimate.
    pub(super) fn k3(&self) -> f64 {
        per(self.k3, self.tokens)
    }

    #[allow(clippy::cast_precision_loss)] // counts
    pub(super) fn ages(&self, wait_s: f64, waiting: u64, again: u64) -> AgeReport {
        let sum: f64 = self.by_age.iter().enumerate().map(|(age, &count)| age as f64 * count as f64).sum();
        AgeReport {
            mean: per(sum, self.tokens),
            max: (self.by_age.len() as u64).saturating_sub(1),
            tokens: self.by_age.clone(),
            unmeasured: self.tokens - self.measured,
            wait_s,
            waiting,
            again,
        }
    }
}

#[allow(clippy::cast_precision_loss)] // counts
fn per(sum: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Sums over a run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    sum: Summary,
    d: [f64; 2],
    measured: u64,
    disturbed: bool,
}

impl Totals {
    pub(super) fn add(&mut self, update: &UpdateReport, mismatch: &Mismatch) {
        let s = &mut self.sum;
        s.updates += 1;
        s.tokens += update.tokens;
        (0..2).for_each(|kind| self.d[kind] += mismatch.d[kind]);
        self.measured += mismatch.measured;
        self.disturbed |= mismatch.disturbed;
        s.wait_s += update.age.as_ref().map_or(0.0, |age| age.wait_s);
        s.mismatch_nats_max = s.mismatch_nats_max.max(update.mismatch_nats);
        s.flop.rollout += update.flop.rollout;
        s.flop.teacher += update.flop.teacher;
        s.flop.train += update.flop.train;
        s.rollout_s += update.rollout_s;
        s.teacher_s += update.teacher_s;
        s.behaviour_s += update.behaviour_s;
        s.train_s += update.train_s;
        s.sync_s += update.sync_s;
    }

    pub(super) fn summary(&self) -> Summary {
        let all = Mismatch { d: self.d, measured: self.measured, ..Mismatch::under(self.disturbed) };
        Summary { mismatch_nats: all.d_nats(), by_source: all.by_source(), ..self.sum }
    }
}
