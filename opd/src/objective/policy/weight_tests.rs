use super::super::Behaviour;
use super::{Weighting, Window};
use crate::objective::check::close;

/// Two sequences, of 3 and 1 tokens, with ratios 2, 1/2, 4 and 1/4.
fn weights(rule: Weighting) -> (Vec<f64>, super::WeightReport) {
    let trainer = [2.0_f32, 0.5, 4.0, 0.25].map(f32::ln);
    rule.weights(&Behaviour { rollout: &[0.0; 4], trainer: &trainer, lengths: &[3, 1] })
}

#[track_caller]
fn are(rule: Weighting, want: [f64; 4]) {
    for (got, want) in weights(rule).0.into_iter().zip(want) {
        close(got, want, 1e-6);
    }
}

#[test]
fn golden_values() {
    are(Weighting::TokenTis { max: 3.0 }, [2.0, 0.5, 3.0, 0.25]);
    are(Weighting::SequenceTis { max: 3.0 }, [3.0, 3.0, 3.0, 0.25]);
    are(Weighting::SequenceTis { max: 5.0 }, [4.0, 4.0, 4.0, 0.25]);
    // Prefix products 1, 2, 1 and 1, then 1/4 for the sequence that has ended: means 1, 9/8, 5/8.
    are(Weighting::PrefixSnis, [1.0, 16.0 / 9.0, 1.6, 1.0]);
    let report = weights(Weighting::PrefixSnis).1;
    close(report.ess, 2.25_f64.powi(2) / (2.0 * 4.0625), 1e-6);
    let report = weights(Weighting::TokenTis { max: 3.0 }).1;
    close(report.ess, 5.75_f64.powi(2) / (4.0 * 13.3125), 1e-6);
    close(report.max, 3.0, 0.0);
}

#[test]
fn masks() {
    let mask = |window, low, high, veto| Weighting::Mask { window, low, high, veto };
    are(mask(Window::Token, 0.4, 2.5, 0.0), [1.0, 1.0, 0.0, 0.0]);
    are(mask(Window::Token, 0.1, 2.5, 0.3), [1.0, 1.0, 0.0, 0.0]);
    are(mask(Window::Token, 0.0, 9.0, 0.6), [0.0, 0.0, 0.0, 0.0]);
    are(mask(Window::Sequence, 0.1, 3.9, 0.0), [0.0, 0.0, 0.0, 1.0]);
    are(mask(Window::Geometric, 0.5, 1.6, 0.0), [1.0, 1.0, 1.0, 0.0]);
    let report = weights(mask(Window::Geometric, 0.5, 1.6, 0.0)).1;
    close(report.masked, 0.25, 0.0);
    close(report.ess, 0.75, 1e-12);
    close(weights(mask(Window::Token, 0.0, 9.0, 0.6)).1.ess, 0.0, 0.0);
}

/// Where rollout and trainer agree bit for bit every weight is exactly 1.
#[test]
fn agreement_is_one() {
    let same = [-0.3_f32, -1.7, -0.001];
    for rule in [
        Weighting::TokenTis { max: 2.0 },
        Weighting::SequenceTis { max: 2.0 },
        Weighting::Mask { window: Window::Geometric, low: 0.999, high: 1.001, veto: 1e-4 },
        Weighting::PrefixSnis,
    ] {
        let (weights, report) = rule.weights(&Behaviour { rollout: &same, trainer: &same, lengths: &[1, 2] });
        assert!(
            weights.iter().all(|w| w.to_bits() == 1.0_f64.to_bits()) && report.masked == 0.0,
            "{rule:?}: {weights:?}"
        );
    }
}
