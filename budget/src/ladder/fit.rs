//! Flat, then falling: q = a_seed - slope * h(D) by least squares, every seed with its own level, against constant and line.
//!
//! h is max(0, ln(D / knee)) or max(0, D - knee), whichever fits better; the line is D itself. Baselines take part with D = 0.
//! With the knee given, slope and levels are linear, and knees are tried on a grid over the rungs.

use serde::{Deserialize, Serialize};

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its seed's number, from 0.
    pub seed: usize,
    /// Mismatch, nats per token; 0 for a baseline.
    pub d_nats: f64,
    /// Quality, more is better.
    pub quality: f64,
}

/// In what quality falls beyond the knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// In ln D.
    LnD,
    /// In D.
    D,
}

/// A knee and the fall beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hinge {
    /// In what it falls.
    pub axis: Axis,
    /// Where it begins to, nats per token.
    pub knee_nats: f64,
    /// How steeply: quality per unit of ln D or per nat; positive is a fall.
    pub slope: f64,
}

impl Hinge {
    /// What is lost at a D.
    #[must_use]
    pub fn loss(&self, d_nats: f64) -> f64 {
        self.slope * basis(self.axis, self.knee_nats, d_nats)
    }
}

/// A model's fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Sum of squared residuals.
    pub rss: f64,
    /// Akaike's criterion with the correction for few points: less is better.
    pub aic: f64,
}

/// The three models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fits {
    /// Quality does not depend on D.
    pub constant: Fit,
    /// It falls from 0 on, in proportion to D.
    pub line: Fit,
    /// It falls from a knee on; none where no knee has quality fall beyond it.
    pub hinge: Option<(Hinge, Fit)>,
}

impl Fits {
    /// Whether a knee explains the runs better than no fall at all.
    #[must_use]
    pub fn falls(&self) -> bool {
        self.hinge.is_some_and(|(_, fit)| fit.aic < self.constant.aic)
    }
}

/// Knees that are tried between two neighbouring rungs.
const GRID: u32 = 16;

fn basis(axis: Axis, knee: f64, d: f64) -> f64 {
    match axis {
        Axis::LnD if d > knee => (d / knee).ln(),
        Axis::D if d > knee => d - knee,
        _ => 0.0,
    }
}

/// Fits all three. None where there is nothing to tell apart: fewer than two seeds or two values of D above 0.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of runs
pub fn fit(points: &[Point]) -> Option<Fits> {
    let seeds = points.iter().map(|p| p.seed + 1).max()?;
    let mut values: Vec<f64> = points.iter().map(|p| p.d_nats).filter(|&d| d > 0.0).collect();
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    // Levels and variance, then what the model adds.
    let (n, common) = (points.len() as f64, seeds as f64 + 1.0);
    if seeds < 2 || high <= low || n < common + 5.0 {
        return None;
    }
    let aic = |rss: f64, more: f64| {
        let k = common + more;
        // Runs that are all alike have no residual: a floor keeps the logarithm finite.
        n * (rss / n).max(1e-300).ln() + 2.0 * k + 2.0 * k * (k + 1.0) / (n - k - 1.0)
    };
    let (_, flat) = regress(points, seeds, |_| 0.0);
    let constant = Fit { rss: flat, aic: aic(flat, 0.0) };
    let (_, rss) = regress(points, seeds, |d| d);
    let line = Fit { rss, aic: aic(rss, 1.0) };
    let mut best: Option<(Hinge, f64)> = None;
    for knee_nats in knees(&values) {
        for axis in [Axis::LnD, Axis::D] {
            let (slope, rss) = regress(points, seeds, |d| basis(axis, knee_nats, d));
            // With one rung beyond it, every knee below that rung fits alike: the least of them stands.
            if slope > 0.0 && best.is_none_or(|(_, least)| rss < (1.0 - 1e-9) * least) {
                best = Some((Hinge { axis, knee_nats, slope }, rss));
            }
        }
    }
    let hinge = best.map(|(hinge, rss)| (hinge, Fit { rss, aic: aic(rss, 2.0) }));
    Some(Fits { constant, line, hinge })
}

/// Candidates on a logarithmic grid, from the least D up to just below the largest. Runs of one rung differ a little in D,
/// and a knee among them would be fitted to a few runs: neighbours closer than a fifth count as one.
fn knees(values: &[f64]) -> Vec<f64> {
    let mut rungs: Vec<f64> = Vec::new();
    for &d in values {
        match rungs.last() {
            Some(&last) if d < 1.2 * last => {}
            _ => rungs.push(d),
        }
    }
    let mut all: Vec<f64> = rungs
        .windows(2)
        .flat_map(|pair| {
            let ratio = (pair[1] / pair[0]).ln();
            (0..GRID).map(move |i| pair[0] * (ratio * f64::from(i) / f64::from(GRID)).exp())
        })
        .collect();
    if all.is_empty() {
        all.push(values[0]);
    }
    all
}

/// Slope and residual sum of q = a_seed - slope * h(D).
fn regress(points: &[Point], seeds: usize, h: impl Fn(f64) -> f64) -> (f64, f64) {
    let mut means = vec![(0.0, 0.0, 0.0); seeds]; // h, q, count
    for point in points {
        let mean = &mut means[point.seed];
        *mean = (mean.0 + h(point.d_nats), mean.1 + point.quality, mean.2 + 1.0);
    }
    let centred = |point: &Point| {
        let (sum_h, sum_q, count) = means[point.seed];
        (h(point.d_nats) - sum_h / count, point.quality - sum_q / count)
    };
    let (hh, hq) = points.iter().map(centred).fold((0.0, 0.0), |(hh, hq), (h, q)| (hh + h * h, hq + h * q));
    let slope = if hh > 0.0 { -hq / hh } else { 0.0 };
    let rss = points.iter().map(centred).map(|(h, q)| (q + slope * h).powi(2)).sum();
    (slope, rss)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stats::Random;

    pub const RUNGS: [f64; 8] = [0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

    /// Runs of `seeds` seeds with levels of their own and scatter.
    pub fn runs(seeds: usize, scatter: f64, seed: u64, quality: impl Fn(f64) -> f64) -> Vec<Point> {
        let random = Random::new(seed);
        let mut counter = 0;
        let mut normal = || {
            counter += 2;
            let (u, v) = (1.0 - random.uniform(counter), random.uniform(counter + 1));
            (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let mut points = Vec::new();
        for seed in 0..seeds {
            let level = 0.7 + 0.05 * normal();
            points.extend(RUNGS.map(|d| {
                let d_nats = d * (1.0 + 0.05 * normal());
                Point { seed, d_nats, quality: level + quality(d_nats) + scatter * normal() }
            }));
        }
        points
    }

    #[test]
    fn it_finds_a_known_knee_on_either_axis() {
        for knee in [0.05, 0.2, 0.5] {
            for (axis, slope) in [(Axis::LnD, 0.1), (Axis::D, 0.2)] {
                let truth = Hinge { axis, knee_nats: knee, slope };
                let points = runs(5, 0.002, 3, |d| -truth.loss(d));
                let fits = fit(&points).unwrap();
                let (found, hinge) = fits.hinge.unwrap();
                assert!(found.axis == axis && (found.knee_nats / knee).ln().abs() < 0.35, "{found:?} for {truth:?}");
                assert!((found.slope / slope - 1.0).abs() < 0.15, "{found:?} for {truth:?}");
                assert!(hinge.aic < fits.constant.aic && fits.falls(), "{fits:?}");
                if axis == Axis::LnD {
                    assert!(hinge.aic < fits.line.aic - 10.0, "{fits:?}");
                }
            }
        }
    }

    #[test]
    fn without_a_fall_the_constant_is_preferred() {
        let preferred = (0..40).filter(|&seed| !fit(&runs(5, 0.01, seed, |_| 0.0)).unwrap().falls()).count();
        assert!(preferred >= 34, "{preferred} of 40");
        // What rises has no knee, and what falls from the first nat on is a line.
        assert!(fit(&runs(5, 0.001, 1, |d| 0.1 * d)).unwrap().hinge.is_none());
        let line = fit(&runs(5, 0.003, 1, |d| -0.1 * d)).unwrap();
        assert!(line.line.aic < line.constant.aic - 50.0 && line.line.aic < line.hinge.unwrap().1.aic, "{line:?}");
    }

    /// Levels of seeds are taken out exactly: adding a number to all runs of a seed changes nothing but rounding.
    #[test]
    fn levels_of_seeds_do_not_matter() {
        let points = runs(5, 0.01, 4, |d| -0.05 * basis(Axis::LnD, 0.1, d));
        let moved: Vec<Point> = points
            .iter()
            .map(|p| Point { quality: p.quality + f64::from(u8::try_from(p.seed).unwrap()), ..*p })
            .collect();
        let (a, b) = (fit(&points).unwrap().hinge.unwrap(), fit(&moved).unwrap().hinge.unwrap());
        assert!((a.0.knee_nats - b.0.knee_nats).abs() < 1e-9 && (a.1.rss - b.1.rss).abs() < 1e-9, "{a:?}, {b:?}");
    }

    #[test]
    fn too_little_has_no_fit() {
        let points = runs(1, 0.01, 5, |_| 0.0);
        assert!(fit(&points).is_none() && fit(&[]).is_none());
        let points = [0, 1].map(|seed| Point { seed, d_nats: 0.1, quality: 0.5 });
        assert!(fit(&points).is_none());
    }
}
