//! The estimators of drift against a world small enough to list every prefix of: three symbols, five tokens, and an end.
//!
//! The last symbol ends a sequence. What is exact here is a sum over all sequences; estimates are from sampled rollouts.

use super::*;
use crate::mismatch::{RatioEstimate, k1, k3};
use crate::stats::Random;

const LEN: usize = 5;
const END: usize = 2;

/// A policy: the distribution after a prefix, from a hash of it, with noise from another one and a bent for symbol 1.
fn policy(seed: u64, prefix: &[usize], noise: f64, bent: f64) -> [f64; 3] {
    let code = prefix.iter().fold(1_u64, |code, &x| code * 4 + x as u64 + 1);
    let (base, other) = (Random::new(7), Random::new(seed));
    let logit = |i: u64| {
        1.5 * base.uniform(code * 3 + i) + noise * (other.uniform(code * 3 + i) - 0.5) + if i == 1 { bent } else { 0.0 }
    };
    let e = [0, 1, 2].map(|i| logit(i).exp());
    let sum: f64 = e.iter().sum();
    e.map(|x| x / sum)
}

fn pi(prefix: &[usize]) -> [f64; 3] {
    policy(0, prefix, 0.0, 0.0)
}

fn mu(prefix: &[usize]) -> [f64; 3] {
    policy(11, prefix, 1.6, 0.5)
}

/// Calls `each` with every prefix of exactly `len` tokens, or ended before, and its probabilities under mu and pi.
fn prefixes(len: usize, each: &mut dyn FnMut(&[usize], f64, f64)) {
    fn go(prefix: &mut Vec<usize>, len: usize, p: [f64; 2], each: &mut dyn FnMut(&[usize], f64, f64)) {
        if prefix.len() == len || prefix.last() == Some(&END) {
            return each(prefix, p[0], p[1]);
        }
        let (m, q) = (mu(prefix), pi(prefix));
        for a in 0..3 {
            prefix.push(a);
            go(prefix, len, [p[0] * m[a], p[1] * q[a]], each);
            prefix.pop();
        }
    }
    go(&mut Vec::new(), len, [1.0, 1.0], each);
}

fn ended(prefix: &[usize]) -> bool {
    prefix.last() == Some(&END)
}

fn kl(p: &[f64; 3], q: &[f64; 3]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum()
}

/// Some functional of the prefix, far from constant.
fn phi(prefix: &[usize]) -> f64 {
    kl(&pi(prefix), &[0.2, 0.3, 0.5]) + 0.5 * prefix.iter().filter(|&&x| x == 1).count() as f64
}

/// Sampled rollouts of one policy, with the tokens.
fn sample(from: fn(&[usize]) -> [f64; 3], count: usize, seed: u64) -> Vec<(Rollout, Vec<usize>)> {
    let random = Random::new(seed);
    (0..count)
        .map(|i| {
            let (mut ids, mut log_ratio) = (Vec::new(), Vec::new());
            while ids.len() < LEN && !ended(&ids) {
                let (p, u) = (from(&ids), random.uniform((i * LEN + ids.len()) as u64));
                let a = if u < p[0] { 0 } else { 1 + usize::from(u >= p[0] + p[1]) };
                log_ratio.push((pi(&ids)[a] / mu(&ids)[a]).ln());
                ids.push(a);
            }
            // A prompt of its own for every other rollout: clusters of two.
            (Rollout { prompt: i / 2, log_ratio }, ids)
        })
        .collect()
}

/// The truth must lie within two half-widths of the estimate, which is a false alarm once in ten thousand.
fn agrees(what: &str, got: &RatioEstimate, want: f64) {
    let half = 0.5 * got.ci95.width();
    assert!((got.ratio - want).abs() <= 2.0 * half, "{what}: {} +- {half}, exactly {want}", got.ratio);
    assert!(half < 0.05 * want.abs().max(0.1), "{what}: an interval of {half} says too little");
}

#[test]
fn survival_is_that_of_the_sequential_coupling_and_bounds_the_variation() {
    let rollouts: Vec<Rollout> = sample(mu, 20_000, 1).into_iter().map(|(rollout, _)| rollout).collect();
    for t in 0..=LEN {
        // The coupling keeps a shared token with probability min(mu, pi), so what survives is a sum of products.
        let (mut s, mut tv, mut k) = (0.0, 0.0, 0.0);
        prefixes(t, &mut |prefix, p, q| {
            s += (0..prefix.len())
                .map(|i| mu(&prefix[..i])[prefix[i]].min(pi(&prefix[..i])[prefix[i]]))
                .product::<f64>();
            tv += 0.5 * (p - q).abs();
            k += p * (p / q).ln();
        });
        let chain: f64 = (0..t)
            .map(|i| {
                let mut sum = 0.0;
                prefixes(i, &mut |prefix, p, _| {
                    sum += if ended(prefix) { 0.0 } else { p * kl(&mu(prefix), &pi(prefix)) }
                });
                sum
            })
            .sum();
        assert!((chain - k).abs() < 1e-12, "the chain rule at {t}: {chain}, {k}");
        let got = survival(&rollouts, t, 2).unwrap();
        if t > 0 {
            agrees("S", &got, s);
        } else {
            assert_eq!((got.ratio, s), (1.0, 1.0));
        }
        let bounds = Bounds::new(s, k);
        for bound in [bounds.coupling, bounds.pinsker, bounds.bretagnolle_huber, bounds.tv()] {
            assert!(tv <= bound + 1e-12, "{t}: TV {tv}, {bounds:?}");
        }
    }
    // Two samplers that are coupled, run side by side: they part as often as S says.
    let random = Random::new(9);
    let (n, mut together) = (40_000, 0);
    for i in 0..n {
        let mut ids = Vec::new();
        let mut same = true;
        while same && ids.len() < LEN && !ended(&ids) {
            let (m, q, u) = (mu(&ids), pi(&ids), random.uniform((i * LEN + ids.len()) as u64));
            let shared = [0, 1, 2].map(|a| m[a].min(q[a]));
            let bounds = [shared[0], shared[0] + shared[1], shared.iter().sum::<f64>()];
            match bounds.iter().position(|&bound| u < bound) {
                Some(a) => ids.push(a),
                None => same = false,
            }
        }
        together += usize::from(same);
    }
    let s = survival(&rollouts, LEN, 2).unwrap().ratio;
    let simulated = together as f64 / n as f64;
    assert!((simulated - s).abs() < 0.012, "{simulated} of coupled pairs stayed together, S {s}");
}

#[test]
fn reweighting_gives_what_the_trained_model_would_see() {
    let sampled = sample(mu, 20_000, 3);
    let rollouts: Vec<Rollout> = sampled.iter().map(|(rollout, _)| rollout.clone()).collect();
    let values: Vec<Vec<f64>> =
        sampled.iter().map(|(_, ids)| (0..ids.len()).map(|t| phi(&ids[..t])).collect()).collect();
    let nll: Vec<Vec<f64>> =
        sampled.iter().map(|(_, ids)| (0..ids.len()).map(|t| -pi(&ids[..t])[ids[t]].ln()).collect()).collect();
    let mut exact = [0.0; 4]; // tokens and phi under mu, under pi
    let mut entropy = 0.0;
    for t in 0..LEN {
        prefixes(t, &mut |prefix, p, q| {
            if !ended(prefix) {
                for (sum, x) in exact.iter_mut().zip([p, p * phi(prefix), q, q * phi(prefix)]) {
                    *sum += x;
                }
                entropy -= q * pi(prefix).iter().map(|p| p * p.ln()).sum::<f64>();
            }
        });
    }
    let got = reweighted(&rollouts, &values, Through::Prefix, LEN, 4).unwrap();
    agrees("plain", &got.plain, exact[1] / exact[0]);
    agrees("weighted", &got.weighted, exact[3] / exact[2]);
    assert!((exact[1] / exact[0] - exact[3] / exact[2]).abs() > 0.05, "there is drift to be found");
    let got = reweighted(&rollouts, &nll, Through::Token, LEN, 4).unwrap();
    agrees("entropy", &got.weighted, entropy / exact[2]);

    assert!(got.ess.windows(2).all(|two| two[1].share < two[0].share), "{:?}", got.ess);
    assert_eq!(got.trusted_to(0.0), None);
    assert_eq!(got.trusted_to(1.0), Some(0));

    // The other way to the same difference: rollouts of both policies.
    let both = [sampled, sample(pi, 20_000, 5)].map(|side| {
        by_prompt(side.iter().map(|(rollout, ids)| {
            let sum = (0..ids.len()).map(|t| phi(&ids[..t])).sum::<f64>();
            (rollout.prompt, sum, ids.len() as f64)
        }))
    });
    let paired = paired_difference(&both[0], &both[1], 6).unwrap();
    let want = exact[1] / exact[0] - exact[3] / exact[2];
    let half = 0.5 * paired.ci95.width();
    assert!((paired.difference - want).abs() < 2.0 * half && half < 0.1 * want.abs(), "{paired:?}, exactly {want}");
}

/// D by k1 and k3 on the rollout's prefixes, and exactly on prefixes of either policy.
#[test]
fn estimates_of_d_meet_the_enumeration() {
    let (mut on, mut tokens) = ([0.0; 2], [0.0; 2]);
    for t in 0..LEN {
        prefixes(t, &mut |prefix, p, q| {
            if !ended(prefix) {
                for (i, weight) in [p, q].into_iter().enumerate() {
                    on[i] += weight * kl(&mu(prefix), &pi(prefix));
                    tokens[i] += weight;
                }
            }
        });
    }
    let [d, d_on_pi] = [on[0] / tokens[0], on[1] / tokens[1]];
    for k in [k1, k3] {
        let parts = sample(mu, 60_000, 8).into_iter().map(|(rollout, ids)| {
            (rollout.prompt, rollout.log_ratio.iter().map(|&x| k(x)).sum::<f64>(), ids.len() as f64)
        });
        let got = RatioEstimate::new(&by_prompt(parts), 1).unwrap();
        let half = 0.5 * got.ci95.width();
        assert!((got.ratio - d).abs() < 2.0 * half && half < 0.1 * d, "{got:?}, exactly {d}");
    }
    for (from, want) in [(mu as fn(&[usize]) -> [f64; 3], d), (pi, d_on_pi)] {
        let parts = sample(from, 20_000, 9).into_iter().map(|(rollout, ids)| {
            let sum = (0..ids.len()).map(|t| kl(&mu(&ids[..t]), &pi(&ids[..t]))).sum::<f64>();
            (rollout.prompt, sum, ids.len() as f64)
        });
        agrees("D", &RatioEstimate::new(&by_prompt(parts), 1).unwrap(), want);
    }
    assert!((d - d_on_pi).abs() > 0.001, "mismatch depends on the prefixes here: {d}, {d_on_pi}");
}

#[test]
fn identical_policies_survive_exactly() {
    let rollouts: Vec<Rollout> = (0..4).map(|i| Rollout { prompt: i, log_ratio: vec![0.0; 3 + i] }).collect();
    for t in [0, 1, 3, 100] {
        assert_eq!(survival(&rollouts, t, 0).unwrap().ratio.to_bits(), 1.0_f64.to_bits());
    }
    assert_eq!(half_life(&rollouts), None);
    let worse: Vec<Rollout> = (0..4).map(|i| Rollout { prompt: i, log_ratio: vec![-0.3; 8] }).collect();
    assert_eq!(half_life(&worse), Some(3)); // e^-.6 = .549, e^-.9 = .407
    assert_eq!(Bounds::new(1.0, 0.0).tv(), 0.0);
}
