//! Why a teacher and a learner in two processes cannot go on.

use std::path::PathBuf;
use std::time::Duration;

use bridge::{Broken, ClaimError, MetaError, OpenError, Peer, ReceiveError, WaitError};
use engine::checkpoint::CheckpointError;
use engine::recipe::RecipeError;

/// What, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum TeachError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("a ring for sequences of {tokens} tokens cannot be: {source}")]
    Size { tokens: usize, source: MetaError },
    #[error("{there} exists and {missing} does not: they are made together; remove the one that is there")]
    HalfMade { there: PathBuf, missing: PathBuf },
    #[error(
        "{ring} has {answered} answers and its requests are at {asked}: the two rings do not belong together; end both \
         processes and remove them"
    )]
    Apart { ring: PathBuf, answered: u64, asked: u64 },
    #[error(
        "{peer}, while waiting for {what}: start `leeway teach` again; what was asked is kept and will be answered"
    )]
    Dead { what: String, peer: Peer },
    #[error("waited {waited:?} for {what}, the deadline; {peer}")]
    Deadline { what: String, waited: Duration, peer: String },
    #[error(
        "{ring} and {requests} were made for another teacher: {what}; start `leeway teach` as then, or remove both files and \
         start it and the learner anew"
    )]
    OtherRings { ring: PathBuf, requests: PathBuf, what: String },
    #[error(
        "no learner was there for {waited:?}: start one with `leeway train --teacher ring:PATH`, or give --wait-s more seconds; \
         the rings stay"
    )]
    NoLearner { waited: Duration },
    #[error(
        "the teacher is model {found:016x}.. and {expected:016x}.. is expected: start `leeway teach` with the model that the \
         learner names, or name the other one there"
    )]
    Model { expected: u64, found: u64 },
    #[error("the teacher answered at temperature {found} what was asked at {expected}: it is no teacher for this run")]
    Temperature { expected: f32, found: f32 },
    #[error(
        "the teacher's hidden rows are for head {found} and the learner's is {expected}: give `leeway teach` the --precision that the run has as `train.precision`"
    )]
    Head { expected: u32, found: u32 },
    #[error("the teacher has no scores of rows {rows:?} of the micro-batch: {why}; do not train on them")]
    Missing { rows: Vec<usize>, why: String },
    #[error("the teacher sends {what}")]
    Payload { what: String },
    #[error("answer {number} is {what}: the other side does not keep to docs/bridge-format.md")]
    Answer { number: u64, what: String },
    #[error(
        "a row of {tokens} tokens does not fit the ring of requests: {source}; start `leeway teach` with more --max-tokens"
    )]
    Row { tokens: usize, source: MetaError },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
}

impl TeachError {
    /// Why a wait for the other side ended.
    pub(super) fn of_wait(what: String, error: WaitError) -> TeachError {
        match error {
            WaitError::PeerLost { peer, .. } => TeachError::Dead { what, peer },
            WaitError::Deadline { waited, peer, .. } => TeachError::Deadline { what, waited, peer: peer.to_string() },
            WaitError::Broken(broken) => broken.into(),
            other => TeachError::Deadline { what, waited: Duration::ZERO, peer: other.to_string() },
        }
    }

    /// Whether a claim ended since nothing became free; else why it failed.
    pub(super) fn full(error: ClaimError, tokens: usize) -> Result<(), TeachError> {
        match error {
            ClaimError::Wait(WaitError::Deadline { .. }) => Ok(()),
            ClaimError::Wait(error) => Err(TeachError::of_wait("a free slot".to_owned(), error)),
            ClaimError::Meta(source) => Err(TeachError::Row { tokens, source }),
            other => Err(TeachError::Answer { number: 0, what: other.to_string() }),
        }
    }

    /// Whether a wait for a block ended since none came; else why it failed.
    pub(super) fn empty(error: ReceiveError) -> Result<(), TeachError> {
        match error {
            ReceiveError::Wait(WaitError::Deadline { .. }) => Ok(()),
            ReceiveError::Wait(error) => Err(TeachError::of_wait("a block".to_owned(), error)),
            other => Err(TeachError::Answer { number: 0, what: other.to_string() }),
        }
    }
}
