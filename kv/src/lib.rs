//! The paged KV cache: which pages there are, who holds them, and the bytes behind them.
//!
//! Knows pages and bytes, and which tokens made them, not what tokens mean: no model, no token text, no weights.
//!
//! ```text
//! Layout (bytes of a page, per layer) -> Arena (the bytes) + PagePool (who holds which page)
//!                                     -> KvCache: sequences grow, fork and end; shared pages are copied on write
//! PrefixIndex (tokens and provenance -> pages) keeps pages of ended sequences until they are needed
//! ```
#![forbid(unsafe_code)]

mod arena;
mod cache;
mod layout;
mod pool;
mod prefix;
mod provenance;

pub use arena::Arena;
pub use cache::{KvCache, PageCopy, Sequence};
pub use layout::{Capacity, Group, Layout};
pub use pool::{PageId, PagePool, PoolExhausted};
pub use prefix::{PrefixFound, PrefixStats};
pub use provenance::Provenance;
