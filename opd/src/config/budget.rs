//! `budget`: a word, the path of a certificate, or a table of it with how closely it is watched.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Fault;
use super::check::need;

/// The word for no budget.
const OFF: &str = "off";

/// What holds mismatch in bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Budget {
    /// Nothing: mismatch is measured only.
    #[default]
    Off,
    /// A certificate: the run is admitted by it before it begins, and kept within its budget.
    Held(Held),
}

/// A budget, and how closely it is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// What `leeway calibrate` wrote.
    pub certificate: PathBuf,
    /// Updates over budget in a row before something is lowered.
    #[serde(default = "patience")]
    pub patience: u32,
    /// Weight of the newest update in the average.
    #[serde(default = "ewma")]
    pub ewma: f64,
    /// Updates from one exact D to the next that takes the average's place.
    #[serde(default = "remeasure")]
    pub remeasure: u32,
}

fn patience() -> u32 {
    5
}

fn ewma() -> f64 {
    0.2
}

fn remeasure() -> u32 {
    10
}

impl Held {
    /// By a certificate, watched as closely as it is unless told.
    #[must_use]
    pub fn by(certificate: PathBuf) -> Held {
        Held { certificate, patience: patience(), ewma: ewma(), remeasure: remeasure() }
    }
}

impl Budget {
    /// Takes the certificate's path from `folder`.
    pub(super) fn resolve(&mut self, folder: &Path) {
        // A bare word is left as it is: it is none, and stands in the error as it was written.
        if let Budget::Held(held) = self
            && is_path(&held.certificate)
        {
            held.certificate = folder.join(&held.certificate);
        }
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let Budget::Held(held) = self else { return Ok(()) };
        let must = "\"off\", or the path of a certificate that `leeway calibrate` wrote, such as \"certificate.json\"";
        need("budget", format!("{:?}", held.certificate), held.certificate.is_absolute(), must)?;
        need("budget.certificate", "no Unicode", held.certificate.to_str().is_some(), "a path in Unicode")?;
        need("budget.patience", held.patience, held.patience > 0, "at least 1 update")?;
        let weight = held.ewma > 0.0 && held.ewma <= 1.0;
        need("budget.ewma", held.ewma, weight, "more than 0 and at most 1; 1 is the newest update alone")?;
        need("budget.remeasure", held.remeasure, held.remeasure > 0, "at least 1 update")
    }
}

/// Whether text is meant as a path rather than as a word.
fn is_path(text: &Path) -> bool {
    text.extension().is_some() || text.components().count() > 1 || text.is_absolute()
}

impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Budget::Off => serializer.serialize_str(OFF),
            Budget::Held(held) => held.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Budget {
    /// By its kind: an untagged enum would hide why neither fits.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Budget, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(word) if word == OFF => Ok(Budget::Off),
            toml::Value::String(path) => Ok(Budget::Held(Held::by(path.into()))),
            table => table.try_into().map(Budget::Held).map_err(|error| serde::de::Error::custom(error.message())),
        }
    }
}
