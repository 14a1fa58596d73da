//! One folder per op: contract, slow truth, fast path.

pub mod divergence;
pub mod log_softmax;
pub mod sample;
