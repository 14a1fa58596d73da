//! Weights for tokens that another distribution sampled: rho = pi(a) / mu(a), trainer over rollout.
//!
//! | rule | weight of token t | source |
//! | --- | --- | --- |
//! | token-tis | min(rho_t, C) | Flash-RL; verl, rollout correction |
//! | sequence-tis | min(prod_s rho_s, C), the same for the whole sequence | as above |
//! | mask | 1, or 0 where rho leaves \[low, high\] or a token of the sequence is below the veto | as above |
//! | prefix-snis | W_t over its mean, W_t = prod_{s < t} rho_s | self-normalised importance sampling |
//!
//! The mean of W_t is over all sequences of the update, one that has ended counting with the product at its end: it is
//! among those that the t-th prefixes are drawn from. Products are sums of logarithms, less their largest.

use super::Behaviour;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// min(rho, max) of each token.
    TokenTis {
        /// C.
        max: f64,
    },
    /// min(product of rho, max) of each sequence.
    SequenceTis {
        /// C.
        max: f64,
    },
    /// 1 inside a window, 0 outside.
    Mask {
        /// Of what.
        window: Window,
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
        /// A sequence with a token whose rho is below is left out; 0 for none.
        veto: f64,
    },
    /// Of each token the product of rho before it, self-normalised.
    PrefixSnis,
}

/// What a mask's window is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// rho of each token.
    Token,
    /// The product over the sequence.
    Sequence,
    /// Its geometric mean.
    Geometric,
}

/// What weighting did to an update.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct WeightReport {
    /// Mean of the weights over tokens.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// Share of tokens whose weight is 0.
    pub masked: f64,
    /// Effective share: (sum w)^2 / (n sum w^2) over tokens; of prefix-snis over sequences, at the place where it is least.
    pub ess: f64,
}

impl Weighting {
    /// The weight of each token.
    #[must_use]
    pub fn weights(self, behaviour: &Behaviour<'_>) -> (Vec<f64>, WeightReport) {
        let log_rho = behaviour.log_ratios();
        let mut weights = Vec::with_capacity(log_rho.len());
        let mut prefix_ess = None;
        match self {
            Weighting::TokenTis { max } => weights.extend(log_rho.iter().map(|l| l.exp().min(max))),
            Weighting::SequenceTis { max } => {
                for sequence in behaviour.sequences(&log_rho) {
                    let weight = sequence.iter().sum::<f64>().exp().min(max);
                    weights.extend(std::iter::repeat_n(weight, sequence.len()));
                }
            }
            Weighting::Mask { window, low, high, veto } => {
                let inside = |l: f64| (low..=high).contains(&l.exp());
                for sequence in behaviour.sequences(&log_rho) {
                    let sum: f64 = sequence.iter().sum();
                    let whole = sequence.iter().all(|l| l.exp() >= veto)
                        && match window {
                            Window::Token => true,
                            Window::Sequence => inside(sum),
                            Window::Geometric => inside(sum / count(sequence.len().max(1))),
                        };
                    let keeps = |&l: &f64| whole && (window != Window::Token || inside(l));
                    weights.extend(sequence.iter().map(|l| f64::from(u8::from(keeps(l)))));
                }
            }
            Weighting::PrefixSnis => prefix_ess = Some(prefix_snis(behaviour, &log_rho, &mut weights)),
        }
        let report = WeightReport {
            mean: weights.iter().sum::<f64>() / count(weights.len()),
            max: weights.iter().copied().fold(0.0, f64::max),
            masked: count(weights.iter().filter(|&&w| w == 0.0).count()) / count(weights.len()),
            ess: prefix_ess.unwrap_or_else(|| ess(&weights)),
        };
        (weights, report)
    }
}

/// Appends the weights; the smallest effective share over the positions.
fn prefix_snis(behaviour: &Behaviour<'_>, log_rho: &[f64], weights: &mut Vec<f64>) -> f64 {
    let sequences: Vec<&[f64]> = behaviour.sequences(log_rho).collect();
    let longest = behaviour.lengths.iter().copied().max().unwrap_or(0);
    let mut log_w = vec![0.0; sequences.len()];
    let mut by_position = Vec::with_capacity(longest);
    let mut least: f64 = 1.0;
    for t in 0..longest {
        let largest = log_w.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let w: Vec<f64> = log_w.iter().map(|l| (l - largest).exp()).collect();
        least = least.min(ess(&w));
        let mean = w.iter().sum::<f64>() / count(w.len());
        by_position.push(w.iter().map(|w| w / mean).collect::<Vec<f64>>());
        for (log_w, sequence) in log_w.iter_mut().zip(&sequences) {
            *log_w += sequence.get(t).unwrap_or(&0.0);
        }
    }
    for (i, sequence) in sequences.iter().enumerate() {
        weights.extend((0..sequence.len()).map(|t| by_position[t][i]));
    }
    least
}

/// (sum w)^2 / (n sum w^2); 0 where all are 0.
fn ess(w: &[f64]) -> f64 {
    let (sum, squares) = w.iter().fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    if squares > 0.0 { sum * sum / (count(w.len()) * squares) } else { 0.0 }
}

#[allow(clippy::cast_precision_loss)] // counts
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
#[path = "weight_tests.rs"]
mod tests;
