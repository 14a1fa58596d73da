//! Whether a device computes what it must: the same bits however the work is cut, and logits near the CPU's. `leeway
//! selftest` and the tests run this alike; the kernels have their own checks in [`ptx::conformance`].

mod agreement;
mod copying;
mod invariance;
mod models;
mod roofline;

pub use agreement::agreement;
pub use invariance::invariance;
use models::VALID;
pub use models::{Seeded, Small, VOCAB, models};
pub use roofline::{Rate, Sizes, roofline};

use std::sync::Arc;

use ptx::Cpu;

use crate::engine::{Device, Engine, EngineError};

/// What one check found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The model.
    pub model: &'static str,
    /// What was checked.
    pub check: String,
    /// Largest error, as a share of what is allowed; 0 where bits must be equal and are.
    pub worst: f64,
    /// What is wrong, if anything is.
    pub failure: Option<String>,
}

/// An engine for a small model, version 0.
fn open(device: &Device, small: &Small, page_len: usize, pages: usize) -> Result<Engine, EngineError> {
    let (config, recipe) = (small.config.clone(), small.recipe.clone());
    Engine::open(device, config, recipe, 0, &mut small.weights.clone(), page_len, pages, VALID)
}

/// The CPU beside a device.
fn host(device: &Device) -> Device {
    Device::Cpu(Arc::<Cpu>::clone(device.cpu()))
}
