//! On-policy distillation: what to train on ([`tasks`], [`prompts`]), how answers are judged ([`answer`]), and the run
//! file that says all of it ([`config`]).
#![forbid(unsafe_code)]

pub mod answer;
pub mod config;
pub mod prompts;
pub mod tasks;
