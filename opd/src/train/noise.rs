//! Injected mismatch in a run: the rollout's engine under noise, and the noise that causes the D that is asked for.

use engine::engine::{Engine, PAGE_LEN};
use engine::rollout::{Limits, Request};
use serde::Serialize;

use super::evaluate::EVAL_SAMPLES;
use super::report::Mismatch;
use super::{Behaviour, TrainError, Trainer, read};
use crate::eval::{PromptFailed, collect, row};
use crate::learner::Views;
use crate::loss::{Logits, Objective};
use crate::noise::{Injected, level};
use crate::sequences::{Row, micro_batches};
use crate::source::Asked;
use crate::tasks::Split;
use engine::noise::LogitNoise;

/// Draws of the search for a sigma keep away from those of training, evaluation and dynamics.
const SEARCH: u64 = EVAL_SAMPLES + (1 << 42);
/// Sigmas that are tried.
const TRIES: usize = 10;
/// How far from the target D may be for the search to be over.
const NEAR: f64 = 0.05;

/// The noise of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NoiseReport {
    /// How strong it was.
    pub sigma: f64,
}

/// The logits of what sampled, with the noise that its tokens were drawn under.
pub(super) fn disturbed<'a>(
    logits: Logits<'a>,
    noise: Option<LogitNoise>,
    keys: &'a [u64],
    inv_temp: f32,
) -> Logits<'a> {
    match (logits, noise) {
        (Logits::Here(view), Some(noise)) => Logits::Noised { view, noise, keys, inv_temp },
        (logits, _) => logits,
    }
}

impl Trainer {
    /// The noise on the logits that rollouts are drawn from, and the key of each predicting row's prefix.
    pub(super) fn logit_noise(&self, rows: &[Row]) -> (Option<LogitNoise>, Vec<u64>) {
        let noise = self.rollout.as_ref().and_then(Engine::logit_noise);
        let keys = noise.map(|noise| rows.iter().flat_map(|row| noise.keys(&row.ids, row.prompt)).collect());
        (noise, keys.unwrap_or_default())
    }

    /// What the noise was of an update that is being made.
    pub(super) fn noise_report(&self) -> Option<NoiseReport> {
        self.noise.as_ref().and_then(Injected::sigma).map(|sigma| NoiseReport { sigma })
    }

    /// Looks for the sigma that causes the D which is asked for, if it is still to be found: on completions of the
    /// update's prompts that are not trained on.
    pub(super) fn settle_noise(&mut self, update: u64) -> Result<(), TrainError> {
        let Some(noise) = &self.noise else { return Ok(()) };
        let Some(target) = noise.wanted() else { return Ok(()) };
        let mut sigma = match noise.spec().kind {
            // Half the variance of ln p is D, where no token has most of the mass.
            crate::config::NoiseKind::Logits => (2.0 * target).sqrt(),
            _ => 0.3 * target.sqrt(),
        };
        for attempt in 1..=TRIES {
            self.noise.as_mut().expect("there is noise").set_sigma(sigma);
            self.reopen_rollout()?;
            let measured = self.probe(update)?;
            if attempt == TRIES || (measured / target - 1.0).abs() <= NEAR {
                break;
            }
            sigma = level::sought(sigma, target, measured);
        }
        Ok(())
    }

    /// The rollout's engine anew: a weights version that was loaded under one noise is not loaded under another.
    fn reopen_rollout(&mut self) -> Result<(), TrainError> {
        let engine = self.rollout.take().expect("noise has an engine of its own");
        let (device, config, recipe) = (engine.device().clone(), engine.config().clone(), engine.recipe().clone());
        let (pages, valid) = (engine.kv().pages(), engine.valid());
        drop(engine); // before there is another
        let (noise, master) = (self.noise.as_ref().expect("there is noise"), read(&self.master));
        let (version, mut source) = noise.source(&master, &self.cpu);
        let mut engine = Engine::open(&device, config, recipe, version, &mut *source, PAGE_LEN, pages, valid)?;
        engine.set_logit_noise(noise.logits(version));
        drop(source);
        drop(master);
        self.rollout = Some(engine);
        Ok(())
    }

    /// D under the rollout's engine as it is, nats per token, on completions that it samples.
    fn probe(&mut self, update: u64) -> Result<f64, TrainError> {
        let batch = u64::from(self.config.train.batch);
        let first = (update - 1) * batch;
        let asked: Vec<Asked> = (first..first + batch).map(|i| self.source.ask(Split::Train, i)).collect();
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let requests: Vec<Request> = (0..)
            .zip(&asked)
            .map(|(i, asked)| Request {
                prompt: asked.prompt.clone(),
                first_sample: SEARCH + i * u64::from(self.config.rollout.n),
                ..base.clone()
            })
            .collect();
        let engine = self.rollout.as_mut().expect("noise has an engine of its own");
        let limits = Limits { batch: self.config.sequences(), ..Limits::default() };
        let rollouts = collect(engine, &requests, limits, &mut |_| {}).map_err(|PromptFailed { prompt, source }| {
            TrainError::Rollout { update, prompt: first + prompt as u64, source }
        })?;
        let sampled: Vec<_> = rollouts.into_iter().map(|rollout| (asked[rollout.request].clone(), rollout)).collect();
        let rows: Vec<Row> = sampled.iter().map(|(asked, rollout)| row(asked, rollout)).collect();
        let inv_temp = 1.0 / self.temperature();
        let mut mismatch = Mismatch::default();
        for part in micro_batches(&rows, self.micro) {
            let part_rows = &rows[part.clone()];
            let (noise, keys) = self.logit_noise(part_rows);
            let Behaviour::Present(beside) = &mut self.behaviour else { unreachable!("noise is put into turns") };
            let engine = self.rollout.as_mut().expect("noise has an engine of its own");
            beside.run(engine, part_rows).map_err(|source| TrainError::Device { update, source })?;
            let behaviour = Some(disturbed(beside.logits(engine), noise, &keys, inv_temp));
            let (objective, views) = (Objective::Logprobs { inv_temp }, Views { behaviour, ..Views::default() });
            let model = self.policy.model();
            self.learner
                .micro_batch(&self.cpu, model, objective, part_rows, views, self.valid, 0.0, false)
                .map_err(|source| self.failed(update, part.start, part_rows, &[], source))?;
            let by_row = &self.learner.by_row;
            mismatch.add(update - 1, &sampled[part], &by_row.logprobs, &by_row.mismatch);
        }
        Ok(mismatch.d_nats())
    }
}
