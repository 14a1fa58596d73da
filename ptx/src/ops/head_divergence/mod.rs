//! Head and divergence in one sweep: from last hidden rows and the heads' packed weights of student, teacher and rollout to
//! the loss, its gradients, and how far the rollout is from the student. Logits exist for one tile of rows and vocabulary
//! at a time, of the student and of one other model.
//!
//! **Shapes.** Hidden rows are `[rows, hidden]`, heads `[vocab, hidden]`, row-major f32 logits `[rows, vocab]` never exist
//! as a whole. Only ids below `valid` are real, for every model; vocabularies may be padded differently. Padding has no
//! mass on any side, and the gradient there is 0.
//!
//! **Definition.** z = logit * inv_temp in f32; p, q, mu are the softmax of the student's, the teacher's and the rollout's z.
//! Losses are those of [`Kind`], nats; gradients are to the student's hidden rows and head, the target fixed, with the row's
//! weight. Beside the loss a row gives both KLs to the teacher, both entropies, KL(mu || p), chi-square sum mu^2/p - 1,
//! and the logprobs of its target ([`RowStats`]). Gradients to z, per unit of weight: those of [`super::divergence`] for
//! the KLs and cross-entropy; for mixtures p_i (g_i - sum p g), with m = ln(M_i/p_i), n = ln(M_i/q_i):
//! JSD g = -m / beta; skewed reverse g = -m - (1 - alpha) (e^-m - 1); skewed forward g = -alpha (e^-n - 1).
//! These differ from dL/dp by constants, which the softmax takes away, and are 0 where the two sides agree.
//!
//! **Sweeps.** When a tile has whole rows, logits are made once. Otherwise a sweep over the vocabulary gives the masses, a
//! second the sums and what gradient needs no sum (forward KL, cross-entropy), a third any other gradient; each makes
//! the logits anew. Bits depend on a row alone, not on tiles, threads or what else is asked for: logits, input and weight
//! gradients are chains ([`super::linear`]) that go on from tile to tile; masses and sums are over tiles of 1024 columns,
//! folded or added in ascending order, as in [`super::log_softmax`] and [`super::divergence`], whose bits these are. A vocabulary
//! tile is a multiple of 1024 columns, so that none of these is cut.
//!
//! **Memory.** [`Tile::bytes`]: two tiles of logits, and as much once more where the gradient is laid out for the products.
//!
//! **Flops.** 2 rows hidden vocab for every head of every sweep, and 4 for the gradients: with a teacher 8 in all over
//! whole rows, 10 (forward) or 14 in vocabulary tiles.
//!
//! **Equal inputs** give 0.0 exactly, in losses, gradients and mismatch, since every term is 0 where z and lse are equal.
//!
//! **Accuracy**, with u = 2^-24, d the error of an lse, and the logits as they are in f32. KLs, entropies and their
//! gradients: [`super::divergence`]. Mixtures: with w_i = 2 d + u (|zq_i - zp_i| + |lse_q - lse_p| + |ln q_i/p_i| + 16 |m_i| + 8) the
//! error of m_i (its slope in ln(q/p) is at most 1), a term is p (e^m - 1 - m), never below 0, whose slope in m is
//! M - p; the rest is relative, as for a KL: |KL(p||M) - exact| <= KL (d + u (110 + 2 max|ln p|)) + sum |M_i - p_i| w_i + 4 d^2.
//! A slope g is within G w_i: G = 1 for skewed reverse, 1 / beta for JSD, alpha / (1 - alpha) for skewed forward. A gradient
//! element is within p_i |g_i - mean| (2 d + u (20 + 2 |ln p_i|)) + p_i (G w_i + sum p G w + 2 sum p |g - mean| (d + u (110 + 2 max|ln p|))) +
//! 1e-43 (1 + |g_i - mean|), times weight / T. Chi-square sums (mu - p)^2 / p, whose slope in ln(mu/p) is 2 |mu - p| mu/p: within
//! chi2 (4 d + u (110 + 8 max|ln|)) + sum 2 |mu_i - p_i| (mu_i/p_i) w_i + 8 d^2 (1 + chi2); beyond f32's range it is infinite.

use std::ops::Range;

use super::linear::Packed;
use super::log_softmax::{LogitError, check_targets};
use crate::Cpu;
use crate::cuda::CudaError;

mod block;
pub mod cases;
mod cpu;
mod mixed;
pub mod naive;
#[cfg(test)]
mod tests;

/// Columns of a vocabulary tile are a multiple of this.
pub const COLUMNS: usize = super::log_softmax::cpu::TILE;

/// The loss of a row; p is the student, q the teacher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// KL(p || q).
    Reverse,
    /// KL(q || p).
    Forward,
    /// (beta KL(q || M) + (1 - beta) KL(p || M)) / (beta (1 - beta)), M = beta q + (1 - beta) p; at the ends the limits,
    /// [`Kind::Forward`] at 0 and [`Kind::Reverse`] at 1.
    Jsd {
        /// The teacher's weight in 0..=1.
        beta: f64,
    },
    /// KL(p || M), M = alpha q + (1 - alpha) p; [`Kind::Reverse`] at 1.
    SkewedReverse {
        /// The teacher's share in (0, 1].
        alpha: f64,
    },
    /// KL(q || M), M = alpha p + (1 - alpha) q; [`Kind::Forward`] at 1.
    SkewedForward {
        /// The student's share in (0, 1].
        alpha: f64,
    },
    /// Minus the target's logprob.
    CrossEntropy,
}

impl Kind {
    /// The same loss by its plainest name: mixtures of one side alone are the KLs. Shares that f32 cannot tell from such
    /// an end count as it.
    ///
    /// # Panics
    /// When a share is out of range.
    #[must_use]
    pub fn plain(self) -> Kind {
        #[allow(clippy::cast_possible_truncation)] // rounding is meant
        let rounded = |x: f64| (x as f32, (1.0 - x) as f32);
        match self {
            Kind::Jsd { beta } => {
                assert!((0.0..=1.0).contains(&beta), "beta is {beta}");
                match rounded(beta) {
                    (0.0, _) => Kind::Forward,
                    (_, 0.0) => Kind::Reverse,
                    _ => self,
                }
            }
            Kind::SkewedReverse { alpha } | Kind::SkewedForward { alpha } => {
                assert!(alpha > 0.0 && alpha <= 1.0 && rounded(alpha).0 > 0.0, "alpha is {alpha}");
                match self {
                    _ if rounded(alpha).1 != 0.0 => self,
                    Kind::SkewedReverse { .. } => Kind::Reverse,
                    _ => Kind::Forward,
                }
            }
            Kind::Reverse | Kind::Forward | Kind::CrossEntropy => self,
        }
    }

    /// Whether it compares the student with a teacher.
    #[must_use]
    pub fn needs_teacher(self) -> bool {
        self != Kind::CrossEntropy
    }
}

impl From<super::divergence::Kind> for Kind {
    fn from(kind: super::divergence::Kind) -> Kind {
        match kind {
            super::divergence::Kind::ReverseKl => Kind::Reverse,
            super::divergence::Kind::ForwardKl => Kind::Forward,
        }
    }
}

/// How much of `[rows, vocab]` exists at a time. No bit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Columns: the whole vocabulary, or a multiple of [`COLUMNS`].
    pub columns: usize,
}

impl Tile {
    /// The tile for a vocabulary whose logits of one model take up to `bytes`. Whole rows if `rows_min` of them fit, since
    /// logits are then made once; else `rows_min` rows of as many columns as fit, [`COLUMNS`] at least.
    ///
    /// # Panics
    /// When `vocab` or `rows_min` is 0.
    #[must_use]
    pub fn within(bytes: usize, vocab: usize, rows_min: usize) -> Tile {
        let floats = bytes / size_of::<f32>();
        let rows = floats / vocab;
        if rows >= rows_min {
            return Tile { rows, columns: vocab };
        }
        let columns = (floats / rows_min / COLUMNS * COLUMNS).max(COLUMNS).min(vocab);
        Tile { rows: rows_min, columns }
    }

    /// The most bytes that [`run`] and its workspace hold in such tiles, with gradients, beyond its arguments: two tiles of
    /// logits, the gradient laid out for the products (or the hidden rows, where those are larger), the rows' state, and
    /// what the products keep on each of `threads` threads.
    #[must_use]
    pub fn bytes(self, cpu: &Cpu, hidden: usize, threads: usize) -> usize {
        let tile = self.rows.saturating_mul(self.columns);
        let products = super::linear::scratch(cpu.isa(), self.rows, self.columns, false).and(super::linear::scratch(
            cpu.isa(),
            self.rows,
            hidden,
            true,
        ));
        tile.saturating_mul(2 * size_of::<f32>())
            .saturating_add(self.rows * size_of::<cpu::Row>())
            .saturating_add(products.bytes(threads))
    }
}

/// A model's logits before they are made.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `[vocab, hidden]`.
    pub weights: &'a Packed,
    /// Last hidden rows, `[rows, hidden]`.
    pub hidden: &'a [f32],
}

/// Writes the logits of some rows and columns, `[rows, columns]`.
pub type Fill<'a> = dyn FnMut(Range<usize>, Range<usize>, &mut [f32]) -> Result<(), CudaError> + 'a;

/// Where another model's logits come from.
pub enum Side<'a> {
    /// From its head.
    Head(Head<'a>),
    /// From elsewhere, such as a device; asked for a tile at a time, once in each sweep.
    Fill(&'a mut Fill<'a>),
}

/// Everything that the rows are made from.
pub struct Input<'a> {
    /// The student.
    pub student: Head<'a>,
    /// The teacher, which all kinds but cross-entropy need; with that it is measured.
    pub teacher: Option<Side<'a>>,
    /// The model that sampled, to be compared with the student.
    pub rollout: Option<Side<'a>>,
    /// The token that follows each row, `[rows]`.
    pub targets: &'a [u32],
    /// Of each row, `[rows]`. Rows of weight 0 are measured too and add no gradient.
    pub weights: &'a [f32],
    /// Ids below this are real.
    pub valid: usize,
    /// 1 / temperature, of all sides.
    pub inv_temp: f32,
}

/// Where gradients go.
pub struct Gradients<'a> {
    /// Of the student's hidden rows, `[rows, hidden]`: overwritten.
    pub hidden: &'a mut [f32],
    /// Of the student's head, `[vocab, hidden]`: added to.
    pub head: &'a mut [f32],
}

/// What one row gave, in nats. What there is no model for is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// The divergence asked for, whatever the weight.
    pub loss: f64,
    /// KL(student || teacher).
    pub kl_reverse: f64,
    /// KL(teacher || student).
    pub kl_forward: f64,
    /// Entropy of the student; needs a teacher.
    pub entropy_student: f64,
    /// Entropy of the teacher.
    pub entropy_teacher: f64,
    /// ln p of the target under the student.
    pub logprob: f32,
    /// ln p of the target under the rollout.
    pub logprob_rollout: f32,
    /// KL(rollout || student).
    pub mismatch: f64,
    /// sum rollout^2 / student - 1.
    pub chi_square: f64,
}

/// Buffers that a warmed call reuses.
#[derive(Debug, Default)]
pub struct Workspace {
    student: Vec<f32>,
    other: Vec<f32>,
    rows: Vec<cpu::Row>,
}

/// Why there is no loss.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// A row has no distribution, no target, or no finite loss.
    #[error(transparent)]
    Logits(#[from] LogitError),
    /// What another model's logits come from failed.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// Losses and measures of all rows into `stats` `[rows]`, with `gradients` those of sum weight * loss as well. The first row
/// that is at fault is named by the error; gradients are then of no use, those of the head included.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim, a weight is not finite, a tile cuts sums, or there is no
/// teacher for a kind that needs one.
pub fn run(
    cpu: &Cpu,
    kind: Kind,
    tile: Tile,
    mut input: Input<'_>,
    mut gradients: Option<Gradients<'_>>,
    stats: &mut [RowStats],
    ws: &mut Workspace,
) -> Result<(), HeadError> {
    let kind = kind.plain();
    check(kind, tile, &input, gradients.as_ref(), stats);
    check_targets(input.targets, input.valid)?;
    // As few blocks as the tile allows, of about one size: products are slowest on few rows.
    let blocks = stats.len().div_ceil(tile.rows).max(1);
    let step = stats.len().div_ceil(blocks).max(1);
    for first in (0..stats.len()).step_by(step) {
        let rows = first..stats.len().min(first + step);
        block::run(cpu, kind, tile.columns, rows, &mut input, gradients.as_mut(), stats, ws)?;
    }
    Ok(())
}

fn check(kind: Kind, tile: Tile, input: &Input<'_>, gradients: Option<&Gradients<'_>>, stats: &[RowStats]) {
    let (rows, valid, inv_temp) = (stats.len(), input.valid, input.inv_temp);
    let head = |whose: &str, head: &Head<'_>| {
        assert!(valid >= 1 && valid <= head.weights.n(), "{valid} valid ids of the {whose}'s {:?}", head.weights);
        assert_eq!(head.hidden.len(), rows * head.weights.k(), "the {whose}'s hidden rows are not [{rows}, hidden]");
    };
    head("student", &input.student);
    for (whose, side) in [("teacher", &input.teacher), ("rollout", &input.rollout)] {
        if let Some(Side::Head(side)) = side {
            head(whose, side);
        }
    }
    assert!(input.teacher.is_some() || !kind.needs_teacher(), "{kind:?} needs a teacher");
    assert!(inv_temp.is_finite() && inv_temp > 0.0, "1/temperature is {inv_temp}; it must be finite and positive");
    assert_eq!(input.targets.len(), rows, "targets are not [{rows}]");
    assert_eq!(input.weights.len(), rows, "weights are not [{rows}]");
    assert!(input.weights.iter().all(|w| w.is_finite()), "weights must be finite");
    let (vocab, hidden) = (input.student.weights.n(), input.student.weights.k());
    assert!(u32::try_from(valid).is_ok(), "{valid} ids do not fit u32");
    let whole = tile.columns >= vocab;
    assert!(tile.rows > 0 && tile.columns > 0 && (whole || tile.columns.is_multiple_of(COLUMNS)), "{tile:?} cuts sums");
    if let Some(gradients) = gradients {
        assert_eq!(gradients.hidden.len(), rows * hidden, "the hidden rows' gradient is not [{rows}, {hidden}]");
        assert_eq!(gradients.head.len(), vocab * hidden, "the head's gradient is not [{vocab}, {hidden}]");
    }
}
