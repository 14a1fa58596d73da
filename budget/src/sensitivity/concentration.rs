//! Whether few units carry most of the cost.

use serde::{Deserialize, Serialize};

/// Costs are concentrated when the worst tenth of the units carries at least this many times what it would carry if all
/// units were equal. Units of models with random weights differ too, by size and by place: there the worst tenth carries
/// up to about twice its equal share, and leaving it out gains no more than that.
pub const CONCENTRATED_TIMES: f64 = 3.0;

/// How unequal costs are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concentration {
    /// Share of the whole cost carried by the worst tenth of the units, rounded up to whole units.
    pub share_worst_tenth: f64,
    /// What that share would be if all units cost the same.
    pub share_if_equal: f64,
    /// Gini coefficient: 0 when all cost the same, near 1 when one carries everything.
    pub gini: f64,
    /// Whether `share_worst_tenth` reaches [`CONCENTRATED_TIMES`] times `share_if_equal`.
    pub concentrated: bool,
}

/// Concentration of `costs`. When nothing costs anything, units are equal.
///
/// # Panics
/// When there are no costs, or one is negative or not finite.
#[must_use]
pub fn concentration(costs: &[f64]) -> Concentration {
    assert!(!costs.is_empty(), "there are no units");
    assert!(costs.iter().all(|c| c.is_finite() && *c >= 0.0), "costs are finite and not negative: {costs:?}");
    let mut sorted = costs.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (n, worst) = (costs.len(), costs.len().div_ceil(10));
    let total: f64 = sorted.iter().sum();
    let share_if_equal = as_f64(worst) / as_f64(n);
    if total == 0.0 {
        return Concentration { share_worst_tenth: share_if_equal, share_if_equal, gini: 0.0, concentrated: false };
    }
    let share_worst_tenth = sorted[n - worst..].iter().sum::<f64>() / total;
    let ranked: f64 = sorted.iter().enumerate().map(|(i, x)| as_f64(i + 1) * x).sum();
    // Rounding may leave equal units a few 1e-16 below 0.
    let gini = (2.0 * ranked / (as_f64(n) * total) - as_f64(n + 1) / as_f64(n)).max(0.0);
    let concentrated = share_worst_tenth >= CONCENTRATED_TIMES * share_if_equal;
    Concentration { share_worst_tenth, share_if_equal, gini, concentrated }
}

#[allow(clippy::cast_precision_loss)] // counts of units are far below 2^53
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // 1, 2, 3, 4: G = 2 (1 + 4 + 9 + 16) / (4 * 10) - 5/4 = .25; the worst of four carries .4 where .25 is equal.
        let c = concentration(&[4.0, 1.0, 3.0, 2.0]);
        assert!((c.gini - 0.25).abs() < 1e-15, "{c:?}");
        assert_eq!((c.share_worst_tenth, c.share_if_equal, c.concentrated), (0.4, 0.25, false));
        // Eleven units: the worst tenth is two of them.
        let mut costs = [1.0; 11];
        (costs[3], costs[7]) = (4.0, 5.0);
        let c = concentration(&costs);
        assert_eq!((c.share_worst_tenth, c.share_if_equal, c.concentrated), (0.5, 2.0 / 11.0, false));
        // 27/7 of 9 + 27/7 is .3: three times the tenth.
        let mut costs = [1.0; 10];
        costs[9] = 27.0 / 7.0;
        assert!((concentration(&costs).share_worst_tenth - 0.3).abs() < 1e-15);
        for (worst, concentrated) in [(3.85, false), (3.86, true)] {
            costs[9] = worst;
            assert_eq!(concentration(&costs).concentrated, concentrated, "{worst} of {}", 9.0 + worst);
        }
    }

    #[test]
    fn ends_of_the_scale() {
        for costs in [vec![0.0; 7], vec![0.3; 7], vec![1.0]] {
            let c = concentration(&costs);
            assert!((c.share_worst_tenth - c.share_if_equal).abs() < 1e-15, "{c:?}");
            assert!(c.gini < 1e-15 && !c.concentrated, "{c:?}");
        }
        let mut costs = vec![0.0; 100];
        costs[5] = 2.0;
        let c = concentration(&costs);
        assert_eq!((c.share_worst_tenth, c.concentrated), (1.0, true));
        assert!((c.gini - 0.99).abs() < 1e-12, "one of n carries everything: 1 - 1/n, {c:?}");
    }

    /// Costs that differ by chance alone, uniform within a factor of three, are not called concentrated.
    #[test]
    fn chance_is_no_concentration() {
        for seed in 0..50 {
            let random = crate::stats::Random::new(seed);
            for n in [20, 61, 271] {
                let costs: Vec<f64> = (0..n).map(|i| 0.5 + random.uniform(i)).collect();
                let c = concentration(&costs);
                assert!(!c.concentrated && c.gini < 0.3, "{n} units under seed {seed}: {c:?}");
            }
        }
    }
}
