//! The verdict on one screen.

use std::fmt::Write as _;

use budget::admission::{Coordinate, Finding, Verdict};
use budget::certificate::{Certificate, Kind};
use opd::config::Config;

use super::super::table::Table;
use super::repair::Blame;
use super::{LONG_RUN, Outcome, by_source, share};

/// Layers that are named.
const NAMED: usize = 5;

pub fn text(outcome: &Outcome, certificate: &Certificate, config: &Config) -> String {
    let mut text = String::new();
    let verdict = match outcome.decision.verdict {
        Verdict::Admit => "ADMIT",
        Verdict::Gray => "GRAY",
        Verdict::Reject => "REJECT",
    };
    let family = match outcome.family {
        Kind::Coherent => "coherent",
        Kind::ZeroMean => "zero-mean",
    };
    let _ = writeln!(
        text,
        "{verdict}: recipe {}, up to {} versions behind, against the {family} budget",
        config.rollout.recipe, outcome.age
    );
    let mut table = Table::new(["", "measured", "95% limits", "must be within", ""]);
    for finding in &outcome.decision.findings {
        table.row(row(outcome, finding));
    }
    let _ = write!(text, "\n{table}");
    let (numerics, staleness, cross) = by_source(outcome);
    let mut sources = Table::new(["D by source", "nats/token"]);
    sources.row(["rounding and noise".into(), nats(numerics)]);
    sources.row(["staleness".into(), nats(staleness)]);
    if outcome.age > 0 {
        sources.row(["beyond their sum".into(), nats(cross)]);
    }
    let _ = write!(text, "\n{sources}");
    if let Some((a, b)) = outcome.staleness {
        let _ = writeln!(text, "staleness of k versions: {a:.2e} * k^{b:.2}");
    }
    if let Some(blame) = &outcome.repair {
        text += &repair(blame);
    }
    let _ = writeln!(
        text,
        "\n{} prompts, a pilot of {} updates, {:.1} s: {:.1}% of this run's {} updates, {:.2}% of a run of {LONG_RUN} such updates. \
         The certificate rests on {} runs.",
        outcome.evidence.d.clusters,
        outcome.pilot,
        outcome.wall_s,
        100.0 * share(outcome, f64::from(config.updates)),
        config.updates,
        100.0 * share(outcome, LONG_RUN),
        certificate.runs,
    );
    text
}

fn row(outcome: &Outcome, finding: &Finding) -> [String; 5] {
    let limits = &outcome.limits;
    let (name, number): (String, fn(f64) -> String) = match finding.of {
        Coordinate::D if limits.growth > 1.0 => (format!("D, times {:.2} for growth", limits.growth), nats),
        Coordinate::D => ("D, nats/token".into(), nats),
        Coordinate::Drift => ("drift, share of the loss".into(), |x| format!("{:.2}%", 100.0 * x)),
    };
    let why = match (finding.verdict, finding.of) {
        (Verdict::Admit, _) => "within",
        (Verdict::Reject, _) => "over",
        (Verdict::Gray, Coordinate::Drift) if limits.drift_limit.is_none() => "no rung passed: no limit",
        (Verdict::Gray, Coordinate::D) if !limits.at_least && finding.compared.low > finding.limit => {
            "over the lower limit of the budget, not over all of it"
        }
        (Verdict::Gray, _) if limits.at_least && finding.compared.low > finding.limit => "beyond what was calibrated",
        (Verdict::Gray, _) => "cannot be told",
    };
    [
        name,
        number(finding.value),
        format!("{} to {}", number(finding.compared.low), number(finding.compared.high)),
        number(finding.limit),
        why.into(),
    ]
}

fn repair(blame: &Blame) -> String {
    let mut text = String::new();
    if !blame.layers.is_empty() {
        let mut table = Table::new(["layer", "D alone, nats/token"]);
        for &(layer, d) in blame.layers.iter().take(NAMED) {
            table.row([layer.to_string(), nats(d)]);
        }
        let _ = write!(text, "\n{table}");
    }
    match &blame.repair {
        None => text += "\nno change of staleness or of layers was predicted to be admitted\n",
        Some(repair) => {
            let layers: Vec<String> = repair.restored.iter().map(usize::to_string).collect();
            let keep = if layers.is_empty() {
                "the recipe as it is".to_owned()
            } else {
                format!("layers {} at training precision", layers.join(", "))
            };
            let _ = writeln!(
                text,
                "\nrepair: rollout.staleness_max = {}, {keep}: at most {} nats/token predicted, with growth and a guard of 20%",
                repair.staleness_max,
                nats(repair.predicted_nats)
            );
            if let Some(recipe) = &repair.recipe {
                let _ = write!(text, "\n{recipe}");
            }
        }
    }
    text
}

/// Zero is printed as zero, since it is exact.
fn nats(d: f64) -> String {
    if d == 0.0 { "0.0".to_owned() } else { format!("{d:.3e}") }
}
