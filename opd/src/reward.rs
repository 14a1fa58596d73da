//! Rewards of completions: 1 for a right one, 0 for a wrong one.

use engine::rollout::Rollout;

use crate::source::{Asked, Source};

/// The reward of each rollout, in order.
///
/// # Panics
/// When a completion cannot be judged: a run that needs rewards is refused before it begins unless all can.
#[must_use]
pub fn rewards(source: &Source, asked: &[Asked], rollouts: &[Rollout]) -> Vec<f64> {
    let right = |rollout: &Rollout| source.is_correct(&asked[rollout.request], &rollout.ids);
    rollouts.iter().map(|rollout| f64::from(u8::from(right(rollout).expect("prompts that can be judged")))).collect()
}
