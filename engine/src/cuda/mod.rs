//! The engine on a CUDA device: the same step, with weights, pages and buffers in device memory.
//!
//! ```text
//! weights (made part by part) + pages + workspace -> forward: launches alone -> rows' logits -> tokens, logprobs
//! metadata of a step: written once, read by the kernels, so that a captured graph serves other steps of its size
//! ```
//!
//! What the host keeps is what decides: sequences, page numbers, versions. Which sums are in which order stands in
//! `docs/numerics.md`; a step gives the same bits however it is cut, batched, padded or captured.

mod bytes;
mod forward;
mod runner;
mod sampling;
mod support;
mod weights;
mod workspace;

pub use bytes::fixed_bytes;
pub(crate) use runner::Runner;
pub use support::{Unsupported, check};
pub(crate) use weights::Writer;
pub use workspace::Room;
