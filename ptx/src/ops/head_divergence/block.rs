//! The sweeps over one block of rows.

use std::ops::Range;

use super::cpu::{self, Cut};
use super::{Gradients, Head, HeadError, Input, Kind, RowStats, Side, Workspace};
use crate::Cpu;
use crate::ops::linear;
use crate::ops::log_softmax::cpu::row_mass;
use crate::ops::log_softmax::{LogitError, diagnose};

/// Losses, measures and gradients of `rows`, in tiles of `columns`.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    cpu: &Cpu,
    kind: Kind,
    columns: usize,
    rows: Range<usize>,
    input: &mut Input<'_>,
    gradients: Option<&mut Gradients<'_>>,
    stats: &mut [RowStats],
    ws: &mut Workspace,
) -> Result<(), HeadError> {
    let (vocab, hidden) = (input.student.weights.n(), input.student.weights.k());
    let columns = columns.min(vocab);
    let out = &mut stats[rows.clone()];
    let targets = &input.targets[rows.clone()];
    let weights = &input.weights[rows.clone()];
    // Buffers grow to what is asked for and not beyond: `Tile::bytes` says how much that is.
    for (buffer, is_used) in
        [(&mut ws.student, true), (&mut ws.other, input.teacher.is_some() || input.rollout.is_some())]
    {
        let want = if is_used { rows.len() * columns } else { 0 };
        if buffer.len() < want {
            *buffer = Vec::new();
            buffer.reserve_exact(want);
            buffer.resize(want, 0.0);
        }
    }
    if ws.rows.capacity() < rows.len() {
        ws.rows = Vec::with_capacity(rows.len());
    }
    ws.rows.clear();
    ws.rows.extend(targets.iter().zip(weights).map(|(&target, &weight)| cpu::Row::new(target, weight)));
    let cut = |first: usize| Cut::new(first, columns.min(vocab - first), input.valid, input.inv_temp);
    let tiles = || (0..vocab).step_by(columns).map(cut);
    let whole = columns == vocab;
    let student = input.student;
    let (teacher, rollout) = (&mut input.teacher, &mut input.rollout);
    let mut descend = gradients.map(|gradients| Descend {
        cpu,
        student: Head { weights: student.weights, hidden: &student.hidden[rows.start * hidden..rows.end * hidden] },
        dhidden: &mut gradients.hidden[rows.start * hidden..rows.end * hidden],
        dhead: &mut *gradients.head,
    });
    let is_trained = descend.is_some();
    let (p, q, state) = (&mut ws.student, &mut ws.other, &mut ws.rows);

    // First sweep: log-sum-exps.
    for cut in tiles() {
        fill(cpu, &mut Side::Head(student), &rows, cut.all(), p)?;
        cpu::masses(cpu, cut, cut.width, p, state, |row| &mut row.student);
        if !whole {
            for (side, of) in [(&mut *rollout, cpu::ROLLOUT), (&mut *teacher, cpu::TEACHER)] {
                if let Some(side) = side {
                    fill(cpu, side, &rows, cut.ids(), q)?;
                    cpu::masses(cpu, cut, cut.ids, q, state, of);
                }
            }
        }
    }
    fault(state, |row| row.student.lse(), &rows)
        .map_or(Ok(()), |row| Err(name(cpu, "student", &mut Side::Head(student), row, input.valid, input.inv_temp)))?;

    // Second sweep: sums, and the gradients that need none.
    let last = matches!(kind, Kind::Forward | Kind::CrossEntropy);
    let measures = teacher.is_some() || rollout.is_some();
    if measures || (is_trained && last) {
        for cut in tiles() {
            if !whole {
                fill(cpu, &mut Side::Head(student), &rows, cut.all(), p)?;
            }
            if let Some(side) = rollout {
                fill(cpu, side, &rows, cut.ids(), q)?;
                if whole {
                    cpu::masses(cpu, cut, cut.ids, q, state, cpu::ROLLOUT);
                }
                if cut.first == 0
                    && let Some(row) = fault(state, |row| row.rollout.lse(), &rows)
                {
                    return Err(name(cpu, "rollout", side, row, input.valid, input.inv_temp));
                }
                cpu::mismatch(cpu, cut, q, p, state);
            }
            if let Some(side) = teacher {
                fill(cpu, side, &rows, cut.ids(), q)?;
                if whole {
                    cpu::masses(cpu, cut, cut.ids, q, state, cpu::TEACHER);
                }
                if cut.first == 0
                    && let Some(row) = fault(state, |row| row.teacher.lse(), &rows)
                {
                    return Err(name(cpu, "teacher", side, row, input.valid, input.inv_temp));
                }
                cpu::terms(cpu, cut, kind, is_trained, p, q, state);
            }
            if let Some(descend) = &mut descend
                && last
            {
                if kind == Kind::CrossEntropy {
                    cpu::gradient(cpu, cut, kind, p, &[], state);
                }
                descend.tile(cut, p);
            }
        }
    }
    for ((row, state), out) in rows.clone().zip(state.iter()).zip(out) {
        *out = state.stats(kind);
        if out.loss.is_infinite() && state.weight != 0.0 {
            return Err(LogitError::InfiniteLoss { row }.into());
        }
    }

    // Third sweep: gradients that take a sum of their row.
    if let Some(descend) = &mut descend
        && !last
    {
        for cut in tiles() {
            if !whole {
                let side = teacher.as_mut().expect("checked: this kind has a teacher");
                fill(cpu, &mut Side::Head(student), &rows, cut.all(), p)?;
                fill(cpu, side, &rows, cut.ids(), q)?;
            }
            cpu::gradient(cpu, cut, kind, p, q, state);
            descend.tile(cut, p);
        }
    }
    Ok(())
}

/// What the gradient of a tile of logits goes into.
struct Descend<'a> {
    cpu: &'a Cpu,
    student: Head<'a>,
    dhidden: &'a mut [f32],
    dhead: &'a mut [f32],
}

impl Descend<'_> {
    /// Adds a tile's part; the first begins the hidden rows' gradient anew.
    fn tile(&mut self, cut: Cut, dlogits: &[f32]) {
        let (weights, hidden, k) = (self.student.weights, self.student.hidden, self.student.weights.k());
        let rows = hidden.len() / k;
        let dlogits = &dlogits[..rows * cut.width];
        linear::backward_input_part(self.cpu, rows, dlogits, weights, cut.first, self.dhidden, cut.first > 0);
        let dhead = &mut self.dhead[cut.first * k..(cut.first + cut.width) * k];
        linear::backward_weight(self.cpu, rows, cut.width, k, hidden, dlogits, dhead);
    }
}

/// Logits `[rows, columns]` at the start of `out`.
fn fill(
    cpu: &Cpu,
    side: &mut Side<'_>,
    rows: &Range<usize>,
    columns: Range<usize>,
    out: &mut [f32],
) -> Result<(), HeadError> {
    let out = &mut out[..rows.len() * columns.len()];
    match side {
        _ if out.is_empty() => (), // beyond the ids, where this model may have no columns
        Side::Head(Head { weights, hidden }) => {
            let hidden = &hidden[rows.start * weights.k()..rows.end * weights.k()];
            linear::forward_part(cpu, rows.len(), hidden, weights, columns.start, out);
        }
        Side::Fill(fill) => fill(rows.clone(), columns, out)?,
    }
    Ok(())
}

/// The first row whose log-sum-exp is no number.
fn fault(state: &[cpu::Row], lse: impl Fn(&cpu::Row) -> f32, rows: &Range<usize>) -> Option<usize> {
    state.iter().position(|row| lse(row).is_nan()).map(|at| rows.start + at)
}

/// What is wrong with a row that is no distribution; its logits are made once more, whole.
fn name(cpu: &Cpu, whose: &'static str, side: &mut Side<'_>, row: usize, valid: usize, inv_temp: f32) -> HeadError {
    let mut logits = vec![0.0; valid];
    if let Err(error) = fill(cpu, side, &(row..row + 1), 0..valid, &mut logits) {
        return error;
    }
    debug_assert!(row_mass(cpu.isa(), &logits, inv_temp).lse().is_nan(), "the same bits alone");
    diagnose(whose, row, &logits, inv_temp).into()
}
