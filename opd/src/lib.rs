//! On-policy distillation: what to train on ([`tasks`]).
#![forbid(unsafe_code)]

pub mod answer;
pub mod prompts;
pub mod tasks;
