//! The median over a handful of seeds, with an interval between two of the values themselves.
//!
//! Between the k-th lowest and the k-th highest of n independent values lies the true median with probability
//! 1 - 2 P(Bin(n, 1/2) < k), whatever the distribution. Censored runs count as worse: give them as infinity.

use serde::{Deserialize, Serialize};

use super::Interval;

/// A median and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianInterval {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The narrowest interval with at least 95% confidence; all values if there is none (fewer than six).
    pub interval: Interval,
    /// The probability that such an interval holds the true median. Below .95 with fewer than six values: three seeds
    /// give .75, five .9375.
    pub confidence: f64,
    /// How many values.
    pub n: usize,
}

/// The median of `values` with its interval, or nothing if there are no values or one is NaN.
#[must_use]
pub fn median_interval(values: &[f64]) -> Option<MedianInterval> {
    if values.is_empty() || values.iter().any(|x| x.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    let (left, right) = (sorted[(n - 1) / 2], sorted[n / 2]);
    // Two equal infinities have themselves as their mean, not NaN; opposite ones have none, and the worse stands.
    let median = if left == right || !(left + right).is_finite() { right } else { left + 0.5 * (right - left) };

    let tails = tails(n);
    // `tails[k]` is P(Bin < k + 1), the probability that the median lies below value k.
    let cut = (0..n.div_ceil(2)).rev().find(|&k| 1.0 - 2.0 * tails[k] >= 0.95).unwrap_or(0);
    let interval = Interval { low: sorted[cut], high: sorted[n - 1 - cut] };
    Some(MedianInterval { median, interval, confidence: (1.0 - 2.0 * tails[cut]).max(0.0), n })
}

/// P(Bin(n, 1/2) <= k) for k in the lower half, by recursion over logarithms so that no n underflows to nonsense.
#[allow(clippy::cast_precision_loss)] // counts are far below 2^53
fn tails(n: usize) -> Vec<f64> {
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    (0..n.div_ceil(2))
        .map(|k| {
            if k > 0 {
                log_term += ((n - k + 1) as f64 / k as f64).ln();
            }
            sum += log_term.exp();
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    fn ramp(n: i32) -> Vec<f64> {
        (1..=n).rev().map(f64::from).collect()
    }

    /// From the tables of the sign test: n = 6 to 8 leave out nothing, 9 to 11 one value on each side, 20 five.
    #[test]
    fn known_ranks() {
        let cases = [
            (5, 3.0, 1.0, 5.0, 0.9375),
            (6, 3.5, 1.0, 6.0, 0.96875),
            (8, 4.5, 1.0, 8.0, 0.992_187_5),
            (9, 5.0, 2.0, 8.0, 0.960_937_5),
            (20, 10.5, 6.0, 15.0, 0.958_610_5),
        ];
        for (n, median, low, high, confidence) in cases {
            let got = median_interval(&ramp(n)).unwrap();
            assert_eq!((got.median, got.interval), (median, Interval { low, high }), "{n}");
            assert!((got.confidence - confidence).abs() < 1e-6, "{n}: {}", got.confidence);
        }
    }

    #[test]
    fn few_many_and_censored() {
        assert_eq!(median_interval(&[]), None);
        assert_eq!(median_interval(&[1.0, f64::NAN]), None);
        let one = median_interval(&[4.0]).unwrap();
        assert_eq!((one.median, one.confidence), (4.0, 0.0));
        let many = median_interval(&ramp(5001)).unwrap();
        assert!((many.median - 2501.0).abs() < 1e-9 && (0.95..0.955).contains(&many.confidence), "{many:?}");
        // A run that never got there is worse than all that did.
        let censored = median_interval(&[3.0, f64::INFINITY, 1.0, 2.0, 5.0, 4.0]).unwrap();
        assert_eq!((censored.median, censored.interval.high), (3.5, f64::INFINITY));
        assert_eq!(median_interval(&[1.0, f64::INFINITY, f64::INFINITY]).unwrap().median, f64::INFINITY);
        assert_eq!(median_interval(&[1.0, f64::INFINITY]).unwrap().median, f64::INFINITY);
    }

    /// The stated confidence is the coverage, for skewed values too: 4000 experiments, standard error .003.
    #[test]
    fn coverage_is_the_stated_confidence() {
        let random = Random::new(9);
        let truth = std::f64::consts::LN_2; // of the exponential distribution
        let mut counter = 0;
        let mut held = 0;
        let mut confidence = 0.0;
        for _ in 0..4000 {
            let values: Vec<f64> = (0..10)
                .map(|_| {
                    counter += 1;
                    -(1.0 - random.uniform(counter)).ln()
                })
                .collect();
            let got = median_interval(&values).unwrap();
            held += u32::from(got.interval.contains(truth));
            confidence = got.confidence;
        }
        let coverage = f64::from(held) / 4000.0;
        assert!((coverage - confidence).abs() < 0.012, "{coverage}, stated {confidence}");
    }
}
