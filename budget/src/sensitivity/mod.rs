//! What each unit of a recipe costs, and which to quantise.
//!
//! A unit is what is quantised or not: one matrix, the keys or the values of one layer, the head. Somebody measures D
//! with that unit alone quantised, on the same rollouts for every unit, as sums by prompt. Here those sums become
//! D_u with its interval ([`costs`]), a statement on how unequal the units are ([`concentration`]), a test of whether
//! costs add up ([`additivity`]) and the choice of units ([`within_budget`], [`reaching`]).

mod additivity;
mod concentration;
mod knapsack;

pub use additivity::{Additivity, additivity, random_choices};
pub use concentration::{CONCENTRATED_TIMES, Concentration, concentration};
pub use knapsack::{Item, Unreachable, reaching, within_budget};

use crate::mismatch::{Cluster, RatioError, RatioEstimate};

/// Sums of a unit that give no cost.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SensitivityError {
    /// The sums give no estimate.
    #[error("unit {unit}: {source}")]
    Estimate {
        /// Its place in the list.
        unit: usize,
        /// Why.
        source: RatioError,
    },
    /// A KL is never negative, so these sums are of something else.
    #[error("unit {unit}: prompt {prompt} has a sum of {sum} nats; a KL is never negative")]
    Negative {
        /// Its place in the list.
        unit: usize,
        /// The prompt's place among the unit's clusters.
        prompt: usize,
        /// Its sum.
        sum: f64,
    },
}

/// D of every unit in nats per token, with its interval over prompts. Units share the bootstrap's draws, since they
/// share the prompts. The lower ends are cut at 0, which no D is below.
///
/// # Errors
/// When a unit's sums give no estimate, or one is negative.
pub fn costs<'a>(
    units: impl IntoIterator<Item = &'a [Cluster]>,
    seed: u64,
) -> Result<Vec<RatioEstimate>, SensitivityError> {
    units.into_iter().enumerate().map(|(unit, clusters)| cost(unit, clusters, seed)).collect()
}

fn cost(unit: usize, clusters: &[Cluster], seed: u64) -> Result<RatioEstimate, SensitivityError> {
    if let Some(prompt) = clusters.iter().position(|c| c.sum < 0.0) {
        return Err(SensitivityError::Negative { unit, prompt, sum: clusters[prompt].sum });
    }
    let mut estimate =
        RatioEstimate::new(clusters, seed).map_err(|source| SensitivityError::Estimate { unit, source })?;
    for interval in [&mut estimate.ci95, &mut estimate.linear] {
        interval.low = interval.low.max(0.0);
    }
    Ok(estimate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters(sums: &[f64]) -> Vec<Cluster> {
        sums.iter().map(|&sum| Cluster { sum, tokens: 10.0 }).collect()
    }

    #[test]
    fn costs_are_ratios_with_intervals_that_end_at_zero() {
        let (even, uneven) = (clusters(&[1.0, 1.0, 1.0]), clusters(&[0.0, 0.0, 3.0]));
        let costs = costs([&even[..], &uneven[..]], 1).unwrap();
        assert_eq!((costs[0].ratio, costs[0].ci95.low, costs[0].ci95.high), (0.1, 0.1, 0.1));
        let plain = RatioEstimate::new(&uneven, 1).unwrap();
        assert!(plain.ci95.low < 0.0, "{plain:?}");
        assert_eq!((costs[1].ratio, costs[1].ci95.low, costs[1].ci95.high), (0.1, 0.0, plain.ci95.high));
    }

    #[test]
    fn bad_sums_name_their_unit() {
        let (good, negative) = (clusters(&[1.0, 2.0]), clusters(&[1.0, -1e-9]));
        let error = costs([&good[..], &negative[..]], 1).unwrap_err();
        assert_eq!(error, SensitivityError::Negative { unit: 1, prompt: 1, sum: -1e-9 });
        let error = costs([&good[..], &good[..1]], 1).unwrap_err().to_string();
        assert!(error.starts_with("unit 1: an interval needs at least 2 prompts"), "{error}");
    }
}
