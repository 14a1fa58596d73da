//! Every kernel on a CUDA device against the f64 truth, over each op's own table of cases: what tests and `leeway selftest`
//! run.

use crate::cuda::{CudaError, Gpu};
use crate::ops::{
    attention, embedding, kv_append, kv_copy, linear, log_softmax, peak, residual, rmsnorm, rope, round, sample,
    select, swiglu,
};

pub(crate) mod data;
pub(crate) mod guarded;
pub(crate) mod report;

/// How one case went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The op's folder.
    pub op: &'static str,
    /// The case: shape, formats.
    pub case: String,
    /// Largest error found, as a share of what is allowed; 0 where bits must be equal and are.
    pub worst: f64,
    /// What is wrong, with the worst element named, if anything is.
    pub failure: Option<String>,
}

/// The ops in the order of a step; each reports its cases one by one.
pub const OPS: &[(&str, Check)] = &[
    ("embedding", embedding::conform),
    ("rmsnorm", rmsnorm::conform),
    ("round", round::conform),
    ("linear", linear::conform),
    ("rope", rope::conform),
    ("kv_append", kv_append::conform),
    ("kv_copy", kv_copy::conform),
    ("attention", attention::conform),
    ("swiglu", swiglu::conform),
    ("residual", residual::conform),
    ("log_softmax", log_softmax::conform),
    ("select", select::conform),
    ("sample", sample::conform),
    ("peak", peak::conform),
];

/// Runs the cases of one op. An error is one of the device, after which nothing more can run on it.
pub type Check = fn(&Gpu, &mut dyn FnMut(Outcome)) -> Result<(), CudaError>;
