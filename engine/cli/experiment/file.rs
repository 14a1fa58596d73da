//! An experiment's file: what is claimed, what would show it, and the runs. All of it is fixed before the first run.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Failure;
use super::analysis::{Analysis, Outcome, Paired};

/// `experiments/NAME.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// A heading.
    pub title: String,
    /// What is claimed.
    pub claim: String,
    /// What outcome supports it, in words.
    pub supports: String,
    /// How results are read, by rules that leave nothing to choose.
    pub analysis: Analysis,
    /// Another experiment whose runs are looked at, in place of own arms.
    #[serde(default)]
    pub arms_of: Option<String>,
    /// The run file of its trainings, relative to the folder of experiments.
    #[serde(default)]
    pub run: Option<PathBuf>,
    /// Overrides of it that all arms share.
    #[serde(default)]
    pub set: Vec<String>,
    /// Seeds of each arm.
    #[serde(default = "one")]
    pub seeds: u32,
    /// The first of them.
    #[serde(default)]
    pub first_seed: u64,
    /// Runs at a time; 0 is one a thread.
    #[serde(default)]
    pub jobs: u32,
    /// Threads of each run; 0 shares them out.
    #[serde(default)]
    pub threads: u32,
    /// Keys of an update's line that are kept by update, e.g. `correct`.
    #[serde(default)]
    pub series: Vec<String>,
    /// A certificate against which every arm is checked with `leeway admit`, from the current folder.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// Models that must be there, by name in `models.toml`.
    #[serde(default)]
    pub models: Vec<String>,
    /// The arms.
    #[serde(default, rename = "arm")]
    pub arms: Vec<Arm>,
}

/// A way of running, made once for each seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// What it has in common with others, as a source of mismatch.
    #[serde(default)]
    pub group: String,
    /// A command in place of a training: its words, in which `{seed}` and `{out}` stand for themselves.
    #[serde(default)]
    pub command: Vec<String>,
    /// Overrides of the run file.
    #[serde(default)]
    pub set: Vec<String>,
    /// Seeds, where it has others than the rest.
    #[serde(default)]
    pub seeds: Option<u32>,
    /// Whether a training that ends with an error is a result.
    #[serde(default)]
    pub may_fail: bool,
    /// Whether the certificate is asked about it.
    #[serde(default = "yes")]
    pub admit: bool,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// A folder of experiments.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// Names of the experiments that are there, sorted: `e2` before `e10`.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let named = |e: std::io::Error| format!("{}: {e}; give the folder with --experiments", self.0.display());
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.0).map_err(named)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
            if path.extension().is_some_and(|extension| extension == "toml") && name != "models" {
                names.push(name);
            }
        }
        names.sort_by_key(|name| {
            let at = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
            let digits: String = name[at..].chars().take_while(char::is_ascii_digit).collect();
            (name[..at].to_owned(), digits.parse::<u32>().unwrap_or(0), name.clone())
        });
        Ok(names)
    }

    /// Where the results of an experiment are.
    pub fn results(&self, name: &str) -> PathBuf {
        self.0.join("results").join(format!("{name}.jsonl"))
    }

    /// Reads an experiment.
    pub fn open(&self, name: &str) -> Result<Experiment, Failure> {
        let path = self.0.join(format!("{name}.toml"));
        let text = std::fs::read_to_string(&path).map_err(|e| {
            let there = self.names().unwrap_or_default().join(", ");
            format!("{}: {e}; there are: {there}", path.display())
        })?;
        let mut experiment: Experiment = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].bytes().filter(|&b| b == b'\n').count());
            format!("{}:{line}: {}; docs/experiments.md has every key", path.display(), error.message())
        })?;
        if let Some(other) = &experiment.arms_of {
            if !experiment.arms.is_empty() || other == name {
                return Err(
                    format!("{}: `arms_of` names another experiment, in place of [[arm]]", path.display()).into()
                );
            }
            let other = self.open(other)?;
            experiment = Experiment {
                title: experiment.title,
                claim: experiment.claim,
                supports: experiment.supports,
                analysis: experiment.analysis,
                arms_of: experiment.arms_of,
                ..other
            };
        }
        experiment.check(&path)?;
        Ok(experiment)
    }
}

impl Experiment {
    fn check(&self, path: &Path) -> Result<(), Failure> {
        let wrong = |what: String| -> Result<(), Failure> { Err(format!("{}: {what}", path.display()).into()) };
        if self.arms.is_empty() {
            return wrong("there is no [[arm]]".to_owned());
        }
        for (i, arm) in self.arms.iter().enumerate() {
            if self.arms[..i].iter().any(|other| other.name == arm.name) {
                return wrong(format!("two arms are called `{}`", arm.name));
            }
            if arm.command.is_empty() && self.run.is_none() {
                return wrong(format!("arm `{}` trains, and there is no `run`", arm.name));
            }
            if !arm.command.is_empty() && !arm.set.is_empty() {
                return wrong(format!("arm `{}` has a `command`; `set` is of trainings", arm.name));
            }
            if arm.seeds.unwrap_or(self.seeds) == 0 {
                return wrong(format!("arm `{}` has no seed", arm.name));
            }
        }
        let trains = |arm: &Arm| matches!(arm.command.first().map(String::as_str), Some("train" | "admit"));
        if let Some(arm) = self.arms.iter().find(|arm| trains(arm)) {
            return wrong(format!(
                "arm `{}`: a training has no `command`, but `run` and `set`; checks have `certificate`",
                arm.name
            ));
        }
        let seeded = |set: &String| set.split('=').next().is_some_and(|key| matches!(key.trim(), "seed" | "out"));
        if let Some(set) = self.set.iter().chain(self.arms.iter().flat_map(|arm| &arm.set)).find(|set| seeded(set)) {
            return wrong(format!(
                "`set` has {set}: seeds are `seeds` and `first_seed`, and where a run writes is not asked"
            ));
        }
        let (quality, least) = match &self.analysis {
            Analysis::Paired(Paired { quality, .. }) => (Some(quality), 2),
            Analysis::OneScale { quality } | Analysis::Admission { quality, .. } => (Some(quality), 2),
            Analysis::TimeToQuality { .. } => (None, 5),
            Analysis::Numbers { .. } | Analysis::Ladder { .. } => (None, 1),
        };
        if let Some(quality) = quality.filter(|quality| !(quality.margin > 0.0 && quality.margin.is_finite())) {
            return wrong(format!("[analysis] has margin = {}; it must be more than 0 and finite", quality.margin));
        }
        let short = |arm: &&Arm| arm.command.is_empty() && arm.seeds.unwrap_or(self.seeds) < least;
        if let Some(arm) = self.arms.iter().find(short) {
            return wrong(format!(
                "arm `{}` has {} seeds; this analysis needs {least}",
                arm.name,
                arm.seeds.unwrap_or(self.seeds)
            ));
        }
        let nothing = match &self.analysis {
            Analysis::Paired(Paired { expect, .. }) | Analysis::Numbers { expect, .. } => expect.is_empty(),
            _ => false,
        };
        if nothing {
            return wrong("[analysis] expects nothing: what would support the claim?".to_owned());
        }
        let (expected, bounds_alone) = match &self.analysis {
            Analysis::Paired(paired) => (&paired.expect[..], false),
            Analysis::Numbers { expect, .. } => (&expect[..], true),
            _ => (&[][..], false),
        };
        for expect in expected {
            let bound = matches!(expect.is, Outcome::AtLeast | Outcome::AtMost);
            if bound && (expect.key.is_none() || expect.value.is_none()) {
                return wrong(format!(
                    "[analysis] expects `at-least` or `at-most` of `{}`: of which `key`, and what `value`?",
                    expect.arm
                ));
            }
            if !bound && (bounds_alone || expect.key.is_some() || expect.value.is_some()) {
                return wrong(format!(
                    "[analysis] expects of `{}` what is not a bound: `key` and `value` go with `at-least` and `at-most`, and `numbers` knows no other",
                    expect.arm
                ));
            }
        }
        for name in self.analysis.arms() {
            if !self.arms.iter().any(|arm| arm.name == *name) {
                return wrong(format!("[analysis] names the arm `{name}`, which is not there"));
            }
        }
        Ok(())
    }

    /// Seeds of an arm.
    pub fn seeds_of(&self, arm: &Arm) -> std::ops::Range<u64> {
        self.first_seed..self.first_seed + u64::from(arm.seeds.unwrap_or(self.seeds))
    }
}
