//! On-policy distillation: what to train on ([`tasks`]).
#![forbid(unsafe_code)]

pub mod tasks;
