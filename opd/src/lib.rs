//! On-policy distillation: what to train on, the losses, and the training loops.
//!
//! ```text
//! tasks, prompts -> source -> rollouts (engine) -> sequences -> teacher side, learner -> loss -> master, version + 1
//! ```
//!
//! [`config::Config`] is the run file and [`train::Trainer`] the run: [`train::Trainer::update`] is one turn of the loop
//! above. [`pretrain`] is the supervised twin of it, and [`eval`] judges completions for both. The loss compares whole
//! distributions, so what the rollout said about its own tokens is measured and never trained on.
#![forbid(unsafe_code)]

pub mod admit;
pub mod answer;
pub mod bench;
pub mod calibrate;
pub mod clock;
pub mod config;
pub mod curve;
pub mod eval;
pub mod events;
pub mod flow;
pub mod learner;
pub mod loss;
pub mod master;
pub mod measure;
pub mod meter;
pub mod noise;
pub mod objective;
pub mod pretrain;
pub mod prompts;
pub mod reward;
pub mod samples;
pub mod score_lines;
pub mod sequences;
pub mod side;
pub mod source;
pub mod tasks;
#[cfg(unix)]
pub mod teach;
pub mod train;
pub mod tune;
