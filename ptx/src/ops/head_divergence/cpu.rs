//! Tiles of rows: each row is one task, and its sums go on from tile to tile.

use super::mixed::{self, Mixture};
use super::{Kind, RowStats};
use crate::isa::by_isa;
use crate::math::{exp, exp_rest, tree16};
use crate::ops::divergence::cpu::{Sums, dense_sums, pair, reverse_gradient, softmax};
use crate::ops::log_softmax::WORTH_SHARING;
use crate::ops::log_softmax::cpu::{LANES, Mass, TILE, more_mass, padded};
use crate::parallel::Parts;
use crate::{Cpu, Isa};

/// Columns `first .. first + width` of the student; the first `ids` of them are real.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) first: usize,
    pub(super) width: usize,
    pub(super) ids: usize,
    inv_temp: f32,
}

impl Cut {
    pub(super) fn new(first: usize, width: usize, valid: usize, inv_temp: f32) -> Cut {
        Cut { first, width, ids: valid.saturating_sub(first).min(width), inv_temp }
    }

    /// All columns.
    pub(super) fn all(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.width
    }

    /// The real ones.
    pub(super) fn ids(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.ids
    }
}

/// What is known of a row so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    target: u32,
    pub(super) weight: f32,
    pub(super) student: Side,
    pub(super) teacher: Side,
    pub(super) rollout: Side,
    sums: Sums,
    mixed: mixed::Sums,
    mismatch: Mismatch,
}

/// One model's part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    mass: Mass,
    /// z of the target.
    target: f32,
}

impl Side {
    const NONE: Side = Side { mass: Mass::NONE, target: 0.0 };

    /// Log-sum-exp; NaN when there is no distribution.
    pub(super) fn lse(&self) -> f32 {
        self.mass.lse()
    }

    /// The target's logprob.
    fn logprob(&self) -> f32 {
        self.target - self.lse()
    }
}

pub(super) const TEACHER: fn(&mut Row) -> &mut Side = |row| &mut row.teacher;
pub(super) const ROLLOUT: fn(&mut Row) -> &mut Side = |row| &mut row.rollout;

impl Row {
    pub(super) fn new(target: u32, weight: f32) -> Row {
        let (student, teacher, rollout) = (Side::NONE, Side::NONE, Side::NONE);
        let (sums, mixed, mismatch) = (Sums::default(), mixed::Sums::default(), Mismatch::default());
        Row { target, weight, student, teacher, rollout, sums, mixed, mismatch }
    }

    /// Once every sweep that gives sums is over.
    pub(super) fn stats(&self, kind: Kind) -> RowStats {
        let known = |side: &Side| side.mass.max > f32::NEG_INFINITY;
        RowStats {
            loss: match kind {
                Kind::Reverse => self.sums.kl_pq,
                Kind::Forward => self.sums.kl_qp,
                Kind::CrossEntropy => -f64::from(self.student.logprob()),
                _ => self.mixed.loss,
            },
            kl_reverse: self.sums.kl_pq,
            kl_forward: self.sums.kl_qp,
            entropy_student: self.sums.entropy_p,
            entropy_teacher: self.sums.entropy_q,
            logprob: self.student.logprob(),
            logprob_rollout: if known(&self.rollout) { self.rollout.logprob() } else { 0.0 },
            mismatch: self.mismatch.kl,
            chi_square: self.mismatch.chi_square,
        }
    }
}

/// Runs `task` for every row of a tile of `cut.ids` columns each.
fn each_row(cpu: &Cpu, cut: Cut, rows: &mut [Row], task: impl Fn(usize, &mut Row) + Sync) {
    let count = rows.len();
    let rows = Parts::new(rows);
    cpu.for_each_if(count * cut.ids >= WORTH_SHARING, count, |at| {
        // SAFETY: row `at` belongs to this task alone.
        let row = unsafe { rows.range(at, 1) };
        task(at, &mut row[0]);
    });
}

/// Folds a tile of one model's logits, `[rows, stride]`, into its masses.
pub(super) fn masses(
    cpu: &Cpu,
    cut: Cut,
    stride: usize,
    logits: &[f32],
    rows: &mut [Row],
    side: fn(&mut Row) -> &mut Side,
) {
    each_row(cpu, cut, rows, |at, row| {
        let ids = &logits[at * stride..][..cut.ids];
        let target = (row.target as usize).checked_sub(cut.first).filter(|&target| target < cut.ids);
        let side = side(row);
        side.mass = more_mass(cpu.isa(), side.mass, ids, cut.inv_temp);
        if let Some(target) = target {
            side.target = ids[target] * cut.inv_temp;
        }
    });
}

/// Sums of rollout and student.
#[derive(Clone, Copy, Debug, Default)]
struct Mismatch {
    /// KL(rollout || student).
    kl: f64,
    chi_square: f64,
}

/// Adds a tile's part of KL(rollout || student) and of chi-square.
pub(super) fn mismatch(cpu: &Cpu, cut: Cut, rollout: &[f32], student: &[f32], rows: &mut [Row]) {
    each_row(cpu, cut, rows, |at, row| {
        let (mu, p) = (&rollout[at * cut.ids..][..cut.ids], &student[at * cut.width..][..cut.ids]);
        let lses = (row.rollout.lse(), row.student.lse());
        row.mismatch = more_mismatch(cpu.isa(), row.mismatch, mu, p, cut.inv_temp, lses);
    });
}

by_isa! {
    /// The sums of what came before and of these columns.
    fn more_mismatch(before: Mismatch, mu: &[f32], p: &[f32], inv_temp: f32, lses: (f32, f32)) -> Mismatch {
        let mut sums = before;
        for (mu, p) in mu.chunks(TILE).zip(p.chunks(TILE)) {
            let mut lanes = [[0.0; LANES]; 2];
            let (mu_blocks, mu_rest) = mu.as_chunks::<LANES>();
            let (p_blocks, p_rest) = p.as_chunks::<LANES>();
            for (mu, p) in mu_blocks.iter().zip(p_blocks) {
                mismatch_block(mu, p, inv_temp, lses, &mut lanes);
            }
            if !mu_rest.is_empty() {
                mismatch_block(&padded(mu_rest), &padded(p_rest), inv_temp, lses, &mut lanes);
            }
            sums.kl += f64::from(tree16(&lanes[0]));
            sums.chi_square += f64::from(tree16(&lanes[1]));
        }
        sums
    }
}

#[inline(always)]
fn mismatch_block(mu: &[f32; LANES], p: &[f32; LANES], inv_temp: f32, lses: (f32, f32), lanes: &mut [[f32; LANES]; 2]) {
    for i in 0..LANES {
        let pair = pair(mu[i] * inv_temp, p[i] * inv_temp, lses);
        lanes[0][i] += pair.pq;
        // (mu - p)^2 / p. Apart, the square is of one probability over the other, which may be any number.
        let apart = exp(2.0 * pair.lp - pair.lq) + (pair.q - 2.0 * pair.p);
        let far = if pair.p == 0.0 { pair.q } else { apart };
        let near = if pair.q == 0.0 { 0.0 } else { pair.gain * (pair.gain / pair.q) };
        lanes[1][i] += if pair.near { near } else { far };
    }
}

/// Adds a tile's part of the sums of student and teacher. With `gradient` and the forward KL the student's tile
/// `[rows, width]` becomes d(loss)/d(logits).
pub(super) fn terms(
    cpu: &Cpu,
    cut: Cut,
    kind: Kind,
    gradient: bool,
    student: &mut [f32],
    teacher: &[f32],
    rows: &mut [Row],
) {
    let mixture = Mixture::of(kind);
    let student = Parts::new(student);
    each_row(cpu, cut, rows, |at, row| {
        // SAFETY: row `at` of the student belongs to this task alone.
        let student = unsafe { student.range(at * cut.width, cut.width) };
        let (ids, padding) = student.split_at_mut(cut.ids);
        let teacher = &teacher[at * cut.ids..][..cut.ids];
        let lses = (row.student.lse(), row.teacher.lse());
        if let Some(mixture) = mixture {
            row.mixed = mixed::more(cpu.isa(), row.mixed, mixture, ids, teacher, cut.inv_temp, lses);
        }
        let forward = gradient && kind == Kind::Forward;
        let scale = (forward && row.weight != 0.0).then_some(row.weight * cut.inv_temp);
        row.sums = dense_sums(cpu.isa(), row.sums, ids, teacher, cut.inv_temp, lses, scale);
        if forward {
            if row.weight == 0.0 {
                ids.fill(0.0);
            }
            padding.fill(0.0);
        }
    });
}

/// The student's tile `[rows, width]` becomes d(loss)/d(logits). The forward KL has it from [`terms`].
pub(super) fn gradient(cpu: &Cpu, cut: Cut, kind: Kind, student: &mut [f32], teacher: &[f32], rows: &mut [Row]) {
    let mixture = Mixture::of(kind);
    let student = Parts::new(student);
    each_row(cpu, cut, rows, |at, row| {
        // SAFETY: row `at` of the student belongs to this task alone.
        let student = unsafe { student.range(at * cut.width, cut.width) };
        let (ids, padding) = student.split_at_mut(cut.ids);
        padding.fill(0.0);
        if row.weight == 0.0 {
            ids.fill(0.0);
        } else if kind == Kind::CrossEntropy {
            cross_entropy(cpu.isa(), cut, row, ids);
        } else {
            let teacher = &teacher[at * cut.ids..][..cut.ids];
            let lses = (row.student.lse(), row.teacher.lse());
            let scale = row.weight * cut.inv_temp;
            #[allow(clippy::cast_possible_truncation)] // rounding is meant
            let of_row = if mixture.is_some() { row.mixed.slope as f32 } else { row.sums.kl_pq as f32 };
            if let Some(mixture) = mixture {
                mixed::gradient(cpu.isa(), mixture, ids, teacher, cut.inv_temp, lses, scale, of_row);
            } else {
                reverse_gradient(cpu.isa(), ids, teacher, cut.inv_temp, lses, scale, of_row);
            }
        }
    });
}

fn cross_entropy(isa: Isa, cut: Cut, row: &Row, ids: &mut [f32]) {
    let scale = row.weight * cut.inv_temp;
    softmax(isa, ids, cut.inv_temp, row.student.lse(), scale);
    if let Some(target) = (row.target as usize).checked_sub(cut.first).filter(|&target| target < cut.ids) {
        // p - 1 without cancellation for a target that is nearly certain; below e^-80 it is -1.
        ids[target] = scale * exp_rest(row.student.logprob().max(-80.0)).0;
    }
}
