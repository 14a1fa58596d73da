//! Why an engine cannot be made, or cannot take new weights.

use ptx::cuda::CudaError;

use crate::checkpoint::CheckpointError;
use crate::cuda::Unsupported;

/// Why an engine cannot be made, or cannot take new weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The weights cannot be read, or the KV cache can have no scales from them.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// The device failed, or has too little memory.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The device has no kernel for a part of the model.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}
