//! Prefix drift: how far the prefixes that the rollout visits are from those that the trained model would visit itself.

mod paired;

pub use paired::{PairedDifference, paired_difference};
