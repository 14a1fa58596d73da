//! KL(t || p) = sum t ln(t/p), nats; dL/dz_i = p_i - t_i. Distillation's first form; on-policy in GKD (2306.13649).

use crate::objective::kl;

pub(super) fn row(lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    for ((&lp, &lt), g) in lp.iter().zip(lt).zip(g) {
        *g = lp.exp() - lt.exp();
    }
    kl(lt, lp)
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        close(row(&ln(S), &ln(T), &mut [0.0; 4]), 0.229073, 5e-7);
        differences(row, |lp, lt| row(lp, lt, &mut [0.0; 4]));
    }
}
