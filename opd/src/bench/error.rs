//! Why something cannot be measured.

use engine::engine::EngineError;
use engine::rollout::RequestError;
use ptx::cuda::CudaError;
use ptx::ops::sample::SampleError;

use super::What;
use crate::loss::LossError;

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// More tokens than the model's context holds.
    #[error(
        "{what}: a sequence of {tokens} tokens; the model's context holds {max}, the tokens that are measured included"
    )]
    Context {
        /// What was to be measured.
        what: What,
        /// Tokens of a sequence.
        tokens: usize,
        /// The context.
        max: usize,
    },
    /// More sequences than the pool holds.
    #[error(
        "{what}: {sequences} sequences of {tokens} tokens need {want} KV pages of {page_len} tokens ({want_bytes} bytes); the \
         pool has {pages}"
    )]
    Pool {
        /// What was to be measured.
        what: What,
        /// How many sequences.
        sequences: usize,
        /// Tokens of each.
        tokens: usize,
        /// Pages they need.
        want: usize,
        /// Bytes of those.
        want_bytes: usize,
        /// Tokens per page.
        page_len: usize,
        /// Pages there are.
        pages: usize,
    },
    /// Work without tokens.
    #[error("{what}: {name} is 0; nothing would be measured")]
    Nothing {
        /// What was to be measured.
        what: What,
        /// Which size.
        name: &'static str,
    },
    /// The engine is on a device whose limits are not known here.
    #[error("{device}: speed is measured beside the CPU's limits, and so on the CPU alone")]
    Device {
        /// The engine's.
        device: String,
    },
    /// The model's logits are no numbers.
    #[error("nothing can be drawn: {0}; check the weights with `leeway doctor --model`")]
    Draw(#[from] SampleError),
    /// A row cannot be scored.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// New weights cannot be had.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The loss of a training step is no number.
    #[error(transparent)]
    Loss(#[from] LossError),
}
