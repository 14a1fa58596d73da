//! What a distillation compares the student with, and how: a [`Target`] made of the other models' rows, and a
//! [`Divergence`] of the student from it.
//!
//! A row is the natural logarithms of probabilities over the valid ids, `[valid]`, f64, at the rollout's temperature.
//! The target is detached: gradients are those of the divergence with the target held fixed. A loss is in nats, a
//! gradient is per unit of z = logit / temperature. A row whose target equals the student bit for bit has loss and
//! gradient 0.0 exactly, so that a run with nothing to learn shows. `docs/losses.md` has the formulas and their sources.

pub mod divergence;
pub mod policy;
mod rows;
pub mod target;

pub use divergence::Divergence;
pub use rows::{RowIn, RowOut, rows};
pub use target::{Moved, Target};

use ptx::ops::head_divergence::Kind;

use divergence::Direction;

/// A target and a divergence from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// What the student is compared with.
    pub target: Target,
    /// How.
    pub divergence: Divergence,
}

impl Objective {
    /// The kernel that computes the same in f32, where the target is the teacher itself and the divergence is over the
    /// whole vocabulary.
    #[must_use]
    pub fn kernel(&self) -> Option<Kind> {
        let kind = match self.divergence {
            Divergence::Reverse => Kind::Reverse,
            Divergence::Forward => Kind::Forward,
            Divergence::Jsd { beta } => Kind::Jsd { beta },
            Divergence::Skewed { direction: Direction::Reverse, alpha } => Kind::SkewedReverse { alpha },
            Divergence::Skewed { direction: Direction::Forward, alpha } => Kind::SkewedForward { alpha },
            Divergence::TopK { .. } | Divergence::Sampled { .. } | Divergence::HeadTail { .. } | Divergence::Score => {
                return None;
            }
        };
        self.target.is_teacher().then_some(kind)
    }
}

/// ln softmax of z, in place; false, and z unspecified, when it is no distribution.
pub(crate) fn normalise(z: &mut [f64]) -> bool {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = z.iter().map(|z| (z - max).exp()).sum();
    let lse = max + sum.ln();
    z.iter_mut().for_each(|z| *z -= lse);
    lse.is_finite()
}

/// KL(a || b), nats.
#[must_use]
pub fn kl(a: &[f64], b: &[f64]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(&a, &b)| expected(a, a - b)).sum();
    // Rounding may leave the sum of nearly equal rows a little below 0, which no KL is. What is no number stays none.
    if sum < 0.0 { 0.0 } else { sum }
}

/// p x, and 0 where p = e^lp is 0, whatever x: also where lp is a number and e^lp too small for one.
pub(crate) fn expected(lp: f64, x: f64) -> f64 {
    let p = lp.exp();
    if p == 0.0 { 0.0 } else { p * x }
}

/// ln((1 - share) e^a + share e^b) of each pair, which is a number wherever one of a and b is, however small both are.
pub(crate) fn mixture(a: &[f64], b: &[f64], share: f64) -> Vec<f64> {
    let (of_a, of_b) = ((1.0 - share).ln(), share.ln());
    let one = |(&a, &b): (&f64, &f64)| {
        let (a, b) = (of_a + a, of_b + b);
        let most = a.max(b);
        if most == f64::NEG_INFINITY { most } else { most + ((a - most).exp() + (b - most).exp()).ln() }
    };
    a.iter().zip(b).map(one).collect()
}

/// From dL/dp in `g` to dL/dz, by the softmax's Jacobian: p_i (g_i - sum p g).
pub(crate) fn through_softmax(lp: &[f64], g: &mut [f64]) {
    let mean: f64 = lp.iter().zip(&*g).map(|(&lp, &g)| expected(lp, g)).sum();
    for (&lp, g) in lp.iter().zip(g) {
        *g = expected(lp, *g - mean);
    }
}

#[cfg(test)]
pub(crate) mod check {
    use super::normalise;

    /// The distributions of the golden values: teacher, reference, student.
    pub const T: [f64; 4] = [0.6, 0.25, 0.1, 0.05];
    pub const R: [f64; 4] = [0.4, 0.3, 0.2, 0.1];
    pub const S: [f64; 4] = [0.3, 0.4, 0.1, 0.2];

    pub fn ln(p: [f64; 4]) -> Vec<f64> {
        p.iter().map(|p| p.ln()).collect()
    }

    #[track_caller]
    pub fn close(got: f64, want: f64, limit: f64) {
        assert!((got - want).abs() <= limit, "{got}, want {want} within {limit}");
    }

    /// The gradient against central differences: with h = 1e-5 the truncation is about h^2 and the rounding 1e-16 / h.
    #[track_caller]
    pub fn differences(loss: impl Fn(&[f64], &[f64], &mut [f64]) -> f64, value: impl Fn(&[f64], &[f64]) -> f64) {
        let target = ln(T);
        let z = ln(S);
        let mut g = vec![0.0; z.len()];
        loss(&z, &target, &mut g);
        assert!(g.iter().any(|g| g.abs() > 1e-3), "the gradient is not zero");
        for i in 0..z.len() {
            let at = |h: f64| {
                let mut moved = z.clone();
                moved[i] += h;
                assert!(normalise(&mut moved));
                value(&moved, &target)
            };
            close(g[i], (at(1e-5) - at(-1e-5)) / 2e-5, 1e-8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::divergence::{Direction, Drawn};
    use super::*;

    /// At a very low temperature most ids are so far below that e^lp is no number above 0: they add nothing, and no loss or
    /// gradient loses its number by them.
    #[test]
    fn ids_far_below_count_for_nothing() {
        let (lp, lt) = (vec![-0.1, -2.352_168, -800.0, -1e4], vec![-0.5, -0.932_752, -1200.0, -900.0]);
        let kinds = [
            Divergence::Jsd { beta: 0.5 },
            Divergence::Skewed { direction: Direction::Reverse, alpha: 0.9 },
            Divergence::Skewed { direction: Direction::Forward, alpha: 0.9 },
            Divergence::Reverse,
            Divergence::Forward,
        ];
        for kind in kinds {
            let both = [&lp[..2], &lp[..]].map(|lp| {
                let mut g: Vec<f64> = vec![0.0; lp.len()];
                let loss = kind.row(lp, &lt[..lp.len()], &lt[..lp.len()], Drawn { token: 0, uniform: None }, &mut g);
                assert!(loss > 0.0 && g.iter().all(|g| g.is_finite()), "{kind:?}: {loss} {g:?}");
                (loss, g)
            });
            let ([(near, g), (far, h)], rest) = (&both, &both[1].1[2..]);
            assert!((near - far).abs() < 1e-12 && g.iter().zip(h).all(|(a, b)| (a - b).abs() < 1e-12), "{kind:?}");
            assert!(rest.iter().all(|g| g.abs() < 1e-300), "{kind:?}: {rest:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_no_loss_of_zero() {
        assert!(kl(&[f64::NAN, -1.0], &[-1.0, -1.0]).is_nan());
        assert_eq!(kl(&[0.0, f64::NEG_INFINITY], &[0.0, f64::NEG_INFINITY]), 0.0);
    }
}
