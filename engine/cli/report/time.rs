//! How long a run takes to a quality, in seconds or operations, against another; and what its stages' own times foretell.

use budget::stats::median_interval;

use super::super::experiment::analysis::Analysis;
use super::super::experiment::results::Line;
use super::findings::Outcome;
use super::page::Block;
use super::runs::Runs;

pub fn find(analysis: &Analysis, runs: &Runs) -> (Outcome, Vec<Block>) {
    let Analysis::TimeToQuality { baseline, arm, share, window, ratio, accuracy, flop, least_gain } = analysis else {
        unreachable!("called for no other");
    };
    let at = |line: &Line, goal: f64| reach(line, goal, *window, *accuracy, *flop);
    let (mut gains, mut ratios, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for line in runs.of(baseline) {
        let Some(other) = runs.of(arm).find(|other| other.seed == line.seed) else { continue };
        let smooth = smoothed(line, *window, *accuracy);
        let (Some(first), Some(last)) = (smooth.first().map(|p| p.0), smooth.last().map(|p| p.0)) else { continue };
        gains.push(last - first);
        let show = |x: f64| if x.is_finite() { format!("{x:.3e}") } else { "never".to_owned() };
        let mut row = vec![line.seed.to_string(), format!("{:.4}", last - first)];
        if last > first {
            let goal = first + share * (last - first);
            let (own, its) = (at(line, goal), at(other, goal));
            // A run that never gets there counts as infinitely late.
            ratios.push(own / its);
            row.extend([show(own), show(its), format!("{:.2}", own / its)]);
        } else {
            row.extend(["-", "-", "-"].map(str::to_owned)); // there is no goal
        }
        rows.push(row);
    }
    let Some(gain) = median_interval(&gains).filter(|m| m.n >= 5).map(|m| m.median) else {
        return (Outcome::Missing, Vec::new());
    };
    let yes = |held: bool| if held { "yes" } else { "no" };
    let gained = gain > 0.0 && gain >= *least_gain && ratios.len() == gains.len();
    let mut items = vec![format!(
        "{}: `{baseline}` gains with every seed, and at least {least_gain} in the median, so that its quality is a goal: {gain:.4}",
        yes(gained)
    )];
    // Seconds are of whole machines: other threads, or other runs beside them, and they say nothing.
    let alike =
        |line: &Line| runs.of(baseline).all(|one| (one.threads, one.at_a_time) == (line.threads, line.at_a_time));
    let same = *flop || runs.of(baseline).chain(runs.of(arm)).all(alike);
    if !*flop {
        items.push(format!("{}: all runs had the same threads and as many runs beside them", yes(same)));
    }
    let mut held = false;
    if let Some(median) = median_interval(&ratios) {
        held = median.median >= *ratio;
        items.push(format!(
            "{}: `{arm}` at least {ratio} times sooner than `{baseline}`: {:.2} ({:.2} to {:.2}, confidence {:.0}%)",
            yes(held),
            median.median,
            median.interval.low,
            median.interval.high,
            100.0 * median.confidence
        ));
    }
    if !*flop && let Some(words) = stages(runs, baseline, arm, &ratios) {
        items.push(words);
    }
    let unit = if *flop { "operations" } else { "seconds" };
    let heading =
        ["seed", "gain", &format!("{baseline}, {unit}"), &format!("{arm}, {unit}"), "ratio"].map(str::to_owned);
    rows.insert(0, heading.to_vec());
    (if gained && same { Outcome::of(held) } else { Outcome::Void }, vec![Block::Table(rows), Block::List(items)])
}

/// What the stages' own times make of it: in turns an update takes their sum, beside each other what the slowest of sampling,
/// scoring and training takes, on whatever cores they had. That by the updates that either needed is the ratio which is
/// foretold.
fn stages(runs: &Runs, baseline: &str, arm: &str, ratios: &[f64]) -> Option<String> {
    let measured = median_interval(ratios)?.median;
    let of = |name: &str, beside: bool| -> Option<f64> {
        let step = |line: &Line| -> Option<f64> {
            let s = |key: &str| line.result[key].as_f64();
            let (roll, teach) = (s("rollout_s")?, s("teacher_s")?);
            let (train, sync) = (s("train_s")? + s("behaviour_s")?, s("sync_s")?);
            Some((if beside { roll.max(teach).max(train) } else { roll + teach + train } + sync) / s("updates")?)
        };
        let steps: Option<Vec<f64>> = runs.of(name).map(step).collect();
        median_interval(&steps?).map(|m| m.median)
    };
    let seconds = |name: &str| {
        let each: Option<Vec<f64>> = runs
            .of(name)
            .map(|line| Some(line.result["updating_s"].as_f64()? / line.result["updates"].as_f64()?))
            .collect();
        median_interval(&each?).map(|m| m.median)
    };
    let (turns, beside) = (of(baseline, false)?, of(arm, true)?);
    let (own, its) = (seconds(baseline)?, seconds(arm)?);
    // Updates to the goal, of either arm: what the measured ratio has beyond that of seconds an update.
    let updates = measured / (own / its);
    let foretold = turns / beside * updates;
    let off = foretold / measured - 1.0;
    Some(format!(
        "{}: within 15% of what the stages' own times foretell: {foretold:.2}, {:+.0}% (an update takes {own:.3} and {its:.3} s, by \
         the stages {turns:.3} and {beside:.3} s; updates to the goal: {updates:.2} times fewer)",
        if off.abs() <= 0.15 { "yes" } else { "no" },
        100.0 * off
    ))
}

/// Quality, more being better, averaged over `window` evaluations, with seconds and operations until the last of them.
fn smoothed(line: &Line, window: usize, accuracy: bool) -> Vec<(f64, f64, f64)> {
    let number = |value: &serde_json::Value, at: usize| value[at].as_f64().unwrap_or(f64::NAN);
    let point = |value: &serde_json::Value| {
        let quality = if accuracy { number(value, 1) } else { -number(value, 2) };
        (quality, number(value, 3), number(value, 4))
    };
    let points: Vec<(f64, f64, f64)> = line.curve.iter().map(point).collect();
    #[allow(clippy::cast_precision_loss)] // a few evaluations
    let mean = |part: &[(f64, f64, f64)]| part.iter().map(|p| p.0).sum::<f64>() / part.len() as f64;
    (0..points.len())
        .map(|i| {
            let part = &points[(i + 1).saturating_sub(window.max(1))..=i];
            (mean(part), points[i].1, points[i].2)
        })
        .collect()
}

fn reach(line: &Line, goal: f64, window: usize, accuracy: bool, flop: bool) -> f64 {
    let reached = smoothed(line, window, accuracy).into_iter().find(|p| p.0 >= goal);
    reached.map_or(f64::INFINITY, |p| if flop { p.2 } else { p.1 })
}

#[cfg(test)]
mod tests {
    use super::super::findings::tests::runs;
    use super::*;

    #[test]
    fn a_time_to_quality_needs_a_goal() {
        let analysis = |least_gain: f64| Analysis::TimeToQuality {
            baseline: "a".to_owned(),
            arm: "b".to_owned(),
            share: 0.5,
            window: 1,
            ratio: 2.0,
            accuracy: false,
            flop: false,
            least_gain,
        };
        // Half of the baseline's gain of 4 is there after 2 seconds, and in the arm after 1.
        let sooner = runs(&[1.0; 5], &[2.0; 5]);
        assert_eq!(find(&analysis(0.0), &sooner).0, Outcome::Supported);
        assert_eq!(find(&analysis(5.0), &sooner).0, Outcome::Void, "it gains 4");
        assert_eq!(find(&analysis(0.0), &runs(&[1.0; 5], &[1.0; 5])).0, Outcome::NotSupported);
        let one_does_not = runs(&[1.0, 1.0, -1.0, 1.0, 1.0], &[2.0; 5]);
        assert_eq!(find(&analysis(0.0), &one_does_not).0, Outcome::Void);
        assert_eq!(find(&analysis(0.0), &runs(&[1.0; 4], &[2.0; 4])).0, Outcome::Missing);
        // An arm that never gets there is infinitely late, in most runs at least.
        assert_eq!(find(&analysis(0.0), &runs(&[1.0; 5], &[0.1; 5])).0, Outcome::NotSupported);
    }
}
