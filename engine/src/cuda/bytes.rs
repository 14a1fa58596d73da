//! Device memory of an engine beside its KV pages, from the configuration alone.

use ptx::cuda::Gpu;
use ptx::ops::kv_append::cuda::COUNTS;
use ptx::ops::kv_copy::cuda as kv_copy;

use super::runner::COPIES_BYTES;
use super::sampling::Sampling;
use super::support::{Unsupported, check};
use super::weights::DeviceModel;
use super::workspace::{Room, Workspace};
use crate::config::ModelConfig;
use crate::recipe::Recipe;

/// Device bytes of an engine with `room` for its steps ([`Engine::make_room`](crate::engine::Engine::make_room)) beside the
/// pages of its pool, as the device allocates them. It is every allocation by the length that it is made with; what is not
/// in it are retained weights versions, lists of candidates, and room for more than 32 of the likeliest ids a row.
pub fn fixed_bytes(
    gpu: &Gpu,
    c: &ModelConfig,
    recipe: &Recipe,
    page_len: usize,
    room: Room,
    valid: usize,
) -> Result<usize, Unsupported> {
    check(c, recipe, page_len)?;
    let counts = c.layers * c.kv_heads * COUNTS * size_of::<u64>();
    let of_runner = [kv_copy::Layers::bytes(c.layers), counts, c.head_dim / 2 * size_of::<f32>(), COPIES_BYTES];
    let sizes = [
        DeviceModel::sizes(c, recipe),
        of_runner.to_vec(),
        Sampling::sizes(c, recipe.head.activations, valid),
        Workspace::sizes(gpu, c, recipe, &room.limits(c, page_len)),
    ];
    let bytes = gpu.footprint(sizes.into_iter().flatten().map(|bytes| bytes as u64));
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}
