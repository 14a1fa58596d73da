//! The divergences: each takes ln p (student) and ln t (target), returns the loss and writes dL/dz.

mod forward;
mod jsd;
mod reverse;
mod sampled;
mod skewed;
mod top_k;

/// Which of two ways round a KL is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// KL(student || target).
    Reverse,
    /// KL(target || student).
    Forward,
}

/// Whose most probable tokens a support is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The teacher's, whatever the target.
    Teacher,
    /// The student's.
    Student,
}

/// How the student is compared with the target at a prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// KL(student || target).
    Reverse,
    /// KL(target || student).
    Forward,
    /// Jensen-Shannon divergence with weight `beta` in 0..=1, over beta (1 - beta).
    Jsd {
        /// The target's weight.
        beta: f64,
    },
    /// KL(a || alpha b + (1 - alpha) a), `alpha` in (0, 1].
    Skewed {
        /// Reverse: a is the student. Forward: a is the target.
        direction: Direction,
        /// The share of the other side in the mixture.
        alpha: f64,
    },
    /// KL over the `k` most probable tokens.
    TopK {
        /// Which way round.
        direction: Direction,
        /// Whose tokens.
        whose: Whose,
        /// How many.
        k: usize,
        /// The rest as one more outcome; else both sides are renormalised on the support, and `k` is at least 2.
        tail: bool,
    },
    /// Policy gradient of the sampled token with the detached advantage ln t - ln p.
    Sampled {
        /// Whether the exact KL(student || target) is added to the advantage: its mean, taken off, leaves noise alone.
        baseline: bool,
    },
}

impl Divergence {
    /// Loss of a row and its gradient into `g`. `lq` is the teacher and `token` the sampled id.
    pub(super) fn row(self, lp: &[f64], lt: &[f64], lq: &[f64], token: usize, g: &mut [f64]) -> f64 {
        if lp == lt {
            g.fill(0.0);
            return 0.0;
        }
        match self {
            Divergence::Reverse => reverse::row(lp, lt, g),
            Divergence::Forward => forward::row(lp, lt, g),
            Divergence::Jsd { beta } => jsd::row(beta, lp, lt, g),
            Divergence::Skewed { direction, alpha } => skewed::row(direction, alpha, lp, lt, g),
            Divergence::TopK { direction, whose, k, tail } => {
                let ranked = match whose {
                    Whose::Teacher => lq,
                    Whose::Student => lp,
                };
                top_k::row(direction, &top_k::support(ranked, k), tail, lp, lt, g)
            }
            Divergence::Sampled { baseline } => sampled::row(baseline, token, lp, lt, g),
        }
    }
}
