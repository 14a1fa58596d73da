//! Self-normalised importance sampling: what a functional would be on prefixes of the trained model.

use super::{Rollout, by_prompt};
use crate::mismatch::{RatioError, RatioEstimate};

/// Which tokens the weight of a value covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Those before it, W_t: the value is a matter of the prefix, as a divergence at it is.
    Prefix,
    /// Its own as well, W_{t+1}: the value is a matter of the token too, as its logprob is.
    Token,
}

/// The effective number of rollouts that reach a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EssAt {
    /// The position in the completion, from 0.
    pub position: usize,
    /// Rollouts that have a token there.
    pub rollouts: usize,
    /// (sum W)^2 / (n sum W^2) over them, of 1.
    pub share: f64,
}

/// A functional's mean per token, as it is on the rollouts and as it would be under the trained model.
#[derive(Clone, Debug, PartialEq)]
pub struct Reweighted {
    /// On the rollouts as they are.
    pub plain: RatioEstimate,
    /// Under the trained model: sum W phi / sum W over all tokens, its interval over prompts.
    pub weighted: RatioEstimate,
    /// By position.
    pub ess: Vec<EssAt>,
}

impl Reweighted {
    /// The first position where the effective share falls below `least`: from there on the weights say nothing.
    #[must_use]
    pub fn trusted_to(&self, least: f64) -> Option<usize> {
        self.ess.iter().find(|at| at.share < least).map(|at| at.position)
    }
}

/// Reweights `values`, one list a rollout with one value a token, at the positions below `positions`.
///
/// # Errors
/// With fewer than two prompts, or a weight or value that is not finite.
///
/// # Panics
/// When the lists differ in length.
#[allow(clippy::cast_precision_loss)] // counts of rollouts
pub fn reweighted(
    rollouts: &[Rollout],
    values: &[Vec<f64>],
    through: Through,
    positions: usize,
    seed: u64,
) -> Result<Reweighted, RatioError> {
    assert_eq!(rollouts.len(), values.len(), "every rollout has values");
    let (mut plain, mut weighted, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (rollout, values) in rollouts.iter().zip(values) {
        assert_eq!(rollout.log_ratio.len(), values.len(), "every token has a value");
        let mut log_w = 0.0;
        for (t, (&x, &value)) in rollout.log_ratio.iter().zip(values).take(positions).enumerate() {
            let own = if through == Through::Token { log_w + x } else { log_w };
            let w = own.exp();
            plain.push((rollout.prompt, value, 1.0));
            weighted.push((rollout.prompt, w * value, w));
            if places.len() == t {
                places.push((0_usize, 0.0, 0.0));
            }
            let place = &mut places[t];
            *place = (place.0 + 1, place.1 + w, place.2 + w * w);
            log_w += x;
        }
    }
    let share = |(position, &(rollouts, sum, squares)): (usize, &(usize, f64, f64))| {
        let share = if squares > 0.0 { sum * sum / (rollouts as f64 * squares) } else { 0.0 };
        EssAt { position, rollouts, share }
    };
    Ok(Reweighted {
        plain: RatioEstimate::new(&by_prompt(plain.into_iter()), seed)?,
        weighted: RatioEstimate::new(&by_prompt(weighted.into_iter()), seed)?,
        ess: places.iter().enumerate().map(share).collect(),
    })
}
