//! A run: roll out, score with the teacher, update, swap the weights; one after the other, or with rollouts and scores in
//! stages of their own ([`crate::flow`]).
//!
//! ```text
//! prompts -> rollouts (recipe, version v) -> teacher's hidden rows -> loss and mismatch -> gradients -> version v + 1
//! ```

mod batch;
mod draws;
mod drift;
mod dump;
mod dynamics;
mod error;
mod evaluate;
mod flop;
mod folder;
mod in_flight;
mod lower;
mod noise;
mod offline;
mod open;
mod past;
mod policy;
mod probe;
mod rate;
mod report;
mod sampling;
mod save;
mod teacher;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use engine::engine::{Device, Engine};
use engine::recipe::Recipe;
use engine::rollout::{Finish, Rollout};
use ptx::Cpu;
use ptx::ops::adamw::AdamW;

use crate::clock::Stopwatch;
use crate::config::{Config, LossKind, LossTarget, LossWeight};
use crate::flow::Stages;
use crate::learner::{Learner, Views};
use crate::loss::{Logits, Objective, Sums};
use crate::master::Master;
use crate::noise::Injected;
use crate::sequences::{Micro, Row, micro_batches};
use crate::side::Beside;
use crate::source::{Asked, Source};

use batch::Batch;
pub use drift::Drift;
pub use dynamics::DynamicsReport;
pub use error::TrainError;
pub use flop::FlopReport;
use flop::{Sizes, Work};
pub use folder::{FolderLock, check_same, hold, model_inside, prepare};
pub use lower::{InForce, Lower};
pub use noise::NoiseReport;
pub use open::{OpenError, fits_cuda};
pub use probe::{Aged, Probe, Probed};
pub use rate::Rate;
pub use report::{AgeReport, BySource, EvalReport, Summary, TargetReport, UpdateReport};
pub use save::SaveError;
use teacher::Teacher;

/// Who takes part in a run: stands in its outputs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Origin {
    /// Hash of the student's weights version 0.
    pub student: String,
    /// Hash of the teacher.
    pub teacher: String,
    /// Hashes of the other teachers by name, of a run that has several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub teachers: BTreeMap<String, String>,
    /// Hash of the reference, of a target that takes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Hash of the rollout recipe that the run file names.
    pub recipe_hash: String,
    /// Hash of the prompts, of a run that takes them from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<String>,
    /// What scores passed through, of a run whose teacher is in another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// Device of rollouts and teacher.
    pub device: String,
    /// What of it bits depend on.
    pub device_kind: String,
}

/// The rollout's own view of what it sampled.
#[derive(Debug)]
enum Behaviour {
    /// By the engine that rolls out, at the present version.
    Present(Beside),
    /// By an engine that keeps the versions which may still be trained on.
    Past(Box<past::Past>),
}

/// A run in progress.
#[derive(Debug)]
pub struct Trainer {
    cpu: Arc<Cpu>,
    /// Of rollouts and teacher.
    device: Device,
    /// With recipe and schedule as they are in force.
    config: Config,
    /// What was lowered, if anything was.
    in_force: Option<InForce>,
    /// The rollout's, as it is in force.
    recipe: Recipe,
    /// What the caller keeps in checkpoints.
    kept: Option<serde_json::Value>,
    source: Arc<Source>,
    stop_ids: Vec<u32>,
    valid: usize,
    /// The student at training precision: the trainer's forward, evaluation, and rollouts of the identity recipe.
    policy: Engine,
    /// The student in the rollout's recipe on the rollout's device, unless that is the identity on the CPU.
    rollout: Option<Engine>,
    /// What rollouts are disturbed by; then they have an engine of their own.
    noise: Option<Injected>,
    /// Whether rollouts are by the identity recipe on the CPU and undisturbed, so that their logprobs are the trainer's own.
    is_identity: bool,
    /// The rollout and the scoring stage, where they do not wait for updates; `rollout` is then theirs.
    stages: Option<Stages>,
    /// Runs the rollout's own recipe over whole sequences, to measure mismatch; with the identity recipe too, where the
    /// measured value must come out as zero.
    behaviour: Behaviour,
    teacher: Teacher,
    /// The reference, where the target takes one.
    reference: Option<(Engine, Beside)>,
    learner: Learner,
    master: Arc<RwLock<Master>>,
    micro: Micro,
    /// Tokens of the longest sequence.
    longest: usize,
    student_dir: PathBuf,
    totals: report::Totals,
    sizes: Sizes,
    /// KL(student || teacher) of every completion token of the last update, nats, in the order of its rollouts.
    token_kl: Vec<f64>,
    origin: Origin,
}

impl Trainer {
    /// Updates done so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.master().updates
    }

    fn master(&self) -> RwLockReadGuard<'_, Master> {
        read(&self.master)
    }

    /// The configuration of the run, with recipe and schedule as they are in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether evaluation uses prompts that training never visits.
    #[must_use]
    pub fn holds_out(&self) -> bool {
        self.source.holds_out()
    }

    /// Whether completions of its prompts can be judged.
    #[must_use]
    pub fn judges(&self) -> bool {
        self.source.judges()
    }

    /// Who takes part, as the run began.
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

    /// The engine at training precision.
    #[must_use]
    pub fn policy_engine(&self) -> &Engine {
        &self.policy
    }

    /// One update: rollouts, teacher scores, gradients, the next version. `tick` is called with the number of finished
    /// rollouts as they come.
    pub fn update(&mut self, tick: &mut dyn FnMut(usize)) -> Result<(UpdateReport, Vec<(Asked, Rollout)>), TrainError> {
        let update = self.updates() + 1;
        if let Some(kind) = self.offline_loss(update) {
            return self.offline_update(update, kind, tick);
        }
        self.settle_noise(update)?;
        let stages_before = self.stages.as_ref().map(|stages| (stages.busy_s(), stages.waited_s, stages.again));
        let mut watch = Stopwatch::start();
        let Batch { rollouts, rows, hidden, missing, mut teacher_s } = self.batch(update, tick)?;
        let mut rollout_s = watch.lap_s() - teacher_s;
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        #[allow(clippy::cast_precision_loss)] // token counts are far below 2^24
        let weight = 1.0 / tokens as f32;
        let objective =
            Objective::Composed { objective: self.config.loss.objective(), inv_temp: 1.0 / self.temperature() };
        let on_teacher = self.config.loss.target == LossTarget::Teacher;
        let draws = draws::of(&self.config, &rollouts, &rows);
        let factors = self.factors(update, &rollouts, &rows)?;
        let mut moved = Vec::new();
        let mut done = 0; // tokens
        self.learner.gradients.clear();
        self.token_kl.clear();
        let mut sums = Sums::default();
        let noise = self.noise_report();
        let disturbs = self.noise.as_ref().is_some_and(Injected::disturbs);
        let mut mismatch = report::Mismatch::under(disturbs);
        let (mut behaviour_s, mut scored_rows, scored_s) = (0.0, 0, teacher_s);
        for part in self.parts(&rows, &rollouts) {
            let mut stage = Stopwatch::start();
            let failed = |source| TrainError::Device { update, source };
            let (part_rows, part_rollouts) = (&rows[part.clone()], &rollouts[part.clone()]);
            let (logit_noise, keys) = self.logit_noise(part_rows);
            let teacher = self.teacher.logits(hidden.as_deref(), &mut scored_rows, part_rows).map_err(failed)?;
            if let Some((engine, side)) = &mut self.reference {
                side.run(engine, part_rows).map_err(failed)?;
            }
            teacher_s += stage.lap_s();
            let behaviour: Option<Logits<'_>> = match &mut self.behaviour {
                Behaviour::Present(beside) => {
                    let sampler = self.rollout.as_mut().unwrap_or(&mut self.policy);
                    beside.run(sampler, part_rows).map_err(failed)?;
                    Some(match (&*beside, &mut self.rollout) {
                        (Beside::Here(side), None) => side.view(self.policy.model()).into(),
                        (beside, Some(engine)) => beside.logits(engine),
                        (Beside::There(..), None) => unreachable!("the student is on the CPU"),
                    })
                }
                Behaviour::Past(past) => {
                    past.run(part_rows, part_rollouts.iter().map(|(_, rollout)| rollout)).map_err(failed)?;
                    past.logits()
                }
            };
            let behaviour = behaviour.map(|logits| {
                noise::disturbed(logits, logit_noise, &keys, 1.0 / narrow(self.config.rollout.temperature))
            });
            behaviour_s += stage.lap_s();
            let views = Views {
                teacher: Some(teacher),
                behaviour,
                reference: self.reference.as_mut().map(|(engine, side)| side.logits(engine)),
                factors: factors.as_ref().map(|factors| &factors.by_token[done..]),
                draws: draws.as_ref().map(|draws| &draws[done..]),
            };
            done += part_rows.iter().map(|row| row.targets().len()).sum::<usize>();
            let model = self.policy.model();
            let micro = self
                .learner
                .micro_batch(&self.cpu, model, objective, part_rows, views, self.valid, weight, true)
                .map_err(|source| {
                    let rollouts: Vec<&Rollout> = part_rollouts.iter().map(|(_, rollout)| rollout).collect();
                    self.failed(update, part.start, part_rows, &rollouts, source)
                })?;
            sums.add(&micro);
            let by_row = &self.learner.by_row;
            if !on_teacher {
                moved.extend_from_slice(&by_row.moved);
            }
            mismatch.add(update - 1, part_rollouts, &by_row.logprobs, &by_row.mismatch);
            self.token_kl.extend(&by_row.kl);
            if self.is_identity {
                self.check_identity(update, part.start, part_rollouts)?;
            }
            self.check_reproduced(update, part.start, part_rollouts)?;
        }
        let forward_s = watch.lap_s();
        let watched = self.watch_before(update)?;
        watch.lap_s(); // what is measured on the side is counted on the side
        let grad_norm = self.apply(update)?;
        let mut train_s = forward_s + watch.lap_s() - (teacher_s - scored_s) - behaviour_s;
        if let Some(noise) = &mut self.noise {
            noise.observe(mismatch.d_nats());
        }
        self.swap_weights(update)?;
        let sync_s = watch.lap_s();
        let loss = factors.as_ref().and_then(|f| f.loss).unwrap_or(sums.loss) / sums.tokens as f64;
        let dynamics = watched
            .map(|before| self.watch_after(update, before, &rows, factors.as_ref().map(|f| &f.by_token[..]), loss))
            .transpose()?;
        let mut stages = None;
        if let (Some(now), Some((busy, waited, again))) = (&self.stages, stages_before) {
            let wait_s = now.waited_s - waited;
            // What was waited for before the weights could be replaced is no work of the learner.
            train_s = (train_s - (wait_s - rollout_s).max(0.0)).max(0.0);
            rollout_s = now.busy_s().0 - busy.0;
            teacher_s += now.busy_s().1 - busy.1;
            stages = Some(mismatch.ages(wait_s, now.waiting() as u64, now.again - again));
        }
        let work = if self.config.loss.kind == LossKind::Grpo { Work::Reinforce } else { Work::Distill };
        let report = UpdateReport {
            update,
            version: update,
            phase: None,
            loss,
            kl_teacher: sums.kl_reverse / sums.tokens as f64,
            kl_by_teacher: self.by_teacher(&rows, &self.token_kl),
            kl_forward: sums.kl_forward / sums.tokens as f64,
            entropy: sums.entropy / sums.tokens as f64,
            mismatch_nats: mismatch.d_nats(),
            by_source: mismatch.by_source(),
            k3: mismatch.k3(),
            target: report::TargetReport::of(&moved),
            age: stages,
            noise,
            dynamics,
            weight: factors.as_ref().and_then(|factors| factors.weight),
            grpo: factors.as_ref().and_then(|factors| factors.grpo),
            grad_norm,
            lr: f64::from(self.lr(update)),
            tokens: sums.tokens,
            rollouts: rollouts.len() as u64,
            correct: self.correct(&rollouts),
            missing,
            truncated: rollouts.iter().filter(|(_, r)| r.finish == Finish::Length).count() as u64,
            flop: self.sizes.flop(work, self.config.rollout.n, &rollouts),
            rollout_s,
            teacher_s,
            behaviour_s,
            train_s,
            sync_s,
        };
        self.totals.add(&report, &mismatch);
        Ok((report, rollouts))
    }

    /// The micro-batches of an update. Where mismatch needs it, each is of one weights version.
    fn parts(&self, rows: &[Row], rollouts: &[(Asked, Rollout)]) -> Vec<std::ops::Range<usize>> {
        let parts = micro_batches(rows, self.micro);
        match &self.behaviour {
            Behaviour::Past(past) if past.one_version() => {
                let version = |at: usize| rollouts[at].1.versions[0].1;
                let mut cut = Vec::new();
                for part in parts {
                    let mut first = part.start;
                    for at in part.clone() {
                        if version(at) != version(first) {
                            cut.push(first..at);
                            first = at;
                        }
                    }
                    cut.push(first..part.end);
                }
                cut
            }
            _ => parts,
        }
    }

    fn max_tokens(&self) -> usize {
        self.config.rollout.max_tokens as usize
    }

    fn temperature(&self) -> f32 {
        narrow(self.config.rollout.temperature)
    }

    fn lr(&self, update: u64) -> f32 {
        let train = &self.config.train;
        let shape =
            Rate { warmup: train.warmup.into(), decay: train.decay.into(), updates: self.config.updates.into() };
        shape.at(narrow(train.lr), update)
    }

    /// Every logprob that the identity rollout reported of the version that is trained is the trainer's own, bit for bit.
    fn check_identity(&self, update: u64, first: usize, rollouts: &[(Asked, Rollout)]) -> Result<(), TrainError> {
        match first_other(rollouts, &self.learner.by_row.logprobs, |r| r.is_only_of(update - 1)) {
            Some((i, token, rollout_logprob, train_logprob)) => {
                let rollout = first + i;
                Err(TrainError::NotIdentical { update, rollout, token, rollout_logprob, train_logprob })
            }
            None => Ok(()),
        }
    }

    /// On a device of its own every logprob that the rollout reported is what a pass over the whole sequence gives there,
    /// bit for bit.
    fn check_reproduced(&self, update: u64, first: usize, rollouts: &[(Asked, Rollout)]) -> Result<(), TrainError> {
        let again = &self.learner.by_row.behaviour;
        // The pass is left out where the rollouts' device is the trainer's.
        let other = if again.is_empty() { None } else { first_other(rollouts, again, |_| true) };
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
        let clip = narrow(t.clip);
        let gradients = &self.learner.gradients;
        for (i, param) in gradients.params().iter().enumerate() {
            if let Some(element) = ptx::ops::grad_norm::all_finite(&self.cpu, gradients.tensor(i)) {
                return Err(TrainError::Gradient { update, tensor: param.name.clone(), element });
            }
        }
        if let Some(stages) = &mut self.stages {
            stages.before_replacing(update - 1).map_err(|source| TrainError::Wait { update, source })?;
        }
        let mut master = self.master.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(noise) = &mut self.noise {
            noise.retain(&master);
        }
        let norm = master.update(&self.cpu, gradients, hyper, clip);
        // Rewards may be all the same and masks may leave nothing: that says nothing of the teacher.
        let all_count = self.config.loss.kind != LossKind::Grpo && self.config.loss.weight != LossWeight::Mask;
        if update == 1 && norm == 0.0 && all_count {
            return Err(TrainError::NothingToLearn);
        }
        Ok(norm)
    }

    /// Brings every copy of the student to the master's version; the rollout stage takes it when it is between two steps.
    fn swap_weights(&mut self, version: u64) -> Result<(), TrainError> {
        if let Some(stages) = &self.stages {
            stages.published();
        }
        let (cpu, master) = (&self.cpu, read(&self.master));
        self.policy.update(version, &mut master.version(cpu))?;
        match (&mut self.rollout, &self.noise) {
            (Some(engine), Some(noise)) => noise.update(engine, &master, cpu)?,
            (Some(engine), None) => drop(engine.update(version, &mut master.version(cpu))?),
            (None, _) => {}
        }
        if let Behaviour::Past(past) = &mut self.behaviour {
            past.update(version, &mut master.version(cpu))?;
        }
        Ok(())
    }

    fn correct(&self, rollouts: &[(Asked, Rollout)]) -> Option<u64> {
        let judged: Vec<bool> =
            rollouts.iter().filter_map(|(asked, r)| self.source.is_correct(asked, &r.ids)).collect();
        (!judged.is_empty()).then(|| judged.iter().filter(|&&c| c).count() as u64)
    }

    /// Says to a teacher in another process that nothing more will be asked: it ends.
    pub fn finish(&mut self) {
        if let Some(stages) = self.stages.take() {
            stages.finish();
        }
        self.teacher.finish();
    }

    /// What the run amounts to.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.totals.summary()
    }
}

fn read(master: &RwLock<Master>) -> RwLockReadGuard<'_, Master> {
    master.read().unwrap_or_else(PoisonError::into_inner)
}

/// The first token of a rollout that `counts` whose logprob is other bits than in `again`, a list over all tokens:
/// (rollout, token, both logprobs).
///
/// # Panics
/// When there is not one in `again` for each sampled token.
fn first_other(
    rollouts: &[(Asked, Rollout)],
    again: &[f32],
    counts: impl Fn(&Rollout) -> bool,
) -> Option<(usize, usize, f32, f32)> {
    let sampled: usize = rollouts.iter().map(|(_, rollout)| rollout.logprobs.len()).sum();
    assert_eq!(again.len(), sampled, "one logprob a sampled token");
    let mut rest = again;
    for (i, (_, rollout)) in rollouts.iter().enumerate() {
        let (own, later) = rest.split_at(rollout.logprobs.len());
        rest = later;
        let mut both = rollout.logprobs.iter().zip(own).enumerate().filter(|_| counts(rollout));
        if let Some((token, (&logprob, &again))) = both.find(|(_, (a, b))| a.to_bits() != b.to_bits()) {
            return Some((i, token, logprob, again));
        }
    }
    None
}

/// A setting of the run file as the kernels take it.
#[allow(clippy::cast_possible_truncation)] // rounding to f32 is meant
fn narrow(x: f64) -> f32 {
    x as f32
}
