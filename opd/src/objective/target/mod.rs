//! The targets: each makes ln t of the rows of teacher, student and reference, all detached.

mod bounded;
mod extrapolated;
mod teacher;
mod trust_region;

pub use extrapolated::cliff;

use super::{kl, normalise};

/// Largest |ln| of a ratio that a path follows: further out the ratio is that of two tails.
pub const RATIO_MAX: f64 = 20.0;

/// What the student is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The teacher.
    Teacher,
    /// reference (teacher / reference)^lambda, normalised.
    Extrapolated {
        /// 1 is the teacher, 0 the reference.
        lambda: f64,
    },
    /// teacher (teacher / reference)^u with the largest u up to `u_max` that stays within `delta` of the teacher.
    Bounded {
        /// Largest KL(target || teacher), nats.
        delta: f64,
        /// Largest u.
        u_max: f64,
    },
    /// student (teacher / student)^beta with the largest beta up to 1 that stays within `eps` of the student.
    TrustRegion {
        /// Largest KL(target || student), nats.
        eps: f64,
    },
}

/// What a target did at a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// KL(target || anchor), nats: the anchor is the teacher, or for a trust region the student.
    pub kl: f64,
    /// How far along the path: lambda - 1, u or beta.
    pub step: f64,
    /// Whether the step is the largest there is, and not held back by the bound.
    pub at_cap: bool,
    /// The extrapolation from which this row is thought to be at risk; infinite where there is none.
    pub cliff: f64,
}

impl Target {
    /// Whether it is the teacher itself, whatever the rows.
    #[must_use]
    pub fn is_teacher(self) -> bool {
        match self {
            Target::Teacher => true,
            Target::Extrapolated { lambda } => lambda.to_bits() == 1.0_f64.to_bits(),
            Target::Bounded { delta, .. } => delta <= 0.0,
            Target::TrustRegion { .. } => false,
        }
    }

    /// Whether it takes a reference.
    #[must_use]
    pub fn needs_reference(self) -> bool {
        matches!(self, Target::Extrapolated { .. } | Target::Bounded { .. })
    }

    /// Writes ln t into `lt`.
    pub(super) fn row(self, lp: &[f64], lq: &[f64], lref: Option<&[f64]>, lt: &mut Vec<f64>) -> Moved {
        let reference = || lref.expect("this target comes with a reference");
        match self {
            Target::Teacher => teacher::row(lq, lt),
            Target::Extrapolated { lambda } => extrapolated::row(lambda, lq, reference(), lt),
            Target::Bounded { delta, u_max } => bounded::row(delta, u_max, lq, reference(), lt),
            Target::TrustRegion { eps } => trust_region::row(eps, lp, lq, lt),
        }
    }
}

/// ln(a/b), held within [`RATIO_MAX`]; 0 where neither has the token.
fn ratio(a: &[f64], b: &[f64]) -> Vec<f64> {
    let one = |(&a, &b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).clamp(-RATIO_MAX, RATIO_MAX) };
    a.iter().zip(b).map(one).collect()
}

/// Whether a direction goes nowhere.
fn is_flat(r: &[f64]) -> bool {
    r.windows(2).all(|w| w[0].to_bits() == w[1].to_bits())
}

/// anchor e^(u r), normalised, into `lt`; returns its KL from the anchor, which grows with u.
fn along(anchor: &[f64], r: &[f64], u: f64, lt: &mut Vec<f64>) -> f64 {
    lt.clear();
    lt.extend(anchor.iter().zip(r).map(|(&a, &r)| a + u * r));
    assert!(normalise(lt), "a tilted distribution is one");
    kl(lt, anchor)
}

/// The largest u in 0..=`max` with KL(anchor e^(u r) || anchor) <= `bound`; its distribution is left in `lt`.
fn farthest(anchor: &[f64], r: &[f64], bound: f64, max: f64, lt: &mut Vec<f64>) -> Moved {
    let at_max = along(anchor, r, max, lt);
    if at_max <= bound {
        return Moved { kl: at_max, step: max, at_cap: true, cliff: f64::INFINITY };
    }
    let (mut low, mut high) = (0.0, max);
    // Until the two are neighbours or as good as: 60 halvings leave 1e-18 of the range.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if along(anchor, r, middle, lt) <= bound {
            low = middle;
        } else {
            high = middle;
        }
    }
    Moved { kl: along(anchor, r, low, lt), step: low, at_cap: false, cliff: f64::INFINITY }
}
