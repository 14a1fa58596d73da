//! The certificate of a calibration: what mismatch a student and teacher can bear, on what that was found, and what it may
//! be used for. JSON, `format` 1. Reading is strict: a key that is missing, unknown or of another kind is an error that
//! names it, and so is a number that no calibration writes.

mod place;

use serde::{Deserialize, Serialize};

use crate::ladder::{Asked, Differences, Fit, Hinge, Knee, Verdict};
use crate::stats::Interval;

/// The format that is read and written.
pub const FORMAT: u32 = 1;

/// What a calibration found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// 1.
    pub format: u32,
    /// The version of leeway that wrote it.
    pub leeway: String,
    /// Hash of the student that every run began with.
    pub student: String,
    /// Hash of the teacher.
    pub teacher: String,
    /// Hash of the prompts, of runs that take them from a file.
    pub prompts: Option<String>,
    /// Hash of the recipe of the runs without mismatch.
    pub recipe_hash: String,
    /// Hash of everything that all runs have in common.
    pub config_hash: String,
    /// The settings that the budget belongs to.
    pub settings: Settings,
    /// What quality is.
    pub metric: Metric,
    /// How much worse is still good enough, in the metric's unit.
    pub margin: f64,
    /// Seeds, each with a baseline and a run at every rung.
    pub seeds: Vec<u64>,
    /// Runs without mismatch.
    pub baseline: Baseline,
    /// What each family of mismatch may cost.
    pub families: Vec<Family>,
    /// Runs behind all this.
    pub runs: u64,
    /// Where they were made.
    pub device: String,
    /// Updates of each: the version of the weights that quality is of.
    pub weights_version: u64,
}

/// Settings of the runs which do not depend on how rollouts are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Hash of the table of the loss.
    pub loss: String,
    /// Its kind, for people.
    pub loss_kind: String,
    /// Hash of the table of the task.
    pub task: String,
    /// Optimizer steps.
    pub updates: u64,
    /// Most tokens of a completion.
    pub max_tokens: u64,
    /// Temperature of rollouts and loss.
    pub temperature: f64,
    /// Samples of each prompt.
    pub n: u64,
    /// Prompts of an update.
    pub batch: u64,
    /// Learning rate.
    pub lr: f64,
    /// Updates over which it rises.
    pub warmup: u64,
    /// Last updates, over which it falls.
    #[serde(default)]
    pub decay: u64,
    /// Largest norm of the gradient; null for none.
    pub clip: Option<f64>,
    /// Precision of training: `bf16` or `f32`.
    pub precision: String,
}

/// What quality is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The share of held-out problems that are right.
    Accuracy,
    /// KL(student || teacher) on the student's own held-out completions, nats per token; less is better.
    KlTeacher,
}

impl Metric {
    /// A value as a quality, of which more is better.
    #[must_use]
    pub fn quality(self, value: f64) -> f64 {
        match self {
            Metric::Accuracy => value,
            Metric::KlTeacher => -value,
        }
    }
}

/// Runs without mismatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The metric before training, by seed.
    pub before: Vec<f64>,
    /// After it.
    pub after: Vec<f64>,
}

/// How errors of a family repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// New at every version: nothing adds up over time.
    ZeroMean,
    /// The same throughout.
    Coherent,
}

/// A family of mismatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Which.
    pub family: Kind,
    /// From the least up.
    pub rungs: Vec<RungResult>,
    /// Mean D of the largest rung that passed with all below it, nats per token; 0 when none did.
    pub passed_nats: f64,
    /// How the budget came about.
    pub verdict: Verdict,
    /// Whether the budget is only known to be at least this.
    pub at_least: bool,
    /// The budget, nats per token.
    pub budget_nats: f64,
    /// Its lower 95% limit.
    pub lower_nats: f64,
    /// Models of the fall; null where there were too few runs.
    pub fits: Option<FitsResult>,
    /// D late in a run over D early in it, at fixed noise.
    pub growth: Growth,
    /// The largest relative difference of the loss between the rollout's prefixes and the student's own that a passing rung
    /// had: mean over seeds at the largest of them. Null when none passed.
    pub drift_limit: Option<f64>,
}

/// A rung.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RungResult {
    /// What D was to be, nats per token.
    pub target_nats: f64,
    /// What it was, mean over seeds.
    pub d_nats: f64,
    /// What it was, by seed.
    pub d_nats_by_seed: Vec<f64>,
    /// The metric after training, by seed.
    pub after: Vec<f64>,
    /// Quality less the baseline's.
    pub difference: Differences,
    /// What became of the question whether that is within the margin.
    pub asked: Asked,
    /// Relative difference of the loss between prefixes, by seed.
    pub drift: Vec<f64>,
}

/// Models of the fall.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitsResult {
    /// Quality does not depend on D.
    pub constant: Fit,
    /// It falls in proportion to D.
    pub line: Fit,
    /// It falls from a knee on; null where it falls nowhere.
    pub hinge: Option<HingeResult>,
}

/// A knee.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HingeResult {
    /// Where and how steeply.
    pub at: Hinge,
    /// How well it fits.
    pub fit: Fit,
    /// Over resampled seeds; null where the budget does not rest on it.
    pub knee: Option<Knee>,
}

/// How D grows in a run at fixed noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// D that the noise was brought to at the first version, nats per token.
    pub target_nats: f64,
    /// Mean D over the first tenth of the updates, by seed.
    pub early_nats: Vec<f64>,
    /// Over the last tenth.
    pub late_nats: Vec<f64>,
    /// Geometric mean of late over early.
    pub factor: f64,
    /// Its 95% interval.
    pub ci95: Interval,
}

/// Why a certificate cannot be used. `at` is the file, and line and key where there are any.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// It is no certificate of this format.
    #[error("{at}: {what}; a certificate is written by `leeway calibrate`, and read as it was written")]
    Form {
        /// Where.
        at: String,
        /// What is wrong.
        what: String,
    },
    /// Another format.
    #[error(
        "{file}: `format` is {found}, and this version reads {FORMAT}; calibrate again, or take the version that wrote it"
    )]
    Format {
        /// The file.
        file: String,
        /// What it says.
        found: String,
    },
    /// A value that no calibration writes.
    #[error("{file}: `{key}` is {value}; it must be {must}")]
    Value {
        /// The file.
        file: String,
        /// The key, from the top.
        key: String,
        /// Its value.
        value: String,
        /// What it must be.
        must: String,
    },
}

impl Certificate {
    /// Reads a certificate; `file` is only named.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(text: &str, file: &str) -> Result<Certificate, CertificateError> {
        // The format comes first: what another one has for keys is not this one's business.
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(text)
            && let Some(found) = value.get("format")
            && *found != FORMAT
        {
            return Err(CertificateError::Format { file: file.to_owned(), found: found.to_string() });
        }
        let certificate: Certificate = serde_json::from_str(text).map_err(|error| {
            let key = place::key_before(text, error.line(), error.column());
            let key = if key.is_empty() { String::new() } else { format!(", at `{key}`") };
            // serde's own place is left out: it stands in front here.
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default().to_owned();
            CertificateError::Form { at: format!("{file}:{}{key}", error.line()), what }
        })?;
        certificate.check(file)?;
        Ok(certificate)
    }

    /// The text that [`Certificate::parse`] reads.
    ///
    /// # Panics
    /// Never: it is plain data.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// The family of a kind.
    #[must_use]
    pub fn family(&self, kind: Kind) -> Option<&Family> {
        self.families.iter().find(|family| family.family == kind)
    }

    fn check(&self, file: &str) -> Result<(), CertificateError> {
        let need = |key: String, value: String, ok: bool, must: &str| {
            let error = || CertificateError::Value { file: file.to_owned(), key, value, must: must.to_owned() };
            if ok { Ok(()) } else { Err(error()) }
        };
        let seeds = self.seeds.len();
        let of_seeds = format!("a list of {seeds}, one for each of `seeds`");
        let list =
            |key: String, list: &[f64]| need(key, format!("a list of {}", list.len()), list.len() == seeds, &of_seeds);
        let hashes = [("student", &self.student), ("teacher", &self.teacher), ("recipe_hash", &self.recipe_hash)];
        let others = [("config_hash", &self.config_hash), ("settings.loss", &self.settings.loss)];
        let task = [("settings.task", &self.settings.task)];
        for (key, hash) in
            hashes.into_iter().chain(others).chain(task).chain(self.prompts.as_ref().map(|p| ("prompts", p)))
        {
            let ok = hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            need(key.to_owned(), format!("{hash:?}"), ok, "64 hexadecimal digits")?;
        }
        need("margin".into(), self.margin.to_string(), self.margin > 0.0, "more than 0")?;
        need("seeds".into(), format!("a list of {seeds}"), seeds >= 2, "at least two")?;
        need("families".into(), "empty".into(), !self.families.is_empty(), "at least one family")?;
        list("baseline.before".into(), &self.baseline.before)?;
        list("baseline.after".into(), &self.baseline.after)?;
        for (i, family) in self.families.iter().enumerate() {
            let at = |key: &str| format!("families[{i}].{key}");
            let twice = self.families[..i].iter().any(|other| other.family == family.family);
            need(at("family"), format!("{:?}", family.family), !twice, "there once")?;
            need(at("rungs"), "empty".into(), !family.rungs.is_empty(), "at least one rung")?;
            for (key, value) in [
                ("passed_nats", family.passed_nats),
                ("budget_nats", family.budget_nats),
                ("lower_nats", family.lower_nats),
            ] {
                need(at(key), value.to_string(), value >= 0.0, "at least 0, nats per token")?;
            }
            let ordered = family.lower_nats <= family.budget_nats;
            need(at("lower_nats"), family.lower_nats.to_string(), ordered, "at most `budget_nats`")?;
            let same = family.at_least == (family.verdict == Verdict::AtLeast);
            need(at("at_least"), family.at_least.to_string(), same, "what `verdict` says")?;
            let growth = &family.growth;
            need(at("growth.factor"), growth.factor.to_string(), growth.factor > 0.0, "more than 0")?;
            list(at("growth.early_nats"), &growth.early_nats)?;
            list(at("growth.late_nats"), &growth.late_nats)?;
            for (j, rung) in family.rungs.iter().enumerate() {
                let at = |key: &str| at(&format!("rungs[{j}].{key}"));
                let before = if j == 0 { 0.0 } else { family.rungs[j - 1].target_nats };
                let more = rung.target_nats > before;
                need(at("target_nats"), rung.target_nats.to_string(), more, "more than that of the rung before")?;
                need(at("d_nats"), rung.d_nats.to_string(), rung.d_nats >= 0.0, "at least 0, nats per token")?;
                list(at("d_nats_by_seed"), &rung.d_nats_by_seed)?;
                list(at("after"), &rung.after)?;
                list(at("drift"), &rung.drift)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
