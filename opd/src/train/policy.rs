//! Factors of the tokens' losses from the rollout's logprobs and rewards, made before the update's own passes.

use engine::rollout::Rollout;

use super::{TrainError, Trainer};
use crate::learner::Views;
use crate::loss::Objective;
use crate::objective::policy::{Behaviour, GrpoReport, WeightReport};
use crate::reward::rewards;
use crate::sequences::{Row, micro_batches};
use crate::source::Asked;

/// Factors of an update.
pub(super) struct Factors {
    /// Of each completion token, in order.
    pub by_token: Vec<f32>,
    /// The loss summed over tokens, where it is not what the rows sum to.
    pub loss: Option<f64>,
    /// What weights did.
    pub weight: Option<WeightReport>,
    /// Rewards and groups.
    pub grpo: Option<GrpoReport>,
}

impl Trainer {
    /// The factors that `[loss]` asks for; none for a loss that takes nothing from the rollout but its tokens.
    #[allow(clippy::cast_possible_truncation)] // factors are rounded to f32 as all weights of rows are
    pub(super) fn factors(
        &mut self,
        update: u64,
        rollouts: &[(Asked, Rollout)],
        rows: &[Row],
    ) -> Result<Option<Factors>, TrainError> {
        let weighting = self.config.loss.weighting();
        let grpo = self.config.loss.grpo(self.config.rollout.n as usize);
        if weighting.is_none() && grpo.is_none() {
            return Ok(None);
        }
        let rollout: Vec<f32> = rollouts.iter().flat_map(|(_, rollout)| rollout.logprobs.iter().copied()).collect();
        let lengths: Vec<usize> = rows.iter().map(|row| row.targets().len()).collect();
        let trainer = self.trainer_logprobs(update, rows)?;
        let behaviour = Behaviour { rollout: &rollout, trainer: &trainer, lengths: &lengths };
        let weighted = weighting.map(|weighting| weighting.weights(&behaviour));
        let (weights, weight) = weighted.map_or((None, None), |(weights, report)| (Some(weights), Some(report)));
        let (factors, loss, grpo) = match grpo {
            Some(grpo) => {
                let rewards = rewards(&self.source, rollouts);
                let (factors, loss, report) = grpo.factors(&behaviour, &rewards, weights.as_deref());
                (factors, Some(loss), Some(report))
            }
            None => (weights.expect("there is one of the two"), None, None),
        };
        let by_token = factors.into_iter().map(|factor| factor as f32).collect();
        Ok(Some(Factors { by_token, loss, weight, grpo }))
    }

    /// ln p of every completion token by the trainer's own pass at the weights of now: one more forward pass.
    fn trainer_logprobs(&mut self, update: u64, rows: &[Row]) -> Result<Vec<f32>, TrainError> {
        let objective = Objective::Logprobs { inv_temp: 1.0 / self.temperature() };
        let mut logprobs = Vec::new();
        for part in micro_batches(rows, self.micro) {
            let (model, part_rows) = (self.policy.model(), &rows[part.clone()]);
            self.learner
                .micro_batch(&self.cpu, model, objective, part_rows, Views::default(), self.valid, 0.0, false)
                .map_err(|source| self.failed(update, part.start, part_rows, &[], source))?;
            logprobs.extend_from_slice(&self.learner.by_row.logprobs);
        }
        Ok(logprobs)
    }
}
