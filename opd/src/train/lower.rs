//! What rollouts are by can be lowered in mid-run: fewer versions behind, or the recipe of training itself. Whether and when
//! is the caller's to say.
//!
//! What is under way for later updates was sampled as before and is let go; its prompts begin again. So the next update is
//! sampled as it is in force from now on, and a run that goes on from a checkpoint does the same.

use engine::checkpoint::Checkpoint;
use serde::{Deserialize, Serialize};

use super::sampling::{Ground, Sampling, has_stages};
use super::teacher::Teacher;
use super::{Behaviour, OpenError, TrainError, Trainer, open};
use crate::config::{Config, InFlight, Schedule};
use crate::side::Beside;

/// What is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lower {
    /// How many versions rollouts may be behind: by half under `"async"`; else, or where that is none, rollouts take turns
    /// with updates from now on.
    Staleness,
    /// The recipe, to `identity`.
    Recipe,
}

/// What rollouts are by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InForce {
    /// The recipe's name or file.
    pub recipe: String,
    /// The most versions that a token may be behind at use; with 0 rollouts take turns with updates.
    pub staleness_max: u32,
}

impl InForce {
    /// As the run file says.
    #[must_use]
    pub fn of(config: &Config) -> InForce {
        InForce { recipe: config.rollout.recipe.clone(), staleness_max: config.rollout.staleness_max }
    }

    /// Puts it in force in a configuration that allows at least as much.
    pub(super) fn apply(&self, config: &mut Config) {
        config.rollout.recipe.clone_from(&self.recipe);
        config.rollout.staleness_max = self.staleness_max;
        if self.staleness_max == 0 {
            (config.schedule, config.rollout.in_flight) = (Schedule::Sync, InFlight::Drain);
        }
    }
}

impl Trainer {
    /// What rollouts are by now.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        InForce::of(&self.config)
    }

    /// Hash of the recipe that rollouts are in now.
    #[must_use]
    pub fn recipe_hash(&self) -> String {
        self.recipe.hash()
    }

    /// Whether something is left to lower. Injected noise is on purpose, its staleness too, and stays.
    #[must_use]
    pub fn can_lower(&self, what: Lower) -> bool {
        match what {
            Lower::Staleness => self.config.lead().is_some(),
            Lower::Recipe => self.recipe.hash() != self.policy.recipe().hash(),
        }
    }

    /// Lowers it from the next update on. What was sampled for later updates is sampled again.
    ///
    /// # Errors
    /// An engine that cannot be opened, or a teacher elsewhere that cannot be reached again; the run cannot go on then, and
    /// its last checkpoint is in place.
    ///
    /// # Panics
    /// Where [`Trainer::can_lower`] says that nothing is left.
    pub fn lower(&mut self, what: Lower) -> Result<(), TrainError> {
        assert!(self.can_lower(what), "{what:?} is as low as it can be");
        let mut now = self.in_force();
        match what {
            Lower::Staleness if self.config.schedule == Schedule::Async => now.staleness_max /= 2,
            Lower::Staleness => now.staleness_max = 0,
            Lower::Recipe => {
                "identity".clone_into(&mut now.recipe);
                self.recipe = self.policy.recipe().clone();
            }
        }
        now.apply(&mut self.config);
        self.in_force = Some(now);
        if self.updates() >= u64::from(self.config.updates) {
            return Ok(()); // nothing will be sampled; a run that goes on from here opens what is in force
        }
        self.reopen().map_err(|source| TrainError::Lower { update: self.updates(), source: Box::new(source) })
    }

    /// Opens what samples anew, when what there was is gone: there is never one more copy of the weights than before.
    fn reopen(&mut self) -> Result<(), OpenError> {
        self.stages = None; // its threads end here
        self.rollout = None;
        self.behaviour = Behaviour::Present(Beside::nothing());
        let updates = self.updates();
        let mut remote = None;
        if let (Some(ring), Teacher::Staged(_)) = (&self.config.ring, &self.teacher) {
            // It was the scoring stage's. Answers to what was let go are told from others by their numbers.
            let dir = &self.config.teacher;
            let folder = Checkpoint::open(dir).map_err(|source| OpenError::Checkpoint {
                role: "teacher",
                dir: dir.clone(),
                source: Box::new(source),
            })?;
            let precision = self.master().precision();
            let hash = self.origin.teacher.clone();
            let teacher = open::connect(&self.cpu, ring, &folder, hash, precision, &self.config, self.longest)?;
            let head = teacher.head();
            if has_stages(&self.config, updates) {
                remote = Some(teacher);
            } else {
                self.teacher = Teacher::Remote(Box::new(teacher), head);
            }
        }
        let ground = Ground {
            device: &self.device,
            cpu: &self.cpu,
            config: &self.config,
            recipe: &self.recipe,
            master: &self.master,
            noise: self.noise.as_ref(),
            policy: &self.policy,
            teacher: &self.teacher,
            remote,
            source: &self.source,
            stop_ids: &self.stop_ids,
            micro: self.micro,
            longest: self.longest,
            in_flight: Vec::new(),
        };
        let dir = self.config.student.clone();
        let failed = |source| OpenError::Engine { role: "student", dir, source: Box::new(source) };
        let Sampling { rollout, is_identity, stages, behaviour } = ground.open().map_err(failed)?;
        (self.rollout, self.is_identity, self.stages, self.behaviour) = (rollout, is_identity, stages, behaviour);
        Ok(())
    }

    /// What the caller wants to find again in the checkpoints from now on, and nobody reads here.
    pub fn keep(&mut self, kept: serde_json::Value) {
        self.kept = Some(kept);
    }

    /// What was kept last, also by the run that this one goes on with.
    #[must_use]
    pub fn kept(&self) -> Option<&serde_json::Value> {
        self.kept.as_ref()
    }
}
