//! Why a run stops on the way.

use engine::engine::EngineError;
use engine::rollout::RequestError;
use ptx::cuda::CudaError;

use super::{OpenError, SaveError};
use crate::eval::PromptFailed;
use crate::flow::WaitError;

/// Why an update failed; the run stops with everything up to the last checkpoint in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A rollout could not be had.
    #[error("update {update}: prompt {prompt}: {source}")]
    Rollout {
        /// Which update.
        update: u64,
        /// Number of the prompt.
        prompt: u64,
        /// Why.
        source: RequestError,
    },
    /// A stage that was waited for failed, or did not come.
    #[error("update {update}: {source}")]
    Wait {
        /// Which update.
        update: u64,
        /// Why.
        source: WaitError,
    },
    /// The teacher scored nothing.
    #[error("update {update}: the teacher has no scores of any completion: {why}")]
    NoScores {
        /// Which update.
        update: u64,
        /// Why the last of them has none.
        why: String,
    },
    /// An evaluation could not be run.
    #[error("evaluation after update {update}: {source}")]
    Eval {
        /// Updates done.
        update: u64,
        /// Which prompt, and why.
        source: PromptFailed,
    },
    /// The loss is not a number.
    #[error(
        "update {update}: the loss is not finite at rollout {rollout}, token {token} (id {token_id}): {what}; nothing was \
         updated, and {kept}"
    )]
    Loss {
        /// Which update.
        update: u64,
        /// Which rollout of it, or completion of the evaluation.
        rollout: usize,
        /// Which token of the completion.
        token: usize,
        /// The token.
        token_id: u32,
        /// What is wrong.
        what: String,
        /// Where its dump is, or why there is none.
        kept: String,
    },
    /// Gradients are not numbers.
    #[error("update {update}: the gradient of {tensor} is not finite at element {element}; nothing was updated")]
    Gradient {
        /// Which update.
        update: u64,
        /// Which tensor.
        tensor: String,
        /// Which element.
        element: usize,
    },
    /// The teacher gives no gradient in the first update.
    #[error(
        "the first update has no gradient at all: the teacher agrees with the student everywhere, so there is nothing \
         to distil; are `student` and `teacher` the same checkpoint?"
    )]
    NothingToLearn,
    /// The identity recipe does not reproduce the trainer's own logprobs.
    #[error(
        "update {update}: rollout {rollout}, token {token}: the identity recipe gave logprob {rollout_logprob:e}, the \
         trainer {train_logprob:e}; they must be the same bits, so this is a bug of leeway: please report it"
    )]
    NotIdentical {
        /// Which update.
        update: u64,
        /// Which rollout.
        rollout: usize,
        /// Which token of the completion.
        token: usize,
        /// What the rollout said.
        rollout_logprob: f32,
        /// What the trainer's forward pass said.
        train_logprob: f32,
    },
    /// A checkpoint could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// Weights could not be taken over.
    #[error(transparent)]
    Weights(#[from] EngineError),
    /// What samples could not be opened anew.
    #[error("after update {update}, to lower mismatch: {source}")]
    Lower {
        /// Updates done.
        update: u64,
        /// Why.
        source: Box<OpenError>,
    },
    /// The device of rollouts and teacher failed.
    #[error("update {update}: {source}")]
    Device {
        /// Which update.
        update: u64,
        /// Why.
        source: CudaError,
    },
    /// A device does not compute the same logprobs twice.
    #[error(
        "update {update}: rollout {rollout}, token {token}: the device sampled with logprob {sampled:e} and scores the \
         same tokens with {scored:e}; they must be the same bits, so this is a bug of leeway: please report it"
    )]
    NotReproduced {
        /// Which update.
        update: u64,
        /// Which rollout.
        rollout: usize,
        /// Which token of the completion.
        token: usize,
        /// What the rollout said.
        sampled: f32,
        /// What a pass over the whole sequence says.
        scored: f32,
    },
}

impl TrainError {
    /// Whether the training itself came to this, as any machine would.
    #[must_use]
    pub fn diverged(&self) -> bool {
        matches!(self, TrainError::Loss { .. } | TrainError::Gradient { .. })
    }
}
