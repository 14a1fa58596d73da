//! The numbers by which the field logs importance ratios, under its names. They stand beside D and not for it: ESS
//! saturates, signed errors cancel in perplexities, and a chi-square is as large as its largest ratio.

/// Of tokens sampled by the rollout, with rho = p_train / p_rollout of the token taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioStatistics {
    /// E rho, which is 1 if the logprobs are those of the distribution sampled from.
    pub mean: f64,
    /// (sum rho)^2 / (n sum rho^2), the effective share.
    pub ess: f64,
    /// E rho^2 - 1.
    pub chi2: f64,
    /// E (ln rho)^2, nats squared.
    pub m2: f64,
}

impl RatioStatistics {
    /// From ln rho of every token and its weight in the mean (1 for a sample; probabilities give expectations).
    ///
    /// # Panics
    /// With nothing to average.
    #[must_use]
    pub fn new(tokens: impl Iterator<Item = (f64, f64)>) -> RatioStatistics {
        let (mut n, mut sum, mut squares, mut logs) = (0.0, 0.0, 0.0, 0.0);
        for (x, weight) in tokens {
            let rho = x.exp();
            n += weight;
            sum += weight * rho;
            squares += weight * rho * rho;
            logs += weight * x * x;
        }
        assert!(n > 0.0, "no tokens");
        RatioStatistics { mean: sum / n, ess: sum * sum / (n * squares), chi2: squares / n - 1.0, m2: logs / n }
    }
}

/// The mean over sequences of perplexity under the trained model by that under the rollout: exp of minus the mean of ln
/// rho over its tokens.
///
/// # Panics
/// With no sequences or an empty one.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts
pub fn perplexity_ratio<'a>(sequences: impl Iterator<Item = &'a [f64]>) -> f64 {
    let ratios: Vec<f64> = sequences
        .map(|logs| {
            assert!(!logs.is_empty(), "a sequence without tokens has no perplexity");
            (-logs.iter().sum::<f64>() / logs.len() as f64).exp()
        })
        .collect();
    assert!(!ratios.is_empty(), "no sequences");
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values computed apart, to six digits, for mu = (.3, .4, .1, .2) and pi = (.6, .25, .1, .05).
    #[test]
    fn golden_values() {
        let mu = [0.3, 0.4, 0.1, 0.2_f64];
        let pi = [0.6, 0.25, 0.1, 0.05_f64];
        let got = RatioStatistics::new(mu.iter().zip(pi).map(|(m, p)| ((p / m).ln(), *m)));
        for (name, got, want) in [
            ("mean", got.mean, 1.0),
            ("chi2", got.chi2, 0.46875),
            ("ess", got.ess, 0.680_851),
            ("m2", got.m2, 0.616_860),
        ] {
            assert!((got - want).abs() < 6e-7, "{name}: {got}, not {want}");
        }
    }

    #[test]
    fn agreement() {
        let got = RatioStatistics::new([0.0; 5].into_iter().map(|x| (x, 1.0)));
        assert_eq!((got.mean, got.ess, got.chi2, got.m2), (1.0, 1.0, 0.0, 0.0));
        assert_eq!(perplexity_ratio([&[0.0; 3][..], &[0.0]].into_iter()), 1.0);
        let two = perplexity_ratio([&[-1.0, -3.0][..], &[2.0]].into_iter());
        assert!((two - 0.5 * (2.0_f64.exp() + (-2.0_f64).exp())).abs() < 1e-12, "{two}");
    }
}
