//! Values and gradients against the f64 truth, within the bounds of the module's documentation.

use super::*;
use crate::ops::divergence::cases::{Case as Pair, cases};
use crate::ops::log_softmax::cases::{Case as Block, QWEN3, logits};
use crate::ops::log_softmax::naive::{logprobs, lse};
use crate::ops::log_softmax::tests::lse_tolerance;

const U: f64 = 1.0 / 16_777_216.0;

#[track_caller]
fn close(what: std::fmt::Arguments, got: f64, want: f64, limit: f64) {
    assert!(
        got == want || (got - want).abs() <= limit,
        "{what}: {got} want {want}, off by {} of {limit}",
        (got - want).abs()
    );
}

/// Two distributions, their logprobs and what the bounds are made of.
struct Rounded {
    a: Vec<f64>,
    b: Vec<f64>,
    /// Error of an lse.
    d: f64,
    /// Of ln(b/a) by column, without that of m.
    ratio: Vec<f64>,
    log: f64,
}

impl Rounded {
    fn new(za: &[f64], zb: &[f64]) -> Rounded {
        let (lse_a, lse_b) = (lse(za), lse(zb));
        let d = lse_tolerance(za.len(), lse_a).max(lse_tolerance(zb.len(), lse_b));
        let (a, b) = (logprobs(za), logprobs(zb));
        let none = f64::NEG_INFINITY;
        let matters = |&l: &f64| l > 1e-9_f64.ln();
        let log = a.iter().chain(&b).filter(|l| matters(l)).fold(0.0, |most: f64, l| most.max(l.abs()));
        let ratio = |i: usize| {
            if a[i] == none && b[i] == none {
                return 0.0;
            }
            2.0 * d + U * ((zb[i] - za[i]).abs() + (lse_b - lse_a).abs() + (b[i] - a[i]).abs() + 8.0)
        };
        let ratio = (0..a.len()).map(ratio).collect();
        Rounded { a, b, d, ratio, log }
    }

    /// ln(M/a), M = share b + (1 - share) a; 0 where neither is.
    fn m(&self, share: f64) -> Vec<f64> {
        let one = |(&a, &b): (&f64, &f64)| {
            if a == f64::NEG_INFINITY && b == a { 0.0 } else { (share * b.exp() + (1.0 - share) * a.exp()).ln() - a }
        };
        self.a.iter().zip(&self.b).map(one).collect()
    }

    /// The bound of KL(a || M).
    fn mixture(&self, share: f64) -> f64 {
        let m = self.m(share);
        let (mut kl, mut moved) = (0.0, 0.0);
        for (i, m) in m.iter().enumerate() {
            let a = self.a[i].exp();
            kl += a * -m;
            moved += share * (self.b[i].exp() - a).abs() * (self.ratio[i] + 16.0 * U * m.abs());
        }
        kl.abs() * (self.d + U * (110.0 + 2.0 * self.log)) + moved + 4.0 * self.d * self.d
    }

    /// The bound of chi-square, sum a^2 / b - 1.
    fn chi_square(&self, exact: f64) -> f64 {
        let (mut log, mut moved) = (0.0_f64, 0.0);
        for (i, (&a, &b)) in self.a.iter().zip(&self.b).enumerate() {
            if a == f64::NEG_INFINITY && b == a {
                continue;
            }
            let term = b.exp() * (a - b).exp_m1().powi(2);
            if term > 1e-9 * exact {
                log = log.max(a.abs()).max(b.abs());
            }
            moved += 2.0 * (a.exp() - b.exp()).abs() * (a - b).exp() * self.ratio[i];
        }
        exact * (4.0 * self.d + U * (110.0 + 8.0 * log)) + moved + 8.0 * self.d * self.d * (1.0 + exact)
    }
}

/// The bound of a mixture's loss, and how far the slope of column i may be off.
fn mixture_bounds(kind: Kind, pq: &Rounded, qp: &Rounded) -> (f64, Vec<f64>) {
    let (loss, m, factor) = match kind {
        Kind::Jsd { beta } => (pq.mixture(beta) / beta + qp.mixture(1.0 - beta) / (1.0 - beta), pq.m(beta), 1.0 / beta),
        Kind::SkewedReverse { alpha } => (pq.mixture(alpha), pq.m(alpha), 1.0),
        Kind::SkewedForward { alpha } => (qp.mixture(alpha), qp.m(alpha), alpha / (1.0 - alpha)),
        _ => unreachable!("no mixture"),
    };
    (loss, m.iter().zip(&pq.ratio).map(|(m, ratio)| factor * (ratio + 16.0 * U * m.abs())).collect())
}

fn check(pair: &Pair, seed: u64) {
    let Block { valid, inv_temp, .. } = pair.block;
    let block = Block { rows: 1, ..pair.block };
    let student = logits(&block, seed, true);
    let apart = |seed: u64| -> Vec<f32> {
        let mut stream = Stream::new(seed, Purpose::Test, 1 << 41);
        student.iter().map(|x| x + pair.distance * stream.normal()).collect()
    };
    let (teacher, rollout) = (apart(seed), apart(seed + 1));
    let z = |x: &[f32]| -> Vec<f64> { x[..valid].iter().map(|&x| f64::from(x * inv_temp)).collect() };
    let (zp, zq, zmu) = (z(&student), z(&teacher), z(&rollout));
    let (lp, lmu) = (logprobs(&zp), logprobs(&zmu));
    let target = lp.iter().rposition(|l| l.is_finite()).expect("it has an id");
    let (pq, qp, mup) = (Rounded::new(&zp, &zq), Rounded::new(&zq, &zp), Rounded::new(&zmu, &zp));
    let weight = -0.75_f32;
    let scale = f64::from(weight) * f64::from(inv_temp);
    for kind in KINDS.into_iter().skip(2) {
        macro_rules! at {
            ($what:literal) => {
                format_args!("{pair:?} {kind:?}: {}", format_args!($what))
            };
        }
        let sides = [&student[..], &teacher[..], &rollout[..]];
        let id = u32::try_from(target).unwrap();
        let (stats, gradient) = one_row(kind, sides, valid, inv_temp, id, weight).unwrap();
        assert!(gradient[valid..].iter().all(|&x| x == 0.0), "{}", at!("padding"));
        let exact = naive::chi_square(&zmu, &zp);
        if stats.chi_square.is_infinite() {
            assert!(exact > 1e38, "{}", at!("chi-square is {exact}"));
        } else {
            close(at!("chi-square"), stats.chi_square, exact, mup.chi_square(exact));
        }
        assert!(stats.chi_square >= 0.0 && stats.mismatch >= 0.0, "{}", at!("no negative distance"));
        close(at!("logprob"), stats.logprob.into(), lp[target], 2.0 * pq.d);
        close(at!("rollout's"), stats.logprob_rollout.into(), lmu[target], 2.0 * mup.d);
        let want = naive::gradient(kind, &zp, &zq, target);
        let loss = naive::loss(kind, &zp, &zq, target);
        if kind == Kind::CrossEntropy {
            close(at!("loss"), stats.loss, loss, 2.0 * pq.d);
            for (i, want) in want.into_iter().enumerate() {
                let error = 2.0 * pq.d + U * (20.0 + 2.0 * lp[i].abs().min(200.0));
                let limit = scale.abs() * (lp[i].exp() * error + 8.0 * U * want.abs() + 1e-43);
                close(at!("gradient {i}"), f64::from(gradient[i]), scale * want, limit);
            }
            continue;
        }
        let (limit, slopes) = mixture_bounds(kind, &pq, &qp);
        close(at!("loss"), stats.loss, loss, limit);
        assert!(stats.loss >= 0.0 && (pair.distance > 0.0 || stats.loss == 0.0), "{}", at!("loss"));
        // The slopes apart from a constant, which the difference from their mean takes away.
        let g: Vec<f64> = want.iter().zip(&lp).map(|(w, l)| if l.is_finite() { w / l.exp() } else { 0.0 }).collect();
        let relative = pq.d + U * (110.0 + 2.0 * pq.log);
        let mean: f64 = (0..lp.len()).map(|i| lp[i].exp() * (slopes[i] + 2.0 * g[i].abs() * relative)).sum();
        for (i, want) in want.into_iter().enumerate() {
            let p = lp[i].exp();
            let own = 2.0 * pq.d + U * (20.0 + 2.0 * lp[i].abs().min(200.0));
            let limit = scale.abs() * (want.abs() * own + p * (slopes[i] + mean) + 1e-43 * (1.0 + g[i].abs()));
            close(at!("gradient {i}"), f64::from(gradient[i]), scale * want, limit);
        }
    }
}

#[test]
fn mixtures_and_measures_meet_the_truth() {
    for case in cases().chain([Pair { block: QWEN3, distance: 0.3 }]) {
        check(&case, 5);
    }
}

/// Logits, loss, hidden rows and head at once, in f64, by central differences.
#[test]
fn gradients_meet_finite_differences() {
    let case = Case { rows: 3, hidden: 4, vocab: 9, other: 8, valid: 7, inv_temp: 1.0 / 0.7, distance: 0.6 };
    let models = models(&case);
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let head = |i: usize, n: usize| {
        let mut rows = vec![0.0; n * case.hidden];
        rows.chunks_mut(case.hidden).enumerate().for_each(|(row, out)| models.heads[i].row(row, out));
        wide(&rows)
    };
    let z = |rows: &[f64], head: &[f64]| -> Vec<Vec<f64>> {
        let all = naive::logits(case.hidden, rows, head);
        all.into_iter().map(|row| row[..7].iter().map(|x| x * f64::from(case.inv_temp)).collect()).collect()
    };
    let teacher = z(&wide(&models.hidden[1]), &head(1, 8));
    let (rows, weights) = (wide(&models.hidden[0]), head(0, 9));
    for kind in KINDS.into_iter().chain([Kind::Jsd { beta: 0.0 }, Kind::Jsd { beta: 1.0 }]) {
        let out = call(&Cpu::new(1), kind, whole(&case), &case, &models).unwrap();
        let loss = |rows: &[f64], head: &[f64]| -> f64 {
            let student = z(rows, head);
            (0..3)
                .map(|i| {
                    let target = models.targets[i] as usize;
                    f64::from(models.weights[i]) * naive::loss(kind, &student[i], &teacher[i], target)
                })
                .sum()
        };
        let step = 1e-5;
        let slope = |x: &[f64], i: usize, of: &dyn Fn(&[f64]) -> f64| {
            let (mut up, mut down) = (x.to_vec(), x.to_vec());
            up[i] += step;
            down[i] -= step;
            (of(&up) - of(&down)) / (2.0 * step)
        };
        // Truncation is of order step^2, f64 rounding of order 1e-16 / step; sums of a few f32 terms of up to 50, and the
        // head's are added to 1.
        for (i, &got) in out.dhidden.iter().enumerate() {
            let want = slope(&rows, i, &|rows| loss(rows, &weights));
            close(format_args!("{kind:?} hidden {i}"), f64::from(got), want, 1e-5);
        }
        for (i, &got) in out.dhead.iter().enumerate() {
            let want = slope(&weights, i, &|head| loss(&rows, head));
            close(format_args!("{kind:?} head {i}"), f64::from(got) - 1.0, want, 1e-5);
        }
        assert!(out.dhidden.iter().any(|g| g.abs() > 1e-3), "{kind:?}: the gradient is not zero");
    }
}
