//! What mismatch is worth: statistics over numbers that others collected. No files, no clock, no model, no state; the
//! same numbers and seed give the same verdict.
//!
//! [`mismatch`] has the estimators of D and its interval over prompts, [`stats`] the intervals and quantiles that they
//! and others need, [`sensitivity`] the choice of what a recipe quantises, [`ladder`] what runs at rungs of mismatch say of
//! the budget, [`certificate`] the form in which that is kept, [`admission`] the verdict on a configuration, and [`guard`]
//! what holds a run to it. [`drift`] is about the prefixes that a mismatch leads to, [`coherence`] about whether it is the same
//! every time, [`tails`] about its rare tokens.
#![forbid(unsafe_code)]

pub mod admission;
pub mod certificate;
pub mod coherence;
pub mod drift;
pub mod guard;
pub mod ladder;
pub mod mismatch;
pub mod sensitivity;
pub mod stats;
pub mod tails;
