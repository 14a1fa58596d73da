//! Prefix drift: how far the prefixes that the rollout visits are from those that the trained model would visit itself.
//!
//! Everything here comes from rollouts of the rollout's own policy mu. With rho_t = pi(a_t) / mu(a_t) of the token taken,
//! pi the trained model, and W_t = prod_{s < t} rho_s:
//!
//! * [`survival`]: S(t) = E prod_{s < t} min(1, rho_s), the probability that two samplers which are coupled as closely as
//!   can be, one of each policy, still have the same t tokens;
//! * [`Bounds`]: what S(t) and K_t, the sum of D over t tokens, say of the total variation of prefixes;
//! * [`reweighted`]: a functional under pi by self-normalised weights W_t;
//! * [`paired_difference`]: a functional on rollouts of both policies, prompt by prompt. This one decides; the others watch.
//!
//! A rollout that has ended stays where it is: it counts at every later position as unchanged.

#[cfg(test)]
mod oracle;
mod paired;
mod reweighted;
mod survival;

pub use paired::{PairedDifference, paired_difference};
pub use reweighted::{EssAt, Reweighted, Through, reweighted};
pub use survival::{Bounds, half_life, keep, survival};

/// One rollout of the rollout's policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Number of its prompt.
    pub prompt: usize,
    /// ln pi - ln mu of each token of the completion, nats.
    pub log_ratio: Vec<f64>,
}

/// Sums by prompt, from (prompt, sum, tokens) of its parts; prompts without tokens are left out.
pub(crate) fn by_prompt(parts: impl Iterator<Item = (usize, f64, f64)>) -> Vec<crate::mismatch::Cluster> {
    let mut clusters: std::collections::BTreeMap<usize, crate::mismatch::Cluster> = std::collections::BTreeMap::new();
    for (prompt, sum, tokens) in parts {
        let cluster = clusters.entry(prompt).or_insert(crate::mismatch::Cluster { sum: 0.0, tokens: 0.0 });
        cluster.sum += sum;
        cluster.tokens += tokens;
    }
    clusters.into_values().filter(|cluster| cluster.tokens > 0.0).collect()
}
