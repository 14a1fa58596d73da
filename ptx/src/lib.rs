//! Devices and kernels: shapes and dtypes, no model.
//!
//! Every op lives in its own folder under [`ops`]: a contract with its checks (`mod.rs`), the slow f64 truth
//! (`naive.rs`) and the fast path (`cpu.rs`). All fast paths of one op give the same bits; see `docs/numerics.md`.

pub mod conformance;
pub mod cuda;
pub mod device;
pub mod dtype;
pub(crate) mod element;
pub(crate) mod isa;
pub mod kv_tile;
pub mod limits;
pub mod mapped;
pub mod math;
pub mod ops;
pub(crate) mod parallel;
pub mod rng;
pub(crate) mod scratch;
pub mod threads;

pub use device::{Cpu, DeviceError, Isa};
pub use dtype::DType;
pub use scratch::Scratch;
