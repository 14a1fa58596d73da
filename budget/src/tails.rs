//! The rare tokens that carry a KL: means hide them.

/// Tails of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tails {
    /// The 99.9th percentile of |ln p_train / p_rollout| of the tokens taken, nats: the smallest value that is not exceeded
    /// by more than one token in a thousand.
    pub log_ratio_p999: f64,
    /// The share of D that the worst hundredth of the positions carries, their number rounded up; 0 where D is 0.
    pub share_worst_hundredth: f64,
}

/// From the log ratios of the tokens taken and the KL at each position, nats.
///
/// # Panics
/// Without any.
#[must_use]
pub fn tails(log_ratios: impl Iterator<Item = f64>, kl: impl Iterator<Item = f64>) -> Tails {
    let mut logs: Vec<f64> = log_ratios.map(f64::abs).collect();
    let mut kl: Vec<f64> = kl.collect();
    assert!(!logs.is_empty() && !kl.is_empty(), "no tokens");
    logs.sort_unstable_by(f64::total_cmp);
    kl.sort_unstable_by(|a, b| b.total_cmp(a));
    let beyond = logs.len() / 1000;
    let total: f64 = kl.iter().sum();
    let worst: f64 = kl[..kl.len().div_ceil(100)].iter().sum();
    Tails {
        log_ratio_p999: logs[logs.len() - 1 - beyond],
        share_worst_hundredth: if total > 0.0 { worst / total } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_and_share_by_hand() {
        // 2000 tokens: two may lie beyond the percentile, so it is the third largest.
        let logs = (0..2000).map(|i| if i < 3 { -f64::from(i + 5) } else { 0.5 });
        let kl = (0..200).map(|i| if i < 2 { 3.0 } else { 0.02 });
        let got = tails(logs, kl);
        assert_eq!(got.log_ratio_p999, 5.0);
        assert!((got.share_worst_hundredth - 6.0 / (6.0 + 198.0 * 0.02)).abs() < 1e-12, "{got:?}");
        let few = tails([0.1, -0.4].into_iter(), [0.0, 0.0].into_iter());
        assert_eq!((few.log_ratio_p999, few.share_worst_hundredth), (0.4, 0.0));
    }
}
