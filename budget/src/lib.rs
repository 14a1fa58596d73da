//! What mismatch is worth: statistics over numbers that others collected. No files, no clock, no model, no state; the
//! same numbers and seed give the same verdict.
#![forbid(unsafe_code)]

pub mod mismatch;
pub mod stats;
