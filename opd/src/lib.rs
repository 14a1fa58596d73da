//! On-policy distillation: what to train on, the losses, and the training loops.
//!
//! ```text
//! tasks, prompts -> source -> rollouts (engine) -> sequences -> teacher side, learner -> loss -> master, version + 1
//! ```
#![forbid(unsafe_code)]

pub mod answer;
pub mod clock;
pub mod config;
pub mod curve;
pub mod eval;
pub mod learner;
pub mod loss;
pub mod master;
pub mod pretrain;
pub mod prompts;
pub mod sequences;
pub mod side;
pub mod source;
pub mod tasks;
pub mod train;
