//! The difference of a functional between rollouts of two policies for the same prompts.

use crate::mismatch::{BOOTSTRAP_DRAWS, Cluster, RatioError, RatioEstimate};
use crate::stats::{Interval, Random, t_two_sided_95};

/// A difference of two ratios of sums over the same prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// First less second, in the unit of the functional.
    pub difference: f64,
    /// The linearised standard error, by prompt.
    pub se: f64,
    /// The two-sided 95% interval, the wider of linearised (t quantile for few prompts) and bootstrap over prompts.
    pub ci95: Interval,
    /// The first ratio, of the rollout's policy.
    pub first: f64,
    /// The second, of the trained model.
    pub second: f64,
}

impl PairedDifference {
    /// The difference as a share of the second ratio; nothing where that is 0.
    #[must_use]
    pub fn relative(&self) -> Option<f64> {
        (self.second != 0.0).then(|| self.difference / self.second)
    }
}

/// `first[i]` and `second[i]` are prompt i's sums under either policy.
///
/// # Errors
/// With fewer than two prompts, or bad sums.
///
/// # Panics
/// When the lists differ in length.
#[allow(clippy::cast_precision_loss)] // a count of prompts
pub fn paired_difference(first: &[Cluster], second: &[Cluster], seed: u64) -> Result<PairedDifference, RatioError> {
    assert_eq!(first.len(), second.len(), "the same prompts on both sides");
    let (a, b) = (RatioEstimate::new(first, seed)?, RatioEstimate::new(second, seed)?);
    let difference = a.ratio - b.ratio;
    let influence = |ratio: &RatioEstimate, c: &Cluster| (c.sum - ratio.ratio * c.tokens) / ratio.tokens;
    let squares: f64 = first.iter().zip(second).map(|(x, y)| (influence(&a, x) - influence(&b, y)).powi(2)).sum();
    let count = first.len() as f64;
    let se = (count / (count - 1.0) * squares).sqrt();
    let half = t_two_sided_95(first.len() - 1) * se;
    let linear = Interval { low: difference - half, high: difference + half };

    let random = Random::new(seed);
    let mut counter = 0;
    let mut draws: Vec<f64> = (0..BOOTSTRAP_DRAWS)
        .map(|_| {
            let mut sums = [0.0; 4];
            for _ in first {
                let at = random.index(counter, first.len());
                counter += 1;
                for (sum, x) in
                    sums.iter_mut().zip([first[at].sum, first[at].tokens, second[at].sum, second[at].tokens])
                {
                    *sum += x;
                }
            }
            sums[0] / sums[1] - sums[2] / sums[3]
        })
        .collect();
    draws.sort_unstable_by(f64::total_cmp);
    let cut = BOOTSTRAP_DRAWS / 40;
    let bootstrap = Interval { low: draws[cut - 1], high: draws[BOOTSTRAP_DRAWS - cut] };
    let ci95 = if bootstrap.width() > linear.width() { bootstrap } else { linear };
    Ok(PairedDifference { difference, se, ci95, first: a.ratio, second: b.ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts whose level is common to both sides: the pairs' interval holds the true difference in 93 to 97 of a hundred
    /// experiments (1000: standard error .007), and is far narrower than one that takes the sides for independent.
    #[test]
    fn coverage_with_clustered_pairs() {
        let truth = 0.05;
        for (prompts, seed) in [(12_usize, 3), (48, 4)] {
            let random = Random::new(seed);
            let mut counter = 0;
            let mut uniform = || {
                counter += 1;
                random.uniform(counter)
            };
            let (mut held, mut narrower) = (0, 0);
            for experiment in 0..1000 {
                let (mut first, mut second) = (Vec::new(), Vec::new());
                for _ in 0..prompts {
                    let level = uniform();
                    for (side, shift) in [(&mut first, truth), (&mut second, 0.0)] {
                        let tokens = 4 + (0..8).filter(|_| uniform() < 0.5).count();
                        let sum = (0..tokens).map(|_| shift + level + 0.4 * (uniform() - 0.5)).sum();
                        side.push(Cluster { sum, tokens: tokens as f64 });
                    }
                }
                let got = paired_difference(&first, &second, experiment).unwrap();
                held += i32::from(got.ci95.contains(truth));
                let apart = |side: &[Cluster]| RatioEstimate::new(side, 0).unwrap().se.powi(2);
                narrower += i32::from(got.se < 0.8 * (apart(&first) + apart(&second)).sqrt());
            }
            assert!((930..=970).contains(&held), "{prompts} prompts: {held} of 1000");
            assert!(narrower > 900, "{prompts} prompts: {narrower} of 1000");
        }
    }

    #[test]
    fn one_policy_is_at_no_distance_from_itself() {
        let side = [(1.0, 3.0), (2.5, 4.0), (0.2, 1.0)].map(|(sum, tokens)| Cluster { sum, tokens });
        let got = paired_difference(&side, &side, 5).unwrap();
        assert_eq!((got.difference, got.se, got.ci95.width(), got.relative()), (0.0, 0.0, 0.0, Some(0.0)));
        assert!(paired_difference(&side[..1], &side[..1], 5).is_err());
    }
}
