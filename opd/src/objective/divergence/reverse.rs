//! KL(p || t) = sum p ln(p/t), nats; dL/dz_i = p_i (ln(p_i/t_i) - KL). Minimised on-policy in MiniLLM (2306.08543).

use crate::objective::{expected, kl};

pub(super) fn row(lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    let loss = kl(lp, lt);
    for ((&lp, &lt), g) in lp.iter().zip(lt).zip(g) {
        *g = expected(lp, lp - lt - loss);
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        let mut g = [0.0; 4];
        close(row(&ln(S), &ln(T), &mut g), 0.257316, 5e-7);
        for (g, want) in g.into_iter().zip([-0.285139, 0.085075, -0.025732, 0.225796]) {
            close(g, want, 5e-7);
        }
        differences(row, |lp, lt| row(lp, lt, &mut [0.0; 4]));
    }
}
