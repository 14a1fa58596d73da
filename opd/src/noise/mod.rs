//! Mismatch that is put in on purpose: the rollout's copy of the student is disturbed, the trained one never.
//!
//! ```text
//! master -> version v ----------------------------> trainer
//!              \-> disturbed (draw of v, sigma) --> rollout, and the pass that measures D against the trainer
//! ```
//!
//! Noise is a pure function of seed, draw and place, so a resumed run has the bits of one that was never stopped; what has
//! to be kept is sigma where it follows D ([`level`]), and the versions behind where rollouts are stale.

pub mod level;
mod weights;

use std::collections::VecDeque;

use engine::engine::{Engine, EngineError};
use engine::model::{Gradients, WeightSource};
use engine::noise::LogitNoise;
use ptx::Cpu;

use crate::config::{Noise, NoiseDraw, NoiseKind};
use crate::master::{Master, Version};

pub use weights::{Disturbance, Disturbed};

/// The noise of a run.
#[derive(Debug)]
pub struct Injected {
    spec: Noise,
    seed: u64,
    /// None while it has still to be found.
    sigma: Option<f64>,
    /// Weights of the versions before the present one, the oldest first, as many as rollouts are stale.
    past: VecDeque<(u64, Gradients)>,
}

impl Injected {
    /// The noise that a checked configuration asks for.
    #[must_use]
    pub fn new(spec: Noise, seed: u64) -> Injected {
        Injected { spec, seed, sigma: spec.sigma, past: VecDeque::new() }
    }

    /// What is asked for.
    #[must_use]
    pub fn spec(&self) -> &Noise {
        &self.spec
    }

    /// How strong it is now; none while that has still to be found, and for staleness.
    #[must_use]
    pub fn sigma(&self) -> Option<f64> {
        self.sigma
    }

    /// Sets how strong it is from now on. What is loaded stays as it is.
    pub fn set_sigma(&mut self, sigma: f64) {
        self.sigma = Some(sigma);
    }

    /// Whether distributions of one version are disturbed, which staleness does not.
    #[must_use]
    pub fn disturbs(&self) -> bool {
        self.spec.kind != NoiseKind::Staleness
    }

    /// The D that sigma has still to be found for, nats per token.
    #[must_use]
    pub fn wanted(&self) -> Option<f64> {
        self.spec.nats.filter(|_| self.sigma.is_none())
    }

    /// Takes the exact D of an update that was sampled under this noise: where D is to be held, sigma follows.
    pub fn observe(&mut self, measured_nats: f64) {
        if let (Some(sigma), Some(target), Some(true)) = (self.sigma, self.spec.nats, self.spec.hold) {
            self.sigma = Some(level::held(sigma, target, measured_nats));
        }
    }

    /// The version's number among the draws of the seed. A frozen draw is none of the fresh ones.
    fn draw(&self, version: u64) -> u32 {
        match self.spec.draw {
            Some(NoiseDraw::Frozen) => 0,
            _ => u32::try_from(version + 1).expect("updates are counted in 32 bits"),
        }
    }

    /// What a version's matrices or gains are disturbed by.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // weights are f32
    pub fn disturbance(&self, version: u64) -> Option<Disturbance> {
        let of_weights = matches!(self.spec.kind, NoiseKind::Weights | NoiseKind::NormGains);
        let sigma = self.sigma.filter(|_| of_weights)? as f32;
        Some(Disturbance {
            gains: self.spec.kind == NoiseKind::NormGains,
            seed: self.seed,
            draw: self.draw(version),
            sigma,
        })
    }

    /// The noise on a version's logits.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // logits are f32
    pub fn logits(&self, version: u64) -> Option<LogitNoise> {
        let sigma = self.sigma.filter(|_| self.spec.kind == NoiseKind::Logits)? as f32;
        Some(LogitNoise { seed: self.seed, draw: self.draw(version), sigma })
    }

    /// The version that rollouts are to come from while `master` is trained, and its weights as they are to be loaded.
    #[must_use]
    pub fn source<'a>(&'a self, master: &'a Master, cpu: &'a Cpu) -> (u64, Box<dyn WeightSource + 'a>) {
        let (version, weights) = match self.past.front() {
            Some((version, weights)) => (*version, weights),
            None => (master.updates, &master.weights),
        };
        let plain = Version::of(weights, master.precision(), cpu);
        match self.disturbance(version) {
            Some(disturbance) => (version, Box::new(Disturbed::new(plain, weights, disturbance))),
            None => (version, Box::new(plain)),
        }
    }

    /// Brings the rollout's engine to what it is to sample with while `master` is trained.
    pub fn update(&self, engine: &mut Engine, master: &Master, cpu: &Cpu) -> Result<(), EngineError> {
        let (version, mut source) = self.source(master, cpu);
        if engine.version() < version {
            engine.update(version, &mut *source)?;
        }
        engine.set_logit_noise(self.logits(version));
        Ok(())
    }

    /// Keeps the weights of `master`, which is about to be replaced, as long as rollouts need them.
    pub fn retain(&mut self, master: &Master) {
        let Some(staleness) = self.spec.staleness else { return };
        if self.past.len() == staleness as usize {
            self.past.pop_front();
        }
        self.past.push_back((master.updates, master.weights.clone()));
    }

    /// The versions that are kept, the oldest first.
    pub fn past(&self) -> impl Iterator<Item = &(u64, Gradients)> {
        self.past.iter()
    }

    /// Numbers of the versions that are kept while version `present` is trained, the oldest first.
    #[must_use]
    pub fn past_versions(&self, present: u64) -> std::ops::Range<u64> {
        present.saturating_sub(u64::from(self.spec.staleness.unwrap_or(0)))..present
    }

    /// Puts back what was kept.
    pub fn restore(&mut self, sigma: Option<f64>, past: Vec<(u64, Gradients)>) {
        self.sigma = sigma.or(self.sigma);
        self.past = past.into();
    }
}

#[cfg(test)]
mod tests;
