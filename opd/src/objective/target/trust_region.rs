//! Trust region (2605.31159): t proportional to p^(1 - beta) q^beta, the closest to the teacher q within KL(t || p) <= eps of
//! the student p; the largest beta <= 1, by bisection as for `bounded`. |ln(q/p)| is held within 20. The target is
//! detached: its dependence on p is not differentiated.

use super::{Moved, farthest, is_flat, ratio, teacher};
use crate::objective::kl;

pub(super) fn row(eps: f64, lp: &[f64], lq: &[f64], lt: &mut Vec<f64>) -> Moved {
    let r = ratio(lq, lp);
    let whole = kl(lq, lp);
    if is_flat(&r) || whole <= eps {
        return Moved { kl: whole, step: 1.0, at_cap: true, ..teacher::row(lq, lt) };
    }
    farthest(lp, &r, eps, 1.0, lt)
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{S, T, close, ln};

    #[test]
    fn golden_distances() {
        let mut lt = Vec::new();
        for (eps, beta, want) in [
            (0.01, 0.191841, [0.356397, 0.380158, 0.104007, 0.159438]),
            (0.05, 0.436092, [0.431322, 0.346297, 0.106268, 0.116113]),
        ] {
            let moved = row(eps, &ln(S), &ln(T), &mut lt);
            close(moved.step, beta, 5e-7);
            assert!(moved.kl <= eps && !moved.at_cap);
            lt.iter().zip(want).for_each(|(&got, want)| close(got.exp(), want, 1e-6));
        }
        close(row(0.001, &ln(S), &ln(T), &mut lt).step, 0.060355, 5e-7);
        let within = row(0.3, &ln(S), &ln(T), &mut lt);
        assert_eq!((lt.clone(), within.step), (ln(T), 1.0), "a teacher within reach is the target, bit for bit");
        close(within.kl, 0.229073, 5e-7);
    }
}
