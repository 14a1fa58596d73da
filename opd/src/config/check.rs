//! The ranges of the run file's values.

use std::path::Path;
use std::time::Duration;

use ptx::ops::sample::Params;

use super::{Config, InFlight, Schedule, StepsOff, Task};

/// A value that has the right kind and is still wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` is {value}; it must be {must}")]
pub struct Fault {
    /// The key, from the top level.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub must: String,
}

impl Config {
    /// Whether every value is in range. A loaded configuration is; one that was built in code may not be.
    ///
    /// # Errors
    /// The first value that is not.
    pub fn check(&self) -> Result<(), Fault> {
        let (rollout, train, eval) = (&self.rollout, &self.train, &self.eval);
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let decay = |x: f64| (0.0..1.0).contains(&x);

        need("seed", self.seed, i64::try_from(self.seed).is_ok(), "at most 2^63 - 1")?;
        let ring = self.ring.as_ref().is_none_or(|ring| !ring.as_os_str().is_empty());
        need("ring", "\"\"", ring, "the path of a ring that `leeway teach` makes")?;
        need("updates", self.updates, self.updates > 0, "at least 1")?;
        self.budget.check()?;
        match &self.task {
            Task::Procedural(spec) => spec.check().map_err(|error| {
                let (value, must) = match &error {
                    crate::tasks::TaskError::Range { value, min, max, .. } => {
                        (value.to_string(), format!("{min} to {max}"))
                    }
                    crate::tasks::TaskError::Ops { ops } => {
                        (format!("{ops:?}"), "one or more of + - *, each at most once".to_string())
                    }
                    crate::tasks::TaskError::TooFewPrompts { .. } => {
                        ("too small".to_string(), "larger: there are too few different prompts".to_string())
                    }
                };
                Fault { key: format!("task.{}", error.key()), value, must }
            })?,
            Task::Prompts(task) => {
                need("task.max_prompt", task.max_prompt, task.max_prompt > 0, "at least 1")?;
                for (name, folder) in &task.teachers {
                    let must = "the folder of a model, under a name that is not empty and not \"teacher\"";
                    let named = !name.trim().is_empty() && name != "teacher" && !folder.as_os_str().is_empty();
                    need(&format!("task.teachers.{name}"), format!("{folder:?}"), named, must)?;
                }
                let must = "absent with `task.teachers`: a ring carries the scores of one teacher";
                need("ring", "set", self.ring.is_none() || task.teachers.is_empty(), must)?;
            }
        }
        self.loss.check()?;
        // Loading made the path of a recipe file absolute. What it holds shows when the student is opened.
        let built_in = engine::recipe::BUILT_IN;
        let known = built_in.contains(&rollout.recipe.as_str()) || Path::new(&rollout.recipe).is_absolute();
        let hint = engine::recipe::did_you_mean(&rollout.recipe);
        let must = format!("one of {}, or the path of a recipe file{hint}", built_in.join(", "));
        need("rollout.recipe", format!("{:?}", rollout.recipe), known, &must)?;
        need("rollout.n", rollout.n, rollout.n > 0, "at least 1")?;
        let group = self.loss.kind != super::LossKind::Grpo || rollout.n > 1;
        need("rollout.n", rollout.n, group, "at least 2 with \"grpo\": one sample has no group to be better than")?;
        let warm = |t: f64| t >= f64::from(Params::TEMPERATURE_MIN) && t <= f64::from(f32::MAX);
        need(
            "rollout.temperature",
            rollout.temperature,
            warm(rollout.temperature),
            "more than 0, at least 1e-6, and finite",
        )?;
        let must = "1: the loss is over the whole distribution, so rollouts are drawn from the whole of it";
        need("rollout.top_p", rollout.top_p, rollout.top_p.to_bits() == 1.0_f64.to_bits(), must)?;
        need("rollout.max_tokens", rollout.max_tokens, rollout.max_tokens > 0, "at least 1")?;
        self.check_schedule()?;
        need("train.lr", train.lr, positive(train.lr), "more than 0 and finite")?;
        let apart = u64::from(train.warmup) + u64::from(train.decay) <= u64::from(self.updates.max(train.warmup));
        need("train.decay", train.decay, apart, "at most the updates after the warm-up")?;
        need("train.clip", train.clip, train.clip > 0.0, "more than 0; inf for no clipping")?;
        need("train.batch", train.batch, train.batch > 0, "at least 1")?;
        let fits = train.batch.checked_mul(rollout.n).is_some();
        need("train.batch", train.batch, fits, "smaller: batch * rollout.n is the number of sequences of an update")?;
        let weight_decay = train.weight_decay >= 0.0 && train.weight_decay.is_finite();
        need("train.weight_decay", train.weight_decay, weight_decay, "at least 0 and finite")?;
        need("train.beta1", train.beta1, decay(train.beta1), "at least 0 and less than 1")?;
        need("train.beta2", train.beta2, decay(train.beta2), "at least 0 and less than 1")?;
        need("eval.problems", eval.problems, eval.problems > 0, "at least 1")?;
        let temperature = eval.temperature == 0.0 || warm(eval.temperature);
        need("eval.temperature", eval.temperature, temperature, "at least 0 and finite; if not 0, at least 1e-6")?;
        need("eval.kl_prompts", eval.kl_prompts, eval.kl_prompts > 0, "at least 1")?;
        if let Some(checkpoint) = &self.checkpoint {
            need("checkpoint.every", checkpoint.every, checkpoint.every > 0, "at least 1")?;
        }
        if let Some(noise) = &self.noise {
            noise.check(self)?;
        }
        if let Some(offline) = &self.offline {
            let fits = (1..=self.updates).contains(&offline.updates);
            need("offline.updates", offline.updates, fits, &format!("1 to `updates`, which is {}", self.updates))?;
            let must = "\"sync\" with `offline`: stages beside updates sample the student from the first on";
            let spelled = if self.schedule == Schedule::Async { "\"async\"" } else { "{ steps_off = .. }" };
            need("schedule", spelled, self.schedule == Schedule::Sync, must)?;
            let must = "absent with `offline`: a teacher in another process scores and does not sample";
            need("ring", "set", self.ring.is_none(), must)?;
        }
        if let Some(dynamics) = &self.dynamics {
            need("dynamics.every", dynamics.every, dynamics.every > 0, "at least 1")?;
            need("dynamics.prompts", dynamics.prompts, dynamics.prompts > 0, "at least 1")?;
            need("dynamics.continuations", dynamics.continuations, dynamics.continuations > 0, "at least 1")?;
            let cut = (0.0..1.0).contains(&dynamics.cut);
            need("dynamics.cut", dynamics.cut, cut, "at least 0 and less than 1")?;
        }
        Ok(())
    }

    fn check_schedule(&self) -> Result<(), Fault> {
        let (staleness, in_flight) = (self.rollout.staleness_max, self.rollout.in_flight);
        let countable = self.wait_s > 0.0 && Duration::try_from_secs_f64(self.wait_s).is_ok();
        need("wait_s", self.wait_s, countable, "more than 0 and finite, at most 1.8e19 seconds")?;
        let drains = in_flight == InFlight::Drain;
        let spelled = format!("{in_flight:?}").to_lowercase();
        match self.schedule {
            Schedule::Sync => {
                let must = "0 when `schedule` is \"sync\", which trains on the newest weights only";
                need("rollout.staleness_max", staleness, staleness == 0, must)?;
                let must = "\"drain\" when `schedule` is \"sync\": nothing is running when weights change";
                need("rollout.in_flight", spelled, drains, must)
            }
            Schedule::StepsOff(StepsOff { steps_off }) => {
                need("schedule.steps_off", steps_off, steps_off > 0, "at least 1; \"sync\" is 0 steps off")?;
                let must = format!("{steps_off}, as `schedule.steps_off` is, or left out: rollouts are never older");
                need("rollout.staleness_max", staleness, staleness == steps_off, &must)?;
                let must = "\"drain\" with `steps_off`: the rollouts of an update all come from one version";
                need("rollout.in_flight", spelled, drains, must)
            }
            Schedule::Async => {
                let must =
                    "at least 1 when `schedule` is \"async\": rollouts that are not a version behind are \"sync\"";
                need("rollout.staleness_max", staleness, staleness > 0, must)
            }
        }
    }
}

pub(super) fn need(key: &str, value: impl ToString, ok: bool, must: &str) -> Result<(), Fault> {
    if ok { Ok(()) } else { Err(Fault { key: key.to_string(), value: value.to_string(), must: must.to_string() }) }
}
