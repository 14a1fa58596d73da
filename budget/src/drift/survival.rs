//! Coupling survival, and what it and the accumulated D say of the total variation of prefixes.

use super::{Rollout, by_prompt};
use crate::mismatch::{RatioError, RatioEstimate};

/// The probability that a token drawn from mu is kept by the maximal coupling with pi: min(1, pi/mu). Its mean over mu is
/// 1 - TV of the two distributions.
#[must_use]
pub fn keep(log_ratio: f64) -> f64 {
    log_ratio.min(0.0).exp()
}

/// S(t): the mean over rollouts of the product of [`keep`] over the first `t` tokens, with its interval over prompts.
///
/// # Errors
/// With fewer than two prompts.
pub fn survival(rollouts: &[Rollout], t: usize, seed: u64) -> Result<RatioEstimate, RatioError> {
    let parts = rollouts.iter().map(|rollout| {
        let kept: f64 = rollout.log_ratio.iter().take(t).map(|&x| keep(x)).product();
        (rollout.prompt, kept, 1.0)
    });
    RatioEstimate::new(&by_prompt(parts), seed)
}

/// The smallest number of tokens after which S is at most one half, or nothing if it never is.
#[must_use]
#[allow(clippy::cast_precision_loss)] // a count of rollouts
pub fn half_life(rollouts: &[Rollout]) -> Option<usize> {
    let longest = rollouts.iter().map(|rollout| rollout.log_ratio.len()).max().unwrap_or(0);
    let mut kept = vec![1.0; rollouts.len()];
    (0..longest).find_map(|t| {
        for (kept, rollout) in kept.iter_mut().zip(rollouts) {
            *kept *= rollout.log_ratio.get(t).map_or(1.0, |&x| keep(x));
        }
        (kept.iter().sum::<f64>() <= 0.5 * rollouts.len() as f64).then_some(t + 1)
    })
}

/// Upper bounds of the total variation between prefixes of t tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// 1 - S(t).
    pub coupling: f64,
    /// sqrt(K_t / 2), Pinsker's.
    pub pinsker: f64,
    /// sqrt(1 - exp(-K_t)), Bretagnolle and Huber's.
    pub bretagnolle_huber: f64,
}

impl Bounds {
    /// From S(t) and from K_t, the mean over rollouts of the KL(mu || pi) of their first t tokens, nats.
    #[must_use]
    pub fn new(survival: f64, k: f64) -> Bounds {
        let k = k.max(0.0);
        Bounds { coupling: 1.0 - survival, pinsker: (0.5 * k).sqrt(), bretagnolle_huber: (-(-k).exp_m1()).sqrt() }
    }

    /// The least of the three, which is what is known.
    #[must_use]
    pub fn tv(&self) -> f64 {
        self.coupling.min(self.pinsker).min(self.bretagnolle_huber)
    }
}
