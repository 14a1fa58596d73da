//! The bridge between a teacher's process and a learner's: a ring of blocks in a file that both map.
//!
//! One [`Producer`] fills slots in place and one [`Consumer`] holds leases on them, so scores go from one process to the
//! other without a copy. `docs/bridge-format.md` describes the file and the protocol for any language.
//!
//! ```
//! use bridge::{Consumer, Geometry, Kind, Meta, Patience, Producer};
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("ring");
//! let meta = Meta { rows: 2, ..Meta::new(Kind::Sampled) };
//! bridge::create(&path, Geometry::for_blocks(4, &meta)?)?;
//! let mut producer = Producer::attach(&path)?;
//! let mut draft = producer.claim(&meta, Patience::NONE)?;
//! let arrays = draft.arrays_mut();
//! arrays.tokens.copy_from_slice(&[17, 4]);
//! arrays.logprobs.copy_from_slice(&[-0.5, -1.0]);
//! arrays.mask.fill(1);
//! arrays.versions.fill(3);
//! arrays.scores.sampled_mut().copy_from_slice(&[-0.25, -2.0]);
//! draft.publish()?;
//! let mut consumer = Consumer::attach(&path)?;
//! let lease = consumer.receive(Patience::NONE)?.expect("not finished");
//! assert_eq!((lease.number(), lease.arrays().tokens), (0, &[17, 4][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg(unix)]
#![deny(unsafe_code)]

mod arrays;
mod clock;
mod consumer;
mod error;
mod file;
mod layout;
mod meta;
mod producer;
mod seat;
#[allow(unsafe_code, reason = "the mapped file: decision 11")]
mod slot;
pub mod states;
mod wait;

pub use arrays::{Arrays, ArraysMut, Rows, RowsMut, Scores, ScoresMut};
pub use consumer::{Consumer, Lease};
pub use error::{BlockError, Broken, ClaimError, MetaError, OpenError, ReceiveError, WaitError};
pub use file::{Geometry, create};
pub use meta::{Dtype, Kind, Meta};
pub use producer::{Draft, Producer};
pub use seat::{Counters, Peer, Presence, Role};
pub use wait::Patience;
