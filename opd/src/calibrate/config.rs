//! The calibration's file: which run, what quality is, how much worse is good enough, and the ladder.
//!
//! ```toml
//! run = "run.toml"                # relative to this file: what all runs have in common
//! set = ["updates=100"]           # overrides of it
//! metric = "accuracy"             # or "kl-teacher"
//! margin = 0.03                   # in the metric's unit
//! out = "runs/calibrate"          # relative to where the command runs
//! seeds = 5                       # from the run's own seed on
//! families = ["zero-mean", "coherent"]
//! rungs = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]  # nats per token
//! extend = 3.0                    # one more rung for a family in which none failed; 0 for none
//! growth = 0.03                   # D at which growth over a run is measured
//! jobs = 0                        # runs at a time; 0 is one a thread
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run::Family;
use crate::config::{Budget, Config, ConfigError, InFlight, Schedule};

/// What final quality is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The share of held-out problems that are right.
    Accuracy,
    /// KL(student || teacher) on the student's own held-out completions, nats per token; less is better.
    KlTeacher,
}

/// A calibration's file, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The run file.
    pub run: PathBuf,
    /// Overrides of it.
    #[serde(default)]
    pub set: Vec<String>,
    /// What quality is.
    pub metric: Metric,
    /// How much worse is still good enough.
    pub margin: f64,
    /// The folder that is written.
    #[serde(default = "out")]
    pub out: PathBuf,
    /// How many seeds.
    #[serde(default = "seeds")]
    pub seeds: u32,
    /// Families of mismatch.
    #[serde(default = "families")]
    pub families: Vec<Family>,
    /// D of each rung, nats per token.
    #[serde(default = "rungs")]
    pub rungs: Vec<f64>,
    /// One more rung where none failed; 0 for none.
    #[serde(default = "extend")]
    pub extend: f64,
    /// D at which growth is measured.
    #[serde(default = "growth")]
    pub growth: f64,
    /// Runs at a time; 0 is one a thread.
    #[serde(default)]
    pub jobs: u32,
}

fn out() -> PathBuf {
    PathBuf::from("runs/calibrate")
}

fn seeds() -> u32 {
    5
}

fn families() -> Vec<Family> {
    vec![Family::ZeroMean, Family::Coherent]
}

fn rungs() -> Vec<f64> {
    vec![0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
}

fn extend() -> f64 {
    3.0
}

fn growth() -> f64 {
    0.03
}

/// Why a calibration's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// It cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no such file: a key that is missing or unknown, or a value of another kind.
    #[error("{at}: {what}; docs/calibrate.md has every key")]
    Form {
        /// File and line.
        at: String,
        /// What is wrong.
        what: String,
    },
    /// A value out of its range.
    #[error("{}: `{key}` is {value}; it must be {must}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        must: String,
    },
    /// The run file.
    #[error("`run`: {0}")]
    Run(#[from] ConfigError),
}

impl Calibration {
    /// Reads `path`, and the run file that it names with everything about rollouts that calibration sets itself: recipe
    /// `identity`, in turns with updates, and nothing written but what calibration writes.
    ///
    /// # Errors
    /// The first thing that is wrong, with where it stands.
    pub fn load(path: &Path) -> Result<(Calibration, Config), CalibrationError> {
        let read = |source| CalibrationError::Read { file: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let mut calibration: Calibration = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].bytes().filter(|&b| b == b'\n').count());
            CalibrationError::Form { at: format!("{}:{line}", path.display()), what: error.message().to_owned() }
        })?;
        let folder = std::path::absolute(path).map_err(read)?.parent().map(Path::to_owned).unwrap_or_default();
        calibration.run = folder.join(&calibration.run);
        calibration.out = std::env::current_dir().map_err(read)?.join(&calibration.out);
        calibration.check(path)?;
        let mut config = Config::load(&calibration.run, &calibration.set)?;
        let need = |key, value: &str, ok: bool, must: &str| need(path, key, value.to_owned(), ok, must);
        need("run", "a run with `noise`", config.noise.is_none(), "without: calibration puts in its own")?;
        need(
            "run",
            "a run with `ring`",
            config.ring.is_none(),
            "without: many runs go on at once, and a ring serves one",
        )?;
        "identity".clone_into(&mut config.rollout.recipe);
        (config.schedule, config.rollout.staleness_max, config.rollout.in_flight) =
            (Schedule::Sync, 0, InFlight::Drain);
        (config.checkpoint, config.dynamics, config.eval.every, config.budget) = (None, None, 0, Budget::Off);
        config.out.clone_from(&calibration.out);
        let last = config.seed.checked_add(u64::from(calibration.seeds)).filter(|&last| i64::try_from(last).is_ok());
        need("seeds", &calibration.seeds.to_string(), last.is_some(), "fewer: they count from the run's own seed on")?;
        Ok((calibration, config))
    }

    fn check(&self, file: &Path) -> Result<(), CalibrationError> {
        let need = |key, value: String, ok: bool, must: &str| need(file, key, value, ok, must);
        let d = |x: f64| (1e-9..=20.0).contains(&x);
        need(
            "margin",
            self.margin.to_string(),
            self.margin > 0.0 && self.margin.is_finite(),
            "more than 0 and finite",
        )?;
        need("seeds", self.seeds.to_string(), self.seeds >= 2, "at least 2: a single difference has no interval")?;
        let once = |kind: Family| self.families.iter().filter(|&&other| other == kind).count() <= 1;
        let families = !self.families.is_empty() && self.families.iter().all(|&kind| once(kind));
        need("families", format!("{:?}", self.families), families, "\"zero-mean\", \"coherent\" or both")?;
        let rising =
            !self.rungs.is_empty() && self.rungs.is_sorted_by(|a, b| a < b) && self.rungs.iter().all(|&x| d(x));
        need(
            "rungs",
            format!("{:?}", self.rungs),
            rising,
            "at least one D, from 1e-9 to 20, each more than the one before",
        )?;
        let extend = self.extend == 0.0 || d(self.extend);
        need("extend", self.extend.to_string(), extend, "0, or a D from 1e-9 to 20")?;
        need("growth", self.growth.to_string(), d(self.growth), "a D from 1e-9 to 20")
    }
}

fn need(file: &Path, key: &'static str, value: String, ok: bool, must: &str) -> Result<(), CalibrationError> {
    let (file, must) = (file.to_owned(), must.to_owned());
    if ok { Ok(()) } else { Err(CalibrationError::Value { file, key, value, must }) }
}
