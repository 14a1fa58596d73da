//! KL over the k most probable tokens, nats: the rest as one more outcome (a lower bound of the whole KL), or both sides
//! renormalised on the support (2603.25562; student top-k 2604.13016).
//!
//! With outcomes P_j of the student and T_j of the target: reverse sum P ln(P/T), forward sum T ln(T/P). For a token i in
//! outcome j: reverse dL/dz_i = p_i (ln(P_j/T_j) - L), forward p_i (1 - T_j/P_j). Renormalised, p_i is that on the
//! support and the gradient is 0 elsewhere. Renormalised with k = 1 the loss is 0 whatever the models: it is refused.

use super::Direction;
use crate::objective::{expected, kl, normalise};

/// The ids of the `k` largest, the lower id first among equals.
pub(super) fn support(ranked: &[f64], k: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..ranked.len()).collect();
    let by_rank = |&a: &usize, &b: &usize| ranked[b].total_cmp(&ranked[a]).then(a.cmp(&b));
    if k < ids.len() {
        ids.select_nth_unstable_by(k, by_rank);
        ids.truncate(k);
    }
    ids.sort_unstable();
    ids
}

pub(super) fn row(direction: Direction, on: &[usize], tail: bool, lp: &[f64], lt: &[f64], g: &mut [f64]) -> f64 {
    assert!(tail || on.len() > 1, "one renormalised outcome has no divergence");
    let gather = |l: &[f64]| {
        let mut some: Vec<f64> = on.iter().map(|&i| l[i]).collect();
        if tail {
            let mut inside = on.iter().peekable();
            let off = (0..l.len()).filter(|i| inside.next_if_eq(&i).is_none());
            some.push(off.map(|i| l[i].exp()).sum::<f64>().ln());
        } else {
            assert!(normalise(&mut some), "the support has no mass");
        }
        some
    };
    let (p, t) = (gather(lp), gather(lt));
    let loss = match direction {
        Direction::Reverse => kl(&p, &t),
        Direction::Forward => kl(&t, &p),
    };
    // By how much a unit of log-probability in outcome j moves the loss.
    let slope = |j: usize| match direction {
        Direction::Reverse => p[j] - t[j] - loss,
        Direction::Forward => 1.0 - (t[j] - p[j]).exp(),
    };
    if tail {
        let rest = slope(on.len());
        lp.iter().zip(&mut *g).for_each(|(&lp, g)| *g = expected(lp, rest));
        on.iter().enumerate().for_each(|(j, &i)| g[i] = expected(lp[i], slope(j)));
    } else {
        g.fill(0.0);
        on.iter().enumerate().for_each(|(j, &i)| g[i] = expected(p[j], slope(j)));
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::{Direction, row, support};
    use crate::objective::check::{S, T, close, differences, ln};

    #[test]
    fn value_and_gradient() {
        let on = support(&ln(T), 2);
        assert_eq!(on, [0, 1]);
        assert_eq!(support(&[0.0, 1.0, 1.0, 1.0], 2), [1, 2], "the lower id goes first");
        close(row(Direction::Reverse, &on, false, &ln(S), &ln(T), &mut [0.0; 4]), 0.165666, 5e-7);
        close(row(Direction::Reverse, &on, true, &ln(S), &ln(T), &mut [0.0; 4]), 0.188001, 5e-7);
        close(row(Direction::Reverse, &[0, 1, 2, 3], true, &ln(S), &ln(T), &mut [0.0; 4]), 0.257316, 5e-7);
        for direction in [Direction::Reverse, Direction::Forward] {
            for tail in [false, true] {
                for on in [vec![0, 1], vec![1, 3], vec![0, 1, 3], vec![0, 1, 2, 3]] {
                    let value = |lp: &[f64], lt: &[f64]| row(direction, &on, tail, lp, lt, &mut [0.0; 4]);
                    differences(|lp, lt, g| row(direction, &on, tail, lp, lt, g), value);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "no divergence")]
    fn one_renormalised_outcome_is_refused() {
        row(Direction::Reverse, &[0], false, &ln(S), &ln(T), &mut [0.0; 4]);
    }
}
