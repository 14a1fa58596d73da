//! What rollouts under a run's configuration would be like, without training on them: D whole and by where it comes from, and
//! the loss on their prefixes beside that on the student's own. For prompts that training has not come to, and for weights
//! as old as a schedule may make them.

use std::ops::Range;

use engine::engine::{Engine, PAGE_LEN};
use engine::model::Gradients;
use engine::recipe::Recipe;
use engine::rollout::{Limits, Request};
use ptx::ops::divergence::Kind;

use super::evaluate::EVAL_SAMPLES;
use super::noise::disturbed;
use super::{Behaviour, TrainError, Trainer, read};
use crate::eval::{PromptFailed, collect, row};
use crate::learner::Views;
use crate::loss::{Logits, Objective};
use crate::master::Version;
use crate::meter::Sum;
use crate::sequences::{Row, micro_batches};
use crate::side::Beside;
use crate::source::Asked;
use crate::tasks::Split;

/// Draws of a probe keep away from all others.
const PROBE: u64 = EVAL_SAMPLES + (1 << 44);

/// The weights of an earlier version.
#[derive(Clone, Debug)]
pub struct Aged {
    version: u64,
    weights: Gradients,
}

/// Engines at earlier versions.
#[derive(Debug)]
pub struct Probe {
    /// In the rollout's recipe at the oldest version; none where rollouts are not behind.
    sampler: Option<(Engine, Beside)>,
    /// At training precision, from one version behind to the oldest.
    aged: Vec<(Engine, Beside)>,
}

/// What some prompts' rollouts show, a sum for each prompt. Distances are in nats.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// KL(rollout || student): the configuration as a whole.
    pub d: Vec<Sum>,
    /// On the same prefixes, of the present version in the rollout's recipe: rounding and noise alone.
    pub numerics: Vec<Sum>,
    /// On the same prefixes, of versions at training precision: age alone, from one version behind on.
    pub by_age: Vec<Vec<Sum>>,
    /// KL(student || teacher) on the rollout's prefixes.
    pub on_rollout: Vec<Sum>,
    /// On prefixes that the student samples with the same random numbers.
    pub on_student: Vec<Sum>,
    /// The rollouts.
    pub rows: Vec<Row>,
}

impl Probed {
    /// Adds what other prompts show.
    pub fn extend(&mut self, other: Probed) {
        self.d.extend(other.d);
        self.numerics.extend(other.numerics);
        self.by_age.resize(other.by_age.len(), Vec::new());
        self.by_age.iter_mut().zip(other.by_age).for_each(|(mine, more)| mine.extend(more));
        self.on_rollout.extend(other.on_rollout);
        self.on_student.extend(other.on_student);
        self.rows.extend(other.rows);
    }
}

/// Whose distributions are compared with the student's.
enum Whose<'a> {
    /// The rollout's at the present version.
    Present,
    /// Another engine's.
    Of(&'a mut (Engine, Beside)),
}

impl Trainer {
    /// The weights as they are now.
    #[must_use]
    pub fn aged(&self) -> Aged {
        let master = self.master();
        Aged { version: master.updates, weights: master.weights.clone() }
    }

    /// Prompts that a probe can ask without asking one twice, or one that training has visited; none where there is no end.
    #[must_use]
    pub fn fresh_prompts(&self) -> Option<usize> {
        let visited = self.updates() * u64::from(self.config.train.batch);
        let visited = usize::try_from(visited).unwrap_or(usize::MAX);
        self.source.train_len().map(|all| all.saturating_sub(visited))
    }

    /// Engines for rollouts of versions behind the present one; `versions` are from one behind on.
    pub fn open_probe(&self, versions: &[Aged]) -> Result<Probe, TrainError> {
        let like = self.rollout.as_ref().unwrap_or(&self.policy);
        let (device, model) = (like.device(), like.config());
        let precision = read(&self.master).precision();
        let identity = Recipe::built_in("identity", precision, model).expect("it was opened with the run");
        let open = |aged: &Aged, recipe: Recipe| -> Result<(Engine, Beside), TrainError> {
            let mut source = Version::of(&aged.weights, precision, &self.cpu);
            let (pages, valid) = (like.kv().pages(), self.valid);
            let engine =
                Engine::open(device, model.clone(), recipe, aged.version, &mut source, PAGE_LEN, pages, valid)?;
            let beside = Beside::new(&engine, self.micro.tokens, self.micro.rows);
            Ok((engine, beside))
        };
        let sampler = versions.last().map(|aged| open(aged, like.recipe().clone())).transpose()?;
        let aged = versions.iter().map(|aged| open(aged, identity.clone())).collect::<Result<_, _>>()?;
        Ok(Probe { sampler, aged })
    }

    /// Samples completions of prompts that come after those visited, `prompts` of them counted from there, and measures.
    pub fn probe_rollouts(&mut self, probe: &mut Probe, prompts: Range<u64>) -> Result<Probed, TrainError> {
        let update = self.updates();
        let n = u64::from(self.config.rollout.n);
        let first = update * u64::from(self.config.train.batch);
        let asked: Vec<Asked> = prompts.clone().map(|i| self.source.ask(Split::Train, first + i)).collect();
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let requests: Vec<Request> = prompts
            .zip(&asked)
            .map(|(i, asked)| Request { prompt: asked.prompt.clone(), first_sample: PROBE + i * n, ..base.clone() })
            .collect();
        let limits = Limits { batch: self.config.sequences(), ..Limits::default() };
        let sample = |engine: &mut Engine| -> Result<Vec<Row>, TrainError> {
            let rollouts = collect(engine, &requests, limits, &mut |_| {})
                .map_err(|source: PromptFailed| TrainError::Eval { update, source })?;
            Ok(rollouts.iter().map(|rollout| row(&asked[rollout.request], rollout)).collect())
        };
        let own = sample(&mut self.policy)?;
        let rows = match (&mut probe.sampler, &mut self.rollout) {
            (Some((engine, _)), _) | (None, Some(engine)) => sample(engine)?,
            (None, None) => own.clone(), // the student samples itself
        };
        let samples = self.config.rollout.n as usize;
        let (on_student, _) = self.sums_by_prompt(&own, samples, None, true)?;
        let whose = probe.sampler.as_mut().map_or(Whose::Present, Whose::Of);
        let (on_rollout, d) = self.sums_by_prompt(&rows, samples, Some(whose), true)?;
        let numerics = if probe.sampler.is_some() {
            self.sums_by_prompt(&rows, samples, Some(Whose::Present), false)?.1
        } else {
            d.clone()
        };
        let mut by_age = Vec::new();
        for aged in &mut probe.aged {
            by_age.push(self.sums_by_prompt(&rows, samples, Some(Whose::Of(aged)), false)?.1);
        }
        Ok(Probed { d, numerics, by_age, on_rollout, on_student, rows })
    }

    /// KL(student || teacher), where `teacher` is asked for, and KL(whose || student) on rows, of which each prompt has
    /// `samples` side by side.
    fn sums_by_prompt(
        &mut self,
        rows: &[Row],
        samples: usize,
        mut whose: Option<Whose<'_>>,
        teacher: bool,
    ) -> Result<(Vec<Sum>, Vec<Sum>), TrainError> {
        let update = self.updates();
        let inv_temp = 1.0 / self.temperature();
        // A teacher elsewhere is refused before anything is probed.
        let hidden = if teacher { self.hidden_of(update, rows)?.hidden } else { None };
        let (mut kl, mut mismatch, mut used) = (Vec::new(), Vec::new(), 0);
        for part in micro_batches(rows, self.micro) {
            let failed = |source| TrainError::Device { update, source };
            let part_rows = &rows[part.clone()];
            let (noise, keys) = self.logit_noise(part_rows);
            let behaviour: Option<Logits<'_>> = match &mut whose {
                None => None,
                Some(Whose::Of((engine, beside))) => {
                    beside.run(engine, part_rows).map_err(failed)?;
                    Some(beside.logits(engine))
                }
                Some(Whose::Present) => {
                    let Behaviour::Present(beside) = &mut self.behaviour else {
                        unreachable!("a probe is of a run that takes turns")
                    };
                    beside.run(self.rollout.as_mut().unwrap_or(&mut self.policy), part_rows).map_err(failed)?;
                    let logits = match (&*beside, &mut self.rollout) {
                        (Beside::Here(side), None) => side.view(self.policy.model()).into(),
                        (beside, Some(engine)) => beside.logits(engine),
                        (Beside::There(..), None) => unreachable!("the student is on the CPU"),
                    };
                    Some(disturbed(logits, noise, &keys, inv_temp))
                }
            };
            let (objective, scores) = if teacher {
                let scores = self.teacher.logits(hidden.as_deref(), &mut used, part_rows).map_err(failed)?;
                (Objective::Distill { kind: Kind::ReverseKl, inv_temp }, Some(scores))
            } else {
                (Objective::Logprobs { inv_temp }, None)
            };
            let views = Views { teacher: scores, behaviour, ..Views::default() };
            self.learner
                .micro_batch(&self.cpu, self.policy.model(), objective, part_rows, views, self.valid, 0.0, false)
                .map_err(|source| self.failed(update, part.start, part_rows, &[], source))?;
            kl.extend_from_slice(&self.learner.by_row.kl);
            mismatch.extend_from_slice(&self.learner.by_row.mismatch);
        }
        Ok((by_prompt(rows, samples, &kl), by_prompt(rows, samples, &mismatch)))
    }
}

/// Sums over each prompt's rows; nothing where there is nothing to sum.
fn by_prompt(rows: &[Row], samples: usize, by_token: &[f64]) -> Vec<Sum> {
    if by_token.is_empty() {
        return Vec::new();
    }
    let mut rest = by_token;
    let sums = rows.chunks(samples).map(|rows| {
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        let (own, later) = rest.split_at(tokens);
        rest = later;
        Sum { nats: own.iter().sum(), tokens: tokens as u64 }
    });
    sums.collect()
}
