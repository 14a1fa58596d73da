//! Copies whole pages over others on a device: copy-on-write of shared pages, and moves. On the CPU a pool's pages are
//! copied where they are kept (`kv::Arena`).

mod conform;
pub mod cuda;

pub(crate) use conform::conform;
