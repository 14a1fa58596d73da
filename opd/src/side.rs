//! A model that only runs forward beside the trained one: the teacher, or the rollout's own view of the student.

use engine::engine::{Engine, PAGE_LEN, emptied, kv_layout};
use engine::model::{Batch, Model, Workspace, forward};
use kv::KvCache;
use ptx::Cpu;
use ptx::cuda::CudaError;
use ptx::kv_tile::Span;

use crate::loss::{Logits, View};
use crate::sequences::{Packed, Row};

/// Cache and buffers for forward passes over whole sequences.
#[derive(Debug)]
pub struct Side {
    kv: KvCache,
    packed: Packed,
    workspace: Workspace,
    spans: Vec<Span<'static>>,
    /// Last hidden rows of the predicting tokens, `[predicting, hidden]`.
    pub hidden: Vec<f32>,
}

impl Side {
    /// For micro-batches of up to `tokens` tokens in up to `rows` rows.
    #[must_use]
    pub fn new(model: &Model, tokens: usize, rows: usize) -> Side {
        let kv = KvCache::new(kv_layout(model, PAGE_LEN), pages(tokens, rows));
        Side { kv, packed: Packed::default(), workspace: Workspace::default(), spans: Vec::new(), hidden: Vec::new() }
    }

    /// Runs `model` over `rows` and leaves its hidden rows in `hidden`.
    pub fn run(&mut self, cpu: &Cpu, model: &Model, rows: &[Row]) {
        let Side { kv, packed, workspace, spans, hidden } = self;
        packed.fill(kv, rows);
        let mut batch_spans = std::mem::take(spans);
        packed.spans(&mut batch_spans);
        let batch = Batch { ids: &packed.ids, positions: &packed.positions, spans: &batch_spans };
        forward(cpu, model, kv, batch, workspace, None);
        *spans = emptied(batch_spans);
        select(&workspace.hidden, model.config.hidden, &packed.predicting, hidden);
        packed.clear(kv);
    }

    /// What [`Side::run`] left, for the loss.
    #[must_use]
    pub fn view<'a>(&'a self, model: &'a Model) -> View<'a> {
        View { head: model.head(), hidden: &self.hidden }
    }
}

/// A model beside the trained one, on the CPU or in an engine on a device.
#[derive(Debug)]
pub(crate) enum Beside {
    /// Here, with a cache of its own.
    Here(Box<Side>),
    /// In an engine, in whose pool a micro-batch finds room: nothing else is under way then. The row of its step behind
    /// each predicting token.
    There(Packed, Vec<usize>),
}

impl Beside {
    /// For micro-batches of up to `tokens` tokens in up to `rows` rows.
    pub fn new(engine: &Engine, tokens: usize, rows: usize) -> Beside {
        if engine.device().is_cpu() {
            Beside::Here(Box::new(Side::new(engine.model(), tokens, rows)))
        } else {
            Beside::There(Packed::default(), Vec::new())
        }
    }

    /// None: it takes no memory, and nothing can be run on it.
    pub fn nothing() -> Beside {
        Beside::There(Packed::default(), Vec::new())
    }

    /// Runs an engine's model over `rows`; what [`Beside::logits`] gives holds until the engine's next step.
    pub fn run(&mut self, engine: &mut Engine, rows: &[Row]) -> Result<(), CudaError> {
        match self {
            Beside::Here(side) => side.run(&std::sync::Arc::clone(engine.cpu()), engine.model(), rows),
            Beside::There(packed, predicting) => {
                packed.fill(engine.kv_mut(), rows);
                let ran = engine.step(packed.feeds());
                predicting.clone_from(&packed.predicting);
                packed.clear(engine.kv_mut());
                ran?;
            }
        }
        Ok(())
    }

    /// The logits of the predicting rows.
    pub fn logits<'a>(&'a self, engine: &'a mut Engine) -> Logits<'a> {
        match self {
            Beside::Here(side) => side.view(engine.model()).into(),
            Beside::There(_, rows) => Logits::Step { engine, rows },
        }
    }
}

/// Pages that hold `tokens` tokens in `rows` rows, whatever the rows' lengths.
pub(crate) fn pages(tokens: usize, rows: usize) -> usize {
    tokens.div_ceil(PAGE_LEN) + rows
}

/// Gathers some rows of `hidden`.
pub(crate) fn select(hidden: &[f32], width: usize, rows: &[usize], into: &mut Vec<f32>) {
    into.resize(rows.len() * width, 0.0);
    for (to, &row) in into.chunks_exact_mut(width).zip(rows) {
        to.copy_from_slice(&hidden[row * width..(row + 1) * width]);
    }
}
