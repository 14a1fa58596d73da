//! A CUDA driver library on the CPU: it loads PTX and executes it, instruction by instruction, 32 lanes a warp.
//!
//! It is a test device. It says what a GPU would not (access outside an allocation, reads of memory that nothing wrote,
//! races, divergent barriers) and counts what decides a kernel's speed on one. No time it takes says anything of a GPU.
//!
//! Text becomes tokens (`lex`), statements (`parse`), instructions (`decode`), basic blocks (`cfg`), and a program whose
//! registers share slots (`liveness`, `lower`). A `device` holds memory and launches programs; a worker (`block`) runs the
//! warps of one block at a time, each operation (`exec`) on all its lanes.

mod block;
mod cfg;
mod clocks;
mod counters;
mod decode;
mod device;
pub mod driver;
mod exec;
mod fault;
mod lex;
mod liveness;
mod lower;
mod memory;
mod module;
mod order;
mod parse;
mod program;
mod races;
mod shadow;
mod shared;
mod state;
mod stores;
mod types;

pub use counters::{ALL_CLASSES, AllocationTraffic, CLASSES, Class, Issued, Stats, Traffic};
pub use device::{Config, Device, Launch, Mode};
pub use fault::{Fault, FaultKind};
pub use memory::MemoryError;
pub use module::{Entry, Module};
pub use parse::{LoadError, Param};
