//! The coherence share: how much of a mismatch is the same from one replicate to the next.
//!
//! With delta = ln mu - ln pi at a prefix, centred under pi, and two replicates of it: c = E cov(delta1, delta2) over the
//! mean of E var(delta1) and E var(delta2), variances and covariance under pi. 1 for an error that stays, 0 for one drawn
//! anew each time, since independent parts cancel in the product.

use crate::mismatch::{Cluster, RatioError, RatioEstimate};

/// Moments of two replicates' deviations under one distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Covariance.
    pub covariance: f64,
    /// The mean of the two variances; twice D to second order.
    pub variance: f64,
}

/// The moments at one prefix: `p` is pi, `first` and `second` are ln mu - ln pi of every id, not yet centred. Ids without
/// probability under pi do not count.
///
/// # Panics
/// When the lists differ in length.
#[must_use]
pub fn moments(p: &[f64], first: &[f64], second: &[f64]) -> Moments {
    assert!(p.len() == first.len() && p.len() == second.len(), "one value an id");
    let seen = |i: &usize| p[*i] > 0.0;
    let mean = |x: &[f64]| (0..p.len()).filter(seen).map(|i| p[i] * x[i]).sum::<f64>();
    let (a, b) = (mean(first), mean(second));
    let mut sums = [0.0; 3];
    for i in (0..p.len()).filter(seen) {
        let (x, y) = (first[i] - a, second[i] - b);
        for (sum, product) in sums.iter_mut().zip([x * y, x * x, y * y]) {
            *sum += p[i] * product;
        }
    }
    Moments { covariance: sums[0], variance: 0.5 * (sums[1] + sums[2]) }
}

/// The share from sums of moments by prompt, with its interval over prompts; nothing where nothing varies.
///
/// # Errors
/// With fewer than two prompts that vary.
pub fn share(by_prompt: &[Moments], seed: u64) -> Result<Option<RatioEstimate>, RatioError> {
    let clusters: Vec<Cluster> = by_prompt
        .iter()
        .filter(|moments| moments.variance > 0.0)
        .map(|moments| Cluster { sum: moments.covariance, tokens: moments.variance })
        .collect();
    if clusters.is_empty() { Ok(None) } else { RatioEstimate::new(&clusters, seed).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    /// By hand: p = (.5, .25, .25), first (2, 0, 0) has mean 1 and deviations (1, -1, -1), second (0, 4, 0) has mean 1 and
    /// (-1, 3, -1): covariance -.5 - .75 + .25 = -1, variances 1 and .5 + 2.25 + .25 = 3.
    #[test]
    fn moments_by_hand() {
        let got = moments(&[0.5, 0.25, 0.25], &[2.0, 0.0, 0.0], &[0.0, 4.0, 0.0]);
        assert_eq!(got, Moments { covariance: -1.0, variance: 2.0 });
        // A constant is no deviation, and an id that pi excludes has none.
        let got = moments(&[0.5, 0.5, 0.0], &[3.0, 3.0, f64::NAN], &[1.0, 1.0, 0.0]);
        assert_eq!(got, Moments::default());
        assert_eq!(share(&[got, got], 0).unwrap(), None);
    }

    /// Deviations whose common part has variance 1 and whose own parts have 1 or 0 or 9: shares 1/2, 1 and 1/10.
    #[test]
    fn shares_of_mixtures() {
        let random = Random::new(3);
        let mut counter = 0;
        let mut normal = || {
            counter += 2;
            let (u, v) = (1.0 - random.uniform(counter), random.uniform(counter + 1));
            (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        for (own, want) in [(1.0, 0.5), (0.0, 1.0), (3.0, 0.1)] {
            let p = [1.0 / 16.0; 16];
            let prompts: Vec<Moments> = (0..200)
                .map(|_| {
                    let common: Vec<f64> = (0..16).map(|_| normal()).collect();
                    let mut replicate = || common.iter().map(|x| x + own * normal()).collect::<Vec<f64>>();
                    let (a, b) = (replicate(), replicate());
                    moments(&p, &a, &b)
                })
                .collect();
            let got = share(&prompts, 1).unwrap().unwrap();
            assert!((got.ratio - want).abs() <= 2.0 * 0.5 * got.ci95.width() + 1e-12, "{got:?}, want {want}");
            assert!(got.ci95.width() < 0.15, "{got:?}");
        }
    }
}
