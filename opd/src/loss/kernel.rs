//! The losses that the fused kernel knows: divergences from the teacher itself over the whole vocabulary, and cross-entropy.
//! Loss and mismatch come from one pass over tiles of rows and vocabulary.

use std::ops::Range;

use engine::engine::LOGIT_ROWS;
use engine::model::{Gradients, Model};
use ptx::Cpu;
use ptx::cuda::CudaError;
use ptx::ops::head_divergence::{self as head, Fill, Head, HeadError, Input, Kind, RowStats, Side, Tile};

use super::{ByRow, Logits, LossError, NO_MODEL, Objective, Rows, Sums, noised, several, weigh};

/// Rows whose whole logits must fit, or else the vocabulary is cut: with fewer a product waits for the head's weights.
const ROWS_MIN: usize = 32;

/// The kernel of an objective, with 1 / temperature.
pub(super) fn of(objective: Objective) -> Option<(Kind, f32)> {
    match objective {
        Objective::Distill { kind, inv_temp } => Some((kind.into(), inv_temp)),
        Objective::Composed { objective, inv_temp } => objective.kernel().map(|kind| (kind, inv_temp)),
        Objective::Supervised => Some((Kind::CrossEntropy, 1.0)),
        Objective::Logprobs { .. } => None,
    }
}

/// Tiles of up to `bytes` of one model's logits.
pub(super) fn tile(bytes: usize, vocab: usize) -> Tile {
    Tile::within(bytes, vocab, ROWS_MIN)
}

/// Buffers of the kernel and of its results.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    head: head::Workspace,
    weights: Vec<f32>,
    stats: Vec<RowStats>,
}

/// [`super::loss`] on the kernel.
#[allow(clippy::too_many_arguments)]
pub(super) fn loss(
    cpu: &Cpu,
    (kind, inv_temp): (Kind, f32),
    tile: Tile,
    model: &Model,
    rows: Rows<'_>,
    gradients: Option<(&mut Gradients, &mut Vec<f32>)>,
    by_row: &mut ByRow,
    ws: &mut Workspace,
) -> Result<Sums, LossError> {
    let count = rows.targets.len();
    assert!(rows.teacher.is_some() || !kind.needs_teacher(), "a distillation objective comes with a teacher");
    weigh(&rows, 0..count, &mut ws.weights);
    let teacher = rows.teacher.filter(|_| kind.needs_teacher());
    let missing = match &rows.behaviour {
        Some(Logits::Several { of, .. }) => Some(*of),
        _ => None,
    };
    let (factors, targets) = (rows.factors, rows.targets);
    let mut teacher = teacher.map(|logits| source(cpu, logits));
    let mut rollout = rows.behaviour.map(|logits| source(cpu, logits));
    ws.stats.clear();
    ws.stats.resize(count, RowStats::default());
    let input = Input {
        student: Head { weights: model.head(), hidden: rows.hidden },
        teacher: teacher.as_mut().map(Source::side),
        rollout: rollout.as_mut().map(Source::side),
        targets,
        weights: &ws.weights,
        valid: rows.valid,
        inv_temp,
    };
    let gradients =
        gradients.map(|(gradients, dhidden)| head::Gradients { hidden: dhidden, head: gradients.head_mut() });
    head::run(cpu, kind, tile, input, gradients, &mut ws.stats, &mut ws.head).map_err(|error| match error {
        HeadError::Device(error) => LossError::Device(error),
        HeadError::Logits(error) => {
            LossError::Row { row: error.row(), token: targets[error.row()], what: error.to_string() }
        }
    })?;
    let mut sums = Sums::default();
    for (row, s) in ws.stats.iter().enumerate() {
        sums.add(&Sums {
            tokens: 1,
            loss: super::weighted(factors.map(|factors| factors[row]), s.loss),
            kl_reverse: s.kl_reverse,
            kl_forward: s.kl_forward,
            entropy: s.entropy_student,
        });
        by_row.logprobs[row] = s.logprob;
        by_row.kl[row] = s.kl_reverse;
        if let Some(mismatch) = by_row.mismatch.get_mut(row) {
            let gone = missing.is_some_and(|of| of[row] == NO_MODEL);
            *mismatch = if gone { f64::NAN } else { s.mismatch };
        }
        if let Some(behaviour) = by_row.behaviour.get_mut(row) {
            *behaviour = s.logprob_rollout;
        }
    }
    Ok(sums)
}

/// Another model as the kernel takes it. A function that copies out of an engine's rows has no name of its own.
enum Source<'a, F> {
    Here(Head<'a>),
    Step(F),
    Made(Box<Fill<'a>>),
}

impl<F: FnMut(Range<usize>, Range<usize>, &mut [f32]) -> Result<(), CudaError>> Source<'_, F> {
    fn side(&mut self) -> Side<'_> {
        match self {
            Source::Here(head) => Side::Head(*head),
            Source::Step(fill) => Side::Fill(fill),
            Source::Made(fill) => Side::Fill(&mut **fill),
        }
    }
}

/// An engine's logits come as whole rows, [`LOGIT_ROWS`] at a time, whatever part is wanted.
#[allow(clippy::type_complexity)] // a name for it could not say that it is one type
fn source<'a>(
    cpu: &'a Cpu,
    logits: Logits<'a>,
) -> Source<'a, impl FnMut(Range<usize>, Range<usize>, &mut [f32]) -> Result<(), CudaError> + 'a> {
    match logits {
        Logits::Here(view) => Source::Here(Head { weights: view.head, hidden: view.hidden }),
        Logits::Several { views, of } => Source::Made(Box::new(move |rows, columns, out| {
            several(cpu, &views, of, rows, columns, out);
            Ok(())
        })),
        Logits::Noised { view, noise, keys, inv_temp } => Source::Made(Box::new(move |rows, columns, out| {
            noised(cpu, &view, (&noise, keys, inv_temp), rows, columns, out);
            Ok(())
        })),
        Logits::Step { engine, rows: step } => {
            let vocab = engine.config().vocab;
            Source::Step(move |rows: Range<usize>, columns: Range<usize>, out: &mut [f32]| {
                let blocks = step[rows].chunks(LOGIT_ROWS);
                for (rows, out) in blocks.zip(out.chunks_mut(LOGIT_ROWS * columns.len())) {
                    let logits = engine.logits(rows.iter().copied())?;
                    for (from, out) in logits.chunks_exact(vocab).zip(out.chunks_exact_mut(columns.len())) {
                        out.copy_from_slice(&from[columns.clone()]);
                    }
                }
                Ok(())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use ptx::ops::linear::{self, Job, Packed, WeightScale};
    use ptx::rng::{Purpose, Stream};
    use ptx::{Cpu, DType};

    use super::*;
    use crate::objective::divergence::Direction;
    use crate::objective::{self, Divergence, RowIn, Target};

    /// The kernel and the f64 rows are two ways to one number, on rows of ordinary distance: sums of some hundred terms of
    /// f32, whose logits agree bit for bit, differ by a few 1e-6 of themselves, and so do gradients.
    #[test]
    fn it_agrees_with_the_rows_in_f64() {
        const ROWS: usize = 6;
        const HIDDEN: usize = 8;
        const VOCAB: usize = 300;
        let cpu = Cpu::new(1);
        let mut draw = Stream::new(4, Purpose::Test, 0);
        let mut normals = |n: usize| -> Vec<f32> { (0..n).map(|_| draw.normal()).collect() };
        let mut head = Packed::new(DType::F32, WeightScale::Channel, VOCAB, HIDDEN);
        head.set_rows(&cpu, 0, &normals(VOCAB * HIDDEN));
        let (student, teacher) = (normals(ROWS * HIDDEN), normals(ROWS * HIDDEN));
        let (valid, inv_temp, weight) = (VOCAB - 7, 0.8, 0.3);
        let logits = |hidden: &[f32]| {
            let mut y = vec![0.0; ROWS * VOCAB];
            linear::forward(&cpu, ROWS, hidden, &mut [Job { w: &head, bias: None, y: &mut y }]);
            y
        };
        let targets = [3_u32; ROWS];
        let [reverse, forward] =
            [Direction::Reverse, Direction::Forward].map(|direction| Divergence::Skewed { direction, alpha: 0.2 });
        let jsd = |beta| Divergence::Jsd { beta };
        for divergence in [Divergence::Reverse, Divergence::Forward, jsd(0.5), jsd(0.05), jsd(1.0), reverse, forward] {
            let objective = objective::Objective { target: Target::Teacher, divergence };
            let mut dlogits = logits(&student);
            let (weights, other) = ([weight; ROWS], logits(&teacher));
            let others = RowIn { teacher: &other, reference: None, tokens: &targets, weights: &weights, draws: None };
            let mut rows = Vec::new();
            objective::rows(&cpu, objective, VOCAB, valid, inv_temp, &mut dlogits, others, &mut rows).unwrap();
            let mut want = vec![0.0; ROWS * HIDDEN];
            linear::backward_input(&cpu, ROWS, &dlogits, &head, &mut want, false);

            let side = |hidden| Head { weights: &head, hidden };
            let input = Input {
                student: side(&student),
                teacher: Some(Side::Head(side(&teacher))),
                rollout: None,
                targets: &targets,
                weights: &[weight; ROWS],
                valid,
                inv_temp,
            };
            let (mut got, mut dhead) = (vec![0.0; ROWS * HIDDEN], vec![0.0; VOCAB * HIDDEN]);
            let gradients = Some(head::Gradients { hidden: &mut got, head: &mut dhead });
            let mut stats = [RowStats::default(); ROWS];
            let kind = objective.kernel().expect("the kernel has it");
            let tile = Tile { rows: 4, columns: VOCAB };
            head::run(&cpu, kind, tile, input, gradients, &mut stats, &mut head::Workspace::default()).unwrap();
            for (row, (a, b)) in stats.iter().zip(&rows).enumerate() {
                let pairs = [
                    (a.loss, b.loss),
                    (a.kl_reverse, b.kl_reverse),
                    (a.kl_forward, b.kl_forward),
                    (a.entropy_student, b.entropy),
                ];
                for (a, b) in pairs {
                    assert!((a - b).abs() <= 1e-5 * b, "{divergence:?} row {row}: {a} and {b}");
                }
            }
            let size = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for (a, b) in got.iter().zip(&want) {
                assert!((a - b).abs() <= 1e-5 * size, "{divergence:?}: {a} and {b} of {size}");
            }
        }
    }
}
