//! Token ids to take static scales of the KV cache from, in place of bounds.

use std::path::Path;

use serde_json::Value;

use super::RecipeError;
use crate::config::ModelConfig;

/// Where the static scales of 8-bit keys and values come from. One place for all layers that have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StaticScales {
    /// Bounds from the weights alone, which nothing exceeds.
    #[default]
    Bounds,
    /// The folder's own, of version 0: rounded up to powers of two.
    Checkpoint,
    /// The largest keys and values that given tokens have, with room above.
    Calibrated(Calibration),
}

/// Tokens to calibrate with.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Rows of ids, none of them empty, each a sequence of its own.
    pub rows: Vec<Vec<u32>>,
    /// A scale covers `room` times the largest value seen; at least 1.
    pub room: f32,
    /// BLAKE3 of the rows as JSON without spaces, hexadecimal.
    pub hash: String,
}

impl Calibration {
    /// Tokens of the longest row.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Reads the JSONL file `file`, lines `{"ids": [...]}`, for a model.
    ///
    /// # Errors
    /// When a line is something else, there is no row, an id is beyond the vocabulary or a row beyond the context.
    pub fn read(file: &Path, room: f32, config: &ModelConfig) -> Result<Calibration, RecipeError> {
        let read = std::fs::read_to_string(file);
        let text = read.map_err(|e| RecipeError::Read { file: file.to_owned(), reason: e.to_string() })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut rows = Vec::new();
        for (line, text) in (1..).zip(text.split('\n')).filter(|(_, text)| !text.trim().is_empty()) {
            let at = || format!("{}:{line}", file.display());
            rows.push(row(text, config).map_err(|reason| RecipeError::Calibration { at: at(), reason })?);
        }
        if rows.is_empty() {
            let reason = "no rows to calibrate with; each line is {\"ids\": [...]}".to_owned();
            return Err(RecipeError::Calibration { at: file.display().to_string(), reason });
        }
        Ok(Calibration::new(rows, room))
    }

    /// These rows.
    #[must_use]
    pub fn new(rows: Vec<Vec<u32>>, room: f32) -> Calibration {
        let json = serde_json::to_string(&rows).expect("numbers can be written");
        let hash = blake3::hash(json.as_bytes()).to_hex().to_string();
        Calibration { rows, room, hash }
    }

    /// Tokens in all rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }
}

fn row(text: &str, config: &ModelConfig) -> Result<Vec<u32>, String> {
    const LINE: &str = "a line is an object such as {\"ids\": [1, 2, 3]}";
    let value: Value = serde_json::from_str(text).map_err(|_| format!("not JSON; {LINE}"))?;
    let object = value.as_object().ok_or(LINE)?;
    if let Some(key) = object.keys().find(|key| *key != "ids") {
        return Err(format!("unknown key `{key}`; {LINE}"));
    }
    let ids = object.get("ids").and_then(Value::as_array).ok_or(LINE)?;
    let id = |(index, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        match id.filter(|&id| (id as usize) < config.vocab) {
            Some(id) => Ok(id),
            None => Err(format!("`ids`[{index}] is {value}; an id is a whole number below {}", config.vocab)),
        }
    };
    let ids: Vec<u32> = ids.iter().enumerate().map(id).collect::<Result<_, String>>()?;
    let (len, max) = (ids.len(), config.max_positions);
    if len == 0 || len > max {
        return Err(format!("{len} ids; a row has 1 to {max}, the model's context"));
    }
    Ok(ids)
}
