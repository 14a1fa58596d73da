//! One folder per op: contract, slow truth, fast path.

pub mod adamw;
pub mod divergence;
pub mod embedding;
pub mod grad_norm;
pub mod head_divergence;
pub mod log_softmax;
pub mod peak;
pub mod residual;
pub mod rmsnorm;
pub mod rope;
pub mod round;
pub mod sample;
pub mod select;
pub mod swiglu;

pub mod attention;
pub(crate) mod chunks;
pub mod kv_append;
pub mod kv_copy;
pub mod linear;
#[cfg(test)]
pub(crate) mod twins;
