//! Static scales of the KV cache from given tokens: the largest keys and values that they have, with room above.

use kv::{KvCache, Layout};
use ptx::Cpu;
use ptx::DType;
use ptx::kv_tile::{KvScale, KvShape, Span};

use super::Model;
use super::forward::{Batch, Observe, Workspace, run};
use super::kv_scale::{largest_codes, scale_for};
use crate::config::ModelConfig;
use crate::recipe::{Calibration, LayerRecipe, Recipe};

/// Tokens of a step. No bit depends on it.
const STEP: usize = 512;

/// Tokens of a page of the temporary cache.
const PAGE_LEN: usize = 16;

/// Keys or values of a head that are no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotFinite {
    pub layer: usize,
}

/// Magnitudes as bits, which order as the values do: infinities and NaNs come last.
struct Largest {
    head_dim: usize,
    layers: Vec<[Vec<u32>; 2]>, // K and V by kv head
}

impl Observe for Largest {
    fn keys_values(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        for (largest, values) in self.layers[layer].iter_mut().zip([k, v]) {
            let heads = largest.len();
            for (i, head) in values.chunks_exact(self.head_dim).enumerate() {
                let of_head = head.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
                largest[i % heads] = largest[i % heads].max(of_head);
            }
        }
    }
}

/// Pages of the temporary cache: bf16, or f32 in a layer whose matmul inputs are f32.
fn layout<'a>(c: &ModelConfig, layers: impl Iterator<Item = &'a LayerRecipe>) -> Layout {
    let shape = |formats: &LayerRecipe| {
        let dtype = if formats.is_f32() { DType::F32 } else { DType::Bf16 };
        let (kv_heads, head_dim) = (c.kv_heads, c.head_dim);
        KvShape { kv_heads, head_dim, page_len: PAGE_LEN, k: dtype, v: dtype, scale: KvScale::Static }
    };
    Layout::new(layers.map(shape).collect())
}

/// Bytes that [`set`] holds while it runs: the temporary cache and the buffers of its steps.
pub(crate) fn bytes(c: &ModelConfig, recipe: &Recipe, calibration: &Calibration) -> usize {
    let (layout, longest) = (layout(c, recipe.layers.iter()), calibration.longest());
    let pages = layout.pages_for(longest).saturating_mul(layout.page_bytes());
    pages.saturating_add(Workspace::bytes_for(c, recipe, longest.min(STEP)))
}

/// Runs the model over every row, each a sequence of its own, and sets all static scales. Its own keys and values it
/// reads from a cache in bf16, or f32 in a layer whose matmul inputs are f32, so that no scale depends on another.
pub(super) fn set(cpu: &Cpu, model: &mut Model, calibration: &Calibration) -> Result<(), NotFinite> {
    let c = &model.config;
    let layout = layout(c, model.layers.iter().map(|layer| &layer.formats));
    let pages = layout.pages_for(calibration.longest());
    let mut kv = KvCache::new(layout, pages);
    let mut ws = Workspace::default();
    let heads = || vec![0; c.kv_heads];
    let layers = model.layers.iter().map(|_| [heads(), heads()]).collect();
    let mut largest = Largest { head_dim: c.head_dim, layers };
    let mut positions = Vec::with_capacity(STEP);
    for row in &calibration.rows {
        let mut sequence = kv.sequence(row.len());
        for ids in row.chunks(STEP) {
            let first = sequence.len();
            kv.append(&mut sequence, ids.len()).expect("the cache holds the longest row");
            positions.clear();
            positions.extend((first..sequence.len()).map(|p| u32::try_from(p).expect("positions are u32")));
            let span =
                Span { first_row: 0, row_count: ids.len(), first_position: first, block_table: sequence.block_table() };
            let batch = Batch { ids, positions: &positions, spans: &[span] };
            run(cpu, model, &mut kv, batch, &mut ws, None, None, &mut largest);
        }
        kv.end(sequence);
    }
    for (index, (layer, seen)) in model.layers.iter_mut().zip(&largest.layers).enumerate() {
        let codes = largest_codes(&layer.formats);
        for ((code, seen), scales) in codes.into_iter().zip(seen).zip([&mut layer.k_scales, &mut layer.v_scales]) {
            let Some(code) = code else { continue };
            for (scale, bits) in scales.iter_mut().zip(seen) {
                let bound = f64::from(f32::from_bits(*bits)) * f64::from(calibration.room);
                *scale = scale_for(bound, code).ok_or(NotFinite { layer: index })?;
            }
        }
    }
    Ok(())
}
