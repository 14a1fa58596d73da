//! The rollouts that every unit is measured on, the same for all.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sequences::Row;

/// Completions with their prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutSet {
    /// Prompt and completion of each.
    pub rows: Vec<Row>,
    /// The prompt that each belongs to, by number; equal prompts are one.
    pub prompts: Vec<usize>,
    /// The temperature that they were sampled at, at which D is measured too.
    pub temperature: f32,
}

/// Why rollouts cannot be measured on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutsError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what should stand there.
        what: String,
    },
    /// There are too few.
    #[error("{what}: {count} different prompts; at least 2 are needed to say how far they differ")]
    TooFew {
        /// The file, or where else they come from.
        what: String,
        /// How many.
        count: usize,
    },
}

impl RolloutSet {
    /// A set of rows; `what` names their origin in errors.
    ///
    /// # Errors
    /// With fewer than two different prompts.
    pub fn new(rows: Vec<Row>, temperature: f32, what: &str) -> Result<RolloutSet, RolloutsError> {
        let mut known = std::collections::HashMap::new();
        let number = |row: &Row| {
            let next = known.len();
            *known.entry(row.ids[..row.prompt].to_vec()).or_insert(next)
        };
        let prompts: Vec<usize> = rows.iter().map(number).collect();
        match known.len() {
            count @ (0 | 1) => Err(RolloutsError::TooFew { what: what.to_owned(), count }),
            _ => Ok(RolloutSet { rows, prompts, temperature }),
        }
    }

    /// Reads rollout lines, of which `prompt_ids`, `ids` and `temperature` are used; without the last it is 1, and so it
    /// is for rollouts at temperature 0. `valid` is how many ids are real, `max` the context's tokens.
    pub fn read(file: &Path, valid: usize, max: usize) -> Result<RolloutSet, RolloutsError> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|source| RolloutsError::Read { file: file.to_owned(), source })?;
        let (mut rows, mut common) = (Vec::new(), None);
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let fault = |what: String| RolloutsError::Line { file: file.to_owned(), line, what };
            let (row, temperature) = parse(text, valid, max).map_err(fault)?;
            let common = *common.get_or_insert(temperature);
            if temperature != common {
                let what = format!("temperature {temperature}, and {common} in the lines before; D needs one");
                return Err(fault(what));
            }
            rows.push(row);
        }
        RolloutSet::new(rows, common.unwrap_or(1.0), &file.display().to_string())
    }

    /// Completion tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.targets().len()).sum()
    }

    /// How many different prompts.
    #[must_use]
    pub fn prompt_count(&self) -> usize {
        self.prompts.iter().max().map_or(0, |most| most + 1)
    }

    /// BLAKE3 over ids and temperature: two sets with one hash give the same measurements.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.temperature.to_le_bytes());
        for row in &self.rows {
            for count in [row.prompt, row.ids.len()] {
                hasher.update(&(count as u64).to_le_bytes());
            }
            for id in &row.ids {
                hasher.update(&id.to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

fn parse(text: &str, valid: usize, max: usize) -> Result<(Row, f32), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let ids = |key: &str| -> Result<Vec<u32>, String> {
        let list = value[key].as_array().ok_or_else(|| format!("`{key}` is not there as a list of token ids"))?;
        if list.is_empty() {
            return Err(format!("`{key}` is empty"));
        }
        let id = |(i, id): (usize, &Value)| {
            let real = id.as_u64().filter(|&id| id < valid as u64).and_then(|id| u32::try_from(id).ok());
            real.ok_or_else(|| format!("`{key}[{i}]` is {id}; the model has ids 0..{valid}"))
        };
        list.iter().enumerate().map(id).collect()
    };
    let (mut all, completion) = (ids("prompt_ids")?, ids("ids")?);
    let prompt = all.len();
    all.extend(completion);
    if all.len() > max {
        return Err(format!("prompt and completion have {} tokens; the model's context holds {max}", all.len()));
    }
    #[allow(clippy::cast_possible_truncation)] // as it was written from f32
    let temperature = match &value["temperature"] {
        Value::Null => 1.0,
        given => given.as_f64().map_or(f32::NAN, |t| t as f32),
    };
    if !(0.0..=1e3).contains(&temperature) {
        return Err(format!("`temperature` is {}; it must be a number from 0 to 1000", value["temperature"]));
    }
    Ok((Row::new(all, prompt), if temperature == 0.0 { 1.0 } else { temperature }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RolloutSet, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.jsonl");
        std::fs::write(&file, text).unwrap();
        RolloutSet::read(&file, 10, 6).map_err(|e| e.to_string())
    }

    #[test]
    fn lines_are_grouped_by_prompt() {
        let a = r#"{"prompt_ids": [1, 2], "ids": [3], "temperature": 0.5, "seed": 4}"#;
        let b = r#"{"prompt_ids": [1], "ids": [2, 3], "temperature": 0.5}"#;
        let set = read(&format!("{a}\n\n{b}\n{a}\n")).unwrap();
        assert_eq!(
            (set.prompts.clone(), set.prompt_count(), set.tokens(), set.temperature),
            (vec![0, 1, 0], 2, 4, 0.5)
        );
        assert_eq!(set.rows[1], Row::new(vec![1, 2, 3], 1));
        let other = read(&format!("{a}\n{b}\n{b}\n")).unwrap();
        assert_ne!(set.hash(), other.hash());
        let greedy =
            read("{\"prompt_ids\": [1], \"ids\": [2], \"temperature\": 0}\n{\"prompt_ids\": [3], \"ids\": [2]}");
        assert_eq!(greedy.unwrap().temperature, 1.0);
    }

    #[test]
    fn what_cannot_be_measured_is_named() {
        let good = r#"{"prompt_ids": [1], "ids": [2]}"#;
        for (bad, want) in [
            ("{", "not JSON"),
            (r#"{"prompt_ids": [1]}"#, "`ids` is not there"),
            (r#"{"prompt_ids": [], "ids": [1]}"#, "`prompt_ids` is empty"),
            (r#"{"prompt_ids": [1], "ids": [2, 10]}"#, "`ids[1]` is 10; the model has ids 0..10"),
            (r#"{"prompt_ids": [1, 2, 3, 4], "ids": [5, 6, 7]}"#, "7 tokens; the model's context holds 6"),
            (r#"{"prompt_ids": [1], "ids": [2], "temperature": 2}"#, "temperature 2, and 1 in the lines before"),
            (r#"{"prompt_ids": [1], "ids": [2], "temperature": "x"}"#, "it must be a number"),
        ] {
            let error = read(&format!("{good}\n{bad}\n")).unwrap_err();
            assert!(error.contains("r.jsonl:2: ") && error.contains(want), "{error}");
        }
        let error = read(&format!("{good}\n{good}\n")).unwrap_err();
        assert!(error.contains("1 different prompts; at least 2"), "{error}");
    }
}
