//! KL(p || t), nats: exact on the head H, the k most probable tokens, and estimated off it by one token.
//!
//! With f = ln(p/t), P = sum p off H, and a drawn off H with probability p_a / P: L = sum_H p f + P f_a, and dL/dz_i =
//! p_i f_i on H, + P f_a where i = a, - p_i L. Over the draws their means are KL(p || t) and its gradient. The draw is
//! the trainer's own, from p as it is now: the rollout's token is not it, so that no ratio comes in. Its variance is that
//! of P f off H, against that of f over all tokens for a sampled loss.

/// `uniform` in [0, 1) picks the token; with nothing off H it is not used.
pub(super) fn row(on: &[usize], uniform: f64, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    g.fill(0.0);
    let term = |i: usize| if lp[i] == f64::NEG_INFINITY { 0.0 } else { lp[i].exp() * (lp[i] - lt[i]) };
    for &i in on {
        g[i] = term(i);
    }
    let off = || {
        let mut inside = on.iter().peekable();
        (0..lp.len()).filter(move |i| inside.next_if_eq(&i).is_none())
    };
    let rest: f64 = off().map(|i| lp[i].exp()).sum();
    let (mut below, mut drawn) = (0.0, None);
    for i in off().filter(|&i| lp[i].exp() > 0.0) {
        drawn = Some(i); // rounding may leave the sum below the last threshold: the last token is taken then
        below += lp[i].exp();
        if below > uniform * rest {
            break;
        }
    }
    if let Some(a) = drawn {
        g[a] = rest * (lp[a] - lt[a]);
    }
    let loss: f64 = g.iter().sum();
    g.iter_mut().zip(lp).for_each(|(g, lp)| *g -= lp.exp() * loss);
    loss
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, ln};

    /// Tokens 0 and 1 are the head; token 2 has a third of the rest's mass, token 3 two thirds.
    #[test]
    fn the_mean_is_the_dense_kl() {
        let on = [0, 1];
        let (mut a, mut b) = ([0.0; 4], [0.0; 4]);
        let two = row(&on, 0.2, &ln(S), &ln(T), &mut a);
        let three = row(&on, 0.5, &ln(S), &ln(T), &mut b);
        close(two, 0.3 * 0.5_f64.ln() + 0.4 * 1.6_f64.ln(), 1e-12);
        close(three, two + 0.3 * 4_f64.ln(), 1e-12);
        close(two / 3.0 + 2.0 * three / 3.0, 0.257316, 5e-7);
        for (i, want) in [-0.285139, 0.085075, -0.025732, 0.225796].into_iter().enumerate() {
            close(a[i] / 3.0 + 2.0 * b[i] / 3.0, want, 5e-7);
        }
    }

    /// Against differences of the KL: where the head is all, the draw says nothing.
    #[test]
    fn whole_head() {
        let on = [0, 1, 2, 3];
        crate::objective::check::differences(|lp, lt, g| row(&on, 0.7, lp, lt, g), crate::objective::kl);
    }

    /// Of the surrogate with the draw's probability held fixed: f_a is ln p_a - ln t_a, weighted by p_a over its value.
    #[test]
    fn gradient() {
        let surrogate = |lp: &[f64], lt: &[f64]| -> f64 {
            let term = |i: usize| lp[i].exp() * (lp[i] - lt[i]);
            let share = S[3] / (S[2] + S[3]);
            // Adding sum p = 1 in its estimated form makes the constant part of the derivative 1 for every draw.
            term(0) + term(1) + term(3) / share - lp[0].exp() - lp[1].exp() - lp[3].exp() / share
        };
        let (z, lt) = (ln(S), ln(T));
        let mut g = [0.0; 4];
        row(&[0, 1], 0.9, &z, &lt, &mut g);
        for i in 0..4 {
            let at = |h: f64| {
                let mut moved = z.clone();
                moved[i] += h;
                assert!(crate::objective::normalise(&mut moved));
                surrogate(&moved, &lt)
            };
            close(g[i], (at(1e-5) - at(-1e-5)) / 2e-5, 1e-8);
        }
    }
}
