//! What a family of mismatch may cost.

use serde::{Deserialize, Serialize};

use super::{Asked, Differences, Fits, Knee, Point, differences, fit, fixed_sequence, knee};

/// Runs at one rung, paired with baselines.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Measured D, nats per token, by seed.
    pub d_nats: Vec<f64>,
    /// Quality, by seed in the order of the baselines.
    pub quality: Vec<f64>,
}

impl Rung {
    /// Its place on the axis: the mean of measured D.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // a count
    pub fn mean_nats(&self) -> f64 {
        self.d_nats.iter().sum::<f64>() / self.d_nats.len() as f64
    }
}

/// How the budget came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every rung passed, and the runs show no fall: the budget is at least the largest rung, and nothing is known of what
    /// lies beyond.
    AtLeast,
    /// Quality falls, be it within the margin, and the knee of the fall is the budget; 0 where no rung passed.
    Knee,
    /// A rung did not pass, and the runs show no fall either: scatter is too large for the margin. The budget is the last
    /// rung that passed; 0 where none did.
    Unclear,
}

/// The budget of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// The difference at every rung.
    pub differences: Vec<Differences>,
    /// What became of every rung.
    pub asked: Vec<Asked>,
    /// Mean D of the largest rung that passed, with all below it; 0 when none did.
    pub passed_nats: f64,
    /// How the budget came about.
    pub verdict: Verdict,
    /// The budget, nats per token.
    pub budget_nats: f64,
    /// Its lower 95% limit: what may be relied on.
    pub lower_nats: f64,
    /// The models of the fall.
    pub fits: Option<Fits>,
    /// The knee over resampled seeds, where there is a fall.
    pub knee: Option<Knee>,
}

/// Draws the conclusion from runs at rungs, the least first, and their baselines by seed.
///
/// # Panics
/// When there are fewer than two seeds or no rungs, or a rung has not one run for each seed.
#[must_use]
pub fn conclude(baseline: &[f64], rungs: &[Rung], margin: f64, seed: u64) -> Conclusion {
    assert!(!rungs.is_empty(), "a ladder has rungs");
    let pairs = |rung: &Rung| -> Differences {
        assert!(rung.quality.len() == baseline.len() && rung.d_nats.len() == baseline.len(), "a run for each seed");
        differences(&rung.quality.iter().zip(baseline).map(|(q, b)| q - b).collect::<Vec<_>>())
    };
    let differences: Vec<Differences> = rungs.iter().map(pairs).collect();
    let asked = fixed_sequence(&differences, margin);
    let passed = asked.iter().take_while(|&&asked| asked == Asked::Pass).count();
    let passed_nats = if passed == 0 { 0.0 } else { rungs[passed - 1].mean_nats() };
    let points: Vec<Point> = baseline
        .iter()
        .enumerate()
        .map(|(seed, &quality)| Point { seed, d_nats: 0.0, quality })
        .chain(rungs.iter().flat_map(|rung| {
            // All at the rung's mean: beyond a knee just below them, small differences of D would explain any scatter.
            let d_nats = rung.mean_nats();
            rung.quality.iter().enumerate().map(move |(seed, &quality)| Point { seed, d_nats, quality })
        }))
        .collect();
    let fits = fit(&points);
    // A criterion alone is quick to prefer a fall: some rung has to be worse beyond doubt as well.
    let worse = differences.iter().any(|difference| difference.ci95.high < 0.0);
    let falling = fits.filter(|fits| worse && fits.falls());
    let knee = falling.and_then(|_| knee(&points, seed));
    // A knee beyond a rung that was not shown to be good enough is no better than that rung.
    let failed_nats = rungs.get(passed).map_or(f64::INFINITY, Rung::mean_nats);
    let (verdict, budget_nats, lower_nats) = match (falling.and_then(|fits| fits.hinge), &knee) {
        // No knee is looked for below the least rung, so that where nothing passed none was shown to be safe.
        (Some(_), Some(_)) if passed == 0 => (Verdict::Knee, 0.0, 0.0),
        (Some((hinge, _)), Some(knee)) => {
            let budget = hinge.knee_nats.min(failed_nats);
            (Verdict::Knee, budget, knee.lower95.min(budget))
        }
        _ if passed == rungs.len() => (Verdict::AtLeast, passed_nats, passed_nats),
        _ => (Verdict::Unclear, passed_nats, passed_nats),
    };
    Conclusion { differences, asked, passed_nats, verdict, budget_nats, lower_nats, fits, knee }
}

#[cfg(test)]
mod tests {
    use super::super::fit::tests::{RUNGS, runs};
    use super::super::{Axis, Hinge};
    use super::*;

    fn ladder(scatter: f64, seed: u64, quality: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<Rung>) {
        let points = runs(5, scatter, seed, quality);
        let at = |rung: usize| points.iter().skip(rung).step_by(RUNGS.len());
        let baseline = at(0).map(|p| p.quality).collect();
        let rungs = (1..RUNGS.len()).map(|rung| Rung {
            d_nats: at(rung).map(|p| p.d_nats).collect(),
            quality: at(rung).map(|p| p.quality).collect(),
        });
        (baseline, rungs.collect())
    }

    #[test]
    fn while_nothing_falls_it_is_at_least_the_largest_rung() {
        let (baseline, rungs) = ladder(0.004, 2, |_| 0.0);
        let c = conclude(&baseline, &rungs, 0.02, 1);
        assert_eq!((c.verdict, c.asked.len(), c.knee), (Verdict::AtLeast, 7, None));
        assert!((c.budget_nats - 3.0).abs() < 0.3 && c.lower_nats == c.budget_nats, "{c:?}");
    }

    /// Where the last rung alone is worse, the knee may be anywhere above the one before it: that one is the budget.
    #[test]
    fn a_fall_at_the_last_rung_alone_gives_the_one_before() {
        let (baseline, rungs) = ladder(0.003, 6, |d| if d > 2.0 { -0.06 } else { 0.0 });
        let c = conclude(&baseline, &rungs, 0.02, 1);
        assert!(c.verdict == Verdict::Knee && c.asked[6] == Asked::Fail, "{c:?}");
        assert!((0.9..1.2).contains(&c.budget_nats) && c.lower_nats <= c.budget_nats, "{c:?}");
    }

    /// A fall that the margin allows is a fall: the ladder is not said to be flat.
    #[test]
    fn a_fall_within_the_margin_is_no_at_least() {
        let truth = Hinge { axis: Axis::LnD, knee_nats: 0.2, slope: 0.02 };
        let (baseline, rungs) = ladder(0.002, 4, |d| -truth.loss(d));
        let c = conclude(&baseline, &rungs, 0.1, 1);
        assert!(c.asked.iter().all(|&asked| asked == Asked::Pass) && c.passed_nats > 2.5, "{c:?}");
        assert!(c.verdict == Verdict::Knee && (0.1..0.4).contains(&c.budget_nats), "{c:?}");
        assert!(c.lower_nats <= c.budget_nats && c.lower_nats > 0.03, "{c:?}");
    }

    #[test]
    fn a_fall_gives_its_knee() {
        let truth = Hinge { axis: Axis::LnD, knee_nats: 0.2, slope: 0.08 };
        let (baseline, rungs) = ladder(0.006, 4, |d| -truth.loss(d));
        let c = conclude(&baseline, &rungs, 0.03, 1);
        assert_eq!(c.verdict, Verdict::Knee, "{c:?}");
        assert!(c.lower_nats <= c.budget_nats && (0.08..0.4).contains(&c.budget_nats), "{c:?}");
        assert!((0.05..0.5).contains(&c.passed_nats), "{c:?}");
        assert_eq!(c.asked[..4], [Asked::Pass; 4]);
        assert_eq!(c.asked[6], Asked::NotAsked);
    }

    #[test]
    fn scatter_alone_is_called_unclear_and_harm_from_the_start_leaves_nothing() {
        let unclear = (0..20).map(|seed| {
            let (baseline, rungs) = ladder(0.05, seed, |_| 0.0);
            conclude(&baseline, &rungs, 0.01, 1)
        });
        let unclear: Vec<_> = unclear.filter(|c| c.verdict == Verdict::Unclear).collect();
        assert!(unclear.len() >= 14, "{}", unclear.len());
        assert!(unclear.iter().all(|c| c.budget_nats == c.passed_nats && c.lower_nats == c.passed_nats));
        let (baseline, rungs) = ladder(0.003, 1, |d| if d > 0.0 { -0.2 - 0.1 * (d / 0.003).ln() } else { 0.0 });
        let c = conclude(&baseline, &rungs, 0.02, 1);
        assert!(
            c.passed_nats == 0.0 && c.asked[0] == Asked::Fail && (c.budget_nats, c.lower_nats) == (0.0, 0.0),
            "{c:?}"
        );
        assert_eq!(c.verdict, Verdict::Knee);
    }
}
