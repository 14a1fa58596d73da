//! One folder per op: contract, slow truth, fast path.
pub mod linear;
