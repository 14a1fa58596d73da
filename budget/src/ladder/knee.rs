//! The knee over resampled seeds.

use super::{Point, fit};
use crate::stats::{Interval, Random};
use serde::{Deserialize, Serialize};

/// Resamplings behind an interval.
pub const KNEE_DRAWS: u64 = 2000;

/// Where quality begins to fall, as far as seeds tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knee {
    /// The 5% quantile: the lower 95% limit, nats per token.
    pub lower95: f64,
    /// 2.5% and 97.5% quantiles.
    pub ci95: Interval,
    /// Share of resamplings without any fall; they count as a knee at the largest D.
    pub no_fall: f64,
}

/// Resamples whole seeds with replacement. None where [`fit`] has nothing to fit.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts
pub fn knee(points: &[Point], seed: u64) -> Option<Knee> {
    fit(points)?;
    let seeds = points.iter().map(|p| p.seed + 1).max()?;
    let largest = points.iter().map(|p| p.d_nats).fold(0.0, f64::max);
    let random = Random::new(seed);
    let (mut knees, mut without) = (Vec::new(), 0.0);
    let mut resampled = Vec::with_capacity(points.len());
    for draw in 0..KNEE_DRAWS {
        resampled.clear();
        for own in 0..seeds {
            let chosen = random.index(draw * seeds as u64 + own as u64, seeds);
            resampled.extend(points.iter().filter(|p| p.seed == chosen).map(|p| Point { seed: own, ..*p }));
        }
        match fit(&resampled).and_then(|fits| fits.hinge) {
            Some((hinge, _)) => knees.push(hinge.knee_nats),
            None => {
                without += 1.0;
                knees.push(largest);
            }
        }
    }
    knees.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a place in the list
        let at = (share * (knees.len() - 1) as f64).round() as usize;
        knees[at]
    };
    let ci95 = Interval { low: quantile(0.025), high: quantile(0.975) };
    Some(Knee { lower95: quantile(0.05), ci95, no_fall: without / KNEE_DRAWS as f64 })
}

#[cfg(test)]
mod tests {
    use super::super::fit::tests::runs;
    use super::super::{Axis, Hinge};
    use super::*;

    /// The lower limit is below the true knee in nearly all experiments, and not by much.
    #[test]
    fn the_limit_lies_below_the_knee() {
        let truth = Hinge { axis: Axis::LnD, knee_nats: 0.2, slope: 0.1 };
        let (mut below, mut near) = (0, 0);
        for experiment in 0..20 {
            let found = knee(&runs(6, 0.01, experiment, |d| -truth.loss(d)), experiment).unwrap();
            below += u32::from(found.lower95 <= 0.2);
            near += u32::from(found.lower95 > 0.05);
            assert!(found.ci95.low <= found.lower95 && found.lower95 <= found.ci95.high, "{found:?}");
        }
        assert!(below >= 17 && near >= 17, "below in {below} of 20, near in {near}");
    }

    #[test]
    fn the_same_seed_gives_the_same_limit() {
        let points = runs(5, 0.02, 1, |d| -0.1 * d);
        assert_eq!(knee(&points, 3), knee(&points, 3));
        assert_eq!(knee(&points[..8], 3), None, "one seed");
    }
}
