//! Group-relative policy optimisation on a reward (GRPO, 2402.03300): the contrast to distillation.
//!
//! A = (R - mean) / (sd + 1e-6) over the group, the samples of one prompt, or R - mean (Dr.GRPO, 2503.20783); with r =
//! pi / old, L = -min(r A, clip(r, 1 - low, 1 + high) A) for each token. As L = c(r) with dL/dln(pi) = -r A where the clip
//! does not bind and 0 where it does, the loss's gradient is that of -ln pi times the factor r A or 0.
//!
//! old is what the rollout said, or the trainer's own logprobs before the update. With one update for each batch of
//! rollouts the latter are pi itself: r is 1 in value, nothing is ever clipped, and the gradient is that of A ln pi.

use super::Behaviour;

/// Whose logprobs the ratio is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// The rollout's, as it reported them.
    Rollout,
    /// The trainer's, as the update begins.
    Trainer,
}

/// The loss's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grpo {
    /// Samples of a prompt.
    pub group: usize,
    /// Whether advantages are over the group's standard deviation.
    pub scaled: bool,
    /// How far below 1 the ratio may go.
    pub clip_low: f64,
    /// How far above 1 it may go.
    pub clip_high: f64,
    /// What the ratio is to.
    pub old: Old,
}

/// What it did in an update.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct GrpoReport {
    /// Mean reward of the completions.
    pub reward: f64,
    /// Share of groups whose rewards are all equal: they have no gradient.
    pub flat_groups: f64,
    /// Share of tokens whose ratio was clipped, in groups that have a gradient.
    pub clipped: f64,
}

impl Grpo {
    /// (R - mean) / (sd + 1e-6) or R - mean of each completion, whose groups stand one after the other.
    ///
    /// # Panics
    /// When groups are not whole.
    #[must_use]
    pub fn advantages(&self, rewards: &[f64]) -> Vec<f64> {
        assert_eq!(rewards.len() % self.group, 0, "groups are whole");
        let mut all = Vec::with_capacity(rewards.len());
        for group in rewards.chunks(self.group) {
            let n = count(group.len());
            let mean = group.iter().sum::<f64>() / n;
            let sd = (group.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / n).sqrt();
            // A flat group's mean may be off its rewards by rounding; its advantages are nothing.
            let flat = group.iter().all(|r| r.to_bits() == group[0].to_bits());
            let scale = if self.scaled { sd + 1e-6 } else { 1.0 };
            all.extend(group.iter().map(|r| if flat { 0.0 } else { (r - mean) / scale }));
        }
        all
    }

    /// Loss of a token and the factor of the gradient of -ln pi: (L, -dL/dln(pi)).
    #[must_use]
    pub fn token(&self, log_ratio: f64, advantage: f64) -> (f64, f64) {
        let ratio = log_ratio.exp();
        let clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high);
        let (free, held) = (ratio * advantage, clipped * advantage);
        if free <= held { (-free, free) } else { (-held, 0.0) }
    }

    /// Of each token the factor of -ln pi's gradient and the loss, each weighted.
    #[must_use]
    pub fn factors(
        &self,
        behaviour: &Behaviour<'_>,
        rewards: &[f64],
        weights: Option<&[f64]>,
    ) -> (Vec<f64>, f64, GrpoReport) {
        let log_ratios = match self.old {
            Old::Rollout => behaviour.log_ratios(),
            Old::Trainer => vec![0.0; behaviour.trainer.len()],
        };
        let advantages = self.advantages(rewards);
        assert_eq!(advantages.len(), behaviour.lengths.len(), "one reward a sequence");
        let (mut factors, mut loss, mut clipped, mut live) = (Vec::new(), 0.0, 0, 0);
        for (sequence, &advantage) in behaviour.sequences(&log_ratios).zip(&advantages) {
            for &log_ratio in sequence {
                let weight = weights.map_or(1.0, |weights| weights[factors.len()]);
                let (token, factor) = self.token(log_ratio, advantage);
                loss += weight * token;
                factors.push(weight * factor);
                live += usize::from(advantage != 0.0);
                clipped += usize::from(advantage != 0.0 && factor == 0.0);
            }
        }
        let flat = rewards.chunks(self.group).filter(|g| g.iter().all(|r| r.to_bits() == g[0].to_bits())).count();
        let report = GrpoReport {
            reward: rewards.iter().sum::<f64>() / count(rewards.len()),
            flat_groups: count(flat) / count(rewards.len() / self.group),
            clipped: if live == 0 { 0.0 } else { count(clipped) / count(live) },
        };
        (factors, loss, report)
    }
}

#[allow(clippy::cast_precision_loss)] // counts
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::{Behaviour, Grpo, Old};
    use crate::objective::check::close;

    const PLAIN: Grpo = Grpo { group: 4, scaled: true, clip_low: 0.2, clip_high: 0.28, old: Old::Rollout };

    #[test]
    fn advantages() {
        let got = PLAIN.advantages(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        for (got, want) in
            got.into_iter().zip([1.732_046_8, -0.577_348_9, -0.577_348_9, -0.577_348_9, 0.0, 0.0, 0.0, 0.0])
        {
            close(got, want, 1e-6);
        }
        close(Grpo { scaled: false, ..PLAIN }.advantages(&[1.0, 0.0, 0.0, 0.0])[0], 0.75, 0.0);
    }

    /// Values of the surrogate, and its slope by differences away from the two corners.
    #[test]
    fn token_loss_and_slope() {
        for (ratio, advantage, want) in
            [(1.5, 2.0, -2.56), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6), (1.1, 2.0, -2.2)]
        {
            let log_ratio = f64::ln(ratio);
            let (loss, factor) = PLAIN.token(log_ratio, advantage);
            close(loss, want, 1e-12);
            let slope =
                (PLAIN.token(log_ratio + 1e-5, advantage).0 - PLAIN.token(log_ratio - 1e-5, advantage).0) / 2e-5;
            close(-factor, slope, 1e-8);
        }
    }

    #[test]
    fn factors_of_groups() {
        let settings = Grpo { group: 2, scaled: false, ..PLAIN };
        let trainer = [0.0, 1.5_f32.ln(), 0.0, 0.0, 0.0];
        let behaviour = Behaviour { rollout: &[0.0; 5], trainer: &trainer, lengths: &[2, 1, 1, 1] };
        let rewards = [1.0, 0.0, 1.0, 1.0];
        let (factors, loss, report) = settings.factors(&behaviour, &rewards, None);
        assert_eq!(factors, [0.5, 0.0, -0.5, 0.0, 0.0], "the second token is clipped, the second group flat");
        close(loss, -0.5 - 0.5 * 1.28 + 0.5, 1e-12);
        assert_eq!((report.reward, report.flat_groups), (0.75, 0.5));
        close(report.clipped, 1.0 / 3.0, 1e-12);
        let own = Grpo { old: Old::Trainer, ..settings };
        let (factors, _, report) = own.factors(&behaviour, &rewards, Some(&[1.0, 2.0, 1.0, 1.0, 1.0]));
        assert_eq!((factors, report.clipped), (vec![0.5, 1.0, -0.5, 0.0, 0.0], 0.0), "a ratio of 1 is never clipped");
    }
}
