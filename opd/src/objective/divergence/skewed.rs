//! Skewed KL, nats (DistiLLM, 2402.03898): finite though the supports differ. Reverse: KL(p || M), M = alpha t + (1 - alpha) p,
//! dL/dp_i = ln(p_i/M_i) + 1 - (1 - alpha) p_i/M_i. Forward: KL(t || M), M = alpha p + (1 - alpha) t, dL/dp_i = -alpha t_i/M_i.
//! Both then go through the softmax: dL/dz_i = p_i (g_i - sum p g). alpha = 1 is the plain KL.

use super::Direction;
use crate::objective::{kl, mixture, through_softmax};

pub(super) fn row(direction: Direction, alpha: f64, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    let (own, other) = match direction {
        Direction::Reverse => (lp, lt),
        Direction::Forward => (lt, lp),
    };
    let mixed = mixture(own, other, alpha);
    for (((&lp, &lt), &lm), g) in lp.iter().zip(lt).zip(&mixed).zip(&mut *g) {
        *g = match direction {
            _ if lp == f64::NEG_INFINITY => 0.0,
            Direction::Reverse => lp - lm + 1.0 - (1.0 - alpha) * (lp - lm).exp(),
            Direction::Forward => -alpha * (lt - lm).exp(),
        };
    }
    through_softmax(lp, g);
    kl(own, &mixed)
}

#[cfg(test)]
mod tests {
    use super::{Direction, row};
    use crate::objective::check::{S, T, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        // alpha = 1 is the KL itself; alpha = 1/2 twice, both ways round, is twice the JSD.
        close(row(Direction::Reverse, 1.0, &ln(S), &ln(T), &mut [0.0; 4]), 0.257316, 5e-7);
        close(row(Direction::Forward, 1.0, &ln(S), &ln(T), &mut [0.0; 4]), 0.229073, 5e-7);
        let both = [Direction::Reverse, Direction::Forward].map(|d| row(d, 0.5, &ln(S), &ln(T), &mut [0.0; 4]));
        close((both[0] + both[1]) / 2.0, 0.058_310_3, 5e-8);
        for direction in [Direction::Reverse, Direction::Forward] {
            for alpha in [0.1, 0.5, 1.0] {
                let value = |lp: &[f64], lt: &[f64]| row(direction, alpha, lp, lt, &mut [0.0; 4]);
                differences(|lp, lt, g| row(direction, alpha, lp, lt, g), value);
            }
        }
    }
}
