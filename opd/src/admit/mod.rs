//! What an admission check runs: a pilot of a few updates under the configuration, so that student and staleness are those of
//! training, then probes of prompts that it has not visited; and what each layer of the recipe has of D.
//!
//! The verdict is the caller's.

mod layers;

pub use layers::Layers;

use engine::engine::Device;

use crate::clock::Stopwatch;
use crate::config::{Budget, Config, Eval, InFlight, NoiseKind, Schedule};
use crate::train::{Aged, OpenError, Origin, Probe, TrainError, Trainer};

/// A pilot that was run.
#[derive(Debug)]
pub struct Pilot {
    /// The run after its updates.
    pub trainer: Trainer,
    /// Engines as old as the configuration lets rollouts become.
    pub probe: Probe,
    /// Seconds of an update of the pilot, the median.
    pub update_s: f64,
}

/// Why there is nothing to judge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The run cannot begin.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The pilot or a probe stopped.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The caller has no use for it.
    #[error("{0}")]
    Refused(String),
    /// A teacher elsewhere.
    #[error(
        "`ring` is set: an admission check runs its own teacher for the length of a pilot; leave `ring` out, the verdict is the same"
    )]
    Ring,
    /// The pilot is too short.
    #[error("--pilot is {pilot}; rollouts may be {age} versions behind, so at least {least} updates are needed")]
    Short {
        /// What was asked for.
        pilot: u32,
        /// How many versions rollouts may be behind.
        age: u32,
        /// The least.
        least: u32,
    },
}

/// Versions that rollouts of `config` may be behind what is trained.
#[must_use]
pub fn age_max(config: &Config) -> u32 {
    let injected = config.noise.as_ref().and_then(|noise| noise.staleness).unwrap_or(0);
    config.rollout.staleness_max.max(injected)
}

/// Updates of a pilot unless told: past the warm-up of the learning rate and past updates on the teacher's text, and as many
/// more as rollouts may be behind.
#[must_use]
pub fn pilot_updates(config: &Config) -> u32 {
    let offline = config.offline.as_ref().map_or(0, |offline| offline.updates);
    config.train.warmup.max(offline) + age_max(config) + 4
}

/// The pilot's run file: the configuration in turns, without what only watches. Age is put in afterwards.
fn pilot_config(config: &Config, updates: u32) -> Config {
    let mut pilot = config.clone();
    pilot.updates = updates;
    pilot.train.decay = 0; // the beginning of a longer run
    pilot.schedule = Schedule::Sync;
    (pilot.rollout.staleness_max, pilot.rollout.in_flight) = (0, InFlight::Drain);
    pilot.noise = pilot.noise.filter(|noise| noise.kind != NoiseKind::Staleness);
    pilot.eval = Eval { every: 0, ..pilot.eval };
    (pilot.checkpoint, pilot.dynamics, pilot.budget) = (None, None, Budget::Off);
    pilot
}

impl Pilot {
    /// Trains `updates` updates of `config` on `device`, if `accept` has nothing against who takes part; `tick` is called after
    /// each.
    ///
    /// # Errors
    /// What `accept` says, too few updates, a run that cannot begin or that stops.
    pub fn run(
        config: &Config,
        device: Device,
        updates: u32,
        accept: &dyn Fn(&Origin) -> Result<(), String>,
        tick: &mut dyn FnMut(),
    ) -> Result<Pilot, AdmitError> {
        if config.ring.is_some() {
            return Err(AdmitError::Ring);
        }
        let age = age_max(config);
        let least = age.max(1);
        if updates < least {
            return Err(AdmitError::Short { pilot: updates, age, least });
        }
        let mut trainer = Trainer::open(pilot_config(config, updates), device, false)?;
        accept(&trainer.origin()).map_err(AdmitError::Refused)?;
        let mut versions: Vec<Aged> = Vec::new(); // from the oldest
        let mut seconds = Vec::new();
        for _ in 0..updates {
            if age > 0 {
                if versions.len() == age as usize {
                    versions.remove(0);
                }
                versions.push(trainer.aged());
            }
            let watch = Stopwatch::start();
            trainer.update(&mut |_| {})?;
            seconds.push(watch.elapsed_s());
            tick();
        }
        versions.reverse();
        let probe = trainer.open_probe(&versions)?;
        seconds.sort_unstable_by(f64::total_cmp);
        Ok(Pilot { trainer, probe, update_s: seconds[seconds.len() / 2] })
    }
}
