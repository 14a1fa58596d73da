//! The trained model's side of an update: forward with a tape, loss, backward, over micro-batches.

use engine::engine::{PAGE_LEN, emptied, kv_layout};
use engine::model::{BackwardWorkspace, Batch, Gradients, Model, Tape, Workspace, backward, forward};
use kv::KvCache;
use ptx::Cpu;
use ptx::kv_tile::Span;

use crate::loss::{ByRow, Logits, LossError, LossWorkspace, Objective, Rows, Sums, loss};
use crate::sequences::{Packed, Row};
use crate::side::{pages, select};

/// Gradients, cache and buffers of the trained model.
#[derive(Debug)]
pub struct Learner {
    /// Gradients of the micro-batches since they were last cleared.
    pub gradients: Gradients,
    /// Results by predicting row of the last micro-batch.
    pub by_row: ByRow,
    kv: KvCache,
    packed: Packed,
    workspace: Workspace,
    tape: Tape,
    backward: BackwardWorkspace,
    loss: LossWorkspace,
    spans: Vec<Span<'static>>,
    hidden: Vec<f32>,
    dselected: Vec<f32>,
    dhidden: Vec<f32>,
}

/// The other models' logits of the same micro-batch.
#[derive(Debug, Default)]
pub struct Views<'a> {
    /// The teacher's.
    pub teacher: Option<Logits<'a>>,
    /// The rollout's.
    pub behaviour: Option<Logits<'a>>,
    /// The reference's, for a target that takes one.
    pub reference: Option<Logits<'a>>,
    /// A factor of each predicting row's loss, detached.
    pub factors: Option<&'a [f32]>,
    /// A number in [0, 1) for each predicting row, for a divergence that draws.
    pub draws: Option<&'a [f32]>,
}

impl Learner {
    /// For micro-batches of up to `tokens` tokens in up to `rows` rows.
    #[must_use]
    pub fn new(model: &Model, tokens: usize, rows: usize) -> Learner {
        Learner {
            gradients: Gradients::zeros(&model.config),
            by_row: ByRow::default(),
            kv: KvCache::new(kv_layout(model, PAGE_LEN), pages(tokens, rows)),
            packed: Packed::default(),
            workspace: Workspace::default(),
            tape: Tape::new(),
            backward: BackwardWorkspace::default(),
            loss: LossWorkspace::default(),
            spans: Vec::new(),
            hidden: Vec::new(),
            dselected: Vec::new(),
            dhidden: Vec::new(),
        }
    }

    /// Loss of a micro-batch, its gradient added to `gradients` when `train`; `weight` is one over the number of
    /// completion tokens in the whole update, so that micro-batches add up to the global mean.
    #[allow(clippy::too_many_arguments)]
    pub fn micro_batch(
        &mut self,
        cpu: &Cpu,
        model: &Model,
        objective: Objective,
        rows: &[Row],
        views: Views<'_>,
        valid: usize,
        weight: f32,
        train: bool,
    ) -> Result<Sums, LossError> {
        let width = model.config.hidden;
        self.packed.fill(&mut self.kv, rows);
        let packed = &self.packed;
        let mut spans = std::mem::take(&mut self.spans);
        packed.spans(&mut spans);
        let batch = Batch { ids: &packed.ids, positions: &packed.positions, spans: &spans };
        let tape = train.then_some(&mut self.tape);
        forward(cpu, model, &mut self.kv, batch, &mut self.workspace, tape);
        select(&self.workspace.hidden, width, &packed.predicting, &mut self.hidden);
        let input = Rows {
            hidden: &self.hidden,
            targets: &packed.targets,
            teacher: views.teacher,
            behaviour: views.behaviour,
            reference: views.reference,
            factors: views.factors,
            draws: views.draws,
            valid,
            weight,
        };
        let gradients = train.then_some((&mut self.gradients, &mut self.dselected));
        let sums = loss(cpu, objective, model, input, gradients, &mut self.by_row, &mut self.loss);
        if train && sums.is_ok() {
            self.dhidden.clear();
            self.dhidden.resize(packed.ids.len() * width, 0.0);
            for (from, &row) in self.dselected.chunks_exact(width).zip(&packed.predicting) {
                self.dhidden[row * width..(row + 1) * width].copy_from_slice(from);
            }
            let (gradients, ws) = (&mut self.gradients, &mut self.backward);
            backward(cpu, model, &self.kv, batch, &self.tape, &self.dhidden, gradients, ws);
        }
        self.spans = emptied(spans);
        self.packed.clear(&mut self.kv);
        sums
    }
}
