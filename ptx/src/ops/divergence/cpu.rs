//! One row at a time: the two log-sum-exps, then tiles of terms, then, for the reverse direction, the gradient.

use super::{Kind, RowStats};
use crate::isa::by_isa;
use crate::math::{exp, exp_rest, tree16};
use crate::ops::log_softmax::WORTH_SHARING;
use crate::ops::log_softmax::cpu::{LANES, TILE, padded, row_mass};
use crate::parallel::Parts;
use crate::{Cpu, Isa};

/// Up to this |ln(q/p)|, e^x is taken from x; beyond it p and q are far enough apart to be subtracted.
pub(crate) const NEAR: f32 = 4.0;

/// One column of a pair of distributions.
pub(crate) struct Pair {
    pub(crate) p: f32,
    pub(crate) q: f32,
    /// ln p and ln q.
    pub(crate) lp: f32,
    pub(crate) lq: f32,
    /// Whether p and q are so near each other that `gain` has a small relative error.
    pub(crate) near: bool,
    /// q - p.
    pub(crate) gain: f32,
    /// The column's terms of KL(p||q) and KL(q||p).
    pub(crate) pq: f32,
    pub(crate) qp: f32,
}

/// 0 where the probability is 0, whatever it is multiplied by.
#[inline(always)]
pub(crate) fn times(probability: f32, x: f32) -> f32 {
    if probability == 0.0 { 0.0 } else { probability * x }
}

/// ln(q/p), from the difference of the z, which is exact when they are close.
#[inline(always)]
pub(crate) fn log_ratio(zp: f32, zq: f32, lse_gap: f32) -> f32 {
    (zq - zp) - lse_gap
}

/// `lses` of p and q.
#[inline(always)]
pub(crate) fn pair(zp: f32, zq: f32, lses: (f32, f32)) -> Pair {
    let (lp, lq) = (zp - lses.0, zq - lses.1);
    let (p, q) = (exp(lp), exp(lq));
    let x = log_ratio(zp, zq, lses.1 - lses.0);
    let near = x.abs() <= NEAR; // not when it is infinite or NaN
    let (first, second) = exp_rest(if near { x } else { 0.0 });
    let gap = q - p;
    Pair {
        p,
        q,
        lp,
        lq,
        near,
        gain: if near { p * first } else { gap },
        pq: if near { p * second } else { gap - times(p, x) },
        qp: if near { p * first.mul_add(x, -second) } else { times(q, x) - gap },
    }
}

/// The sums of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) kl_pq: f64,
    pub(crate) kl_qp: f64,
    pub(crate) entropy_p: f64,
    pub(crate) entropy_q: f64,
}

by_isa! {
    /// The sums of what came before, whole tiles, and of these columns of p (the student) and q; with a scale in
    /// `forward`, p becomes scale * (p - q).
    pub(crate) fn dense_sums(
        before: Sums,
        p: &mut [f32],
        q: &[f32],
        inv_temp: f32,
        lses: (f32, f32),
        forward: Option<f32>,
    ) -> Sums {
        let mut sums = before;
        for (p, q) in p.chunks_mut(TILE).zip(q.chunks(TILE)) {
            let mut lanes = [[0.0_f32; LANES]; 4];
            let (p_blocks, p_rest) = p.as_chunks_mut::<LANES>();
            let (q_blocks, q_rest) = q.as_chunks::<LANES>();
            for (p, q) in p_blocks.iter_mut().zip(q_blocks) {
                dense_block(p, q, inv_temp, lses, forward, &mut lanes);
            }
            if !p_rest.is_empty() {
                let mut p_block = padded(p_rest);
                dense_block(&mut p_block, &padded(q_rest), inv_temp, lses, forward, &mut lanes);
                p_rest.copy_from_slice(&p_block[..p_rest.len()]);
            }
            sums.kl_pq += f64::from(tree16(&lanes[0]));
            sums.kl_qp += f64::from(tree16(&lanes[1]));
            sums.entropy_p += f64::from(tree16(&lanes[2]));
            sums.entropy_q += f64::from(tree16(&lanes[3]));
        }
        sums
    }
}

#[inline(always)]
fn dense_block(
    p: &mut [f32; LANES],
    q: &[f32; LANES],
    inv_temp: f32,
    lses: (f32, f32),
    forward: Option<f32>,
    lanes: &mut [[f32; LANES]; 4],
) {
    for i in 0..LANES {
        let pair = pair(p[i] * inv_temp, q[i] * inv_temp, lses);
        lanes[0][i] += pair.pq;
        lanes[1][i] += pair.qp;
        lanes[2][i] -= times(pair.p, pair.lp);
        lanes[3][i] -= times(pair.q, pair.lq);
        if let Some(scale) = forward {
            p[i] = -pair.gain * scale;
        }
    }
}

by_isa! {
    /// KL(p||q) of one row.
    fn row_kl(p: &[f32], q: &[f32], inv_temp: f32, lses: (f32, f32)) -> f64 {
        let mut sum = 0.0;
        for (p, q) in p.chunks(TILE).zip(q.chunks(TILE)) {
            let mut lanes = [0.0; LANES];
            let (p_blocks, p_rest) = p.as_chunks::<LANES>();
            let (q_blocks, q_rest) = q.as_chunks::<LANES>();
            for (p, q) in p_blocks.iter().zip(q_blocks) {
                kl_block(p, q, inv_temp, lses, &mut lanes);
            }
            if !p_rest.is_empty() {
                kl_block(&padded(p_rest), &padded(q_rest), inv_temp, lses, &mut lanes);
            }
            sum += f64::from(tree16(&lanes));
        }
        sum
    }
}

#[inline(always)]
fn kl_block(p: &[f32; LANES], q: &[f32; LANES], inv_temp: f32, lses: (f32, f32), lanes: &mut [f32; LANES]) {
    for i in 0..LANES {
        lanes[i] += pair(p[i] * inv_temp, q[i] * inv_temp, lses).pq;
    }
}

by_isa! {
    /// p becomes scale * p (ln(p/q) - kl).
    pub(crate) fn reverse_gradient(p: &mut [f32], q: &[f32], inv_temp: f32, lses: (f32, f32), scale: f32, kl: f32) {
        let lse_gap = lses.1 - lses.0;
        for (x, q) in p.iter_mut().zip(q) {
            let (zp, zq) = (*x * inv_temp, q * inv_temp);
            *x = scale * times(exp(zp - lses.0), -log_ratio(zp, zq, lse_gap) - kl);
        }
    }
}

by_isa! {
    /// x becomes scale * softmax(x * inv_temp).
    pub(crate) fn softmax(x: &mut [f32], inv_temp: f32, lse: f32, scale: f32) {
        for x in x {
            *x = scale * exp(*x * inv_temp - lse);
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn dense(
    cpu: &Cpu,
    kind: Kind,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    student: &mut [f32],
    teacher: &[f32],
    weights: &[f32],
    stats: &mut [RowStats],
) {
    let (rows, isa) = (stats.len(), cpu.isa());
    let (student, stats) = (Parts::new(student), Parts::new(stats));
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        // SAFETY: row `row` of the student belongs to this task alone.
        let student = unsafe { student.range(row * vocab, vocab) };
        // SAFETY: as above, of the stats.
        let stats = unsafe { stats.range(row, 1) };
        stats[0] = dense_row(isa, kind, valid, inv_temp, student, &teacher[row * vocab..][..valid], weights[row]);
    });
}

/// Stats that are NaN when one side has no distribution; the student's row is then left as it was.
fn dense_row(
    isa: Isa,
    kind: Kind,
    valid: usize,
    inv_temp: f32,
    student: &mut [f32],
    teacher: &[f32],
    weight: f32,
) -> RowStats {
    let (ids, padding) = student.split_at_mut(valid);
    let lses = (row_mass(isa, ids, inv_temp).lse(), row_mass(isa, teacher, inv_temp).lse());
    if lses.0.is_nan() || lses.1.is_nan() {
        return RowStats { loss: f64::NAN, ..RowStats::default() };
    }
    let scale = weight * inv_temp;
    let forward = (kind == Kind::ForwardKl && weight != 0.0).then_some(scale);
    let sums = dense_sums(isa, Sums::default(), ids, teacher, inv_temp, lses, forward);
    let kl = match kind {
        Kind::ReverseKl => sums.kl_pq,
        Kind::ForwardKl => sums.kl_qp,
    };
    if weight == 0.0 {
        ids.fill(0.0);
    } else if kind == Kind::ReverseKl && kl.is_finite() {
        #[allow(clippy::cast_possible_truncation)] // rounding is meant
        let kl = kl as f32;
        reverse_gradient(isa, ids, teacher, inv_temp, lses, scale, kl);
    }
    padding.fill(0.0);
    RowStats {
        loss: if weight == 0.0 { 0.0 } else { f64::from(weight) * kl },
        kl_reverse: sums.kl_pq,
        kl_forward: sums.kl_qp,
        entropy_student: sums.entropy_p,
        entropy_teacher: sums.entropy_q,
    }
}

/// KL(p||q) of each row; NaN when one side has no distribution.
pub(super) fn kl(cpu: &Cpu, vocab: usize, valid: usize, inv_temp: f32, p: &[f32], q: &[f32], out: &mut [f64]) {
    let (rows, isa) = (out.len(), cpu.isa());
    let out = Parts::new(out);
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        // SAFETY: element `row` belongs to this task alone.
        let out = unsafe { out.range(row, 1) };
        let (p, q) = (&p[row * vocab..][..valid], &q[row * vocab..][..valid]);
        let lses = (row_mass(isa, p, inv_temp).lse(), row_mass(isa, q, inv_temp).lse());
        let broken = lses.0.is_nan() || lses.1.is_nan();
        out[0] = if broken { f64::NAN } else { row_kl(isa, p, q, inv_temp, lses) };
    });
}

/// Minus the target's logprob of each row; NaN, and the row as it was, when there is no distribution.
pub(super) fn cross_entropy(
    cpu: &Cpu,
    vocab: usize,
    valid: usize,
    logits: &mut [f32],
    targets: &[u32],
    weights: &[f32],
    nll: &mut [f64],
) {
    let (rows, isa) = (nll.len(), cpu.isa());
    let (logits, nll) = (Parts::new(logits), Parts::new(nll));
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        // SAFETY: row `row` of the logits belongs to this task alone.
        let logits = unsafe { logits.range(row * vocab, vocab) };
        // SAFETY: as above, of the nll.
        let nll = unsafe { nll.range(row, 1) };
        let (ids, padding) = logits.split_at_mut(valid);
        let lse = row_mass(isa, ids, 1.0).lse();
        if lse.is_nan() {
            nll[0] = f64::NAN;
            return;
        }
        let (target, weight) = (targets[row] as usize, weights[row]);
        let logprob = ids[target] - lse;
        nll[0] = -f64::from(logprob);
        if weight == 0.0 {
            ids.fill(0.0);
        } else {
            softmax(isa, ids, 1.0, lse, weight);
            // p - 1 without cancellation for a target that is nearly certain; below e^-80 it is -1.
            ids[target] = weight * exp_rest(logprob.max(-80.0)).0;
        }
        padding.fill(0.0);
    });
}
