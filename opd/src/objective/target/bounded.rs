//! Direction and distance apart (a formulation of our own; 2611.07241 has a bound whose form is not known to us): t
//! proportional to q e^(u r), r = ln(q/ref) held within 20, with the largest u <= u_max that has KL(t || q) <= delta.
//! d KL / du = u Var_t\[r\] >= 0, so bisection finds it. All r equal: the teacher, at u_max.

use super::{Moved, farthest, is_flat, ratio, teacher};

pub(super) fn row(delta: f64, u_max: f64, lq: &[f64], lref: &[f64], lt: &mut Vec<f64>) -> Moved {
    let r = ratio(lq, lref);
    if is_flat(&r) {
        return Moved { step: u_max, at_cap: true, ..teacher::row(lq, lt) };
    }
    if delta <= 0.0 {
        return teacher::row(lq, lt);
    }
    farthest(lq, &r, delta, u_max, lt)
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::objective::check::{R, T, close, ln};

    #[test]
    fn golden_distances() {
        let mut lt = Vec::new();
        for (delta, u) in [(0.001, 0.109841), (0.01, 0.358866), (0.05, 0.864931)] {
            let moved = row(delta, 2.0, &ln(T), &ln(R), &mut lt);
            close(moved.step, u, 5e-7);
            assert!(moved.kl <= delta && moved.kl > delta * (1.0 - 1e-9) && !moved.at_cap, "{moved:?}");
            close(lt.iter().map(|t| t.exp()).sum(), 1.0, 1e-12);
        }
        lt.iter().zip([0.742241, 0.186012, 0.047832, 0.023916]).for_each(|(&got, want)| close(got.exp(), want, 1e-6));
        let capped = row(10.0, 2.0, &ln(T), &ln(R), &mut lt);
        assert!(capped.at_cap && capped.step == 2.0 && capped.kl < 10.0);
        row(0.0, 2.0, &ln(T), &ln(R), &mut lt);
        assert_eq!(lt, ln(T), "no distance is the teacher, bit for bit");
        let flat = row(0.01, 2.0, &ln(T), &ln(T), &mut lt);
        assert_eq!((lt, flat.step, flat.at_cap, flat.kl), (ln(T), 2.0, true, 0.0));
    }

    /// Tails that no bound could hold without the clamp.
    #[test]
    fn far_tails_stay_within_the_bound() {
        let mut lt = Vec::new();
        let (q, reference) = ([-1e-20, -46.0, -300.0, f64::NEG_INFINITY], [-0.7, -0.7, -46.0, -46.0]);
        let moved = row(0.01, 3.0, &q, &reference, &mut lt);
        assert!(moved.kl <= 0.01 && lt[3] == f64::NEG_INFINITY && lt[..3].iter().all(|t| t.is_finite()), "{lt:?}");
    }
}
