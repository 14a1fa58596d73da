//! The paged KV cache: which pages there are, who holds them, and the bytes behind them.
//!
//! Knows pages and bytes, not what tokens mean: no model, no token text, no weights.
//!
//! ```text
//! Layout (bytes of a page, per layer) -> Arena (the bytes) + PagePool (who holds which page)
//!                                     -> KvCache: sequences grow, fork and end; shared pages are copied on write
//! ```
#![forbid(unsafe_code)]

mod arena;
mod cache;
mod layout;
mod pool;

pub use arena::Arena;
pub use cache::{KvCache, Sequence};
pub use layout::{Capacity, Layout};
pub use pool::{PageId, PagePool, PoolExhausted};
