//! Generalised Jensen-Shannon divergence (GKD, 2306.13649), nats, divided by beta (1 - beta).
//!
//! M = beta t + (1 - beta) p; L = (beta KL(t || M) + (1 - beta) KL(p || M)) / (beta (1 - beta)). Unscaled it vanishes at
//! both ends; so scaled its limits are KL(t || p) at beta = 0 and KL(p || t) at beta = 1, which is what the ends compute.
//! At beta = 1/2 it is 4 times the usual JSD. dL/dz_i = p_i (ln(p_i/M_i) - KL(p || M)) / beta.

use super::{forward, reverse};
use crate::objective::{expected, kl, mixture};

pub(super) fn row(beta: f64, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    if beta <= 0.0 {
        return forward::row(lp, lt, g);
    }
    if beta >= 1.0 {
        return reverse::row(lp, lt, g);
    }
    let mixed = mixture(lp, lt, beta);
    let (of_p, of_t) = (kl(lp, &mixed), kl(lt, &mixed));
    for ((&lp, &lm), g) in lp.iter().zip(&mixed).zip(g) {
        *g = expected(lp, lp - lm - of_p) / beta;
    }
    of_t / (1.0 - beta) + of_p / beta
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        close(row(0.5, &ln(S), &ln(T), &mut [0.0; 4]) / 4.0, 0.058_310_3, 5e-8);
        for beta in [0.0, 0.1, 0.5, 0.9, 1.0] {
            differences(|lp, lt, g| row(beta, lp, lt, g), |lp, lt| row(beta, lp, lt, &mut [0.0; 4]));
        }
    }

    /// Loss and gradient near an end are those of the end, to first order in the distance.
    #[test]
    fn ends_are_limits() {
        for (near, end) in [(1e-6, 0.0), (1.0 - 1e-6, 1.0)] {
            let (mut a, mut b) = ([0.0; 4], [0.0; 4]);
            close(row(near, &ln(S), &ln(T), &mut a), row(end, &ln(S), &ln(T), &mut b), 1e-5);
            for (a, b) in a.into_iter().zip(b) {
                close(a, b, 1e-5);
            }
        }
    }
}
