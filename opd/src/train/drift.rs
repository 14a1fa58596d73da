//! Prefix drift as the loss sees it: the student's distance from the teacher on prefixes that the rollout samples, less that
//! on prefixes that the student itself samples, for the same held-out prompts and random numbers.

use engine::rollout::{Limits, Request};
use ptx::ops::divergence::Kind;

use super::evaluate::EVAL_SAMPLES;
use super::{TrainError, Trainer};
use crate::eval::{PromptFailed, collect, row};
use crate::loss::Objective;
use crate::sequences::Row;
use crate::source::Asked;
use crate::tasks::Split;

/// Draws of drift keep away from those of training, evaluation, dynamics and the search for noise.
const DRIFT: u64 = EVAL_SAMPLES + (1 << 43);

/// KL(student || teacher), nats per token, on two kinds of prefixes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// On those of the rollout's copy, with its recipe and noise.
    pub rollout: f64,
    /// On those of the student at training precision.
    pub student: f64,
}

impl Trainer {
    /// Measures both on completions of up to `prompts` held-out prompts, at the present version. Under a schedule with stages
    /// the rollout's copy is theirs, so both are the student's.
    pub fn drift(&mut self, prompts: usize) -> Result<Drift, TrainError> {
        let update = self.updates();
        let prompts = self.source.test_len().map_or(prompts, |n| n.min(prompts));
        let asked: Vec<Asked> = (0..prompts as u64).map(|i| self.source.ask(Split::Test, i)).collect();
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let n = u64::from(base.samples);
        let requests: Vec<Request> = (0..)
            .zip(&asked)
            .map(|(i, asked)| Request { prompt: asked.prompt.clone(), first_sample: DRIFT + i * n, ..base.clone() })
            .collect();
        let [mut rollout, mut student] = [0.0; 2];
        for (by_rollout, kl) in [(true, &mut rollout), (false, &mut student)] {
            let engine = match &mut self.rollout {
                Some(engine) if by_rollout => engine,
                _ => &mut self.policy,
            };
            let rollouts = collect(engine, &requests, Limits::default(), &mut |_| {})
                .map_err(|source: PromptFailed| TrainError::Eval { update, source })?;
            let rows: Vec<Row> = rollouts.iter().map(|r| row(&asked[r.request], r)).collect();
            let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 / self.temperature() };
            let sums = self.sums_of(update, &rows, None, objective)?.sums;
            *kl = sums.kl_reverse / sums.tokens as f64;
        }
        Ok(Drift { rollout, student })
    }
}
