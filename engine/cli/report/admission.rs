//! Verdicts of `leeway admit` against what training did, beside simpler rules.

use budget::stats::{auroc, wilson};

use super::super::Failure;
use super::super::experiment::analysis::Quality;
use super::super::experiment::file::Experiment;
use super::findings::{Outcome, dots};
use super::page::Block;
use super::runs::Runs;
use super::scatter;

/// Admitted ones of which this many could fail are not worth admitting.
const FALSE_ADMIT_MAX: f64 = 0.25;
/// The least area under the curve.
const AUROC_MIN: f64 = 0.8;
/// The least share of failing configurations with which it means anything.
const FAILING_MIN: f64 = 1.0 / 3.0;

/// A configuration: what was said of it, and what it did.
struct Case {
    verdict: String,
    /// Numbers by which rules tell: D with growth, D alone, bits, versions behind.
    scores: [f64; 4],
    fails: bool,
}

pub fn find(
    name: &str,
    experiment: &Experiment,
    runs: &Runs,
    quality: &Quality,
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
        let scores = [growth * d, d, f64::from(u8::from(rounded)), number("versions_behind")];
        cases.push(Case { verdict, scores, fails });
    }
    if cases.len() < 8 {
        return Ok((Outcome::Missing, Vec::new()));
    }
    let count = |of: &dyn Fn(&Case) -> bool| cases.iter().filter(|case| of(case)).count();
    let mut confusion = vec![["", "trains as well", "fails"].map(str::to_owned).to_vec()];
    for verdict in ["admit", "gray", "reject"] {
        let of = |fails: bool| count(&|case| case.verdict == verdict && case.fails == fails).to_string();
        confusion.push(vec![verdict.to_owned(), of(false), of(true)]);
    }
    let admitted = count(&|case| case.verdict == "admit");
    let wrong = count(&|case| case.verdict == "admit" && case.fails);
    let fine = count(&|case| !case.fails);
    let right = admitted - wrong;
    let false_admit = wilson(wrong as u64, admitted as u64);
    let area = |score: usize| {
        let of = |fails: bool| -> Vec<f64> {
            cases.iter().filter(|case| case.fails == fails).map(|case| case.scores[score]).collect()
        };
        auroc(&of(true), &of(false))
    };
    let mut rules = vec![["what tells", "AUROC"].map(str::to_owned).to_vec()];
    let names = ["D of the check with growth", "D of the check", "8 bits or not", "versions behind"];
    for (score, words) in names.into_iter().enumerate() {
        rules.push(vec![words.to_owned(), area(score).map_or("-".to_owned(), |a| format!("{a:.2}"))]);
    }
    rules.push(vec!["nothing: admit all".to_owned(), "0.50".to_owned()]);
    #[allow(clippy::cast_precision_loss)] // counts
    let share = |n: usize, of: usize| if of == 0 { f64::NAN } else { n as f64 / of as f64 };
    let failing = cases.len() - fine;
    let enough = share(failing, cases.len()) >= FAILING_MIN;
    let d = area(0).unwrap_or(f64::NAN);
    let simpler = [area(2), area(3)].into_iter().flatten().fold(0.5, f64::max);
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
        format!("cost of a check: {:.1}% of a run of 2,000 updates, the mean", 100.0 * cost),
    ];
    let picture = scatter::draw(&dots, quality.margin, None)?;
    let blocks = vec![
        Block::Table(rows),
        Block::Table(confusion),
        Block::Table(rules),
        Block::List(items),
        Block::Picture(name.to_owned(), "Loss of quality by mismatch of every configuration".to_owned(), picture),
    ];
    let outcome = if enough { Outcome::of(half && few && tells) } else { Outcome::Void };
    Ok((outcome, blocks))
}
