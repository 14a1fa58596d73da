//! The verdict on a rollout configuration: what was measured of it against what a certificate allows.
//!
//! ```text
//! admit    growth * upper limit of D <= lower limit of the budget, and upper limit of |drift| <= the drift limit
//! reject   growth * lower limit of D >  the budget, or lower limit of |drift| > its limit
//! gray     else: more prompts, or nothing more can be said
//! ```
//!
//! Prompts are added until it is decided, so the evidence is looked at several times. Each look takes an equal share of the
//! 5% that a limit may be wrong in (Bonferroni), so that looking more often does not admit more.

use serde::{Deserialize, Serialize};

use crate::certificate::Family;
use crate::drift::PairedDifference;
use crate::mismatch::RatioEstimate;
use crate::stats::{Interval, t_one_sided};

/// What all looks together may be wrong in, for one limit.
const TAIL: f64 = 0.05;

/// What was measured under the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// D, nats per token.
    pub d: RatioEstimate,
    /// The loss on the configuration's prefixes less that on the trained model's own.
    pub drift: PairedDifference,
    /// How often evidence is looked at in all, at most.
    pub looks: u32,
}

/// What the certificate allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The budget, nats per token.
    pub budget_nats: f64,
    /// Its lower 95% limit.
    pub lower_nats: f64,
    /// Whether the budget is only known to be at least this: beyond it nothing was found, good or bad.
    pub at_least: bool,
    /// How much larger D gets over a run than where it was measured, at least 1.
    pub growth: f64,
    /// The most that the loss may differ between prefixes, as a share of it; none where no rung passed.
    pub drift_limit: Option<f64>,
}

/// What becomes of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is within the budget.
    Admit,
    /// It cannot be told.
    Gray,
    /// It is over the budget.
    Reject,
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coordinate {
    /// D with its growth.
    D,
    /// The drift of prefixes.
    Drift,
}

/// One coordinate against its limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub of: Coordinate,
    /// Its own verdict.
    pub verdict: Verdict,
    /// Estimate: D in nats per token without growth; drift as a share of the loss.
    pub value: f64,
    /// Limits of what is compared: D with its growth, |drift|.
    pub compared: Interval,
    /// What the upper of them must be within.
    pub limit: f64,
}

/// A verdict with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The worse of the findings.
    pub verdict: Verdict,
    /// One for each coordinate.
    pub findings: Vec<Finding>,
}

/// The verdict on what is known by now.
///
/// # Panics
/// Without a look.
#[must_use]
pub fn decide(evidence: &Evidence, limits: &Limits) -> Decision {
    let findings = vec![of_d(evidence, limits), of_drift(evidence, limits)];
    Decision { verdict: worst(findings.iter().map(|finding| finding.verdict)), findings }
}

/// What another certificate would have said of evidence that is only kept as `findings`, in which D has a `growth` already.
/// Prompts were added until the one that asked could tell, so that this one may see gray where more of them would have told.
#[must_use]
pub fn elsewhere(findings: &[Finding], growth: f64, limits: &Limits) -> Verdict {
    worst(findings.iter().map(|finding| {
        let scale = match finding.of {
            Coordinate::D => limits.growth / growth,
            Coordinate::Drift => 1.0,
        };
        let Interval { low, high } = finding.compared;
        limits.verdict(finding.of, &Interval { low: scale * low, high: scale * high })
    }))
}

fn worst(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    verdicts.fold(Verdict::Admit, |worst, verdict| match (worst, verdict) {
        (Verdict::Reject, _) | (_, Verdict::Reject) => Verdict::Reject,
        (Verdict::Gray, _) | (_, Verdict::Gray) => Verdict::Gray,
        _ => Verdict::Admit,
    })
}

impl Limits {
    /// Of a family of a certificate.
    #[must_use]
    pub fn of(family: &Family) -> Limits {
        Limits {
            budget_nats: family.budget_nats,
            lower_nats: family.lower_nats,
            at_least: family.at_least,
            growth: family.growth.factor.max(1.0),
            drift_limit: family.drift_limit,
        }
    }

    /// On one coordinate, whose interval is `compared`.
    fn verdict(&self, of: Coordinate, compared: &Interval) -> Verdict {
        let (surely_fine, surely_not) = match of {
            Coordinate::D => (self.lower_nats, Some(self.budget_nats)),
            Coordinate::Drift => (self.drift_limit.unwrap_or(0.0), self.drift_limit),
        };
        if compared.high <= surely_fine {
            Verdict::Admit
        } else if !self.at_least && surely_not.is_some_and(|limit| compared.low > limit) {
            Verdict::Reject
        } else {
            Verdict::Gray
        }
    }
}

/// The factor of a standard error in a limit of one look.
fn factor(evidence: &Evidence) -> f64 {
    assert!(evidence.looks > 0, "evidence is looked at");
    t_one_sided(TAIL / f64::from(evidence.looks), evidence.d.clusters - 1)
}

fn of_d(evidence: &Evidence, limits: &Limits) -> Finding {
    let (d, half) = (&evidence.d, factor(evidence) * evidence.d.se);
    // Resampled prompts see a skewed tail that the standard error does not; the wider of the two counts.
    let high = (d.ratio + half).max(d.ucb95);
    let low = (d.ratio - half).min(d.ci95.low).max(0.0);
    let compared = Interval { low: limits.growth * low, high: limits.growth * high };
    let verdict = limits.verdict(Coordinate::D, &compared);
    Finding { of: Coordinate::D, verdict, value: d.ratio, compared, limit: limits.lower_nats }
}

fn of_drift(evidence: &Evidence, limits: &Limits) -> Finding {
    let PairedDifference { difference, se, ci95, second, .. } = evidence.drift;
    let (half, scale) = (factor(evidence) * se, second.abs());
    let (low, high) = ((difference - half).min(ci95.low), (difference + half).max(ci95.high));
    let (value, compared) = if low == 0.0 && high == 0.0 {
        (0.0, Interval { low: 0.0, high: 0.0 })
    } else {
        let nearest = if low <= 0.0 && high >= 0.0 { 0.0 } else { low.abs().min(high.abs()) };
        (difference / scale, Interval { low: nearest / scale, high: low.abs().max(high.abs()) / scale })
    };
    let (verdict, limit) = (limits.verdict(Coordinate::Drift, &compared), limits.drift_limit.unwrap_or(0.0));
    Finding { of: Coordinate::Drift, verdict, value, compared, limit }
}

/// D of staleness by age k as a k^b: least squares in logarithms, b held within [1, 2], which diffusing and straight steps are.
/// None where no age has a D above 0.
#[must_use]
#[allow(clippy::cast_precision_loss)] // ages
pub fn staleness_law(by_age: &[f64]) -> Option<(f64, f64)> {
    let points: Vec<(f64, f64)> =
        (1..).zip(by_age).filter(|&(_, &d)| d > 0.0).map(|(k, &d)| (f64::ln(k as f64), d.ln())).collect();
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    let (x, y) = (x / n, y / n);
    let spread: f64 = points.iter().map(|(px, _)| (px - x).powi(2)).sum();
    let slope = points.iter().map(|(px, py)| (px - x) * (py - y)).sum::<f64>();
    let b = if spread > 0.0 { (slope / spread).clamp(1.0, 2.0) } else { 1.0 };
    (!points.is_empty()).then(|| ((y - b * x).exp(), b))
}

#[cfg(test)]
mod tests;
