//! Updates on the teacher's own text, before the on-policy ones (`[offline]`): the student is brought near enough that its
//! own completions are worth scoring. The teacher samples completions of the prompts that the update has anyway, so the
//! data's order stays; then the student is trained on them by dense forward KL or by cross-entropy (SFT).
//!
//! There is no rollout of the student here, so mismatch is not measured: it is null in the update's line.

use engine::rollout::{Finish, Rollout};
use ptx::ops::divergence::Kind;

use super::batch::{By, rows_of};
use super::flop::Work;
use super::report::{BySource, Mismatch};
use super::{TrainError, Trainer, UpdateReport};
use crate::clock::Stopwatch;
use crate::config::OfflineLoss;
use crate::learner::Views;
use crate::loss::{Objective, Sums};
use crate::sequences::micro_batches;
use crate::source::Asked;

impl Trainer {
    /// The loss of an update on the teacher's text; none where the update is on-policy.
    pub(super) fn offline_loss(&self, update: u64) -> Option<OfflineLoss> {
        self.config.offline.as_ref().filter(|offline| update <= u64::from(offline.updates)).map(|offline| offline.loss)
    }

    /// One update on the teacher's text.
    pub(super) fn offline_update(
        &mut self,
        update: u64,
        kind: OfflineLoss,
        tick: &mut dyn FnMut(usize),
    ) -> Result<(UpdateReport, Vec<(Asked, Rollout)>), TrainError> {
        let mut watch = Stopwatch::start();
        let mut rollouts = self.sample(update, By::Teacher, tick)?;
        rollouts.sort_by_key(|(asked, _)| asked.teacher); // as `Trainer::batch` lays them out
        let rows = rows_of(&rollouts);
        let rollout_s = watch.lap_s();
        let inv_temp = 1.0 / self.temperature();
        let forward = Objective::Distill { kind: Kind::ForwardKl, inv_temp };
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        #[allow(clippy::cast_precision_loss)] // token counts are far below 2^24
        let weight = 1.0 / tokens as f32;
        self.learner.gradients.clear();
        self.token_kl.clear();
        let (mut sums, mut loss) = (Sums::default(), 0.0);
        let mut teacher_s = 0.0;
        for part in micro_batches(&rows, self.micro) {
            let part_rows = &rows[part.clone()];
            // Distances to the teacher are measured whatever is trained: cross-entropy has no need of it.
            let (measure, passes) = match kind {
                OfflineLoss::ForwardKl => (true, 1),
                OfflineLoss::Sft => (false, 2),
            };
            for pass in 0..passes {
                let mut stage = Stopwatch::start();
                let first = pass == 0;
                let teacher = if first {
                    let failed = |source| TrainError::Device { update, source };
                    Some(self.teacher.logits(None, &mut 0, part_rows).map_err(failed)?)
                } else {
                    None
                };
                teacher_s += stage.lap_s();
                let train = !first || measure;
                let objective = if first { forward } else { Objective::Supervised };
                let views = Views { teacher, ..Views::default() };
                let model = self.policy.model();
                let micro = self
                    .learner
                    .micro_batch(&self.cpu, model, objective, part_rows, views, self.valid, weight, train)
                    .map_err(|source| self.failed(update, part.start, part_rows, &[], source))?;
                if train {
                    loss += micro.loss;
                }
                if first {
                    sums.add(&micro);
                    self.token_kl.extend(&self.learner.by_row.kl);
                }
            }
        }
        let grad_norm = self.apply(update)?;
        let train_s = watch.lap_s() - teacher_s;
        self.swap_weights(update)?;
        let sync_s = watch.lap_s();
        let per_token = |sum: f64| sum / sums.tokens as f64;
        let work = match kind {
            OfflineLoss::ForwardKl => Work::Offline,
            OfflineLoss::Sft => Work::Text,
        };
        let nothing = f64::NAN; // null in JSON: there is no rollout of the student to compare with
        let report = UpdateReport {
            update,
            version: update,
            phase: Some("offline"),
            loss: per_token(loss),
            kl_teacher: per_token(sums.kl_reverse),
            kl_by_teacher: self.by_teacher(&rows, &self.token_kl),
            kl_forward: per_token(sums.kl_forward),
            entropy: per_token(sums.entropy),
            mismatch_nats: nothing,
            by_source: BySource { numerics: nothing, staleness: nothing, noise: None },
            k3: nothing,
            target: None,
            age: None,
            noise: None,
            dynamics: None,
            weight: None,
            grpo: None,
            grad_norm,
            lr: f64::from(self.lr(update)),
            tokens: sums.tokens,
            rollouts: rollouts.len() as u64,
            correct: self.correct(&rollouts),
            missing: 0,
            truncated: rollouts.iter().filter(|(_, r)| r.finish == Finish::Length).count() as u64,
            flop: self.sizes.flop(work, self.config.rollout.n, &rollouts),
            rollout_s,
            teacher_s,
            behaviour_s: 0.0,
            train_s,
            sync_s,
        };
        self.totals.add(&report, &Mismatch::default());
        Ok((report, rollouts))
    }
}
