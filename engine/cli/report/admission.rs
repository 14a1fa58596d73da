//! Verdicts of `leeway admit` against what training did, beside simpler rules.

use std::path::{Path, PathBuf};

use budget::admission::{Finding, Limits, Verdict, elsewhere};
use budget::certificate::{Certificate, Kind};
use budget::stats::{auroc, auroc_interval, wilson};

use super::super::Failure;
use super::super::experiment::analysis::Quality;
use super::super::experiment::file::Experiment;
use super::findings::{Outcome, dots};
use super::page::Block;
use super::runs::Runs;
use super::scatter::{self, Dot};

/// Admitted ones of which this many could fail are not worth admitting.
const FALSE_ADMIT_MAX: f64 = 0.25;
/// The least area under the curve.
const AUROC_MIN: f64 = 0.8;
/// The least share of failing configurations with which it means anything.
const FAILING_MIN: f64 = 1.0 / 3.0;
/// Of the resamples behind intervals.
const SEED: u64 = 0;

/// A configuration: what was said of it, and what it did.
struct Case {
    verdict: String,
    /// Numbers by which rules tell: D with growth, D alone, drift, bits, versions behind.
    scores: [f64; 5],
    fails: bool,
}

/// Verdicts, beside what became of each configuration.
pub fn find(
    name: &str,
    experiment: &Experiment,
    runs: &Runs,
    quality: &Quality,
    others: &[PathBuf],
) -> Result<(Outcome, Vec<Block>), Failure> {
    let dots = dots(experiment, runs, quality);
    let mut rows = vec![
        ["configuration", "source", "D in training", "worse by", "fails", "check", "D of the check", "cost"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let (mut cases, mut costs) = (Vec::new(), Vec::new());
    for dot in &dots {
        let Some(check) = runs.admission(&dot.arm) else { continue };
        let arm = experiment.arms.iter().find(|arm| arm.name == dot.arm).expect("a dot is an arm");
        let number = |key: &str| check.result[key].as_f64().unwrap_or(f64::NAN);
        let verdict = check.result["verdict"].as_str().unwrap_or("none").to_owned();
        let fails = dot.worse > quality.margin;
        let rounded = arm.set.iter().any(|set| set.starts_with("rollout.recipe="));
        let (d, growth, cost) = (number("d_nats"), number("growth"), number("cost_share_2000"));
        rows.push(vec![
            dot.arm.clone(),
            dot.group.clone(),
            format!("{:.3e}", dot.nats),
            format!("{:+.3} ± {:.3}", dot.worse, dot.half),
            if fails { "yes" } else { "no" }.to_owned(),
            verdict.clone(),
            format!("{d:.3e}"),
            format!("{:.1}%", 100.0 * cost),
        ]);
        costs.push(cost);
        let drift = check.result["drift"]["relative"].as_f64().unwrap_or(f64::NAN).abs();
        let scores = [growth * d, d, drift, f64::from(u8::from(rounded)), number("versions_behind")];
        cases.push(Case { verdict, scores, fails });
    }
    if cases.len() < 8 {
        return Ok((Outcome::Missing, Vec::new()));
    }
    let count = |of: &dyn Fn(&Case) -> bool| cases.iter().filter(|case| of(case)).count();
    let verdicts: Vec<(&str, bool)> = cases.iter().map(|case| (&case.verdict[..], case.fails)).collect();
    let confusion = confusion("", &verdicts);
    let admitted = count(&|case| case.verdict == "admit");
    let wrong = count(&|case| case.verdict == "admit" && case.fails);
    let fine = count(&|case| !case.fails);
    let right = admitted - wrong;
    let false_admit = wilson(wrong as u64, admitted as u64);
    let of = |score: usize, fails: bool| -> Vec<f64> {
        cases.iter().filter(|case| case.fails == fails).map(|case| case.scores[score]).collect()
    };
    let area = |score: usize| auroc(&of(score, true), &of(score, false));
    let spread = |score: usize| auroc_interval(&of(score, true), &of(score, false), SEED);
    let mut rules = vec![["what tells", "AUROC", "95% interval"].map(str::to_owned).to_vec()];
    let names =
        ["D of the check with growth", "D of the check", "drift of the check", "8 bits or not", "versions behind"];
    for (score, words) in names.into_iter().enumerate() {
        rules.push(vec![
            words.to_owned(),
            area(score).map_or("-".to_owned(), |a| format!("{a:.2}")),
            spread(score).map_or("-".to_owned(), |i| format!("{:.2} to {:.2}", i.low, i.high)),
        ]);
    }
    rules.push(["nothing: admit all", "0.50", "-"].map(str::to_owned).to_vec());
    #[allow(clippy::cast_precision_loss)] // counts
    let share = |n: usize, of: usize| if of == 0 { f64::NAN } else { n as f64 / of as f64 };
    let failing = cases.len() - fine;
    let enough = share(failing, cases.len()) >= FAILING_MIN;
    let d = area(0).unwrap_or(f64::NAN);
    let simpler = [area(3), area(4)].into_iter().flatten().fold(0.5, f64::max);
    let (half, few, tells) = (2 * right >= fine, false_admit.high < FALSE_ADMIT_MAX, d >= AUROC_MIN && d > simpler);
    let yes = |held: bool| if held { "yes" } else { "no" };
    #[allow(clippy::cast_precision_loss)] // counts
    let cost = costs.iter().sum::<f64>() / costs.len() as f64;
    let items = vec![
        format!("{}: a third of {} configurations fail: {failing}", yes(enough), cases.len()),
        format!("{}: half of those that train as well are admitted: {right} of {fine}", yes(half)),
        format!(
            "{}: few of the admitted fail: {wrong} of {admitted}, Wilson {:.2} to {:.2}, the upper limit below {FALSE_ADMIT_MAX}",
            yes(few),
            false_admit.low,
            false_admit.high
        ),
        format!("{}: AUROC of D at least {AUROC_MIN} and above simpler rules: {d:.2} against {simpler:.2}", yes(tells)),
        format!(
            "admitting everything would admit {failing} of {} that fail, Wilson {:.2} to {:.2}",
            cases.len(),
            wilson(failing as u64, cases.len() as u64).low,
            wilson(failing as u64, cases.len() as u64).high
        ),
        format!("cost of a check: {:.1}% of a run of 2,000 updates, the mean", 100.0 * cost),
    ];
    let mut transfers = Vec::new();
    for path in others {
        transfers.extend(transfer(path, experiment, runs, &dots, quality)?);
    }
    let drawn: Vec<Dot> = dots.into_iter().filter(|dot| dot.worse.is_finite()).collect();
    let picture = scatter::draw(&drawn, quality.margin, None)?;
    let mut blocks = vec![Block::Table(rows), Block::Table(confusion), Block::Table(rules), Block::List(items)];
    blocks.extend(transfers);
    let words = "Loss of quality by mismatch of every configuration".to_owned();
    blocks.push(Block::Picture(name.to_owned(), words, picture));
    let outcome = if enough { Outcome::of(half && few && tells) } else { Outcome::Void };
    Ok((outcome, blocks))
}

/// Verdicts against what training did.
fn confusion(heading: &str, verdicts: &[(&str, bool)]) -> Vec<Vec<String>> {
    let mut rows = vec![[heading, "trains as well", "fails"].map(str::to_owned).to_vec()];
    for word in ["admit", "gray", "reject"] {
        let of = |fails: bool| verdicts.iter().filter(|&&verdict| verdict == (word, fails)).count().to_string();
        rows.push(vec![word.to_owned(), of(false), of(true)]);
    }
    rows
}

/// What the certificate of another pair would have said; nothing where there is none yet.
fn transfer(
    path: &Path,
    experiment: &Experiment,
    runs: &Runs,
    dots: &[Dot],
    quality: &Quality,
) -> Result<Vec<Block>, Failure> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(Vec::new()) };
    let certificate = Certificate::parse(&text, &path.display().to_string())?;
    let mut verdicts = Vec::new();
    for dot in dots {
        let check = experiment.arms.iter().find(|arm| arm.name == dot.arm).and_then(|arm| runs.admission(&arm.name));
        let Some(check) = check else { continue };
        let findings: Vec<Finding> = serde_json::from_value(check.result["reasons"].clone())
            .map_err(|e| format!("the check of {}: `reasons`: {e}; run it again", dot.arm))?;
        let kind = if check.result["family"] == "zero-mean" { Kind::ZeroMean } else { Kind::Coherent };
        let (Some(family), Some(growth)) = (certificate.family(kind), check.result["growth"].as_f64()) else {
            continue;
        };
        let verdict = match elsewhere(&findings, growth, &Limits::of(family)) {
            Verdict::Admit => "admit",
            Verdict::Gray => "gray",
            Verdict::Reject => "reject",
        };
        verdicts.push((verdict, dot.worse > quality.margin));
    }
    let count = |verdict: (&str, bool)| verdicts.iter().filter(|&&v| v == verdict).count() as u64;
    let (wrong, right) = (count(("admit", true)), count(("admit", false)));
    let (false_admit, false_reject) = (wilson(wrong, wrong + right), count(("reject", false)));
    let items = vec![format!(
        "by the certificate of another pair, {}: {wrong} of {} admitted fail, Wilson {:.2} to {:.2}; {false_reject} of {} that train as \
         well are rejected",
        path.display(),
        wrong + right,
        false_admit.low,
        false_admit.high,
        verdicts.iter().filter(|verdict| !verdict.1).count()
    )];
    Ok(vec![Block::Table(confusion("by another pair's certificate", &verdicts)), Block::List(items)])
}
