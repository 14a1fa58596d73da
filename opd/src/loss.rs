//! Head and divergence together, over blocks of rows: logits exist for one block at a time, never `[tokens, vocab]`.
//!
//! What the fused kernel can do it does (`loss/kernel.rs`), on tiles of rows and vocabulary. For the rest, for each block: the student's, the teacher's and the rollout's logits from their hidden rows; the exact mismatch; the
//! loss and its gradient in place of the student's logits; from that the gradients of hidden rows and head. What the
//! rollout said about its own tokens (`logprobs_rollout`) is no input here: a dense loss has no use for it.

mod kernel;

use std::ops::Range;

use engine::engine::{Engine, LOGIT_ROWS};
use engine::model::{Gradients, Model};
use engine::noise::LogitNoise;
use ptx::Cpu;
use ptx::cuda::CudaError;
use ptx::ops::divergence::{self, Kind};
use ptx::ops::head_divergence::Tile;
use ptx::ops::linear::{self, Job, Packed};
use ptx::ops::log_softmax;

use crate::objective::{self, Moved, RowIn, RowOut};

/// Bytes of logits held at a time for a model: at most on the kernel, where two models' exist; off it up to four models'
/// do, and [`BLOCK_ROWS_MIN`] rows may need more.
pub const BLOCK_BYTES: usize = 32 << 20;

/// Rows of logits held at a time off the kernel, whatever the vocabulary.
pub const BLOCK_ROWS_MIN: usize = 64;

/// Rows of a block off the kernel. No bit depends on it: a row's loss is its own, and sums over rows go on from block to
/// block.
#[must_use]
pub fn block_rows(vocab: usize) -> usize {
    (BLOCK_BYTES / (4 * vocab)).max(BLOCK_ROWS_MIN)
}

/// What the loss is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// A dense divergence from the teacher at a temperature.
    Distill {
        /// Which.
        kind: Kind,
        /// 1 / temperature, as in the rollout.
        inv_temp: f32,
    },
    /// Any target and divergence at a temperature, in f64 unless the kernel has it.
    Composed {
        /// Which.
        objective: objective::Objective,
        /// 1 / temperature, as in the rollout.
        inv_temp: f32,
    },
    /// None: only the logprobs of the tokens are wanted.
    Logprobs {
        /// 1 / temperature, as in the rollout.
        inv_temp: f32,
    },
    /// Cross-entropy of the given tokens.
    Supervised,
}

/// Sums over the predicting rows of a micro-batch, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Rows.
    pub tokens: u64,
    /// Loss.
    pub loss: f64,
    /// KL(student || teacher).
    pub kl_reverse: f64,
    /// KL(teacher || student).
    pub kl_forward: f64,
    /// Entropy of the student.
    pub entropy: f64,
}

impl Sums {
    /// Adds another micro-batch's.
    pub fn add(&mut self, other: &Sums) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.kl_reverse += other.kl_reverse;
        self.kl_forward += other.kl_forward;
        self.entropy += other.entropy;
    }
}

/// Another model's view of the same rows: what its logits are made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The head.
    pub head: &'a Packed,
    /// Last hidden rows, `[rows, hidden]`.
    pub hidden: &'a [f32],
}

/// In the place of a model that is not there any more.
pub const NO_MODEL: usize = usize::MAX;

/// Where another model's logits of the same rows come from.
#[derive(Debug)]
pub enum Logits<'a> {
    /// From its hidden rows, here.
    Here(View<'a>),
    /// From hidden rows of several models, here.
    Several {
        /// Each model, with the hidden rows of all rows.
        views: Vec<View<'a>>,
        /// Which of them each row's logits are from; [`NO_MODEL`] where none is to be had.
        of: &'a [usize],
    },
    /// From its hidden rows, here, with the noise that tokens were drawn under.
    Noised {
        /// The model.
        view: View<'a>,
        /// The noise.
        noise: LogitNoise,
        /// The key of each row's prefix.
        keys: &'a [u64],
        /// 1 / temperature of the draws.
        inv_temp: f32,
    },
    /// From the last step of an engine, which may be on another device.
    Step {
        /// The engine.
        engine: &'a mut Engine,
        /// The row of the step behind each of the rows here.
        rows: &'a [usize],
    },
}

impl<'a> From<View<'a>> for Logits<'a> {
    fn from(view: View<'a>) -> Logits<'a> {
        Logits::Here(view)
    }
}

impl Logits<'_> {
    /// Rows of its vocabulary.
    fn vocab(&self) -> usize {
        match self {
            Logits::Here(view) => view.head.n(),
            Logits::Several { views, .. } => views.first().map_or(0, |view| view.head.n()),
            Logits::Noised { view, .. } => view.head.n(),
            Logits::Step { engine, .. } => engine.config().vocab,
        }
    }

    /// Logits of rows `first .. first + n`, `[n, vocab]`.
    fn block(&mut self, cpu: &Cpu, first: usize, n: usize, into: &mut Vec<f32>) -> Result<(), CudaError> {
        match self {
            Logits::Here(View { head, hidden }) => {
                let width = head.k();
                logits(cpu, head, n, &hidden[first * width..(first + n) * width], into);
            }
            Logits::Several { views, of } => {
                let vocab = views.first().map_or(0, |view| view.head.n());
                into.resize(n * vocab, 0.0);
                several(cpu, views, of, first..first + n, 0..vocab, into);
            }
            Logits::Noised { view, noise, keys, inv_temp } => {
                let vocab = view.head.n();
                into.resize(n * vocab, 0.0);
                noised(cpu, view, (noise, keys, *inv_temp), first..first + n, 0..vocab, into);
            }
            Logits::Step { engine, rows } => {
                into.clear();
                for rows in rows[first..first + n].chunks(LOGIT_ROWS) {
                    into.extend_from_slice(engine.logits(rows.iter().copied())?);
                }
            }
        }
        Ok(())
    }
}

/// Logits `columns` of `rows` `[rows, columns]`, each row's from its own model; 0 where there is none. Columns begin a panel.
fn several(cpu: &Cpu, views: &[View<'_>], of: &[usize], rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) {
    into.fill(0.0);
    let (mut hidden, mut made) = (Vec::new(), Vec::new());
    for (model, View { head, hidden: all }) in views.iter().enumerate() {
        let own = || rows.clone().filter(|&row| of[row] == model);
        let width = head.k();
        hidden.clear();
        own().for_each(|row| hidden.extend_from_slice(&all[row * width..(row + 1) * width]));
        let count = hidden.len() / width;
        made.resize(count * columns.len(), 0.0);
        linear::forward_part(cpu, count, &hidden, head, columns.start, &mut made);
        for (from, row) in made.chunks_exact(columns.len()).zip(own()) {
            let at = row - rows.start;
            into[at * columns.len()..(at + 1) * columns.len()].copy_from_slice(from);
        }
    }
}

/// Logits `columns` of `rows` `[rows, columns]` with their noise. Columns begin a panel.
fn noised(
    cpu: &Cpu,
    view: &View<'_>,
    (noise, keys, inv_temp): (&LogitNoise, &[u64], f32),
    rows: Range<usize>,
    columns: Range<usize>,
    into: &mut [f32],
) {
    let width = view.head.k();
    let hidden = &view.hidden[rows.start * width..rows.end * width];
    linear::forward_part(cpu, rows.len(), hidden, view.head, columns.start, into);
    for (row, &key) in into.chunks_exact_mut(columns.len()).zip(&keys[rows]) {
        noise.add(key, columns.start, inv_temp, row);
    }
}

/// A micro-batch's predicting rows.
#[derive(Debug)]
pub struct Rows<'a> {
    /// The student's last hidden rows, `[rows, hidden]`.
    pub hidden: &'a [f32],
    /// The token that follows each, `[rows]`.
    pub targets: &'a [u32],
    /// The teacher, for a distillation objective.
    pub teacher: Option<Logits<'a>>,
    /// The rollout's own recipe at the version that sampled, to measure mismatch.
    pub behaviour: Option<Logits<'a>>,
    /// The reference, for a target that takes one.
    pub reference: Option<Logits<'a>>,
    /// A factor of each row's loss, detached, `[rows]`; 1 when absent.
    pub factors: Option<&'a [f32]>,
    /// A number in [0, 1) for each row, for a divergence that draws.
    pub draws: Option<&'a [f32]>,
    /// Ids below this are real for student and teacher alike.
    pub valid: usize,
    /// Weight of each row: one over the number of tokens in the whole update.
    pub weight: f32,
}

/// Results by row.
#[derive(Debug, Default)]
pub struct ByRow {
    /// ln p of the target under the student at the objective's temperature.
    pub logprobs: Vec<f32>,
    /// KL(rollout || student), exact over the vocabulary, at the objective's temperature; empty without `behaviour`, and
    /// NaN where the rollout's model is not there any more.
    pub mismatch: Vec<f64>,
    /// ln p of the target under the rollout's model, at the objective's temperature; empty unless that is an engine's, or
    /// has noise on its logits.
    pub behaviour: Vec<f32>,
    /// KL(student || teacher).
    pub kl: Vec<f64>,
    /// What the target did; empty where it is the teacher on the kernel.
    pub moved: Vec<Moved>,
}

/// Buffers of one block.
#[derive(Debug)]
pub struct LossWorkspace {
    bytes: usize,
    kernel: kernel::Workspace,
    student: Vec<f32>,
    other: Vec<f32>,
    reference: Vec<f32>,
    out: Vec<RowOut>,
    weights: Vec<f32>,
}

impl Default for LossWorkspace {
    fn default() -> LossWorkspace {
        LossWorkspace::within(BLOCK_BYTES)
    }
}

impl LossWorkspace {
    /// For up to `bytes` of one model's logits on the kernel. No bit depends on it.
    #[must_use]
    pub fn within(bytes: usize) -> LossWorkspace {
        let (student, other, reference, out, weights) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        LossWorkspace { bytes, kernel: kernel::Workspace::default(), student, other, reference, out, weights }
    }

    /// How much of the logits exists at a time on the kernel.
    #[must_use]
    pub fn tile(&self, vocab: usize) -> Tile {
        kernel::tile(self.bytes, vocab)
    }
}

/// Why the loss cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// Logits of a row are not finite.
    #[error("predicting row {row} (token id {token} follows): {what}")]
    Row {
        /// Row among the predicting rows of the micro-batch.
        row: usize,
        /// The token that follows.
        token: u32,
        /// What is wrong.
        what: String,
    },
    /// The device of another model failed.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// Computes the loss over all rows; with `gradients` also the gradient of the hidden rows (into `dhidden`, which it
/// overwrites) and of the head (added).
pub fn loss(
    cpu: &Cpu,
    objective: Objective,
    model: &Model,
    mut rows: Rows<'_>,
    mut gradients: Option<(&mut Gradients, &mut Vec<f32>)>,
    by_row: &mut ByRow,
    ws: &mut LossWorkspace,
) -> Result<Sums, LossError> {
    let (hidden, vocab, count) = (model.config.hidden, model.config.vocab, rows.targets.len());
    by_row.logprobs.resize(count, 0.0);
    by_row.mismatch.resize(if rows.behaviour.is_some() { count } else { 0 }, 0.0);
    by_row.kl.resize(count, 0.0);
    let elsewhere = matches!(rows.behaviour, Some(Logits::Step { .. } | Logits::Noised { .. }));
    by_row.behaviour.resize(if elsewhere { count } else { 0 }, 0.0);
    if let Some((_, dhidden)) = &mut gradients {
        dhidden.resize(count * hidden, 0.0);
    }
    by_row.moved.clear();
    if let Some(kernel) = kernel::of(objective) {
        let tile = ws.tile(vocab);
        return kernel::loss(cpu, kernel, tile, model, rows, gradients, by_row, &mut ws.kernel);
    }
    let (objective, inv_temp) = match objective {
        Objective::Composed { objective, inv_temp } => (Some(objective), inv_temp),
        Objective::Logprobs { inv_temp } => (None, inv_temp),
        Objective::Distill { .. } | Objective::Supervised => unreachable!("they have a kernel"),
    };
    let mut sums = Sums::default();
    let widest = |logits: &Option<Logits<'_>>| logits.as_ref().map_or(0, Logits::vocab);
    let block = block_rows(vocab.max(widest(&rows.teacher)).max(widest(&rows.reference)));
    for first in (0..count).step_by(block) {
        let n = block.min(count - first);
        let input = &rows.hidden[first * hidden..(first + n) * hidden];
        let targets = &rows.targets[first..first + n];
        let fail = |row: usize, what: String| LossError::Row { row: first + row, token: targets[row.min(n - 1)], what };
        logits(cpu, model.head(), n, input, &mut ws.student);
        let logprobs = &mut by_row.logprobs[first..first + n];
        log_softmax::gather(cpu, n, vocab, rows.valid, inv_temp, &ws.student, targets, logprobs)
            .map_err(|e| fail(e.row(), e.to_string()))?;
        if let Some(behaviour) = &mut rows.behaviour {
            behaviour.block(cpu, first, n, &mut ws.other)?;
            if elsewhere {
                let logprobs = &mut by_row.behaviour[first..first + n];
                log_softmax::gather(cpu, n, vocab, rows.valid, inv_temp, &ws.other, targets, logprobs)
                    .map_err(|e| fail(e.row(), e.to_string()))?;
            }
            let out = &mut by_row.mismatch[first..first + n];
            divergence::kl(cpu, n, vocab, rows.valid, inv_temp, &ws.other, &ws.student, out)
                .map_err(|e| fail(e.row(), e.to_string()))?;
            forget_missing(behaviour, first, out);
        }
        let Some(objective) = objective else {
            assert!(gradients.is_none(), "logprobs alone have no gradient");
            sums.tokens += n as u64;
            continue;
        };
        weigh(&rows, first..first + n, &mut ws.weights);
        let factors = rows.factors.map(|factors| &factors[first..first + n]);
        let teacher = rows.teacher.as_mut().expect("a distillation objective comes with a teacher");
        block_at(teacher, cpu, first, n, vocab, &mut ws.other)?;
        let mut reference = None;
        if objective.target.needs_reference() {
            let logits = rows.reference.as_mut().expect("this target comes with a reference");
            block_at(logits, cpu, first, n, vocab, &mut ws.reference)?;
            reference = Some(&ws.reference[..]);
        }
        let draws = rows.draws.map(|draws| &draws[first..first + n]);
        let others = RowIn { teacher: &ws.other, reference, tokens: targets, weights: &ws.weights, draws };
        let (student, out) = (&mut ws.student, &mut ws.out);
        objective::rows(cpu, objective, vocab, rows.valid, inv_temp, student, others, out)
            .map_err(|(row, what)| fail(row, what))?;
        for (row, out) in ws.out.iter().enumerate() {
            let RowOut { loss, kl_reverse, kl_forward, entropy, moved } = *out;
            let loss = weighted(factors.map(|factors| factors[row]), loss);
            sums.add(&Sums { tokens: 1, loss, kl_reverse, kl_forward, entropy });
            by_row.kl[first + row] = kl_reverse;
            by_row.moved.push(moved);
        }
        if let Some((gradients, dhidden)) = &mut gradients {
            let dinput = &mut dhidden[first * hidden..(first + n) * hidden];
            linear::backward_input(cpu, n, &ws.student, model.head(), dinput, false);
            linear::backward_weight(cpu, n, vocab, hidden, input, &ws.student, gradients.head_mut());
        }
    }
    Ok(sums)
}

/// A row's loss by its factor. A row that is masked counts for nothing, also where its loss is infinite.
fn weighted(factor: Option<f32>, loss: f64) -> f64 {
    match factor {
        None => loss,
        Some(0.0) => 0.0,
        Some(factor) => f64::from(factor) * loss,
    }
}

/// Weights of some rows: the update's, times the row's factor.
fn weigh(rows: &Rows<'_>, of: Range<usize>, into: &mut Vec<f32>) {
    into.clear();
    into.resize(of.len(), rows.weight);
    if let Some(factors) = rows.factors {
        into.iter_mut().zip(&factors[of]).for_each(|(weight, factor)| *weight *= factor);
    }
}

/// Puts NaN in the place of what was compared with a model that is not there any more; `out` begins with row `first`.
fn forget_missing(behaviour: &Logits<'_>, first: usize, out: &mut [f64]) {
    if let Logits::Several { of, .. } = behaviour {
        let rows = out.iter_mut().zip(&of[first..]);
        rows.filter(|(_, of)| **of == NO_MODEL).for_each(|(out, _)| *out = f64::NAN);
    }
}

/// Logits of rows `first .. first + n` of another model, laid out `[n, vocab]` as the student's.
fn block_at(
    model: &mut Logits<'_>,
    cpu: &Cpu,
    first: usize,
    n: usize,
    vocab: usize,
    into: &mut Vec<f32>,
) -> Result<(), CudaError> {
    let own = model.vocab();
    model.block(cpu, first, n, into)?;
    if own != vocab {
        restride(into, n, own, vocab);
    }
    Ok(())
}

fn logits(cpu: &Cpu, head: &Packed, rows: usize, hidden: &[f32], into: &mut Vec<f32>) {
    into.resize(rows * head.n(), 0.0);
    linear::forward(cpu, rows, hidden, &mut [Job { w: head, bias: None, y: into }]);
}

/// Lays rows of width `from` out at width `to`, in place: teachers and students of one family pad their vocabularies
/// differently, and the columns that both have come first.
fn restride(x: &mut Vec<f32>, rows: usize, from: usize, to: usize) {
    let both = from.min(to);
    if to > from {
        x.resize(rows * to, 0.0);
        for row in (0..rows).rev() {
            x.copy_within(row * from..row * from + both, row * to);
        }
    } else {
        for row in 0..rows {
            x.copy_within(row * from..row * from + both, row * to);
        }
        x.truncate(rows * to);
    }
}
