//! The stages of an asynchronous run: rollouts and scores go on beside updates.
//!
//! ```text
//! admission -> rollout stage -> scoring stage -> intake -> learner
//!                   ^ new weights between two steps           |
//!                   +------------- version + 1 ---------------+
//! ```
//!
//! Stages are threads joined by bounded channels. Prompts are trained on in the order of the data, whoever finishes first,
//! so an asynchronous run visits what a synchronous one does and a resumed one neither loses nor doubles a prompt.
//! [`Admission`] keeps rollouts from going further ahead than staleness allows, which is also what bounds every channel:
//! nobody is ever dropped for want of room. [`Intake`] measures age again at use.

mod admission;
mod intake;
mod rollouts;
mod scores;
mod stages;

use engine::engine::EngineError;
use engine::rollout::{Partial, RequestError, Rollout};

use crate::sequences::Row;
use crate::source::Asked;
use crate::teach::TeachError;

pub use admission::{Admission, Lead};
pub use intake::{Group, Intake, Refused};
pub(crate) use rollouts::{RolloutStage, Settings};
pub(crate) use scores::{Answer, LocalTeacher, RemoteTeacher, Teacher};
pub use stages::{FailedRollout, WaitError};
pub(crate) use stages::{Stages, Start};

/// All completions of a prompt.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub prompt: u64,
    pub asked: Asked,
    /// By sample.
    pub rollouts: Vec<Rollout>,
}

/// A prompt whose completions are not all there. Samples that are in neither list have no token yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unfinished {
    pub prompt: u64,
    pub finished: Vec<Rollout>,
    pub partials: Vec<Partial>,
}

/// What the rollout stage gives out.
#[derive(Debug)]
pub(crate) enum Out {
    Sampled(Sampled),
    /// Rows of the learner's own, such as those of an evaluation.
    Rows(Vec<Row>),
    /// The learner needs nothing more.
    Finish,
    /// Everything that was finished before has gone out before; this is the rest.
    Mark(Vec<Unfinished>),
    Failed(Broken),
}

/// Why a stage ended early.
#[derive(Debug)]
pub(crate) enum Broken {
    Rollout { prompt: u64, source: RequestError },
    Weights(EngineError),
    Teacher(Box<TeachError>),
}

/// What comes to the learner.
#[derive(Debug)]
pub(crate) enum In {
    Scored(Scored),
    /// To [`Out::Rows`].
    Answer(Answer),
    Mark(Vec<Unfinished>),
    Failed(Broken),
}

/// The teacher's hidden rows of a prompt's completions.
#[derive(Debug)]
pub(crate) enum Hidden {
    /// Of the predicting tokens, `[predicting, hidden]`, of all completions one after the other.
    Rows(Vec<f32>),
    /// The teacher has no scores of them, and why: they are counted and not trained on.
    Missing(String),
    /// The learner asks the teacher itself.
    NotAsked,
}

/// A sampled prompt with its scores.
#[derive(Debug)]
pub(crate) struct Scored {
    pub sampled: Sampled,
    pub hidden: Hidden,
}

impl Group for Scored {
    fn oldest(&self) -> u64 {
        let versions = self.sampled.rollouts.iter().flat_map(|rollout| &rollout.versions);
        versions.map(|&(_, version)| version).min().expect("a completion has a token")
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod thread_tests;
