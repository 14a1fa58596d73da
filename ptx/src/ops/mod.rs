//! One folder per op: contract, slow truth, fast path.

pub mod attention;
pub mod kv_append;
