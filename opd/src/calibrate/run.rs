//! One run of a calibration: a training from first to last, and what is kept of it.

use std::sync::Arc;

use engine::engine::Device;
use ptx::Cpu;
use serde::{Deserialize, Serialize};

use crate::clock::Stopwatch;
use crate::config::{Config, Noise, NoiseDraw, NoiseKind};
use crate::train::{OpenError, TrainError, Trainer};

/// Held-out prompts on which drift is measured.
const DRIFT_PROMPTS: usize = 64;
/// How often on the way it is.
const DRIFT_TIMES: u64 = 4;

/// How errors of a family of mismatch repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// New at every version: nothing adds up over time.
    ZeroMean,
    /// The same throughout.
    Coherent,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Without mismatch.
    Baseline,
    /// At a rung, whose D is held.
    Rung,
    /// Under noise that stays as strong as it was at first.
    Growth,
}

/// A run to make.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// What for.
    pub role: Role,
    /// Of which family; none for a baseline.
    pub family: Option<Family>,
    /// The D that is asked for, nats per token; none for a baseline.
    pub target_nats: Option<f64>,
    /// Its seed.
    pub seed: u64,
}

impl Task {
    /// In words.
    #[must_use]
    pub fn name(&self) -> String {
        let family = match self.family {
            Some(Family::ZeroMean) => "zero-mean ",
            Some(Family::Coherent) => "coherent ",
            None => "",
        };
        let rest = match (self.role, self.target_nats) {
            (Role::Baseline, _) => "baseline".to_owned(),
            (Role::Rung, nats) => format!("D {}", nats.unwrap_or(0.0)),
            (Role::Growth, nats) => format!("growth from {}", nats.unwrap_or(0.0)),
        };
        format!("{family}{rest}, seed {}", self.seed)
    }

    /// The run file of it.
    #[must_use]
    pub fn config(&self, base: &Config) -> Config {
        let noise = self.family.map(|family| Noise {
            kind: NoiseKind::Weights,
            draw: Some(match family {
                Family::ZeroMean => NoiseDraw::Fresh,
                Family::Coherent => NoiseDraw::Frozen,
            }),
            nats: self.target_nats,
            hold: Some(self.role == Role::Rung),
            ..Noise::default()
        });
        Config { noise, seed: self.seed, ..base.clone() }
    }
}

/// What is kept of a run: a line of `runs.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Hash of what all runs have in common.
    pub config: String,
    /// What for.
    pub role: Role,
    /// Of which family.
    pub family: Option<Family>,
    /// The D that was asked for, nats per token.
    pub target_nats: Option<f64>,
    /// Its seed.
    pub seed: u64,
    /// Held-out accuracy before training, of baselines where something judges.
    pub accuracy_before: Option<f64>,
    /// After it.
    pub accuracy_after: Option<f64>,
    /// KL to the teacher before training, nats per token; of baselines.
    pub kl_teacher_before: Option<f64>,
    /// After it.
    pub kl_teacher_after: f64,
    /// Exact D over the run's tokens, nats per token.
    pub d_nats: f64,
    /// Mean over the first tenth of its updates.
    pub d_early_nats: f64,
    /// Over the last.
    pub d_late_nats: f64,
    /// Noise at the first update.
    pub sigma_first: Option<f64>,
    /// At the last.
    pub sigma_last: Option<f64>,
    /// The loss on the rollout's prefixes over that on the student's own, less 1; of rungs.
    pub drift: Option<f64>,
    /// Seconds.
    pub wall_s: f64,
}

impl Record {
    /// Whether it is of this run.
    #[must_use]
    pub fn is_of(&self, config: &str, task: &Task) -> bool {
        let bits = |x: Option<f64>| x.map(f64::to_bits);
        let same = self.role == task.role && self.family == task.family && self.seed == task.seed;
        self.config == config && same && bits(self.target_nats) == bits(task.target_nats)
    }
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It could not begin.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It stopped on the way.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Nothing judges completions.
    #[error(
        "the run's prompts cannot be judged, so there is no accuracy: take metric = \"kl-teacher\", or prompts with answers"
    )]
    Unjudged,
}

/// Makes a run on `cpu`. None when `stop` says so between two updates.
pub fn make(
    cpu: &Arc<Cpu>,
    base: &Config,
    hash: &str,
    task: &Task,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Record>, RunError> {
    let watch = Stopwatch::start();
    let mut trainer = Trainer::open(task.config(base), Device::Cpu(Arc::clone(cpu)), false)?;
    // All of the evaluation's prompts for both metrics: what a few completions scatter would be counted as the noise's.
    let prompts = base.eval.problems as usize;
    let before = if task.role == Role::Baseline { Some(trainer.evaluate_on(prompts)?) } else { None };
    let updates = u64::from(base.updates);
    let (mut by_update, mut sigmas) = (Vec::new(), Vec::new());
    let (mut on_rollout, mut on_student) = (0.0, 0.0);
    while trainer.updates() < updates {
        if stop() {
            return Ok(None);
        }
        let (report, _) = trainer.update(&mut |_| {})?;
        // Updates on the teacher's text have no rollouts of the student.
        if !report.mismatch_nats.is_nan() {
            by_update.push(report.mismatch_nats);
        }
        sigmas.extend(report.noise.map(|noise| noise.sigma));
        let every = updates.div_ceil(DRIFT_TIMES);
        if task.role == Role::Rung && (report.update % every == 0 || report.update == updates) {
            let drift = trainer.drift(DRIFT_PROMPTS)?;
            on_rollout += drift.rollout;
            on_student += drift.student;
        }
    }
    let after = trainer.evaluate_on(prompts)?;
    let (d_early_nats, d_late_nats) = ends(&by_update);
    Ok(Some(Record {
        config: hash.to_owned(),
        role: task.role,
        family: task.family,
        target_nats: task.target_nats,
        seed: task.seed,
        accuracy_before: before.as_ref().and_then(|report| report.accuracy),
        accuracy_after: after.accuracy,
        kl_teacher_before: before.as_ref().map(|report| report.kl_teacher),
        kl_teacher_after: after.kl_teacher,
        d_nats: trainer.summary().mismatch_nats,
        d_early_nats,
        d_late_nats,
        sigma_first: sigmas.first().copied(),
        sigma_last: sigmas.last().copied(),
        // A student that is its teacher has no loss on any prefix.
        drift: (task.role == Role::Rung).then(|| if on_student > 0.0 { on_rollout / on_student - 1.0 } else { 0.0 }),
        wall_s: watch.elapsed_s(),
    }))
}

/// Means over the first and the last tenth.
#[allow(clippy::cast_precision_loss)] // counts of updates
fn ends(by_update: &[f64]) -> (f64, f64) {
    let n = by_update.len().div_ceil(10);
    let mean = |part: &[f64]| if part.is_empty() { 0.0 } else { part.iter().sum::<f64>() / part.len() as f64 };
    (mean(&by_update[..n]), mean(&by_update[by_update.len() - n..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_tenths_and_at_least_one() {
        let ramp: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!((ends(&ramp), ends(&ramp[..3]), ends(&[])), ((0.5, 18.5), (0.0, 2.0), (0.0, 0.0)));
    }
}
