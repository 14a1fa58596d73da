//! Score form on the sampled token a: A = ln t_a - ln p_a, detached, plus KL(p || t) as a baseline (vOPD, 2605.07865).
//!
//! The gradient is that of -A ln p_a: dL/dz_i = -A (\[i = a\] - p_i); for a drawn from p its mean is the gradient of
//! KL(p || t). p is the student as it is now, never what the rollout said. The loss is ln p_a - ln t_a, nats, whose mean
//! is that KL, with or without a baseline.
//!
//! The gradient without a baseline is that of k2 = (ln t_a - ln p_a)^2 / 2, and it is the right one: that of k1 = ln p_a -
//! ln t_a has the mean 0, and that of k3 = t_a/p_a - 1 - ln(t_a/p_a) the mean p_i - t_i, which is the forward KL's. So k1
//! and k3 are values here and never what is differentiated (J. Schulman, "Approximating KL Divergence").

use super::Estimate;
use crate::objective::kl;
use crate::objective::target::RATIO_MAX;

pub(super) fn row(baseline: bool, estimate: Estimate, token: usize, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    let loss = lp[token] - lt[token];
    let advantage = if baseline { kl(lp, lt) - loss } else { -loss };
    for (i, (&lp, g)) in lp.iter().zip(g).enumerate() {
        *g = advantage * (lp.exp() - f64::from(u8::from(i == token)));
    }
    match estimate {
        Estimate::K1 => loss,
        Estimate::K2 => loss * loss / 2.0,
        Estimate::K3 => (-loss).clamp(-RATIO_MAX, RATIO_MAX).exp() - 1.0 + loss,
    }
}

#[cfg(test)]
mod tests {
    use super::{Estimate, row};
    use crate::objective::check::{S, T, close, differences, ln};
    use crate::objective::kl;

    /// The exact mean over the draws is the dense loss and the dense gradient.
    #[test]
    fn the_mean_is_the_dense_kl() {
        for baseline in [false, true] {
            let (mut loss, mut mean) = (0.0, [0.0; 4]);
            for (token, p) in S.into_iter().enumerate() {
                let mut g = [0.0; 4];
                loss += p * row(baseline, Estimate::K1, token, &ln(S), &ln(T), &mut g);
                mean.iter_mut().zip(g).for_each(|(mean, g)| *mean += p * g);
            }
            close(loss, 0.257316, 5e-7);
            for (mean, want) in mean.into_iter().zip([-0.285139, 0.085075, -0.025732, 0.225796]) {
                close(mean, want, 5e-7);
            }
        }
    }

    /// Of the surrogate, the advantage as it was.
    #[test]
    fn gradient() {
        let advantage = (T[3] / S[3]).ln();
        let baseline = kl(&ln(S), &ln(T));
        differences(|lp, lt, g| row(false, Estimate::K1, 3, lp, lt, g), |lp, _| -advantage * lp[3]);
        differences(|lp, lt, g| row(true, Estimate::K1, 3, lp, lt, g), |lp, _| -(advantage + baseline) * lp[3]);
    }

    /// The means of the three over the draws, and that all have k2's gradient, which is its own.
    #[test]
    fn estimates() {
        for (estimate, want) in [(Estimate::K1, 0.257316), (Estimate::K2, 0.308430), (Estimate::K3, 0.257316)] {
            let value = |token| row(false, estimate, token, &ln(S), &ln(T), &mut [0.0; 4]);
            close(S.iter().enumerate().map(|(token, p)| p * value(token)).sum(), want, 5e-7);
            for token in [0, 1, 3] {
                // the two agree on token 2
                differences(
                    |lp, lt, g| row(false, estimate, token, lp, lt, g),
                    |lp, lt| row(false, Estimate::K2, token, lp, lt, &mut [0.0; 4]),
                );
            }
        }
    }

    /// Why k1 and k3 are not differentiated: the means of their gradients are nothing, and the forward KL's.
    #[test]
    fn the_others_are_no_losses() {
        for i in 0..4 {
            let mean = |slope: &dyn Fn(usize) -> f64| -> f64 {
                (0..4).map(|a| S[a] * slope(a) * (f64::from(u8::from(i == a)) - S[i])).sum()
            };
            close(mean(&|_| 1.0), 0.0, 1e-15);
            close(mean(&|a| 1.0 - T[a] / S[a]), S[i] - T[i], 1e-15);
        }
    }
}
