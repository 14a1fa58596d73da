//! A model with its cache and buffers, and the one step that prefill, decode and scoring share.

use std::sync::Arc;

use kv::{KvCache, Layout, Provenance, Sequence};
use ptx::Cpu;
use ptx::kv_tile::{KvCounts, KvShape, Span};
use ptx::ops::linear::{self, Job};

use crate::checkpoint::CheckpointError;
use crate::config::ModelConfig;
use crate::model::{Batch, Model, WeightSource, Workspace, buffer, forward};
use crate::recipe::{LayerRecipe, Recipe};
use crate::versions::{Switch, Versions};

/// Logits are never held for more rows than this, whatever the batch.
pub const LOGIT_ROWS: usize = 64;

/// Tokens per KV page unless a caller asks otherwise.
pub const PAGE_LEN: usize = 16;

/// New tokens of one sequence, whose places were just appended to it.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The sequence; its last `ids.len()` places are for these tokens.
    pub sequence: &'a Sequence,
    /// The tokens.
    pub ids: &'a [u32],
}

/// What runs steps.
#[derive(Debug)]
pub struct Engine {
    cpu: Arc<Cpu>,
    versions: Versions,
    kv: KvCache,
    valid: usize,
    /// The weights version of the last step: whose head its logits take.
    ran: u64,
    step: Step,
    selected: Vec<f32>,
    logits: Vec<f32>,
}

/// Buffers of a step, apart from the cache and the model so that they can be borrowed side by side.
#[derive(Debug, Default)]
struct Step {
    ids: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span<'static>>, // empty between steps: only its allocation is kept
    workspace: Workspace,
}

/// Shapes of a model's KV pages under its recipe.
#[must_use]
pub fn kv_layout(model: &Model, page_len: usize) -> Layout {
    Layout::new(kv_shapes(&model.config, &model.recipe, page_len))
}

/// Shapes of KV pages by layer: from the configuration alone.
#[must_use]
pub fn kv_shapes(c: &ModelConfig, recipe: &Recipe, page_len: usize) -> Vec<KvShape> {
    let shape = |r: &LayerRecipe| KvShape {
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        page_len,
        k: r.k,
        v: r.v,
        scale: r.kv_scale,
    };
    recipe.layers.iter().map(shape).collect()
}

impl Engine {
    /// An engine with a pool of `pages` pages of `page_len` tokens. `valid` is how many ids are real: rows of the
    /// embedding beyond the tokenizer are padding, are never fed, and never get probability.
    ///
    /// # Panics
    /// When `valid` is 0 or exceeds the vocabulary.
    #[must_use]
    pub fn new(cpu: Arc<Cpu>, model: Model, page_len: usize, pages: usize, valid: usize) -> Engine {
        assert!(valid > 0 && valid <= model.config.vocab, "{valid} real ids of a vocabulary of {}", model.config.vocab);
        let mut kv = KvCache::new(kv_layout(&model, page_len), pages);
        let ran = model.version();
        kv.set_provenance(Provenance { version: ran, recipe: model.recipe.hash_bytes() });
        let versions = Versions::new(model);
        Engine { cpu, versions, kv, valid, ran, step: Step::default(), selected: Vec::new(), logits: Vec::new() }
    }

    /// The device.
    #[must_use]
    pub fn cpu(&self) -> &Arc<Cpu> {
        &self.cpu
    }

    /// The model: its present weights version.
    #[must_use]
    pub fn model(&self) -> &Model {
        self.versions.present()
    }

    /// The weights versions it can run.
    #[must_use]
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Keeps `count` versions before the present one from now on ([`Versions::retain`]).
    pub fn retain_versions(&mut self, count: usize) {
        self.versions.retain(count);
    }

    /// The update transaction: weights and the KV scales that belong to them become those of `version`. Sequences that
    /// are alive need [`Session::update`](crate::rollout::Session::update), which calls this.
    pub fn update(&mut self, version: u64, source: &mut dyn WeightSource) -> Result<Switch, CheckpointError> {
        let switch = self.versions.update(&self.cpu, version, source)?;
        self.kv.set_provenance(Provenance { version, ..self.kv.provenance() });
        Ok(switch)
    }

    /// The cache.
    #[must_use]
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The cache, for sequences to grow and end.
    pub fn kv_mut(&mut self) -> &mut KvCache {
        &mut self.kv
    }

    /// Ids below this are real.
    #[must_use]
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// Runs the present version over the new tokens of some sequences and returns the last hidden rows,
    /// `[tokens, hidden]`, in the order fed.
    ///
    /// # Panics
    /// When a sequence has fewer places than tokens are fed.
    pub fn step<'a>(&mut self, feeds: impl IntoIterator<Item = Feed<'a>>) -> &[f32] {
        self.step_at(self.model().version(), feeds)
    }

    /// As [`Engine::step`] under any version that is still here.
    ///
    /// # Panics
    /// When the version is not here, or a sequence has fewer places than tokens are fed.
    pub fn step_at<'a>(&mut self, version: u64, feeds: impl IntoIterator<Item = Feed<'a>>) -> &[f32] {
        self.versions.assert_usable();
        self.ran = version;
        let Engine { cpu, versions, kv, step, .. } = self;
        let model = versions.get(version).expect("the version is retained");
        let Step { ids, positions, spans, workspace } = step;
        ids.clear();
        positions.clear();
        let mut batch_spans: Vec<Span<'a>> = std::mem::take(spans);
        for Feed { sequence, ids: new } in feeds {
            let first = sequence.len().checked_sub(new.len()).expect("places were appended for the tokens fed");
            batch_spans.push(Span {
                first_row: ids.len(),
                row_count: new.len(),
                first_position: first,
                block_table: sequence.block_table(),
            });
            ids.extend_from_slice(new);
            positions.extend((first..sequence.len()).map(|p| u32::try_from(p).expect("positions are u32")));
        }
        let batch = Batch { ids, positions, spans: &batch_spans };
        forward(cpu, model, kv, batch, workspace, None);
        *spans = emptied(batch_spans);
        &self.step.workspace.hidden
    }

    /// Logits `[rows, vocab]` of some of the last step's rows, at most [`LOGIT_ROWS`].
    ///
    /// # Panics
    /// When more rows are asked for.
    pub fn logits(&mut self, rows: impl ExactSizeIterator<Item = usize>) -> &[f32] {
        let model = self.versions.get(self.ran).expect("logits are asked for before the next update");
        let (hidden, vocab, count) = (model.config.hidden, model.config.vocab, rows.len());
        assert!(count <= LOGIT_ROWS, "logits of {count} rows at once; at most {LOGIT_ROWS}");
        buffer::size(&mut self.selected, count * hidden);
        buffer::size(&mut self.logits, count * vocab);
        for (to, row) in self.selected.chunks_exact_mut(hidden).zip(rows) {
            to.copy_from_slice(&self.step.workspace.hidden[row * hidden..(row + 1) * hidden]);
        }
        let job = Job { w: model.head(), bias: None, y: &mut self.logits };
        linear::forward(&self.cpu, count, &self.selected, &mut [job]);
        &self.logits
    }

    /// Bytes of the activations, and of the logits with the rows they are of.
    #[cfg(test)]
    pub(crate) fn buffer_bytes(&mut self) -> (usize, usize) {
        let floats = self.selected.capacity() + self.logits.capacity();
        (self.step.workspace.bytes(), floats * size_of::<f32>())
    }

    /// What rounding keys and values to 8 bits lost in all steps since the counts were last cleared,
    /// `[layers, kv_heads]`; empty before the first step. Layers without 8-bit keys or values count nothing there.
    #[must_use]
    pub fn kv_counts(&self) -> &[KvCounts] {
        &self.step.workspace.counts
    }

    /// Clears the counts.
    pub fn clear_kv_counts(&mut self) {
        self.step.workspace.counts.fill(KvCounts::default());
    }

    /// What the last call of [`Engine::logits`] computed.
    #[must_use]
    pub fn last_logits(&self) -> &[f32] {
        &self.logits
    }
}

/// The allocation of a vector of borrowed spans, without its contents, for a later borrow. The collect works in place:
/// a test with a counting allocator holds it to that.
#[must_use]
pub fn emptied(mut spans: Vec<Span<'_>>) -> Vec<Span<'static>> {
    spans.clear();
    spans.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}
