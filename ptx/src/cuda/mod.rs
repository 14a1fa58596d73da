//! CUDA as a device: driver, memory, kernels and launches. Ops' launchers (`ops/<op>/cuda.rs`) are built on this alone.
//!
//! Nothing here needs a CUDA installation: the driver library is looked for when a device is opened. A process that loads
//! `ptx/simt` first ([`load_driver`]) runs the same kernels, launchers and host paths on its simulated device.

mod arena;
mod device;
mod driver;
mod entries;
mod error;
mod event;
mod gpu;
mod graph;
mod kernels;
mod launch;
mod memory;
mod modules;
mod order;
mod out;
mod pages;
pub mod simulator;
mod staging;
#[cfg(test)]
mod tests;

pub use driver::load_driver;
pub use error::CudaError;
pub use event::Event;
pub use gpu::{Gpu, MemoryInfo};
pub use graph::Graph;
pub use kernels::{Kernel, MODULES, Module};
pub use launch::{Arg, Launch};
pub use memory::{Mem, View};
pub use out::Out;
pub use pages::Pages;

/// A count as kernels take it.
///
/// # Panics
/// When it does not fit 32 bits.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or_else(|_| panic!("{n} is more than a kernel counts"))
}
