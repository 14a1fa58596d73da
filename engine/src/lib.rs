//! From a model's folder to rollouts.
//!
//! ```text
//! folder: config, checkpoint, tokenizer, chat, init
//! recipe -> model (weights in the recipe's formats, forward, backward) -> engine (one step) -> rollout
//! ```

#![forbid(unsafe_code)]

pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod engine;
pub mod init;
pub mod model;
pub mod prune;
pub mod recipe;
pub mod rollout;
pub mod tokenizer;
