//! Bytes of what a step works in, and of the tables beside the pool.

use kv::{KvCache, Sequence};
use ptx::kv_tile::Span;
use ptx::ops::{attention, linear, sample};
use ptx::{DType, Scratch};

use super::Settings;
use crate::config::ModelConfig;
use crate::engine::LOGIT_ROWS;
use crate::model;
use crate::recipe::{Proj, Recipe, StaticScales};

/// What an engine holds beside weights and pages once it has run its largest step and taken new weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Activations of a step, and its ids, positions and spans.
    pub step: usize,
    /// Hidden rows that were selected and their logits, for at most [`LOGIT_ROWS`] rows.
    pub logits: usize,
    /// What kernels keep per thread.
    pub scratch: usize,
    /// The values through which an update reads new weights, while the pool lives on, and what calibration takes.
    pub update: usize,
    /// Block tables of the sequences.
    pub tables: usize,
    /// The pool's own: who holds which page.
    pub holders: usize,
}

impl Workspace {
    /// For an engine with a pool of `pages` pages.
    #[must_use]
    pub fn of(c: &ModelConfig, recipe: &Recipe, settings: Settings, pages: usize) -> Workspace {
        let Settings { page_len, step_tokens, batch, length, threads, isa: _ } = settings;
        let rows = step_tokens.max(batch);
        // Ids, positions and spans grow by doubling; in a step of single tokens each has a span.
        let row = 2 * (2 * size_of::<u32>() + size_of::<Span<'_>>());
        let logit_rows = LOGIT_ROWS.min(rows);
        // Samples share pages, and each lists them.
        let listed = batch.saturating_mul(length.div_ceil(page_len));
        let block = model::block_len(c).saturating_mul(size_of::<f32>());
        let update = match &recipe.static_scales {
            StaticScales::Calibrated(calibration) => {
                block.saturating_add(model::calibration_bytes(c, recipe, calibration))
            }
            StaticScales::Bounds | StaticScales::Checkpoint => block,
        };
        Workspace {
            step: model::Workspace::bytes_for(c, recipe, rows).saturating_add(rows.saturating_mul(row)),
            logits: logit_rows.saturating_mul((c.hidden + c.vocab) * size_of::<f32>()),
            scratch: scratch(c, recipe, settings, rows).bytes(threads),
            update,
            tables: listed.saturating_mul(Sequence::BYTES_PER_PAGE),
            holders: pages.saturating_mul(KvCache::BYTES_PER_PAGE),
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.without_holders().saturating_add(self.holders)
    }

    /// What does not depend on the pool.
    pub(super) fn without_holders(&self) -> usize {
        [self.step, self.logits, self.scratch, self.update, self.tables].into_iter().fold(0, usize::saturating_add)
    }
}

/// What the kernels of a step of `rows` rows keep, and those that draw from its logits.
fn scratch(c: &ModelConfig, recipe: &Recipe, settings: Settings, rows: usize) -> Scratch {
    let isa = settings.isa;
    let draw = attention::scratch(c.heads, c.kv_heads, c.head_dim, rows, rows).and(sample::scratch(c.vocab));
    let head = linear::scratch(isa, LOGIT_ROWS.min(rows), c.hidden, recipe.head.weights.dtype == DType::E4m3);
    recipe.layers.iter().fold(draw.and(head), |all, layer| {
        Proj::ALL.into_iter().fold(all, |all, proj| {
            let inputs = match proj {
                Proj::O => c.heads * c.head_dim,
                Proj::Down => c.ffn,
                _ => c.hidden,
            };
            all.and(linear::scratch(isa, rows, inputs, layer[proj].weights.dtype == DType::E4m3))
        })
    })
}
