//! -ln p_a of the sampled token a, nats; dL/dz_i = p_i - \[i = a\]. With a detached advantage as the row's weight it is
//! the policy gradient (REINFORCE), which [`crate::objective::policy`] makes GRPO of.

pub(super) fn row(token: usize, lp: &[f64], g: &mut [f64]) -> f64 {
    for (i, (&lp, g)) in lp.iter().zip(g).enumerate() {
        *g = lp.exp() - f64::from(u8::from(i == token));
    }
    -lp[token]
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        let mut g = [0.0; 4];
        close(row(3, &ln(S), &mut g), 1.609_437_9, 5e-8);
        for (g, want) in g.into_iter().zip([0.3, 0.4, 0.1, -0.8]) {
            close(g, want, 1e-12);
        }
        differences(|lp, _, g| row(3, lp, g), |lp, _| row(3, lp, &mut [0.0; 4]));
    }
}
