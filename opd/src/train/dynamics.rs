//! What an update does beyond the prefixes that it trains on, measured when asked for (`[dynamics]`).
//!
//! With g the gradient of the mean loss over the update's rows, theta and theta' the weights versions before and after:
//! * **conversion**: (loss - loss') / (g . (theta - theta')): how much of the decrease that a straight line predicts comes
//!   about at the trained prefixes themselves;
//! * **broadcast**: KL(student || teacher) on prefixes that are not trained on, before, after on the same prefixes, and after
//!   on prefixes that the new version samples for the same prompts;
//! * **failing mass**: F(h) = P(a continuation of h ends wrong), from `continuations` draws, before, after on the same
//!   prefixes, and after on the new version's. E_d'\[F'\] - E_d\[F\] = E_d\[F' - F\] + (E_d' - E_d)\[F'\]: the first part is
//!   the student's at fixed prefixes, the second that of other prefixes;
//! * **probe**: the same rollouts cut, and gone on with by the student and by the teacher, and the teacher's rollouts
//!   likewise: does the prefix fail, or the continuation?
//!
//! Prompts are held out; draws before and after share seed and sample index.

use engine::rollout::{Limits, Request};
use ptx::ops::divergence::Kind;
use ptx::ops::round;
use serde::Serialize;

use super::batch::By;
use super::evaluate::EVAL_SAMPLES;
use super::teacher::{Scores, sample_by_own};
use super::{TrainError, Trainer, read};
use crate::eval::{PromptFailed, collect, row};
use crate::learner::Views;
use crate::loss::{Objective, Sums};
use crate::sequences::{Row, micro_batches};
use crate::source::Asked;
use crate::tasks::Split;

/// Draws of prefixes, then of continuations, keep away from those of training and evaluation.
const PREFIXES: u64 = EVAL_SAMPLES + (1 << 40);
const CONTINUATIONS: u64 = EVAL_SAMPLES + (1 << 41);

/// What was measured around one update. Distances are nats per token, probabilities means over prefixes; null where
/// nothing judges completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DynamicsReport {
    /// Decrease of the loss that g . (theta - theta') predicts.
    pub predicted: f64,
    /// Decrease of the loss on the same rows; null for a loss whose value is not what is differentiated.
    pub actual: Option<f64>,
    /// actual / predicted; null where one of them is missing.
    pub conversion: Option<f64>,
    /// KL(student || teacher) on held-out prefixes before the update.
    pub kl_before: f64,
    /// After it, on the same.
    pub kl_fixed: f64,
    /// After it, on its own.
    pub kl_fresh: f64,
    /// Failing mass before.
    pub fail_before: Option<f64>,
    /// After, on the same prefixes.
    pub fail_fixed: Option<f64>,
    /// After, on its own.
    pub fail_fresh: Option<f64>,
    /// Share of right ends after the update: the student's prefix, the student's continuation.
    pub probe_student_student: Option<f64>,
    /// The student's prefix, the teacher's continuation.
    pub probe_student_teacher: Option<f64>,
    /// The teacher's prefix, the student's continuation.
    pub probe_teacher_student: Option<f64>,
    /// The teacher's prefix, the teacher's continuation.
    pub probe_teacher_teacher: Option<f64>,
    /// Seconds that it took.
    pub measured_s: f64,
}

/// A held-out prompt with a completion.
struct Sampled {
    asked: Asked,
    row: Row,
}

/// What is kept over the update.
pub(super) struct Before {
    /// g . theta.
    along: f64,
    prefixes: Vec<Sampled>,
    kl: f64,
    fail: Option<f64>,
    spent_s: f64,
}

impl Trainer {
    /// Before the weights change, if this update is one that is watched.
    pub(super) fn watch_before(&mut self, update: u64) -> Result<Option<Before>, TrainError> {
        let Some(dynamics) = self.config.dynamics.clone() else { return Ok(None) };
        if !update.is_multiple_of(u64::from(dynamics.every)) {
            return Ok(None);
        }
        let watch = crate::clock::Stopwatch::start();
        let along = self.along_gradient();
        let prefixes = self.sample_prefixes(update, By::Student)?;
        let kl = self.kl_on(update, &prefixes)?;
        let fail = self.right_ends(update, &prefixes, By::Student)?.map(|right| 1.0 - right);
        Ok(Some(Before { along, prefixes, kl, fail, spent_s: watch.elapsed_s() }))
    }

    /// After they changed; `rows` are those of the update, `factors` what their tokens were weighted by, and `loss` the mean
    /// before it.
    pub(super) fn watch_after(
        &mut self,
        update: u64,
        before: Before,
        rows: &[Row],
        factors: Option<&[f32]>,
        loss: f64,
    ) -> Result<DynamicsReport, TrainError> {
        let watch = crate::clock::Stopwatch::start();
        let Before { along, prefixes, kl: kl_before, fail: fail_before, spent_s } = before;
        let predicted = along - self.along_gradient();
        let mut actual = None;
        if self.config.loss.is_differentiated() {
            let inv_temp = 1.0 / self.temperature();
            let objective = Objective::Composed { objective: self.config.loss.objective(), inv_temp };
            let after = self.sums_of(update, rows, factors, objective)?.sums;
            actual = Some(loss - after.loss / after.tokens as f64);
        }
        let kl_fixed = self.kl_on(update, &prefixes)?;
        let wrong = |right: Option<f64>| right.map(|right| 1.0 - right);
        let fail_fixed = wrong(self.right_ends(update, &prefixes, By::Student)?);
        let own = self.sample_prefixes(update, By::Student)?;
        let kl_fresh = self.kl_on(update, &own)?;
        let student_student = self.right_ends(update, &own, By::Student)?;
        let (mut student_teacher, mut teacher_student, mut teacher_teacher) = (None, None, None);
        if student_student.is_some() && self.teacher.here().is_some() {
            let teachers = self.sample_prefixes(update, By::Teacher)?;
            student_teacher = self.right_ends(update, &own, By::Teacher)?;
            teacher_student = self.right_ends(update, &teachers, By::Student)?;
            teacher_teacher = self.right_ends(update, &teachers, By::Teacher)?;
        }
        Ok(DynamicsReport {
            predicted,
            actual,
            conversion: actual.filter(|_| predicted != 0.0).map(|actual| actual / predicted),
            kl_before,
            kl_fixed,
            kl_fresh,
            fail_before,
            fail_fixed,
            fail_fresh: wrong(student_student),
            probe_student_student: student_student,
            probe_student_teacher: student_teacher,
            probe_teacher_student: teacher_student,
            probe_teacher_teacher: teacher_teacher,
            measured_s: spent_s + watch.elapsed_s(),
        })
    }

    /// g . theta of the weights version in force, in f64: the difference of two is what a step along a line does.
    fn along_gradient(&self) -> f64 {
        let (master, gradients) = (read(&self.master), &self.learner.gradients);
        let mut rounded = Vec::new();
        let dot = |i: usize, rounded: &mut Vec<f32>| {
            rounded.clear();
            rounded.extend_from_slice(master.weights.tensor(i));
            if master.precision() == engine::recipe::Precision::Bf16 {
                round::bf16(&self.cpu, rounded);
            }
            let pairs = rounded.iter().zip(gradients.tensor(i));
            pairs.map(|(&w, &g)| f64::from(w) * f64::from(g)).sum::<f64>()
        };
        (0..gradients.params().len()).map(|i| dot(i, &mut rounded)).sum()
    }

    fn sample_prefixes(&mut self, update: u64, by: By) -> Result<Vec<Sampled>, TrainError> {
        let prompts = u64::from(self.config.dynamics.as_ref().expect("it is asked for").prompts);
        let prompts = self.source.test_len().map_or(prompts, |n| prompts.min(n as u64));
        let asked: Vec<Asked> = (0..prompts).map(|i| self.source.ask(Split::Test, i)).collect();
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let requests: Vec<Request> = (PREFIXES..)
            .zip(&asked)
            .map(|(sample, asked)| Request {
                prompt: asked.prompt.clone(),
                samples: 1,
                first_sample: sample,
                ..base.clone()
            })
            .collect();
        let own: Vec<usize> = asked.iter().map(|asked| asked.teacher).collect();
        let rollouts = self.draw(update, by, &own, &requests)?;
        let sampled = rollouts.into_iter().map(|rollout| {
            let asked = asked[rollout.request].clone();
            Sampled { row: row(&asked, &rollout), asked }
        });
        Ok(sampled.collect())
    }

    fn draw(
        &mut self,
        update: u64,
        by: By,
        own: &[usize],
        requests: &[Request],
    ) -> Result<Vec<engine::rollout::Rollout>, TrainError> {
        match by {
            // At training precision, whatever the rollout's recipe.
            By::Student => collect(&mut self.policy, requests, Limits::default(), &mut |_| {}),
            By::Teacher => {
                let pages = self.policy.kv().pages();
                let teachers = self.teacher.here().expect("it is in this process");
                sample_by_own(teachers, own, requests, Limits::default(), pages, &mut |_| {})
            }
        }
        .map_err(|source: PromptFailed| TrainError::Eval { update, source })
    }

    /// KL(student || teacher), the mean over the completions' tokens.
    fn kl_on(&mut self, update: u64, prefixes: &[Sampled]) -> Result<f64, TrainError> {
        let mut rows: Vec<Row> = prefixes.iter().map(|sampled| sampled.row.clone()).collect();
        rows.sort_by_key(|row| row.teacher);
        let inv_temp = 1.0 / self.temperature();
        let Measured { sums, .. } =
            self.sums_of(update, &rows, None, Objective::Distill { kind: Kind::ReverseKl, inv_temp })?;
        Ok(sums.kl_reverse / sums.tokens as f64)
    }

    /// Share of continuations that end right, of completions cut off at a part of their length; none where nothing judges.
    fn right_ends(&mut self, update: u64, prefixes: &[Sampled], by: By) -> Result<Option<f64>, TrainError> {
        let dynamics = self.config.dynamics.clone().expect("it is asked for");
        let judged: Vec<&Sampled> =
            prefixes.iter().filter(|s| self.source.is_correct(&s.asked, s.row.targets()).is_some()).collect();
        if judged.is_empty() {
            return Ok(None);
        }
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let m = u64::from(dynamics.continuations);
        let cut = |sampled: &Sampled| {
            let len = sampled.row.targets().len();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a length
            let cut = (dynamics.cut * len as f64) as usize;
            cut.min(len - 1)
        };
        let requests: Vec<Request> = (0..)
            .zip(&judged)
            .map(|(i, sampled)| {
                let kept = cut(sampled);
                Request {
                    prompt: sampled.row.ids[..sampled.row.prompt + kept].to_vec(),
                    samples: dynamics.continuations,
                    first_sample: CONTINUATIONS + i * m,
                    max_tokens: base.max_tokens - kept,
                    ..base.clone()
                }
            })
            .collect();
        let kept: Vec<(Asked, Vec<u32>)> = judged
            .iter()
            .map(|sampled| (sampled.asked.clone(), sampled.row.targets()[..cut(sampled)].to_vec()))
            .collect();
        let own: Vec<usize> = judged.iter().map(|sampled| sampled.asked.teacher).collect();
        let rollouts = self.draw(update, by, &own, &requests)?;
        let mut right = 0_u64;
        for rollout in &rollouts {
            let (asked, start) = &kept[rollout.request];
            let whole = [&start[..], &rollout.ids].concat();
            right += u64::from(self.source.is_correct(asked, &whole) == Some(true));
        }
        #[allow(clippy::cast_precision_loss)] // counts
        Ok(Some(right as f64 / rollouts.len() as f64))
    }

    /// Loss, weighted by `factors` of all completion tokens where they are given, and distances of rows at the weights in
    /// force; nothing is trained. Rows that a teacher elsewhere has no scores of are left out.
    pub(super) fn sums_of(
        &mut self,
        update: u64,
        rows: &[Row],
        factors: Option<&[f32]>,
        objective: Objective,
    ) -> Result<Measured, TrainError> {
        let Scores { hidden, scored } = self.hidden_of(update, rows)?;
        let missing = scored.iter().filter(|&&scored| !scored).count() as u64;
        let (kept, factors) = left(rows, &scored, factors);
        let (mut sums, mut kl, mut used, mut done) = (Sums::default(), Vec::new(), 0, 0);
        for part in micro_batches(&kept, self.micro) {
            let failed = |source| TrainError::Device { update, source };
            let part_rows = &kept[part.clone()];
            let teacher = self.teacher.logits(hidden.as_deref(), &mut used, part_rows).map_err(failed)?;
            if let Some((engine, side)) = &mut self.reference {
                side.run(engine, part_rows).map_err(failed)?;
            }
            let views = Views {
                teacher: Some(teacher),
                reference: self.reference.as_mut().map(|(engine, side)| side.logits(engine)),
                factors: factors.as_ref().map(|factors| &factors[done..]),
                ..Views::default()
            };
            done += part_rows.iter().map(|row| row.targets().len()).sum::<usize>();
            let micro = self
                .learner
                .micro_batch(&self.cpu, self.policy.model(), objective, part_rows, views, self.valid, 0.0, false)
                .map_err(|source| self.failed(update, part.start, part_rows, &[], source))?;
            sums.add(&micro);
            kl.extend_from_slice(&self.learner.by_row.kl);
        }
        Ok(Measured { sums, rows: kept, kl, missing })
    }
}

/// What rows are like at the weights in force.
pub(super) struct Measured {
    pub sums: Sums,
    /// Those that were measured.
    pub rows: Vec<Row>,
    /// KL(student || teacher) of each of their completion tokens, nats.
    pub kl: Vec<f64>,
    /// Rows without scores.
    pub missing: u64,
}

/// The rows that have scores, with the factors of their tokens.
fn left(rows: &[Row], scored: &[bool], factors: Option<&[f32]>) -> (Vec<Row>, Option<Vec<f32>>) {
    let mut kept = Vec::new();
    let mut own = factors.map(|_| Vec::new());
    let mut at = 0;
    for (row, &scored) in rows.iter().zip(scored) {
        let tokens = at..at + row.targets().len();
        at = tokens.end;
        if scored {
            kept.push(row.clone());
            if let (Some(own), Some(all)) = (&mut own, factors) {
                own.extend_from_slice(&all[tokens]);
            }
        }
    }
    (kept, own)
}
