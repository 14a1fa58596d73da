//! What mismatch is worth: statistics over numbers that others collected. No files, no clock, no model, no state; the
//! same numbers and seed give the same verdict.
//!
//! [`mismatch`] has the estimators of D and its interval over prompts, [`stats`] the intervals and quantiles that they
//! and others need, [`sensitivity`] the choice of what a recipe quantises, [`ladder`] what runs at rungs of mismatch say of
//! the budget, and [`certificate`] the form in which that is kept.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod ladder;
pub mod mismatch;
pub mod sensitivity;
pub mod stats;
