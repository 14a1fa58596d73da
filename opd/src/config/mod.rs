//! The run file, `run.toml`: everything that a training run depends on, strict and resolved.
//!
//! ```toml
//! student = "models/student"      # folders, relative to this file
//! teacher = "models/teacher"
//! # ring = "/dev/shm/scores"      # the teacher is `leeway teach` in another process; its folder gives the head
//! updates = 200
//! seed = 0
//! schedule = "sync"               # "async", or { steps_off = 1 }
//! budget = "off"                  # or the path of a certificate, or { certificate = "..", patience = 5, ewma = 0.2,
//!                                 # remeasure = 10 }: checked before the run, and held in it
//! wait_s = 600.0                  # seconds without progress after which a stage that waits gives up
//! out = "runs/first"              # relative to where the command runs
//!
//! [task]                          # a procedural task, or: prompts = "file.jsonl", max_prompt = 1024
//! name = "modular-chain"
//! depth = 8
//! # teachers = { code = "models/code" }   # prompts: others beside `teacher`, which a prompt's `teacher` key names
//!
//! [loss]
//! kind = "reverse-kl"             # forward-kl, jsd, skewed-reverse-kl, skewed-forward-kl, sampled, k2,
//!                                 # k3-straight-through, head-tail, grpo
//! support = "dense"               # teacher-top-k or student-top-k, of the first two kinds and head-tail
//! target = "teacher"              # extrapolated, bounded, trust-region
//! weight = "none"                 # token-tis, sequence-tis, mask, prefix-snis: by the rollout's logprobs
//! # Of these only those that kind, support, target and weight use, each with its default:
//! # beta = 0.5                    # jsd: the target's weight
//! # alpha = 0.9                   # skewed: the share of the other side in the mixture
//! # k = 16, tail = true           # top-k: how many tokens; the rest as one outcome, or renormalised
//! # baseline = true               # sampled: the exact KL off the loss of the token
//! # lambda = 1.25                 # extrapolated
//! # delta = 0.01, u_max = 2.0     # bounded: nats from the teacher
//! # eps = 0.05                    # trust-region: nats from the student
//! # weight_max = 2.0              # the tis weights
//! # window = "token", window_low = 0.5, window_high = 2.0, veto = 1e-4     # mask; or sequence, geometric
//! # scaled = true, ratio = "recomputed", clip_low = 0.2, clip_high = 0.2   # grpo; ratio = "naive"
//! # reference = "student"         # extrapolated, bounded: the student as the run began, or a folder
//!
//! [rollout]
//! recipe = "identity"             # or f32, bf16, kv8, fp8, or the path of a recipe file, relative to this file
//! n = 4                           # samples of each prompt
//! temperature = 1.0
//! top_p = 1.0
//! max_tokens = 9                  # unless given, what the task needs, or 256 for prompts
//! staleness_max = 0               # versions; n for steps_off = n, 2 for "async"
//! in_flight = "drain"             # "async": keep, which is its default, or recompute
//! # kv_memory = 67_108_864        # bytes of the KV pool; without it what an update's sequences need
//!
//! [train]
//! precision = "bf16"              # f32
//! lr = 1e-4
//! warmup = 10                     # updates
//! decay = 0                       # last updates, over which the rate falls
//! clip = 1.0                      # the gradient's norm; inf for none
//! batch = 64                      # prompts per update: batch * n sequences
//! weight_decay = 0.01
//! beta1 = 0.9
//! beta2 = 0.95
//!
//! [noise]                         # without it rollouts are disturbed by nothing but recipe and schedule
//! kind = "weights"                # norm-gains, logits, staleness
//! draw = "fresh"                  # each weights version; frozen: one draw for the run
//! sigma = 0.01                    # or: nats = 0.03, the D that it is to cause, with hold = true; staleness: staleness = 1
//!
//! [offline]                       # without it all updates are on-policy
//! updates = 20                    # the first ones, on completions that the teacher samples
//! loss = "forward-kl"             # or sft
//!
//! [eval]
//! problems = 256
//! every = 50                      # updates; 0 is only before and after
//! temperature = 0.0               # 0 takes the most probable token
//! kl_prompts = 64                 # of the problems: on completions of these the distance to the teacher is measured
//!
//! [checkpoint]                    # without it only the last update is kept
//! every = 50
//!
//! [dynamics]                      # without it nothing of this is measured
//! every = 50                      # updates
//! prompts = 32                    # held-out prompts whose completions are the prefixes
//! continuations = 8               # of each
//! cut = 0.5                       # the share of a completion that is kept
//! ```
//! `student`, `teacher` and `[task]` are required; the other values above are the defaults. An unknown key, a value of
//! the wrong kind or out of range is an error that names file, line and key. [`Config::load`] also takes overrides,
//! `a.b=c`; [`Config::to_toml`] writes the resolved file, which loads to the same value from any folder.

mod budget;
mod check;
mod defaults;
mod keys;
mod load;
mod loss;
mod loss_words;
mod noise;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::flow::Lead;
use crate::tasks::TaskSpec;

pub use budget::{Budget, Held};
pub use check::Fault;
pub use load::ConfigError;
pub use loss::Loss;
pub use loss_words::{LossKind, LossRatio, LossSupport, LossTarget, LossWeight, LossWindow};
pub use noise::{Noise, NoiseDraw, NoiseKind};

/// A resolved run file. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The folder of the model to train.
    pub student: PathBuf,
    /// The folder of the model to learn from.
    pub teacher: PathBuf,
    /// The ring that scores come over, of a teacher in another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<PathBuf>,
    /// Optimizer steps.
    #[serde(default = "defaults::updates")]
    pub updates: u32,
    /// The seed of problems, rollouts and data order; at most 2^63 - 1, which is as far as TOML counts.
    #[serde(default)]
    pub seed: u64,
    /// How rollouts, scoring and updates take turns.
    #[serde(default)]
    pub schedule: Schedule,
    /// Seconds without progress after which a stage that waits for another gives up.
    #[serde(default = "defaults::wait_s")]
    pub wait_s: f64,
    /// What holds mismatch in bounds.
    #[serde(default)]
    pub budget: Budget,
    /// The folder that the run writes.
    #[serde(default = "defaults::out")]
    pub out: PathBuf,
    /// What to train on.
    pub task: Task,
    /// What to minimise.
    #[serde(default)]
    pub loss: Loss,
    /// How the student is sampled.
    #[serde(default)]
    pub rollout: Rollout,
    /// How the student is updated.
    #[serde(default)]
    pub train: Train,
    /// Mismatch that is put in on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// Whether the first updates train on the teacher's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offline: Option<Offline>,
    /// How quality is measured on the way.
    #[serde(default)]
    pub eval: Eval,
    /// When checkpoints are kept; the last update always is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Whether what updates do beyond the prefixes that they train on is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamics: Option<Dynamics>,
}

/// How rollouts, scoring and updates take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// One after the other; rollouts always come from the newest weights.
    #[default]
    Sync,
    /// Rollouts go on beside updates, as far ahead as staleness allows, and take new weights over in mid-sequence.
    Async,
    /// Rollouts for an update come from the weights of exactly this many updates before it, or from the first ones.
    #[serde(rename = "steps_off", untagged)]
    StepsOff(StepsOff),
}

/// `{ steps_off = n }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepsOff {
    /// How many, at least 1.
    pub steps_off: u32,
}

/// What to train on: exactly one of the two.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Task {
    /// Problems drawn from a seed.
    Procedural(TaskSpec),
    /// Prompts from a file.
    Prompts(PromptTask),
}

/// Prompts from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptTask {
    /// A JSONL file as [`crate::prompts`] reads it.
    pub prompts: PathBuf,
    /// The most tokens a prompt may have.
    #[serde(default = "defaults::max_prompt")]
    pub max_prompt: u32,
    /// Folders of teachers beside `teacher`, by the name that a prompt's `teacher` key calls them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub teachers: BTreeMap<String, PathBuf>,
}

/// Keys that came after runs were first known by a hash, and what runs did before.
const YOUNGER: [(&str, &str, i64); 2] = [("eval", "kl_prompts", 64), ("train", "decay", 0)];

impl Config {
    /// The teachers in this run's order: `teacher`, then those of `task.teachers` by name, each with its folder. A prompt's
    /// teacher is an index into it.
    #[must_use]
    pub fn teachers(&self) -> Vec<(&str, &PathBuf)> {
        let mut all = vec![("teacher", &self.teacher)];
        if let Task::Prompts(task) = &self.task {
            all.extend(task.teachers.iter().map(|(name, folder)| (&name[..], folder)));
        }
        all
    }
}

/// How the student is sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// The name of a built-in recipe, or the absolute path of a recipe file.
    pub recipe: String,
    /// Samples of each prompt.
    pub n: u32,
    /// What logits are divided by.
    pub temperature: f64,
    /// The share of probability that tokens are drawn from; 1, which is all, is what training takes.
    pub top_p: f64,
    /// The most tokens of a completion.
    pub max_tokens: u32,
    /// The most versions that a token's weights may be behind at use.
    pub staleness_max: u32,
    /// What new weights do with running rollouts.
    pub in_flight: InFlight,
    /// Bytes of the KV pool that completions are sampled in; what an update's sequences need unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_memory: Option<u64>,
}

/// What new weights do with running rollouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InFlight {
    /// They wait until none is running.
    #[default]
    Drain,
    /// Running rollouts go on with the keys and values that they have.
    Keep,
    /// Running rollouts go on with keys and values computed anew.
    Recompute,
}

/// How the student is updated: AdamW with a linear warm-up, a constant rate, and a linear decay at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Train {
    /// The precision of the trained student's forward pass.
    pub precision: Precision,
    /// The learning rate after the warm-up.
    pub lr: f64,
    /// Updates over which the rate rises.
    pub warmup: u32,
    /// Last updates of the run, over which the rate falls to nothing; 0 keeps it constant.
    pub decay: u32,
    /// The largest norm of the whole gradient; infinite for none.
    pub clip: f64,
    /// Prompts per update; each has `rollout.n` sequences.
    pub batch: u32,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The decay of the gradient's mean.
    pub beta1: f64,
    /// The decay of the gradient's square.
    pub beta2: f64,
}

/// Updates on the teacher's text, before the on-policy ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Offline {
    /// How many: the first ones of the run.
    pub updates: u32,
    /// What is minimised in them.
    pub loss: OfflineLoss,
}

/// A loss on the teacher's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OfflineLoss {
    /// KL(teacher || student) over the vocabulary.
    #[default]
    ForwardKl,
    /// Cross-entropy of the teacher's tokens.
    Sft,
}

/// The precision of the trained student's forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// BF16 weights and activations.
    #[default]
    Bf16,
    /// F32 throughout.
    F32,
}

/// How quality is measured on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// How many problems.
    pub problems: u32,
    /// Updates between evaluations; 0 evaluates only before and after.
    pub every: u32,
    /// What logits are divided by; 0 takes the most probable token.
    pub temperature: f64,
    /// Those of the problems whose sampled completions give the distance to the teacher.
    pub kl_prompts: u32,
}

/// When checkpoints are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Updates between checkpoints.
    pub every: u32,
}

/// How what updates do beyond the prefixes that they train on is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dynamics {
    /// Updates between measurements.
    pub every: u32,
    /// Held-out prompts whose completions are the prefixes.
    pub prompts: u32,
    /// Continuations of each prefix.
    pub continuations: u32,
    /// The share of a completion that is kept before it is gone on with.
    pub cut: f64,
}

impl Config {
    /// The resolved file as data that a run is known by: without where it goes and how long it waits, and without keys that are
    /// younger than the first hashes, where they stand at what runs did before there was such a key. So a hash of it outlives
    /// a version that brings a key.
    #[must_use]
    pub fn known_by(&self) -> toml::Table {
        let mut table: toml::Table = self.to_toml().parse().expect("a resolved configuration is TOML");
        for key in ["out", "wait_s"] {
            table.remove(key);
        }
        for (part, key, before) in YOUNGER {
            let part = table.get_mut(part).and_then(toml::Value::as_table_mut);
            if let Some(part) = part.filter(|part| part.get(key).and_then(toml::Value::as_integer) == Some(before)) {
                part.remove(key);
            }
        }
        table
    }

    /// The resolved file, every value written out.
    ///
    /// # Panics
    /// When [`Config::check`] refuses the values, or a path is not Unicode.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a checked configuration can be written")
    }

    /// How far rollouts go ahead of updates; none where they take turns.
    #[must_use]
    pub fn lead(&self) -> Option<Lead> {
        match self.schedule {
            Schedule::Sync => None,
            Schedule::StepsOff(StepsOff { steps_off }) => Some(Lead::Exactly(u64::from(steps_off))),
            Schedule::Async => Some(Lead::UpTo(u64::from(self.rollout.staleness_max))),
        }
    }

    /// Sequences of an update.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.train.batch as usize * self.rollout.n as usize
    }
}

impl<'de> Deserialize<'de> for Task {
    /// By what is present: an untagged enum would hide why neither fits.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Task, D::Error> {
        let table = toml::Table::deserialize(deserializer)?;
        let task = if table.contains_key("prompts") {
            table.try_into().map(Task::Prompts)
        } else {
            table.try_into().map(Task::Procedural)
        };
        task.map_err(|error| serde::de::Error::custom(error.message()))
    }
}

impl From<InFlight> for engine::rollout::InFlight {
    fn from(in_flight: InFlight) -> Self {
        match in_flight {
            InFlight::Drain => Self::Drain,
            InFlight::Keep => Self::Keep,
            InFlight::Recompute => Self::Recompute,
        }
    }
}

impl From<Precision> for engine::recipe::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Bf16 => Self::Bf16,
            Precision::F32 => Self::F32,
        }
    }
}

#[cfg(test)]
mod tests;
