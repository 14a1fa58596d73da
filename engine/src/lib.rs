//! From a model's folder to rollouts.
//!
//! This part reads and writes Hugging Face folders: what the model is ([`config`]), its weights ([`checkpoint`]), its
//! words ([`tokenizer`], [`chat`]), and folders made from random numbers ([`init`]).

#![forbid(unsafe_code)]

pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod init;
pub mod tokenizer;
