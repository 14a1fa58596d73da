//! The synchronous loop: roll out, score with the teacher, update, swap the weights.
//!
//! ```text
//! prompts -> rollouts (recipe, version v) -> teacher's hidden rows -> loss and mismatch -> gradients -> version v + 1
//! ```

mod draws;
mod folder;
mod open;
mod policy;
mod report;
mod save;

use std::path::PathBuf;
use std::sync::Arc;

use engine::engine::{Engine, EngineError};
use engine::rollout::{Finish, Limits, Request, RequestError, Rollout};
use ptx::Cpu;
use ptx::cuda::CudaError;
use ptx::ops::adamw::AdamW;
use ptx::ops::divergence::Kind;
use ptx::ops::sample::Params;

use crate::clock::Stopwatch;
use crate::config::{Config, LossKind, LossTarget, LossWeight};
use crate::eval::{EvalSettings, PromptFailed, collect, evaluate, row};
use crate::learner::{Learner, Views};
use crate::loss::{LossError, Objective, Sums};
use crate::master::Master;
use crate::sequences::{Row, micro_batches};
use crate::side::Beside;
use crate::source::{Asked, Source};
use crate::tasks::Split;

pub use folder::{FolderLock, model_inside, prepare};
pub use open::{OpenError, fits_cuda};
pub use report::{BySource, EvalReport, Summary, TargetReport, UpdateReport};
pub use save::SaveError;

/// Held-out draws use sample indices from here, so that they never meet those of training.
const EVAL_SAMPLES: u64 = 1 << 62;
/// Held-out prompts whose sampled completions measure the distance to the teacher.
const KL_PROMPTS: usize = 64;

/// Why an update failed; the run stops with everything up to the last checkpoint in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A rollout could not be had.
    #[error("update {update}: prompt {prompt}: {source}")]
    Rollout {
        /// Which update.
        update: u64,
        /// Number of the prompt.
        prompt: u64,
        /// Why.
        source: RequestError,
    },
    /// An evaluation could not be run.
    #[error("evaluation after update {update}: {source}")]
    Eval {
        /// Updates done.
        update: u64,
        /// Which prompt, and why.
        source: PromptFailed,
    },
    /// The loss is not a number.
    #[error("update {update}: the loss is not finite at rollout {rollout}, {source}")]
    Loss {
        /// Which update.
        update: u64,
        /// First rollout of the micro-batch.
        rollout: usize,
        /// Row and token.
        source: LossError,
    },
    /// Gradients are not numbers.
    #[error("update {update}: the gradient of {tensor} is not finite at element {element}; nothing was updated")]
    Gradient {
        /// Which update.
        update: u64,
        /// Which tensor.
        tensor: String,
        /// Which element.
        element: usize,
    },
    /// The teacher gives no gradient in the first update.
    #[error(
        "the first update has no gradient at all: the teacher agrees with the student everywhere, so there is nothing \
         to distil; are `student` and `teacher` the same checkpoint?"
    )]
    NothingToLearn,
    /// The identity recipe does not reproduce the trainer's own logprobs.
    #[error(
        "update {update}: rollout {rollout}, token {token}: the identity recipe gave logprob {rollout_logprob:e}, the \
         trainer {train_logprob:e}; they must be the same bits, so this is a bug of leeway: please report it"
    )]
    NotIdentical {
        /// Which update.
        update: u64,
        /// Which rollout.
        rollout: usize,
        /// Which token of the completion.
        token: usize,
        /// What the rollout said.
        rollout_logprob: f32,
        /// What the trainer's forward pass said.
        train_logprob: f32,
    },
    /// Weights could not be taken over.
    #[error(transparent)]
    Weights(#[from] EngineError),
    /// The device of rollouts and teacher failed.
    #[error("update {update}: {source}")]
    Device {
        /// Which update.
        update: u64,
        /// Why.
        source: CudaError,
    },
    /// A device does not compute the same logprobs twice.
    #[error(
        "update {update}: rollout {rollout}, token {token}: the device sampled with logprob {sampled:e} and scores the \
         same tokens with {scored:e}; they must be the same bits, so this is a bug of leeway: please report it"
    )]
    NotReproduced {
        /// Which update.
        update: u64,
        /// Which rollout.
        rollout: usize,
        /// Which token of the completion.
        token: usize,
        /// What the rollout said.
        sampled: f32,
        /// What a pass over the whole sequence says.
        scored: f32,
    },
}

/// Who takes part in a run: stands in its outputs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Origin {
    /// Hash of the student's weights version 0.
    pub student: String,
    /// Hash of the teacher.
    pub teacher: String,
    /// Hash of the reference, of a target that takes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Hash of the rollout recipe.
    pub recipe_hash: String,
    /// Device of rollouts and teacher.
    pub device: String,
    /// What of it bits depend on.
    pub device_kind: String,
}

/// A run in progress.
#[derive(Debug)]
pub struct Trainer {
    cpu: Arc<Cpu>,
    config: Config,
    source: Source,
    stop_ids: Vec<u32>,
    valid: usize,
    /// The student at training precision: the trainer's forward, evaluation, and rollouts of the identity recipe.
    policy: Engine,
    /// The student in the rollout's recipe on the rollout's device, unless that is the identity on the CPU.
    rollout: Option<Engine>,
    /// Runs the rollout's own recipe over whole sequences, to measure mismatch; with the identity recipe too, where the
    /// measured value must come out as zero.
    behaviour: Beside,
    teacher: Engine,
    teacher_side: Beside,
    /// The reference, where the target takes one.
    reference: Option<(Engine, Beside)>,
    learner: Learner,
    master: Master,
    micro_tokens: usize,
    student_dir: PathBuf,
    totals: report::Totals,
    /// KL(student || teacher) of every completion token of the last update, nats, in the order of its rollouts.
    token_kl: Vec<f64>,
    origin: Origin,
}

impl Trainer {
    /// Updates done so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.master.updates
    }

    /// The configuration of the run.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether evaluation uses prompts that training never visits.
    #[must_use]
    pub fn holds_out(&self) -> bool {
        self.source.holds_out()
    }

    /// Who takes part.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// KL(student || teacher) of every completion token of the last update, nats: one list after the other, in the order
    /// of its rollouts.
    #[must_use]
    pub fn token_kl(&self) -> &[f64] {
        &self.token_kl
    }

    /// Whether a completion is right, where that can be judged.
    #[must_use]
    pub fn is_correct(&self, asked: &Asked, rollout: &Rollout) -> Option<bool> {
        self.source.is_correct(asked, &rollout.ids)
    }

    /// The engine that rolls out.
    #[must_use]
    pub fn rollout_engine(&self) -> &Engine {
        self.rollout.as_ref().unwrap_or(&self.policy)
    }

    /// The engine at training precision.
    #[must_use]
    pub fn policy_engine(&self) -> &Engine {
        &self.policy
    }

    /// One update: rollouts from the present version, teacher scores, gradients, the next version. `tick` is called as
    /// each rollout finishes.
    pub fn update(&mut self, tick: &mut dyn FnMut(usize)) -> Result<(UpdateReport, Vec<(Asked, Rollout)>), TrainError> {
        let update = self.master.updates + 1;
        let mut watch = Stopwatch::start();
        let (asked, rollouts) = self.roll_out(update, tick)?;
        let rollout_s = watch.lap_s();
        let rows: Vec<Row> = rollouts.iter().map(|r| row(&asked[r.request].prompt, r)).collect();
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        #[allow(clippy::cast_precision_loss)] // token counts are far below 2^24
        let weight = 1.0 / tokens as f32;
        let objective =
            Objective::Composed { objective: self.config.loss.objective(), inv_temp: 1.0 / self.temperature() };
        let on_teacher = self.config.loss.target == LossTarget::Teacher;
        let draws = draws::of(&self.config, &rollouts, &rows);
        let factors = self.factors(update, &asked, &rollouts, &rows)?;
        let mut moved = Vec::new();
        let mut done = 0; // tokens
        self.learner.gradients.clear();
        self.token_kl.clear();
        let mut sums = Sums::default();
        let mut mismatch = report::Mismatch::default();
        let (mut teacher_s, mut behaviour_s) = (0.0, 0.0);
        for part in micro_batches(&rows, self.micro_tokens) {
            let mut stage = Stopwatch::start();
            let failed = |source| TrainError::Device { update, source };
            self.teacher_side.run(&mut self.teacher, &rows[part.clone()]).map_err(failed)?;
            if let Some((engine, side)) = &mut self.reference {
                side.run(engine, &rows[part.clone()]).map_err(failed)?;
            }
            teacher_s += stage.lap_s();
            let sampler = self.rollout.as_mut().unwrap_or(&mut self.policy);
            self.behaviour.run(sampler, &rows[part.clone()]).map_err(failed)?;
            behaviour_s += stage.lap_s();
            let behaviour = match (&self.behaviour, &mut self.rollout) {
                (Beside::Here(side), None) => side.view(self.policy.model()).into(),
                (beside, Some(engine)) => beside.logits(engine),
                (Beside::There(..), None) => unreachable!("the student is on the CPU"),
            };
            let views = Views {
                teacher: Some(self.teacher_side.logits(&mut self.teacher)),
                behaviour: Some(behaviour),
                reference: self.reference.as_mut().map(|(engine, side)| side.logits(engine)),
                factors: factors.as_ref().map(|factors| &factors.by_token[done..]),
                draws: draws.as_ref().map(|draws| &draws[done..]),
            };
            let part_rows = &rows[part.clone()];
            done += part_rows.iter().map(|row| row.targets().len()).sum::<usize>();
            let model = self.policy.model();
            let micro = self
                .learner
                .micro_batch(&self.cpu, model, objective, part_rows, views, self.valid, weight, true)
                .map_err(|source| loss_failed(update, part.start, source))?;
            sums.add(&micro);
            let by_row = &self.learner.by_row;
            if !on_teacher {
                moved.extend_from_slice(&by_row.moved);
            }
            let rollout_logprobs = rollouts[part.clone()].iter().flat_map(|r| &r.logprobs);
            mismatch.add(rollout_logprobs, &by_row.logprobs, &by_row.mismatch);
            self.token_kl.extend(&by_row.kl);
            if self.rollout.is_none() {
                self.check_identity(update, part.start, &rollouts[part.clone()])?;
            }
            self.check_reproduced(update, part.start, &rollouts[part.clone()])?;
        }
        let grad_norm = self.apply(update)?;
        let train_s = watch.lap_s() - teacher_s - behaviour_s;
        self.swap_weights()?;
        let sync_s = watch.lap_s();
        let report = UpdateReport {
            update,
            version: self.master.updates,
            loss: factors.as_ref().and_then(|f| f.loss).unwrap_or(sums.loss) / sums.tokens as f64,
            kl_teacher: sums.kl_reverse / sums.tokens as f64,
            kl_forward: sums.kl_forward / sums.tokens as f64,
            entropy: sums.entropy / sums.tokens as f64,
            mismatch_nats: mismatch.d_nats(),
            by_source: BySource { numerics: mismatch.d_nats() },
            k3: mismatch.k3(),
            target: report::TargetReport::of(&moved),
            weight: factors.as_ref().and_then(|factors| factors.weight),
            grpo: factors.as_ref().and_then(|factors| factors.grpo),
            grad_norm,
            lr: f64::from(self.lr(update)),
            tokens: sums.tokens,
            rollouts: rollouts.len() as u64,
            correct: self.correct(&asked, &rollouts),
            truncated: rollouts.iter().filter(|r| r.finish == Finish::Length).count() as u64,
            rollout_s,
            teacher_s,
            behaviour_s,
            train_s,
            sync_s,
        };
        self.totals.add(&report, &mismatch);
        Ok((report, rollouts.into_iter().map(|r| (asked[r.request].clone(), r)).collect()))
    }

    fn roll_out(&mut self, update: u64, tick: &mut dyn FnMut(usize)) -> Result<(Vec<Asked>, Vec<Rollout>), TrainError> {
        let (batch, n) = (u64::from(self.config.train.batch), self.config.rollout.n);
        let first = (update - 1) * batch;
        let asked: Vec<Asked> = (first..first + batch).map(|i| self.source.ask(Split::Train, i)).collect();
        let params = Params { temperature: self.temperature(), top_k: 0, top_p: 1.0, min_p: 0.0 };
        let requests: Vec<Request> = asked
            .iter()
            .zip(first..)
            .map(|(asked, prompt)| Request {
                prompt: asked.prompt.clone(),
                samples: n,
                first_sample: prompt * u64::from(n),
                seed: self.config.seed,
                params,
                max_tokens: self.max_tokens(),
                stop_ids: self.stop_ids.clone(),
                ..Request::default()
            })
            .collect();
        let limits = self.limits();
        let engine = self.rollout.as_mut().unwrap_or(&mut self.policy);
        let mut finished = 0;
        let rollouts = collect(engine, &requests, limits, &mut |_| {
            finished += 1;
            tick(finished);
        })
        .map_err(|PromptFailed { prompt, source }| TrainError::Rollout {
            update,
            prompt: first + prompt as u64,
            source,
        })?;
        Ok((asked, rollouts))
    }

    fn max_tokens(&self) -> usize {
        self.config.rollout.max_tokens as usize
    }

    fn temperature(&self) -> f32 {
        narrow(self.config.rollout.temperature)
    }

    fn limits(&self) -> Limits {
        Limits { batch: self.config.sequences(), ..Limits::default() }
    }

    fn lr(&self, update: u64) -> f32 {
        warm_up(narrow(self.config.train.lr), u64::from(self.config.train.warmup), update)
    }

    /// Every logprob that the identity rollout reported is the trainer's own, bit for bit.
    fn check_identity(&self, update: u64, first: usize, rollouts: &[Rollout]) -> Result<(), TrainError> {
        match first_other(rollouts, &self.learner.by_row.logprobs) {
            Some((i, token, rollout_logprob, train_logprob)) => {
                let rollout = first + i;
                Err(TrainError::NotIdentical { update, rollout, token, rollout_logprob, train_logprob })
            }
            None => Ok(()),
        }
    }

    /// On a device of its own every logprob that the rollout reported is what a pass over the whole sequence gives there,
    /// bit for bit.
    fn check_reproduced(&self, update: u64, first: usize, rollouts: &[Rollout]) -> Result<(), TrainError> {
        let again = &self.learner.by_row.behaviour;
        // The pass is left out where the rollouts' device is the trainer's.
        let other = if again.is_empty() { None } else { first_other(rollouts, again) };
        match other {
            Some((i, token, sampled, scored)) => {
                Err(TrainError::NotReproduced { update, rollout: first + i, token, sampled, scored })
            }
            None => Ok(()),
        }
    }

    fn apply(&mut self, update: u64) -> Result<f64, TrainError> {
        let t = &self.config.train;
        let hyper = AdamW {
            lr: self.lr(update),
            beta1: narrow(t.beta1),
            beta2: narrow(t.beta2),
            eps: 1e-8,
            weight_decay: narrow(t.weight_decay),
        };
        let gradients = &self.learner.gradients;
        for (i, param) in gradients.params().iter().enumerate() {
            if let Some(element) = ptx::ops::grad_norm::all_finite(&self.cpu, gradients.tensor(i)) {
                return Err(TrainError::Gradient { update, tensor: param.name.clone(), element });
            }
        }
        let norm = self.master.update(&self.cpu, gradients, hyper, narrow(t.clip));
        // Rewards may be all the same and masks may leave nothing: that says nothing of the teacher.
        let all_count = self.config.loss.kind != LossKind::Grpo && self.config.loss.weight != LossWeight::Mask;
        if update == 1 && norm == 0.0 && all_count {
            return Err(TrainError::NothingToLearn);
        }
        Ok(norm)
    }

    /// Brings every copy of the student to the master's version.
    fn swap_weights(&mut self) -> Result<(), TrainError> {
        let (cpu, version) = (&self.cpu, self.master.updates);
        self.policy.update(version, &mut self.master.version(cpu))?;
        if let Some(engine) = &mut self.rollout {
            engine.update(version, &mut self.master.version(cpu))?;
        }
        Ok(())
    }

    fn correct(&self, asked: &[Asked], rollouts: &[Rollout]) -> Option<u64> {
        let judged: Vec<bool> =
            rollouts.iter().filter_map(|r| self.source.is_correct(&asked[r.request], &r.ids)).collect();
        (!judged.is_empty()).then(|| judged.iter().filter(|&&c| c).count() as u64)
    }

    /// Accuracy on the test split's prompts at training precision, and the distance to the teacher on completions that the
    /// student samples for some of them.
    pub fn evaluate(&mut self) -> Result<EvalReport, TrainError> {
        let update = self.master.updates;
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
            problems: problems.min(KL_PROMPTS),
            temperature: self.temperature(),
            first_sample: EVAL_SAMPLES + (1 << 32),
            ..settings
        };
        let rows =
            evaluate(&mut self.policy, &self.source, sampled, &self.stop_ids, Limits::default()).map_err(failed)?.rows;
        let mut sums = Sums::default();
        for part in micro_batches(&rows, self.micro_tokens) {
            self.teacher_side
                .run(&mut self.teacher, &rows[part.clone()])
                .map_err(|source| TrainError::Device { update, source })?;
            // Its loss is not reported: what is, the distance to the teacher itself, is the same for every objective.
            let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 / self.temperature() };
            let model = self.policy.model();
            let teacher = Some(self.teacher_side.logits(&mut self.teacher));
            let views = Views { teacher, ..Views::default() };
            let micro = self
                .learner
                .micro_batch(&self.cpu, model, objective, &rows[part.clone()], views, self.valid, 0.0, false)
                .map_err(|source| loss_failed(update, part.start, source))?;
            sums.add(&micro);
        }
        Ok(EvalReport {
            update,
            accuracy: judged.accuracy(),
            correct: judged.correct,
            judged: judged.judged,
            truncated: judged.truncated,
            kl_teacher: sums.kl_reverse / sums.tokens as f64,
        })
    }

    /// What the run amounts to.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.totals.summary()
    }
}

/// The first token whose logprob is other bits than in `again`, a list over all tokens: (rollout, token, both logprobs).
///
/// # Panics
/// When there is not one in `again` for each sampled token.
fn first_other(rollouts: &[Rollout], again: &[f32]) -> Option<(usize, usize, f32, f32)> {
    let sampled: usize = rollouts.iter().map(|rollout| rollout.logprobs.len()).sum();
    assert_eq!(again.len(), sampled, "one logprob a sampled token");
    let tokens = rollouts
        .iter()
        .enumerate()
        .flat_map(|(i, rollout)| rollout.logprobs.iter().enumerate().map(move |(token, &logprob)| (i, token, logprob)));
    let mut both = tokens.zip(again).map(|((i, token, logprob), &again)| (i, token, logprob, again));
    both.find(|(.., logprob, again)| logprob.to_bits() != again.to_bits())
}

fn loss_failed(update: u64, rollout: usize, source: LossError) -> TrainError {
    match source {
        LossError::Device(source) => TrainError::Device { update, source },
        LossError::Row { .. } => TrainError::Loss { update, rollout, source },
    }
}

/// A setting of the run file as the kernels take it.
#[allow(clippy::cast_possible_truncation)] // rounding to f32 is meant
fn narrow(x: f64) -> f32 {
    x as f32
}

/// Linear warm-up over `warmup` updates, then constant.
#[must_use]
#[allow(clippy::cast_precision_loss)] // update counts
pub fn warm_up(lr: f32, warmup: u64, update: u64) -> f32 {
    if update >= warmup { lr } else { lr * update as f32 / warmup as f32 }
}
