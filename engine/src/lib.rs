//! From a model's folder to rollouts.
//!
//! ```text
//! folder: config, checkpoint, tokenizer, chat, init
//! recipe -> model (weights in the recipe's formats, forward, backward) -> engine (one step) -> rollout
//! ```
//!
//! [`checkpoint::Checkpoint`] opens a folder and checks it as a whole. A [`recipe::Recipe`] says which format every tensor
//! is stored and read in. [`model::Model`] holds one weights version in those formats; [`model::forward`] is prefill,
//! decode, scoring and the trainer's forward pass alike. [`engine::Engine`] adds the KV cache and the buffers of a step,
//! and [`rollout`] samples and scores with it; [`plan`] says what memory all that takes. What the bits depend on stands in `docs/numerics.md`, files in
//! `docs/formats.md`.

#![forbid(unsafe_code)]

pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod cuda;
pub mod detokenizer;
pub mod engine;
pub mod init;
pub mod model;
pub mod noise;
pub mod outliers;
pub mod plan;
pub mod prune;
pub mod recipe;
pub mod rollout;
pub mod scheduler;
pub mod selftest;
pub mod stop;
pub mod tokenizer;
pub(crate) mod versions;
