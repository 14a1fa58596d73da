//! D between two models on given rows: KL(variant || reference) over the whole vocabulary at every completion position.
//!
//! The rollout's distribution is the variant's and the trained one the reference's, so this is the mismatch that a
//! rollout under the variant would have, on prefixes that are the same for every variant. The reference runs once. What
//! entered its layers is kept, so that a variant which changes nothing before layer l runs from layer l on; bits are
//! those of the whole pass. Logits exist for at most 64 rows at a time.

use std::ops::Range;

use engine::engine::{LOGIT_ROWS, PAGE_LEN, kv_layout};
use engine::model::{Batch, Model, Observe, Workspace, forward_observed};
use engine::recipe::Recipe;
use kv::KvCache;
use ptx::Cpu;
use ptx::ops::divergence;
use ptx::ops::linear::{self, Job};
use serde::{Deserialize, Serialize};

use crate::sequences::{Micro, Packed, Row, micro_batches};
use crate::side::{pages, select};

#[cfg(test)]
pub(crate) mod tests;

/// Tokens of one forward pass, unless a single row is longer.
const PART_TOKENS: usize = 1024;

/// What one prompt's completions add to D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// Sum of KL over its completion tokens, in nats.
    pub nats: f64,
    /// Its completion tokens.
    pub tokens: u64,
}

/// Where a variant begins to differ from the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In the embedding, or in the precision of everything.
    Embedding,
    /// In this decoder layer.
    Layer(usize),
    /// In the head's weights at the earliest.
    Head,
}

impl Start {
    /// Where `variant` begins to differ from `reference`.
    ///
    /// # Panics
    /// When they have different numbers of layers.
    #[must_use]
    pub fn of(reference: &Recipe, variant: &Recipe) -> Start {
        assert_eq!(reference.layers.len(), variant.layers.len(), "recipes of two models");
        let whole = |r: &Recipe| (r.embed, r.head.activations);
        if whole(reference) != whole(variant) {
            return Start::Embedding;
        }
        let differs = reference.layers.iter().zip(&variant.layers).position(|(a, b)| a != b);
        differs.map_or(Start::Head, Start::Layer)
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterSettings {
    /// Ids below this are real.
    pub valid: usize,
    /// Temperature of both distributions.
    pub temperature: f32,
    /// Most bytes that are kept of what entered the reference's layers. With less than all of it fewer layers can be
    /// begun at, and measuring takes longer.
    pub stream_bytes: usize,
}

/// Logits that have no KL.
#[derive(Debug, thiserror::Error)]
#[error("row {row}, token {token} of the completion: {what}")]
pub struct MeterError {
    /// Row.
    pub row: usize,
    /// Completion token whose distributions are compared.
    pub token: usize,
    /// What is wrong.
    pub what: String,
}

/// Rows of one forward pass, with what is kept of the reference's.
#[derive(Debug)]
struct Part {
    rows: Range<usize>,
    /// The residual stream `[tokens, hidden]` at the input of each layer of `Meter::kept`.
    streams: Vec<Vec<f32>>,
    /// Last hidden rows of the predicting tokens, `[predicting, hidden]`.
    hidden: Vec<f32>,
}

/// The reference on its rows.
#[derive(Debug)]
pub struct Meter {
    rows: Vec<Row>,
    prompts: Vec<usize>, // by row
    settings: MeterSettings,
    kept: Vec<usize>, // layers, ascending
    parts: Vec<Part>,
    recipe: Recipe,
    packed: Packed,
    workspace: Workspace,
    hidden: Vec<f32>,
    logits: [Vec<f32>; 2], // variant, reference
}

impl Meter {
    /// Runs the reference over `rows`; row i belongs to prompt `prompts[i]`.
    ///
    /// # Panics
    /// When the lists differ in length, a row is longer than the context or has no prompt or no completion, or the
    /// temperature is not positive.
    #[must_use]
    pub fn new(cpu: &Cpu, reference: &Model, rows: Vec<Row>, prompts: Vec<usize>, settings: MeterSettings) -> Meter {
        let c = &reference.config;
        assert_eq!(rows.len(), prompts.len(), "every row has a prompt");
        assert!(settings.temperature.is_finite() && settings.temperature > 0.0, "temperature {}", settings.temperature);
        for row in &rows {
            assert!(row.prompt > 0 && !row.targets().is_empty(), "a row is a prompt and a completion");
            assert!(row.ids.len() <= c.max_positions, "{} tokens in {} positions", row.ids.len(), c.max_positions);
        }
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let kept = kept_layers(c.layers, settings.stream_bytes / (4 * c.hidden * tokens).max(1));
        let parts = micro_batches(&rows, Micro { tokens: PART_TOKENS, rows: usize::MAX });
        let parts = parts.into_iter().map(|rows| Part { rows, streams: Vec::new(), hidden: Vec::new() }).collect();
        let mut meter = Meter {
            rows,
            prompts,
            settings,
            kept,
            parts,
            recipe: reference.recipe.clone(),
            packed: Packed::default(),
            workspace: Workspace::default(),
            hidden: Vec::new(),
            logits: [Vec::new(), Vec::new()],
        };
        let mut kv = meter.cache(reference);
        for part in 0..meter.parts.len() {
            let mut keep = Keep { layers: &meter.kept.clone(), streams: Vec::new() };
            meter.forward(cpu, reference, &mut kv, part, None, &mut keep);
            meter.parts[part].streams = keep.streams;
            meter.parts[part].hidden = meter.hidden.clone();
        }
        meter
    }

    /// The reference's recipe.
    #[must_use]
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Layers that a variant's pass can begin at, ascending.
    #[must_use]
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// D of `variant` by prompt. `reference_head` is the head of the reference: the variant's own, where they are one.
    /// `start` may be earlier than where they begin to differ, never later.
    pub fn measure(
        &mut self,
        cpu: &Cpu,
        variant: &Model,
        reference_head: &linear::Packed,
        start: Start,
    ) -> Result<Vec<Sum>, MeterError> {
        let mut sums = vec![Sum::default(); self.prompts.iter().max().map_or(0, |most| most + 1)];
        let mut kv = (start != Start::Head).then(|| self.cache(variant));
        for part in 0..self.parts.len() {
            match (&mut kv, start) {
                (Some(kv), Start::Layer(layer)) => self.forward(cpu, variant, kv, part, Some(layer), &mut ()),
                (Some(kv), _) => self.forward(cpu, variant, kv, part, None, &mut ()),
                (None, _) => self.hidden.clone_from(&self.parts[part].hidden),
            }
            self.compare(cpu, variant, reference_head, part, &mut sums)?;
        }
        Ok(sums)
    }

    /// A cache for the largest part.
    fn cache(&self, model: &Model) -> KvCache {
        let tokens = |part: &Part| self.rows[part.rows.clone()].iter().map(|row| row.ids.len()).sum();
        let most = self.parts.iter().map(|part| pages(tokens(part), part.rows.len())).max().unwrap_or(1);
        KvCache::new(kv_layout(model, PAGE_LEN), most)
    }

    /// Runs `model` over a part and leaves its predicting rows in `hidden`. It begins at the last kept layer up to layer
    /// `start`, or with the embedding if there is none.
    fn forward(
        &mut self,
        cpu: &Cpu,
        model: &Model,
        kv: &mut KvCache,
        part: usize,
        start: Option<usize>,
        observe: &mut dyn Observe,
    ) {
        let Part { rows, streams, .. } = &self.parts[part];
        let last = self.kept.iter().rposition(|&layer| start.is_some_and(|start| layer <= start));
        let from = last.map(|at| (self.kept[at], &streams[at][..]));
        self.packed.fill(kv, &self.rows[rows.clone()]);
        let mut spans = Vec::new();
        self.packed.spans(&mut spans);
        let batch = Batch { ids: &self.packed.ids, positions: &self.packed.positions, spans: &spans };
        forward_observed(cpu, model, kv, batch, &mut self.workspace, from, observe);
        select(&self.workspace.hidden, model.config.hidden, &self.packed.predicting, &mut self.hidden);
        self.packed.clear(kv);
    }

    /// Adds the KL of every predicting row of a part to its prompt's sum.
    fn compare(
        &mut self,
        cpu: &Cpu,
        variant: &Model,
        reference_head: &linear::Packed,
        part: usize,
        sums: &mut [Sum],
    ) -> Result<(), MeterError> {
        let MeterSettings { valid, temperature, .. } = self.settings;
        let (width, vocab) = (variant.config.hidden, variant.config.vocab);
        let Part { rows, hidden: reference, .. } = &self.parts[part];
        // (row, token of its completion) of each predicting row.
        let places: Vec<(usize, usize)> =
            rows.clone().flat_map(|row| (0..self.rows[row].targets().len()).map(move |token| (row, token))).collect();
        let mut kl = [0.0; LOGIT_ROWS];
        for (block, places) in places.chunks(LOGIT_ROWS).enumerate() {
            let (n, first) = (places.len(), block * LOGIT_ROWS);
            for ((head, hidden), logits) in
                [(variant.head(), &self.hidden), (reference_head, reference)].into_iter().zip(&mut self.logits)
            {
                logits.resize(n * vocab, 0.0);
                let input = &hidden[first * width..(first + n) * width];
                linear::forward(cpu, n, input, &mut [Job { w: head, bias: None, y: logits }]);
            }
            let [ours, reference] = &self.logits;
            let fault = |at: usize, what: String| MeterError { row: places[at].0, token: places[at].1, what };
            divergence::kl(cpu, n, vocab, valid, 1.0 / temperature, ours, reference, &mut kl[..n])
                .map_err(|error| fault(error.row(), error.to_string()))?;
            for (at, (&(row, _), &kl)) in places.iter().zip(&kl).enumerate() {
                if kl.is_infinite() {
                    return Err(fault(at, "the reference excludes a token that the variant allows".into()));
                }
                let sum = &mut sums[self.prompts[row]];
                sum.nats += kl;
                sum.tokens += 1;
            }
        }
        Ok(())
    }
}

/// Keeps the residual stream at the input of some layers.
struct Keep<'a> {
    layers: &'a [usize],
    streams: Vec<Vec<f32>>,
}

impl Observe for Keep<'_> {
    fn stream(&mut self, layer: usize, x: &[f32]) {
        if self.layers.contains(&layer) {
            self.streams.push(x.to_vec());
        }
    }
}

/// At most `most` of the layers, evenly spaced, the last one among them. Layer 0 comes last: its input is only a copy of
/// embedding rows.
fn kept_layers(layers: usize, most: usize) -> Vec<usize> {
    let most = most.min(layers);
    (1..=most).map(|i| (layers * i).div_ceil(most) - 1).collect()
}
