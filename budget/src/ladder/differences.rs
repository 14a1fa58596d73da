//! Paired differences and their mean, by Student's t.

use serde::{Deserialize, Serialize};

use crate::stats::{Interval, t_one_sided_95, t_two_sided_95};

/// The mean of paired differences, in the unit of the quality.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    /// How many pairs.
    pub n: usize,
    /// Their mean.
    pub mean: f64,
    /// Its two-sided 95% interval.
    pub ci95: Interval,
    /// Its one-sided 95% lower limit.
    pub lower95: f64,
}

/// The mean of `pairs` with its limits.
///
/// # Panics
/// With fewer than two, or one that is not finite.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of seeds
pub fn differences(pairs: &[f64]) -> Differences {
    assert!(pairs.len() >= 2, "{} pairs have no interval", pairs.len());
    assert!(pairs.iter().all(|x| x.is_finite()), "differences are finite: {pairs:?}");
    let n = pairs.len() as f64;
    let mean = pairs.iter().sum::<f64>() / n;
    let variance = pairs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    let half = t_two_sided_95(pairs.len() - 1) * error;
    let lower95 = mean - t_one_sided_95(pairs.len() - 1) * error;
    Differences { n: pairs.len(), mean, ci95: Interval { low: mean - half, high: mean + half }, lower95 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // Mean 2, variance 2.5, standard error sqrt(.5); t with 4 degrees 2.776445 and 2.131847.
        let d = differences(&[0.0, 1.0, 2.0, 3.0, 4.0]);
        let error = 0.5_f64.sqrt();
        assert_eq!((d.n, d.mean), (5, 2.0));
        assert!((d.ci95.low - (2.0 - 2.776_445 * error)).abs() < 1e-12, "{d:?}");
        assert!((d.ci95.high - (2.0 + 2.776_445 * error)).abs() < 1e-12, "{d:?}");
        assert!((d.lower95 - (2.0 - 2.131_847 * error)).abs() < 1e-12, "{d:?}");
        let same = differences(&[0.25, 0.25]);
        assert_eq!((same.mean, same.ci95.low, same.lower95), (0.25, 0.25, 0.25));
    }

    #[test]
    #[should_panic(expected = "1 pairs have no interval")]
    fn one_pair_is_none() {
        let _ = differences(&[0.0]);
    }
}
