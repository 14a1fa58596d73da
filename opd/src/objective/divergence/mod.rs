//! The divergences: each takes ln p (student) and ln t (target), returns the loss and writes dL/dz.

mod forward;
mod head_tail;
mod jsd;
mod reverse;
mod sampled;
mod score;
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

/// Which number a sampled token's loss is, with r = t/p: its gradient is that of k2 whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// -ln r.
    K1,
    /// (ln r)^2 / 2.
    K2,
    /// r - 1 - ln r.
    K3,
}

/// What was drawn at a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// The sampled id.
    pub token: usize,
    /// A number in [0, 1), independent of it, for a divergence that draws.
    pub uniform: Option<f32>,
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
        /// The value that is reported.
        estimate: Estimate,
    },
    /// KL(student || target), exact on the `k` most probable tokens and one weighted draw from the rest.
    HeadTail {
        /// Whose tokens.
        whose: Whose,
        /// How many.
        k: usize,
    },
    /// -ln p of the sampled token, whatever the target: its advantage is the row's weight.
    Score,
}

impl Divergence {
    /// Whether it needs a number in [0, 1) for each row.
    #[must_use]
    pub fn draws(self) -> bool {
        matches!(self, Divergence::HeadTail { .. })
    }

    /// Loss of a row and its gradient into `g`. `lq` is the teacher.
    pub(super) fn row(self, lp: &[f64], lt: &[f64], lq: &[f64], drawn: Drawn, g: &mut [f64]) -> f64 {
        if lp == lt && self != Divergence::Score {
            g.fill(0.0);
            return 0.0;
        }
        let ranked = |whose| match whose {
            Whose::Teacher => lq,
            Whose::Student => lp,
        };
        match self {
            Divergence::Reverse => reverse::row(lp, lt, g),
            Divergence::Forward => forward::row(lp, lt, g),
            Divergence::Jsd { beta } => jsd::row(beta, lp, lt, g),
            Divergence::Skewed { direction, alpha } => skewed::row(direction, alpha, lp, lt, g),
            Divergence::TopK { direction, whose, k, tail } => {
                top_k::row(direction, &top_k::support(ranked(whose), k), tail, lp, lt, g)
            }
            Divergence::Sampled { baseline, estimate } => sampled::row(baseline, estimate, drawn.token, lp, lt, g),
            Divergence::HeadTail { whose, k } => {
                let uniform = f64::from(drawn.uniform.expect("this divergence comes with draws"));
                head_tail::row(&top_k::support(ranked(whose), k), uniform, lp, lt, g)
            }
            Divergence::Score => score::row(drawn.token, lp, g),
        }
    }
}
