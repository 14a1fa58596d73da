//! Score form on the sampled token a: A = ln t_a - ln p_a, detached, plus KL(p || t) as a baseline (vOPD, 2605.07865).
//!
//! The gradient is that of -A ln p_a: dL/dz_i = -A (\[i = a\] - p_i); for a drawn from p its mean is the gradient of
//! KL(p || t). p is the student as it is now, never what the rollout said. The loss is ln p_a - ln t_a, nats, whose mean
//! is that KL, with or without a baseline.

use crate::objective::kl;

pub(super) fn row(baseline: bool, token: usize, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    let loss = lp[token] - lt[token];
    let advantage = if baseline { kl(lp, lt) - loss } else { -loss };
    for (i, (&lp, g)) in lp.iter().zip(g).enumerate() {
        *g = advantage * (lp.exp() - f64::from(u8::from(i == token)));
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, differences, ln};
    use crate::objective::kl;

    /// The exact mean over the draws is the dense loss and the dense gradient.
    #[test]
    fn the_mean_is_the_dense_kl() {
        for baseline in [false, true] {
            let (mut loss, mut mean) = (0.0, [0.0; 4]);
            for (token, p) in S.into_iter().enumerate() {
                let mut g = [0.0; 4];
                loss += p * row(baseline, token, &ln(S), &ln(T), &mut g);
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
        differences(|lp, lt, g| row(false, 3, lp, lt, g), |lp, _| -advantage * lp[3]);
        differences(|lp, lt, g| row(true, 3, lp, lt, g), |lp, _| -(advantage + baseline) * lp[3]);
    }
}
