//! How results are read: rules that a file fixes before its first run.

use std::path::PathBuf;

use serde::Deserialize;

/// `[analysis]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Analysis {
    /// Arms against others, seed by seed.
    Paired(Paired),
    /// What a calibration found.
    Ladder {
        /// What it wrote.
        certificate: PathBuf,
        /// How many rungs in a row are to pass.
        rungs: usize,
    },
    /// Whether D tells how much worse a run ends, whatever it comes from.
    OneScale {
        /// What is compared.
        quality: Quality,
    },
    /// Numbers of results, each against a bound.
    Numbers {
        /// Which are shown.
        columns: Vec<String>,
        /// What must hold: `at-least` and `at-most`.
        expect: Vec<Expect>,
        /// Whether one of them is enough.
        #[serde(default)]
        any: bool,
        /// How many of the worst units of each arm are shown, of `recipe tune`.
        #[serde(default)]
        worst_units: usize,
    },
    /// Verdicts against what training did.
    Admission {
        /// What makes a run fail.
        quality: Quality,
        /// Certificates of other pairs, which are asked too.
        #[serde(default)]
        others: Vec<PathBuf>,
    },
    /// How long until a quality is reached.
    TimeToQuality {
        /// The arm whose final quality sets the goal.
        baseline: String,
        /// The arm that is to be sooner.
        arm: String,
        /// The share of the baseline's gain that is the goal.
        share: f64,
        /// Evaluations that are averaged.
        window: usize,
        /// How many times sooner it is to be.
        ratio: f64,
        /// Whether accuracy is the quality; else KL to the teacher.
        accuracy: bool,
        /// Whether operations are counted in place of seconds.
        flop: bool,
        /// What the baseline must gain at the least, in the unit of the quality; else there is no goal, and it is void.
        #[serde(default)]
        least_gain: f64,
    },
}

/// What is compared, with what, and how much worse is still good enough.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// A number of the result.
    pub metric: String,
    /// Whether less of it is better.
    pub less_is_better: bool,
    /// How much worse is still good enough.
    pub margin: f64,
    /// The arm that others are compared with.
    pub baseline: String,
}

/// [`Analysis::Paired`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paired {
    /// What is compared.
    pub quality: Quality,
    /// Further numbers of results that are shown.
    #[serde(default)]
    pub columns: Vec<String>,
    /// What must hold, all of it, for the claim to be supported.
    pub expect: Vec<Expect>,
}

/// Something that must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The arm.
    pub arm: String,
    /// The arm that it is compared with; the baseline unless given.
    #[serde(default)]
    pub than: Option<String>,
    /// What is to come out.
    pub is: Outcome,
    /// For `at-least` and `at-most`: which number of the result.
    #[serde(default)]
    pub key: Option<String>,
    /// And its bound.
    #[serde(default)]
    pub value: Option<f64>,
}

/// An outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The 95% interval of the difference lies on the better side of 0.
    Better,
    /// It lies on the worse side of 0.
    Worse,
    /// It does not lie on the better side.
    NotBetter,
    /// Its one-sided 95% limit is within the margin.
    NotWorse,
    /// The mean of a number is at least so much.
    AtLeast,
    /// It is at most so much.
    AtMost,
}

impl Analysis {
    /// Arms that it names.
    pub fn arms(&self) -> Vec<&str> {
        match self {
            Analysis::Paired(Paired { quality, expect, .. }) => {
                let named = expect.iter().flat_map(|e| [Some(&e.arm), e.than.as_ref()]).flatten();
                named.chain([&quality.baseline]).map(String::as_str).collect()
            }
            Analysis::OneScale { quality } | Analysis::Admission { quality, .. } => vec![&quality.baseline],
            Analysis::TimeToQuality { baseline, arm, .. } => vec![baseline, arm],
            Analysis::Numbers { expect, .. } => expect.iter().map(|e| &e.arm[..]).collect(),
            Analysis::Ladder { .. } => Vec::new(),
        }
    }
}
