//! What an update of the student does beside rollouts and the teacher.

use engine::model::Model;
use ptx::ops::adamw::AdamW;
use ptx::ops::divergence::Kind;
use ptx::rng::{Purpose, Stream};

use super::{BenchError, Cost, Figure, Measured, Turns, What};
use crate::clock::Stopwatch;
use crate::learner::{Learner, Views};
use crate::loss::{Objective, View};
use crate::master::Master;
use crate::sequences::Row;

/// A training step's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training {
    /// How many.
    pub rows: usize,
    /// Tokens of each, the first of them its prompt.
    pub len: usize,
    /// The loss is the cross-entropy of the ids, and there is no teacher.
    pub supervised: bool,
}

/// Forward with a tape, the loss, backward, AdamW and the next version: one micro-batch of all rows. The loss is reverse KL to
/// given hidden rows of a teacher, or supervised. Ids and the teacher's rows are random; its head is the model's. `master` are
/// the model's f32 weights.
///
/// # Errors
/// When there is no row of at least two tokens, a row is longer than the model's context, or the loss is no number.
pub fn train(
    model: &mut Model,
    master: &mut Master,
    training: Training,
    valid: usize,
    turns: &mut Turns<'_>,
) -> Result<Figure, BenchError> {
    let (what, Training { rows: count, len, supervised }) = (What::Train, training);
    for (name, size) in [("number of rows", count), ("length of a row less one", len.saturating_sub(1))] {
        if size == 0 {
            return Err(BenchError::Nothing { what, name });
        }
    }
    let max = model.config.max_positions;
    if len > max {
        return Err(BenchError::Context { what, tokens: len, max });
    }
    let cpu = std::sync::Arc::clone(turns.gauge.cpu());
    let mut learner = Learner::new(model, count * len, count);
    let mut stream = Stream::new(turns.seed, Purpose::Data, 0);
    let rows: Vec<Row> = (0..count)
        .map(|_| Row::new((0..len).map(|_| stream.below(u32::try_from(valid).expect("ids are u32"))).collect(), 1))
        .collect();
    let predicted = count * (len - 1);
    let hidden: Vec<f32> = (0..predicted * model.config.hidden).map(|_| stream.normal()).collect();
    let hyper = AdamW { lr: 1e-4, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.1 };
    let distill = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 };
    let objective = if supervised { Objective::Supervised } else { distill };
    let samples = turns.run(1, |_| {
        let watch = Stopwatch::start();
        learner.gradients.clear();
        let teacher = (!supervised).then(|| View { head: model.head(), hidden: &hidden }.into());
        let views = Views { teacher, ..Views::default() };
        learner.micro_batch(&cpu, model, objective, &rows, views, valid, 1.0 / predicted as f32, true)?;
        master.update(&cpu, &learner.gradients, hyper, 1.0);
        model.update(&cpu, master.updates, &mut master.version(&cpu)).map_err(engine::engine::EngineError::from)?;
        Ok::<_, BenchError>(watch.elapsed_s())
    })?;
    let cost = Cost::train(&model.config, count * len);
    let (batch, context, tokens) = (Some(count), Some(len), Some(count * len));
    Ok(Figure { what, batch, context, tokens, measured: Measured { cost, samples }, resident: None })
}
