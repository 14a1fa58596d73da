//! ExOPD (2602.12125): t proportional to ref (q/ref)^lambda = q (q/ref)^(lambda - 1), |ln(q/ref)| held within 20.
//! lambda < 1 interpolates, 1 is the teacher, > 1 extrapolates.
//!
//! The lamp: in a two-outcome model with the teacher's modal probability p, the reference's b for that token and a tail
//! ratio of at most c, lambda* = ln(1 + (c - 1)/b) / (logit p - logit b) for p > b. Derived here; 2605.08737 has a
//! threshold of this kind, whose form is not known to us. It warns and decides nothing.

use super::{Moved, along, is_flat, ratio, teacher};

/// Tail ratio that the lamp takes as safe, the importance cap of G-OPD.
pub const TAIL_RATIO: f64 = 5.0;

pub(super) fn row(lambda: f64, lq: &[f64], lref: &[f64], lt: &mut Vec<f64>) -> Moved {
    let r = ratio(lq, lref);
    let kl = if lambda.to_bits() == 1.0_f64.to_bits() || is_flat(&r) {
        teacher::row(lq, lt).kl
    } else {
        along(lq, &r, lambda - 1.0, lt)
    };
    let mode = (1..lq.len()).fold(0, |best, i| if lq[i] > lq[best] { i } else { best });
    let cliff = cliff(lq[mode].exp(), lref[mode].exp(), TAIL_RATIO);
    Moved { kl, step: lambda - 1.0, at_cap: true, cliff }
}

/// The extrapolation up to which the tail keeps within `c` of the reference's; infinite where the teacher is no surer.
#[must_use]
pub fn cliff(p: f64, b: f64, c: f64) -> f64 {
    let logit = |x: f64| x.ln() - (-x).ln_1p();
    let gain = logit(p) - logit(b);
    if gain > 0.0 { ((c - 1.0) / b).ln_1p() / gain } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::{cliff, row};
    use crate::objective::check::{R, T, close, ln};

    #[test]
    fn ends_and_path() {
        let mut lt = Vec::new();
        row(1.0, &ln(T), &ln(R), &mut lt);
        assert_eq!(lt, ln(T), "lambda = 1 is the teacher, bit for bit");
        row(0.0, &ln(T), &ln(R), &mut lt);
        lt.iter().zip(ln(R)).for_each(|(&got, want)| close(got, want, 1e-12));
        // The u of a bound of 0.01, so the distribution and the distance of that.
        let moved = row(1.358_866, &ln(T), &ln(R), &mut lt);
        close(moved.kl, 0.01, 1e-7);
        lt.iter().zip([0.664023, 0.224059, 0.074612, 0.037306]).for_each(|(&got, want)| close(got.exp(), want, 1e-6));
    }

    #[test]
    fn the_lamp() {
        for (p, b, c, want) in [(0.97, 0.9, 5.0, 1.325), (0.99, 0.9, 5.0, 0.707), (0.999, 0.9, 5.0, 0.360)] {
            close(cliff(p, b, c), want, 5e-4);
        }
        for (p, b, c, want) in [(0.97, 0.9, 2.0, 0.584), (0.97, 0.9, 1.2, 0.157), (0.95, 0.5, 5.0, 0.746)] {
            close(cliff(p, b, c), want, 1e-3);
        }
        assert_eq!(cliff(0.5, 0.5, 5.0), f64::INFINITY);
    }
}
