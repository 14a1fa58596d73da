use super::*;
use crate::drift::paired_difference;
use crate::mismatch::Cluster;
use crate::stats::Random;

const LIMITS: Limits =
    Limits { budget_nats: 0.12, lower_nats: 0.1, at_least: false, growth: 2.0, drift_limit: Some(0.05) };

fn clusters(prompts: usize, level: f64, spread: f64, seed: u64) -> Vec<Cluster> {
    let random = Random::new(seed);
    let of = |at: u64| Cluster { sum: 10.0 * level * (1.0 + spread * (random.uniform(at) - 0.5)), tokens: 10.0 };
    (0..prompts as u64).map(of).collect()
}

fn evidence(d: &[Cluster], drift: f64) -> Evidence {
    let own = clusters(d.len(), 1.0, 0.2, 7);
    let other: Vec<Cluster> = own.iter().map(|c| Cluster { sum: c.sum * (1.0 + drift), ..*c }).collect();
    Evidence {
        d: RatioEstimate::new(d, 1).expect("clusters"),
        drift: paired_difference(&other, &own, 1).expect("clusters"),
        looks: 5,
    }
}

#[test]
fn growth_and_limits_decide() {
    let verdict = |level: f64, drift: f64| decide(&evidence(&clusters(64, level, 0.5, 3), drift), &LIMITS).verdict;
    assert_eq!(verdict(0.04, 0.0), Verdict::Admit); // 2 * 0.04, limits included, is within 0.1
    assert_eq!(verdict(0.055, 0.0), Verdict::Gray, "between the budget's lower limit and the budget");
    assert_eq!(verdict(0.08, 0.0), Verdict::Reject);
    assert_eq!(verdict(0.04, 0.2), Verdict::Reject, "prefixes alone reject");
    assert_eq!(verdict(0.04, -0.2), Verdict::Reject, "in either direction");
    assert_eq!(verdict(0.0, 0.0), Verdict::Admit, "no mismatch is within any budget");
}

#[test]
fn what_no_rung_showed_is_neither_admitted_nor_rejected() {
    let limits = Limits { at_least: true, ..LIMITS };
    assert_eq!(decide(&evidence(&clusters(64, 0.8, 0.5, 3), 0.0), &limits).verdict, Verdict::Gray);
    let limits = Limits { drift_limit: None, ..LIMITS };
    assert_eq!(decide(&evidence(&clusters(64, 0.04, 0.5, 3), 0.01), &limits).verdict, Verdict::Gray);
}

/// A configuration exactly at its limit is admitted in at most a twentieth of all checks, looks taken together.
#[test]
fn looking_often_does_not_admit_more() {
    let limits = Limits { growth: 1.0, lower_nats: 0.1, budget_nats: 0.1, ..LIMITS };
    let (mut admitted, mut rejected) = (0, 0);
    for seed in 0..400 {
        let all = clusters(256, 0.1, 1.6, 1000 + seed);
        for prompts in [16, 32, 64, 128, 256] {
            let decision = decide(&evidence(&all[..prompts], 0.0), &limits);
            match decision.verdict {
                Verdict::Admit => admitted += 1,
                Verdict::Reject => rejected += 1,
                Verdict::Gray => continue,
            }
            break;
        }
    }
    // 20 of 400 by the bound; the share itself has a standard error of 4.4.
    assert!(admitted <= 29 && rejected <= 29, "{admitted} admitted, {rejected} rejected of 400");
    assert!(admitted + rejected > 0, "limits are not infinitely wide");
}

#[test]
fn staleness_follows_its_law() {
    let law = |b: f64| -> Vec<f64> { (1..=4).map(|k| 3e-3 * f64::from(k).powf(b)).collect() };
    for b in [1.0, 1.4, 2.0] {
        let (a, found) = staleness_law(&law(b)).expect("a law");
        assert!((a / 3e-3 - 1.0).abs() < 1e-9 && (found - b).abs() < 1e-9, "{a} {found}");
    }
    assert_eq!(staleness_law(&law(3.0)).expect("a law").1, 2.0, "no faster than a straight line");
    assert_eq!((staleness_law(&[]), staleness_law(&[0.0])), (None, None));
    assert_eq!(staleness_law(&[0.02]), Some(((0.02_f64).ln().exp(), 1.0)));
}
