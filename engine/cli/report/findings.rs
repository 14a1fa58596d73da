//! What an experiment's runs say, by the rules of its file.

use budget::certificate::{Certificate, Kind};
use budget::ladder::{Asked, Differences};
use budget::stats::rank_correlation;

use super::super::Failure;
use super::super::experiment::analysis::{Analysis, Expect, Outcome as Is, Paired, Quality};
use super::super::experiment::file::Experiment;
use super::admission;
use super::page::Block;
use super::runs::Runs;
use super::scatter::{self, Dot};
use super::time;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Supported,
    NotSupported,
    /// The conditions under which the runs mean anything do not hold.
    Void,
    /// Runs are missing.
    Missing,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Supported => "supported",
            Outcome::NotSupported => "not supported",
            Outcome::Void => "void",
            Outcome::Missing => "not run",
        }
    }

    pub fn sentence(self) -> &'static str {
        match self {
            Outcome::Supported => "Supported at this size: everything that was asked for came out.",
            Outcome::NotSupported => "Not supported at this size: not everything that was asked for came out.",
            Outcome::Void => "Void: the conditions under which it would mean anything do not hold.",
            Outcome::Missing => "Not run, or not far enough to say anything.",
        }
    }

    pub fn of(all: bool) -> Outcome {
        if all { Outcome::Supported } else { Outcome::NotSupported }
    }
}

pub fn find(name: &str, experiment: &Experiment, runs: &Runs) -> Result<(Outcome, Vec<Block>), Failure> {
    Ok(match &experiment.analysis {
        Analysis::Paired(paired) => self::paired(experiment, runs, paired)?,
        Analysis::Numbers { columns, expect, any, worst_units } => {
            let (outcome, mut blocks) = numbers(experiment, runs, columns, expect, *any)?;
            if *worst_units > 0 && outcome != Outcome::Missing {
                blocks.push(Block::Table(units(experiment, runs, *worst_units)));
            }
            (outcome, blocks)
        }
        Analysis::Ladder { certificate, rungs } => return ladder(certificate, *rungs),
        Analysis::OneScale { quality } => one_scale(name, experiment, runs, quality)?,
        Analysis::Admission { quality, others } => admission::find(name, experiment, runs, quality, others)?,
        Analysis::TimeToQuality { .. } => time::find(&experiment.analysis, runs),
    })
}

pub fn interval(d: &Differences) -> String {
    format!("{:+.4} ({:+.4} to {:+.4})", d.mean, d.ci95.low, d.ci95.high)
}

fn dash(x: Option<f64>) -> String {
    x.map_or("-".to_owned(), |x| if x == 0.0 || x.abs() >= 1e-3 { format!("{x:.4}") } else { format!("{x:.2e}") })
}

/// One row an arm: seeds, numbers, difference from the baseline.
fn arms(experiment: &Experiment, runs: &Runs, quality: Option<&Quality>, columns: &[String]) -> Vec<Vec<String>> {
    let mut heading = vec!["arm".to_owned(), "runs".to_owned()];
    heading.extend(quality.map(|q| q.metric.clone()));
    heading.extend(columns.iter().cloned());
    heading.extend(quality.map(|q| format!("better than {}", q.baseline)));
    let mut rows = vec![heading];
    for arm in &experiment.arms {
        let mut row = vec![arm.name.clone(), runs.of(&arm.name).count().to_string()];
        row.extend(quality.map(|q| dash(runs.mean(&arm.name, &q.metric))));
        row.extend(columns.iter().map(|column| dash(runs.mean(&arm.name, column))));
        row.extend(quality.map(|q| {
            let d = runs.difference(q, &arm.name, &q.baseline).filter(|_| arm.name != q.baseline);
            d.map_or("-".to_owned(), |d| interval(&d))
        }));
        rows.push(row);
    }
    rows
}

fn paired(experiment: &Experiment, runs: &Runs, paired: &Paired) -> Result<(Outcome, Vec<Block>), Failure> {
    let quality = &paired.quality;
    let (mut items, mut all) = (Vec::new(), true);
    for expect in &paired.expect {
        let than = expect.than.as_ref().unwrap_or(&quality.baseline);
        let held = if matches!(expect.is, Is::AtLeast | Is::AtMost) {
            bound(runs, expect)?
        } else {
            known(runs, &expect.arm, &quality.metric)?;
            compared(runs, quality, expect, than)
        };
        let Some((held, words)) = held else { return Ok((Outcome::Missing, Vec::new())) };
        all &= held;
        items.push(format!("{}: {words}", if held { "yes" } else { "no" }));
    }
    let table = arms(experiment, runs, Some(quality), &paired.columns);
    Ok((Outcome::of(all), vec![Block::Table(table), Block::List(items)]))
}

/// An arm against another, whether it is as expected; a run that failed is worse than any that did not.
fn compared(runs: &Runs, quality: &Quality, expect: &Expect, than: &str) -> Option<(bool, String)> {
    let word = match expect.is {
        Is::Better => "better than",
        Is::NotBetter => "better by no more than the margin than",
        Is::Worse => "worse than",
        _ => "within the margin of",
    };
    let (own, its) = (runs.failed(&expect.arm), runs.failed(than));
    if own + its > 0 {
        // Seeds that are left say nothing; but an arm of which runs fail, where none of the other does, is worse.
        let held = matches!(expect.is, Is::Worse | Is::NotBetter) && its == 0;
        return Some((held, format!("`{}` {word} `{than}`: {own} and {its} runs failed", expect.arm)));
    }
    let d = runs.difference(quality, &expect.arm, than)?;
    let held = match expect.is {
        Is::Better => d.ci95.low > 0.0,
        Is::NotBetter => d.mean + (d.mean - d.lower95) < quality.margin,
        Is::Worse => d.ci95.high < 0.0,
        _ => d.lower95 > -quality.margin,
    };
    Some((held, format!("`{}` {word} `{than}`: {}", expect.arm, interval(&d))))
}

/// A number that finished runs do not have is a mistake in the file.
fn known(runs: &Runs, arm: &str, column: &str) -> Result<(), Failure> {
    if runs.unknown(arm, column) {
        return Err(
            format!("[analysis] asks for `{column}` of the arm `{arm}`, and its results have no such number").into()
        );
    }
    Ok(())
}

fn bound(runs: &Runs, expect: &Expect) -> Result<Option<(bool, String)>, Failure> {
    let (Some(key), Some(value)) = (expect.key.as_deref(), expect.value) else {
        return Err(format!("[analysis] expects something of `{}` without `key` or `value`", expect.arm).into());
    };
    known(runs, &expect.arm, key)?;
    let Some(mean) = runs.mean(&expect.arm, key) else { return Ok(None) };
    let (held, word) = match expect.is {
        Is::AtLeast => (mean >= value, "at least"),
        _ => (mean <= value, "at most"),
    };
    Ok(Some((held, format!("`{key}` of `{}` {word} {value}: {}", expect.arm, dash(Some(mean))))))
}

fn numbers(
    experiment: &Experiment,
    runs: &Runs,
    columns: &[String],
    expect: &[Expect],
    any: bool,
) -> Result<(Outcome, Vec<Block>), Failure> {
    let (mut items, mut held_all) = (Vec::new(), Vec::new());
    for expect in expect {
        let Some((held, words)) = bound(runs, expect)? else { return Ok((Outcome::Missing, Vec::new())) };
        held_all.push(held);
        items.push(format!("{}: {words}", if held { "yes" } else { "no" }));
    }
    let all = if any { held_all.contains(&true) } else { !held_all.contains(&false) };
    Ok((Outcome::of(all), vec![Block::Table(arms(experiment, runs, None, columns)), Block::List(items)]))
}

/// The units of each arm that carry most of the mismatch, side by side.
fn units(experiment: &Experiment, runs: &Runs, most: usize) -> Vec<Vec<String>> {
    let ranked = |arm: &str| -> Vec<String> {
        let units = runs.of(arm).next().and_then(|line| line.result["units"].as_array());
        let mut units: Vec<(&str, f64)> = units
            .into_iter()
            .flatten()
            .filter_map(|unit| Some((unit["unit"].as_str()?, unit["d_nats"].as_f64()?)))
            .collect();
        units.sort_by(|a, b| b.1.total_cmp(&a.1));
        let all: f64 = units.iter().map(|unit| unit.1).sum();
        units.iter().take(most).map(|(unit, d)| format!("{unit} ({:.0}%)", 100.0 * d / all)).collect()
    };
    let columns: Vec<Vec<String>> = experiment.arms.iter().map(|arm| ranked(&arm.name)).collect();
    let mut rows = vec![["worst units, share of the sum".to_owned()].into_iter().collect::<Vec<String>>()];
    rows[0].extend(experiment.arms.iter().map(|arm| arm.name.clone()));
    for rank in 0..most {
        let mut row = vec![(rank + 1).to_string()];
        row.extend(columns.iter().map(|column| column.get(rank).cloned().unwrap_or_else(|| "-".to_owned())));
        rows.push(row);
    }
    rows
}

/// The trainings of a calibration, which is one run of an experiment.
pub fn trainings(experiment: &Experiment) -> Option<u64> {
    let Analysis::Ladder { certificate, .. } = &experiment.analysis else { return None };
    let text = std::fs::read_to_string(certificate).ok()?;
    Certificate::parse(&text, &certificate.display().to_string()).ok().map(|certificate| certificate.runs)
}

fn ladder(path: &std::path::Path, wanted: usize) -> Result<(Outcome, Vec<Block>), Failure> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok((Outcome::Missing, Vec::new())) };
    let certificate = Certificate::parse(&text, &path.display().to_string())?;
    let mut blocks = Vec::new();
    let mut supported = false;
    for family in &certificate.families {
        let kind = match family.family {
            Kind::Coherent => "coherent",
            Kind::ZeroMean => "zero-mean",
        };
        let mut rows = vec![vec![
            format!("{kind}, target D"),
            "D".into(),
            "better than without".into(),
            "within the margin".into(),
        ]];
        for rung in &family.rungs {
            let asked = match rung.asked {
                Asked::Pass => "yes",
                Asked::Fail => "not shown",
                Asked::NotAsked => "not asked",
            };
            rows.push(vec![
                rung.target_nats.to_string(),
                format!("{:.4}", rung.d_nats),
                interval(&rung.difference),
                asked.to_owned(),
            ]);
        }
        blocks.push(Block::Table(rows));
        let passed = family.rungs.iter().take_while(|rung| rung.asked == Asked::Pass).count();
        let falls = family.rungs.iter().any(|rung| rung.difference.ci95.high < 0.0 && rung.asked != Asked::Pass);
        let fits = family.fits.map(|fits| (fits.constant.aic, fits.line.aic, fits.hinge.map(|hinge| hinge.fit.aic)));
        let hinge = fits.is_some_and(|(constant, line, hinge)| hinge.is_some_and(|h| h < constant && h < line));
        let shown = fits.map_or("too few runs for any".to_owned(), |(constant, line, hinge)| {
            format!("constant {constant:.1}, line {line:.1}, hinge {}", dash_one(hinge))
        });
        let budget = format!(
            "{kind}: budget {:.3} nats per token, lower limit {:.3}{}; Akaike's criterion: {shown}",
            family.budget_nats,
            family.lower_nats,
            if family.at_least { ", at least" } else { "" }
        );
        let yes = |held: bool| if held { "yes" } else { "no" };
        blocks.push(Block::List(vec![
            budget,
            format!("{}: {passed} rungs in a row pass, {wanted} asked for", yes(passed >= wanted)),
            format!("{}: a later rung is worse beyond doubt", yes(falls)),
            format!("{}: the hinge explains the runs best", yes(hinge)),
        ]));
        supported |= family.family == Kind::Coherent && passed >= wanted && falls && hinge;
    }
    let picture = path.with_file_name("dose_response.svg");
    if let (Ok(svg), Some(name)) = (std::fs::read_to_string(picture), path.parent().and_then(|p| p.file_name())) {
        blocks.push(Block::Picture(name.to_string_lossy().into_owned(), "Final quality by mismatch".into(), svg));
    }
    blocks.push(Block::Text(format!(
        "{} runs; margin {} in the unit of the metric; student `{}`, teacher `{}`.",
        certificate.runs,
        certificate.margin,
        &certificate.student[..12],
        &certificate.teacher[..12]
    )));
    Ok((Outcome::of(supported), blocks))
}

fn dash_one(x: Option<f64>) -> String {
    x.map_or("none".to_owned(), |x| format!("{x:.1}"))
}

/// D, loss of quality and kind of every arm that has them, but for the baseline.
pub fn dots(experiment: &Experiment, runs: &Runs, quality: &Quality) -> Vec<Dot> {
    let arms = experiment.arms.iter().filter(|arm| arm.name != quality.baseline && arm.command.is_empty());
    arms.filter_map(|arm| {
        if runs.failed(&arm.name) > 0 {
            // Worse than whatever has an end.
            let (arm, group) = (arm.name.clone(), arm.group.clone());
            return Some(Dot { arm, group, nats: f64::NAN, worse: f64::INFINITY, half: 0.0 });
        }
        let d = runs.difference(quality, &arm.name, &quality.baseline)?;
        let nats = runs.mean(&arm.name, "mismatch_nats")?;
        Some(Dot { arm: arm.name.clone(), group: arm.group.clone(), nats, worse: -d.mean, half: d.ci95.width() / 2.0 })
    })
    .collect()
}

/// Whether a common curve in ln D, a straight line from its least-squares knee on, explains more than kinds of sources do.
fn one_scale(
    name: &str,
    experiment: &Experiment,
    runs: &Runs,
    quality: &Quality,
) -> Result<(Outcome, Vec<Block>), Failure> {
    let mut dots = dots(experiment, runs, quality);
    dots.retain(|dot| dot.worse.is_finite()); // what has no end has no D of a run either
    let pairs: Vec<(f64, f64)> = dots.iter().map(|dot| (dot.nats, dot.worse)).collect();
    let Some(rank) = rank_correlation(&pairs).filter(|_| pairs.len() >= 8) else {
        return Ok((Outcome::Missing, Vec::new()));
    };
    let curve = scatter::curve(&pairs);
    #[allow(clippy::cast_precision_loss)] // counts
    let n = pairs.len() as f64;
    let mean = pairs.iter().map(|p| p.1).sum::<f64>() / n;
    let explained = pairs.iter().map(|p| (curve.at(p.0) - mean).powi(2)).sum::<f64>() / n;
    let mut groups: std::collections::BTreeMap<&str, Vec<f64>> = std::collections::BTreeMap::new();
    for dot in &dots {
        groups.entry(&dot.group).or_default().push(dot.worse - curve.at(dot.nats));
    }
    let mut rows = vec![["source", "arms", "mean of what the curve leaves"].map(str::to_owned).to_vec()];
    let mut between = 0.0;
    for (group, rest) in &groups {
        #[allow(clippy::cast_precision_loss)] // counts
        let count = rest.len() as f64;
        let mean = rest.iter().sum::<f64>() / count;
        between += count * mean * mean / n;
        rows.push(vec![(*group).to_owned(), rest.len().to_string(), format!("{mean:+.4}")]);
    }
    let (ranked, common) = (rank >= 0.7, between < explained);
    let yes = |held: bool| if held { "yes" } else { "no" };
    let items = vec![
        format!("{}: rank correlation of D with the loss of quality at least 0.7: {rank:.2}", yes(ranked)),
        format!("{}: variance between sources, {between:.2e}, below that of the curve, {explained:.2e}", yes(common)),
    ];
    let picture = scatter::draw(&dots, quality.margin, Some(&curve))?;
    let words = "Loss of quality by mismatch, a colour a source".to_owned();
    let blocks = vec![Block::Table(rows), Block::List(items), Block::Picture(name.to_owned(), words, picture)];
    Ok((Outcome::of(ranked && common), blocks))
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::super::experiment::results::Line;
    use super::*;

    /// Runs of arms `a` and `b`, one a seed, of quality `x`, with a curve of an evaluation a second.
    pub fn runs(a: &[f64], b: &[f64]) -> Runs {
        let line = |arm: &str, seed: usize, x: f64| Line {
            key: String::new(),
            experiment: "e".to_owned(),
            arm: arm.to_owned(),
            seed: seed as u64,
            command: "train".to_owned(),
            result: json!({"x": x}),
            curve: (0..=4).map(|at| json!([at, 0.0, -x * f64::from(at), f64::from(at), 10.0])).collect(),
            series: BTreeMap::new(),
            exit: 0,
            error: if x.is_nan() { Some("error: loss".to_owned()) } else { None },
            wall_s: 1.0,
            threads: 1,
            at_a_time: 1,
            leeway: "0".to_owned(),
        };
        let arm = |name: &'static str, values: &[f64]| -> Vec<Line> {
            values.iter().enumerate().map(|(seed, &x)| line(name, seed, x)).collect()
        };
        Runs::of_lines([arm("a", a), arm("b", b)].concat())
    }

    fn quality() -> Quality {
        Quality { metric: "x".to_owned(), less_is_better: false, margin: 0.5, baseline: "a".to_owned() }
    }

    fn held(runs: &Runs, is: Is) -> bool {
        let expect = Expect { arm: "b".to_owned(), than: None, is, key: None, value: None };
        compared(runs, &quality(), &expect, "a").expect("pairs").0
    }

    #[test]
    fn what_is_expected_of_an_arm() {
        let (better, same) = (runs(&[1.0, 2.0, 3.0], &[2.1, 3.0, 3.9]), runs(&[1.0, 2.0, 3.0], &[1.1, 1.9, 3.0]));
        let worse = runs(&[2.1, 3.0, 3.9], &[1.0, 2.0, 3.0]);
        let wide = runs(&[1.0, 2.0, 3.0], &[3.0, 0.0, 3.5]);
        let table = [
            (&better, [true, false, false, true]),
            (&same, [false, false, true, true]),
            (&worse, [false, true, true, false]),
            (&wide, [false, false, false, false]), // too few seeds to say anything
        ];
        for (runs, want) in table {
            assert_eq!([Is::Better, Is::Worse, Is::NotBetter, Is::NotWorse].map(|is| held(runs, is)), want);
        }
        // Of runs that failed no difference is left, and they do not vanish.
        let failed = runs(&[1.0, 2.0, 3.0], &[1.0, f64::NAN, 3.0]);
        assert_eq!([Is::Better, Is::Worse, Is::NotWorse].map(|is| held(&failed, is)), [false, true, false]);
    }

    #[test]
    fn numbers_that_are_not_there_are_mistakes() {
        let runs = runs(&[1.0, 2.0], &[1.0, 2.0]);
        let expect = |key: &str| Expect {
            arm: "a".to_owned(),
            than: None,
            is: Is::AtLeast,
            key: Some(key.to_owned()),
            value: Some(1.5),
        };
        assert_eq!(bound(&runs, &expect("x")).unwrap().map(|(held, _)| held), Some(true));
        assert!(bound(&runs, &expect("y")).unwrap_err().to_string().contains("`y` of the arm `a`"));
    }
}
