//! One folder per op: contract, slow truth, fast path.

pub mod divergence;
pub mod log_softmax;
pub mod sample;
pub mod adamw;
pub mod embedding;
pub mod grad_norm;
pub mod residual;
pub mod rmsnorm;
pub mod rope;
pub mod round;
pub mod swiglu;

pub(crate) mod chunks;
#[cfg(test)]
pub(crate) mod twins;
pub mod linear;
pub mod attention;
pub mod kv_append;
