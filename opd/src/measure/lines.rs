//! Rollout lines of whatever trainer, for measuring: stricter than what merely needs their ids.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tune::{RolloutSet, RolloutsError};

/// Why a file of rollouts cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Ids, temperature, or too few prompts.
    #[error(transparent)]
    Rollouts(#[from] RolloutsError),
    /// A key is not there.
    #[error("{}:{line}: there is no `{key}`: {why}", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// What it is needed for.
        why: &'static str,
    },
    /// Lists that go together and do not.
    #[error("{}:{line}: `logprobs_rollout` has {logprobs} entries and `ids` has {ids}; every token sampled has one", file.display())]
    Lengths {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Entries of `logprobs_rollout`.
        logprobs: usize,
        /// Entries of `ids`.
        ids: usize,
    },
    /// A value that cannot be.
    #[error("{}:{line}: `{key}` {what}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// What is wrong, and what should be there.
        what: String,
    },
}

/// Rollouts as they were logged.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Their rows.
    pub set: RolloutSet,
    /// ln p of each completion token by whatever sampled it, over all rows, nats.
    pub logprobs: Vec<f32>,
    /// The weights version that sampled each.
    pub versions: Vec<u64>,
    /// Values of `recipe`, each once, in order.
    pub recipes: Vec<String>,
    /// Values of `model`, likewise; a line need not have one.
    pub models: Vec<String>,
}

impl Lines {
    /// Reads rollout lines. `valid` is how many ids are real, `max` the context's tokens.
    ///
    /// # Errors
    /// Names file, line and key.
    pub fn read(file: &Path, valid: usize, max: usize) -> Result<Lines, LineError> {
        let set = RolloutSet::read(file, valid, max)?;
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|source| RolloutsError::Read { file: file.to_owned(), source })?;
        let mut lines = Lines { set, logprobs: vec![], versions: vec![], recipes: vec![], models: vec![] };
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let value: Value = serde_json::from_str(text).expect("it was read before");
            lines.add(file, line, &value)?;
        }
        Ok(lines)
    }

    fn add(&mut self, file: &Path, line: usize, value: &Value) -> Result<(), LineError> {
        let missing = |key, why| LineError::Missing { file: file.to_owned(), line, key, why };
        let wrong = |key, what| LineError::Value { file: file.to_owned(), line, key, what };
        let ids = value["ids"].as_array().map_or(0, Vec::len);
        let recipe = &value["recipe"];
        if recipe.is_null() {
            return Err(missing("recipe", "it says in which formats the sampler ran; any name will do"));
        }
        let recipe = recipe.as_str().ok_or_else(|| wrong("recipe", format!("is {recipe}; it must be a string")))?;
        let logprobs = &value["logprobs_rollout"];
        if logprobs.is_null() {
            let why = "ln p of every sampled token in the distribution it was drawn from is what is compared";
            return Err(missing("logprobs_rollout", why));
        }
        let logprobs = logprobs.as_array().ok_or_else(|| wrong("logprobs_rollout", "is no list".to_owned()))?;
        if logprobs.len() != ids {
            return Err(LineError::Lengths { file: file.to_owned(), line, logprobs: logprobs.len(), ids });
        }
        for (at, given) in logprobs.iter().enumerate() {
            // Sums of exponentials are rounded, so a certain token may come out a hair above 0.
            let good = given.as_f64().filter(|p| p.is_finite() && *p <= 1e-4);
            let p = good.ok_or_else(|| {
                wrong("logprobs_rollout", format!("[{at}] is {given}; ln p is a finite number not above 0"))
            })?;
            #[allow(clippy::cast_possible_truncation)] // as it was written from f32
            self.logprobs.push(p as f32);
        }
        if value["versions"].is_null() {
            return Err(missing("versions", "[[first_token, version], ...] says which weights sampled what"));
        }
        let versions: Vec<(usize, u64)> = serde_json::from_value(value["versions"].clone()).map_err(|_| {
            wrong("versions", format!("is {}; it must be [[first_token, version], ...]", value["versions"]))
        })?;
        let ascending = versions.windows(2).all(|two| two[0].0 < two[1].0);
        if versions.first().is_none_or(|first| first.0 != 0) || !ascending {
            return Err(wrong("versions", format!("is {}; first tokens begin at 0 and ascend", value["versions"])));
        }
        self.versions.extend((0..ids).map(|token| {
            let at = versions.partition_point(|&(first, _)| first <= token);
            versions[at - 1].1
        }));
        for (key, off) in [("top_p", 1.0), ("top_k", 0.0), ("min_p", 0.0)] {
            let given = &value[key];
            if !given.is_null() && given.as_f64() != Some(off) {
                let what = format!(
                    "is {given}: the sampler left tokens out, and over the whole vocabulary there is no ratio to what it \
                     drew from; sample with {key} = {off}"
                );
                return Err(wrong(key, what));
            }
        }
        if value["temperature"].as_f64() == Some(0.0) {
            let what = "is 0: greedy text is no sample of a distribution; sample at a temperature above 0".to_owned();
            return Err(wrong("temperature", what));
        }
        let names = [(&mut self.recipes, Some(recipe)), (&mut self.models, value["model"].as_str())];
        for (list, name) in names {
            if let Some(name) = name.filter(|&name| !list.iter().any(|known| known == name)) {
                list.push(name.to_owned());
            }
        }
        Ok(())
    }
}
