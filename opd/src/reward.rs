//! Rewards of completions: 1 for a right one, 0 for a wrong one.

use engine::rollout::Rollout;

use crate::source::{Asked, Source};

/// The reward of each rollout, in order.
///
/// # Panics
/// When a completion cannot be judged: a run that needs rewards is refused before it begins unless all can.
#[must_use]
pub fn rewards(source: &Source, rollouts: &[(Asked, Rollout)]) -> Vec<f64> {
    let right = |(asked, rollout): &(Asked, Rollout)| source.is_correct(asked, &rollout.ids);
    rollouts.iter().map(|rollout| f64::from(u8::from(right(rollout).expect("prompts that can be judged")))).collect()
}
