//! Rows of the embedding table by token id, and the gradient scattered back.
//!
//! Shapes: `ids`: `[tokens]`; `out`, `dy`: `[tokens, hidden]`; `dtable`: `[vocab, hidden]`.
//!
//! The table itself stays with its owner (a packed matrix, tied to the head or not), who hands out rows by `lookup`.
//!
//! Order: forward copies. Backward adds to each element of `dtable` over ascending tokens, whatever thread does it: the
//! work is split over rows of the table.
//!
//! Bytes: forward writes 4 per element and reads what `lookup` reads; backward reads 8 and writes 4, bound by memory.

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
#[cfg(test)]
mod tests;

pub(crate) use conform::conform;

use crate::Cpu;

/// Fills row `t` of `out` (`[tokens, hidden]`) by `lookup(ids[t], row)`.
///
/// # Panics
/// When `out` does not fit the shape.
pub fn forward(cpu: &Cpu, lookup: impl Fn(u32, &mut [f32]) + Sync, hidden: usize, ids: &[u32], out: &mut [f32]) {
    assert!(hidden > 0, "rows of no elements");
    assert_eq!(out.len(), ids.len() * hidden, "out");
    cpu::forward(cpu, lookup, hidden, ids, out);
}

/// Adds row `t` of `dy` (`[tokens, hidden]`) to row `ids[t]` of `dtable` (`[vocab, hidden]`), for all tokens.
///
/// # Panics
/// When a length does not fit the shape or an id is beyond the table.
pub fn backward(cpu: &Cpu, hidden: usize, ids: &[u32], dy: &[f32], dtable: &mut [f32]) {
    assert!(hidden > 0, "rows of no elements");
    assert_eq!(dy.len(), ids.len() * hidden, "dy");
    assert_eq!(dtable.len() % hidden, 0, "dtable of {} elements has no rows of {hidden}", dtable.len());
    let vocab = dtable.len() / hidden;
    for (token, &id) in ids.iter().enumerate() {
        assert!((id as usize) < vocab, "token {token} has id {id}; the table has {vocab} rows");
    }
    cpu::backward(cpu, hidden, ids, dy, dtable);
}
