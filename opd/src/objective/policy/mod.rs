//! What the rollout's own logprobs are good for: factors of the tokens' losses. They are detached numbers, made before the
//! update's gradient from a type that no loss takes, so that a dense loss cannot see what the rollout said.

mod grpo;
mod weight;

pub use grpo::{Grpo, GrpoReport, Old};
pub use weight::{WeightReport, Weighting, Window};

use super::target::RATIO_MAX;

/// The sampled tokens of an update as rollout and trainer see them, sequence after sequence.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour<'a> {
    /// ln mu of each token as the rollout reported it.
    pub rollout: &'a [f32],
    /// ln pi of each token by the trainer's own forward pass at the weights that the update begins with.
    pub trainer: &'a [f32],
    /// Tokens of each sequence.
    pub lengths: &'a [usize],
}

impl Behaviour<'_> {
    /// ln(pi / mu) of each token, held within 20 either way.
    fn log_ratios(&self) -> Vec<f64> {
        assert_eq!(self.rollout.len(), self.trainer.len(), "one of each a token");
        assert_eq!(self.rollout.len(), self.lengths.iter().sum::<usize>(), "sequences are whole");
        let both = self.rollout.iter().zip(self.trainer);
        both.map(|(&mu, &pi)| (f64::from(pi) - f64::from(mu)).clamp(-RATIO_MAX, RATIO_MAX)).collect()
    }

    /// A list over tokens, cut into sequences.
    fn sequences<'a, T>(&'a self, tokens: &'a [T]) -> impl Iterator<Item = &'a [T]> {
        self.lengths.iter().scan(0, |first, &len| {
            *first += len;
            Some(&tokens[*first - len..*first])
        })
    }
}
