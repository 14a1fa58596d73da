//! A teacher in a process of its own: [`Server`] scores what a learner asks for, [`RingTeacher`] asks. Between them are two
//! rings (`docs/bridge-format.md`): PATH carries scores, PATH.requests the rows to score.
//!
//! Request n is answered by the block of scores with the number n, and by one block alone. So a teacher that was killed knows
//! what it had answered, and nothing is lost or answered twice.

mod client;
mod error;
mod scorer;
mod server;

use std::path::{Path, PathBuf};

use engine::recipe::Precision;

pub use client::{Expected, Received, RingTeacher};
pub use error::TeachError;
pub use scorer::{Payload, Scorer};
pub use server::{Done, Rings, Server};

/// The ring that requests pass through.
#[must_use]
pub fn requests_path(ring: &Path) -> PathBuf {
    let mut path = ring.as_os_str().to_owned();
    path.push(".requests");
    path.into()
}

/// The first 16 hexadecimal digits of a model's hash, as blocks carry it.
///
/// # Panics
/// When it does not begin with them.
#[must_use]
pub fn hash_word(model_hash: &str) -> u64 {
    u64::from_str_radix(&model_hash[..16], 16).expect("a model's hash is hexadecimal")
}

/// The head that makes logits of hidden rows: 1 as a bf16 version of the model has it, 2 as an f32 one.
#[must_use]
pub fn head_descriptor(precision: Precision) -> u32 {
    match precision {
        Precision::Bf16 => 1,
        Precision::F32 => 2,
    }
}
