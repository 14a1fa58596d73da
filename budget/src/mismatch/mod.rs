//! Mismatch D: the KL from the rollout's distribution to the trained student's, nats per token, with its interval.

mod estimators;
mod ratio;
mod weights;

pub use estimators::{LOG_RATIO_MAX, k1, k2, k3};
pub use ratio::{BOOTSTRAP_DRAWS, Cluster, RatioError, RatioEstimate};
pub use weights::{RatioStatistics, perplexity_ratio};
