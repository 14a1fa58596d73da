//! The runs of an experiment that are there, by arm and seed.

use std::collections::BTreeMap;

use budget::ladder::{Differences, differences};

use super::super::Failure;
use super::super::experiment::analysis::Quality;
use super::super::experiment::file::{Experiment, Folder};
use super::super::experiment::job::{self, Hashes, Job};
use super::super::experiment::results::{self, Line};

/// Lines by arm, command and seed.
pub struct Runs {
    lines: BTreeMap<(String, String, u64), Line>,
    wanted: usize,
    stale: usize,
}

impl Runs {
    /// Those that are results of what the file says now; others are counted, and not looked at.
    pub fn read(name: &str, experiment: &Experiment, folder: &Folder, hashes: &mut Hashes) -> Result<Runs, Failure> {
        let name = experiment.arms_of.as_deref().unwrap_or(name);
        let jobs = job::jobs(name, experiment, &folder.0, hashes)?;
        let all = results::read(&folder.results(name))?;
        let of = |job: &Job| all.iter().rfind(|line| job.owns(line) && job.is(line, &experiment.series));
        let lines: BTreeMap<_, Line> = jobs
            .iter()
            .filter_map(of)
            .map(|line| ((line.arm.clone(), line.command.clone(), line.seed), line.clone()))
            .collect();
        Ok(Runs { wanted: job::count(experiment), stale: all.len() - lines.len(), lines })
    }

    /// Of these lines.
    #[cfg(test)]
    pub fn of_lines(lines: Vec<Line>) -> Runs {
        let wanted = lines.len();
        let lines = lines.into_iter().map(|line| ((line.arm.clone(), line.command.clone(), line.seed), line)).collect();
        Runs { lines, wanted, stale: 0 }
    }

    /// Runs that are there, but for checks of admission.
    pub fn made(&self) -> usize {
        self.lines.keys().filter(|(_, command, _)| command != "admit").count()
    }

    /// Runs and checks that are not there.
    pub fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.lines.len())
    }

    /// Lines of what the file says no more.
    pub fn stale(&self) -> usize {
        self.stale
    }

    /// How many of an arm's runs ended with an error.
    pub fn failed(&self, arm: &str) -> usize {
        self.of(arm).filter(|line| line.error.is_some()).count()
    }

    pub fn seconds(&self) -> f64 {
        self.lines.values().fold(0.0, |sum, line| sum + line.wall_s)
    }

    /// The runs of an arm, by seed.
    pub fn of<'a>(&'a self, arm: &'a str) -> impl Iterator<Item = &'a Line> {
        let own = move |(key, _): &(&(String, String, u64), &Line)| key.0 == arm && key.1 != "admit";
        self.lines.iter().filter(own).map(|(_, line)| line)
    }

    /// The check of an arm.
    pub fn admission(&self, arm: &str) -> Option<&Line> {
        self.lines.iter().find(|(key, _)| key.0 == arm && key.1 == "admit").map(|(_, line)| line)
    }

    /// Whether an arm has runs of which none has this number: a name that is wrong, since runs that failed are not asked.
    pub fn unknown(&self, arm: &str, column: &str) -> bool {
        let mut whole = self.of(arm).filter(|line| line.error.is_none()).peekable();
        whole.peek().is_some() && whole.all(|line| number(line, column).is_none())
    }

    /// The mean of a number over an arm's seeds; none where a run lacks it.
    pub fn mean(&self, arm: &str, column: &str) -> Option<f64> {
        let values: Option<Vec<f64>> = self.of(arm).map(|line| number(line, column)).collect();
        values.filter(|values| !values.is_empty()).map(|values| mean(&values))
    }

    /// How much better `arm` is than `than`, by seed; none with fewer than two pairs.
    pub fn difference(&self, quality: &Quality, arm: &str, than: &str) -> Option<Differences> {
        let sign = if quality.less_is_better { -1.0 } else { 1.0 };
        let of = |line: &Line| number(line, &quality.metric);
        let pairs: Vec<f64> = self
            .of(arm)
            .filter_map(|line| {
                let other = self.of(than).find(|other| other.seed == line.seed)?;
                Some(sign * (of(line)? - of(other)?))
            })
            .collect();
        (pairs.len() >= 2).then(|| differences(&pairs))
    }
}

#[allow(clippy::cast_precision_loss)] // counts
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A number of a run: a key of its result, `a/b` within; `gain`, accuracy after less before; `series:KEY`, the mean over
/// updates; `last:KEY`, the last of them.
pub fn number(line: &Line, column: &str) -> Option<f64> {
    let series = |key: &str| -> Option<Vec<f64>> {
        let values: Vec<f64> = line.series.get(key)?.iter().filter_map(serde_json::Value::as_f64).collect();
        (!values.is_empty()).then_some(values)
    };
    match column.split_once(':') {
        Some(("series", key)) => series(key).map(|values| mean(&values)),
        Some(("last", key)) => series(key)?.last().copied(),
        _ if column == "gain" => {
            Some(line.result["accuracy_after"].as_f64()? - line.result["accuracy_before"].as_f64()?)
        }
        _ => line.result.pointer(&format!("/{column}"))?.as_f64(),
    }
}
