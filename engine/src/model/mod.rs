//! A decoder: its weights in the recipe's formats, its forward pass and its backward pass.
//!
//! ```text
//! ids -> embedding -> [norm, q k v, qk-norm, rope, KV append, attention, o, +] [norm, gate up, swiglu, down, +] x layers -> norm -> head
//! ```

mod backward;
pub(crate) mod buffer;
mod calibrate;
mod forward;
mod gradients;
mod kv_scale;
pub(crate) mod parts;
mod read;
mod tape;
mod weights;

pub(crate) use calibrate::bytes as calibration_bytes;

pub use backward::{BackwardWorkspace, backward};
pub(crate) use forward::attention_shape;
pub use forward::{Batch, Observe, Workspace, forward, forward_observed};
pub use gradients::Gradients;
pub(crate) use read::block_len;
pub use tape::Tape;
pub use weights::{Layer, Model, Stored, WeightSource, load_head};

#[cfg(test)]
mod tests;
