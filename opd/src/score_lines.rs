//! Rows to score from a JSONL file: one object a line, with
//!
//! * `ids` or `prompt_ids`: token ids;
//! * perhaps `candidates`: for each id but the first a list of ids, perhaps empty, whose logprobs in its place are asked
//!   for as well. List i stands for id i + 1, as `logprobs[i]` of the result does;
//! * perhaps `temperature`: that of this row.
//!
//! Lines are read as prompts are ([`crate::prompts`]), and what is wrong is an error that names file and line.

use std::path::Path;

use ptx::ops::sample::Params;
use serde_json::{Map, Value};

use crate::prompts::{self, PromptError, Source, id_list, kind, not_misspelt};

/// One row to score.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreLine {
    /// The ids, at least one.
    pub ids: Vec<u32>,
    /// Per id but the first, the ids whose logprobs are asked for in its place.
    pub candidates: Option<Vec<Vec<u32>>>,
    /// The row's own temperature.
    pub temperature: Option<f32>,
    /// The line it stands on, from 1.
    pub line: usize,
}

/// Reads a file of rows for a model with the ids 0..`valid`. Candidates are held to that; a row's own ids are not, so
/// that one bad row is the scorer's to refuse.
///
/// # Errors
/// When it cannot be read, has no rows, or one line is wrong.
pub fn read(file: &Path, valid: usize) -> Result<Vec<ScoreLine>, PromptError> {
    parse(file, &prompts::bytes(file)?, valid)
}

/// As [`read`], from the bytes of a file, which is only named.
///
/// # Errors
/// When there are no rows, or one line is wrong.
pub fn parse(file: &Path, bytes: &[u8], valid: usize) -> Result<Vec<ScoreLine>, PromptError> {
    prompts::objects(file, bytes, |line, object| {
        let Source::Ids(ids) = prompts::source(object)? else {
            return Err("--ids takes lines {\"ids\": [...]}; use --prompts for text".to_owned());
        };
        let candidates = match object.get("candidates") {
            Some(value) => Some(candidates(value, ids.len(), valid)?),
            None => not_misspelt(object, "candidates").map(|()| None)?,
        };
        Ok(ScoreLine { ids, candidates, temperature: temperature(object)?, line })
    })
}

fn candidates(value: &Value, ids: usize, valid: usize) -> Result<Vec<Vec<u32>>, String> {
    let Value::Array(lists) = value else {
        return Err(format!("`candidates` is {}; it must be a list of lists of token ids", kind(value)));
    };
    let want = ids - 1;
    if lists.len() != want {
        return Err(format!(
            "`candidates` has {} lists; {ids} ids take {want}, one for each id but the first ([] where none is wanted)",
            lists.len()
        ));
    }
    let list = |(at, list): (usize, &Value)| {
        let key = format!("candidates[{at}]");
        let Value::Array(list) = list else {
            return Err(format!("`{key}` is {}; it must be a list of token ids", kind(list)));
        };
        let ids = id_list(&key, list)?;
        match ids.iter().position(|&id| id as usize >= valid) {
            Some(i) => Err(format!("`{key}[{i}]` is id {}; the model has ids 0..{valid}", ids[i])),
            None => Ok(ids),
        }
    };
    lists.iter().enumerate().map(list).collect()
}

fn temperature(object: &Map<String, Value>) -> Result<Option<f32>, String> {
    let Some(value) = object.get("temperature") else {
        return not_misspelt(object, "temperature").map(|()| None);
    };
    #[allow(clippy::cast_possible_truncation)] // rounding is meant
    match value.as_f64().map(|temperature| temperature as f32) {
        Some(temperature) if temperature.is_finite() && temperature >= Params::TEMPERATURE_MIN => Ok(Some(temperature)),
        _ => Err(format!("`temperature` is {value}; scoring needs a positive number, at least 1e-6")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<ScoreLine>, String> {
        parse(Path::new("s.jsonl"), text.as_bytes(), 10).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_is_read() {
        let text = "{\"ids\": [1, 99], \"note\": \"x\"}\n\
            \n{\"prompt_ids\": [1, 2, 3], \"candidates\": [[], [4, 9, 4]], \"temperature\": 0.5}\n\
            {\"ids\": [7], \"candidates\": [], \"temperature\": 2}\n";
        let line =
            |ids: &[u32], candidates, temperature, line| ScoreLine { ids: ids.into(), candidates, temperature, line };
        let want = [
            line(&[1, 99], None, None, 1),
            line(&[1, 2, 3], Some(vec![vec![], vec![4, 9, 4]]), Some(0.5), 3),
            line(&[7], Some(vec![]), Some(2.0), 4),
        ];
        assert_eq!(parsed(text).unwrap(), want);
    }

    #[test]
    fn errors_say_where_and_what() {
        let cases = [
            (
                r#""candidates": [[1]]"#,
                "`candidates` has 1 lists; 3 ids take 2, one for each id but the first ([] where none is wanted)",
            ),
            (
                r#""candidates": [[1], [2], [3]]"#,
                "`candidates` has 3 lists; 3 ids take 2, one for each id but the first ([] where none is wanted)",
            ),
            (r#""candidates": [[1], [9, 10]]"#, "`candidates[1][1]` is id 10; the model has ids 0..10"),
            (r#""candidates": [[1], [-1]]"#, "`candidates[1][0]` is -1; a token id is a whole number from 0"),
            (r#""candidates": [[1], 2]"#, "`candidates[1]` is a number; it must be a list of token ids"),
            (r#""candidates": null"#, "`candidates` is null; it must be a list of lists of token ids"),
            (r#""candidate": [[1], [2]]"#, "`candidate`: did you mean `candidates`?"),
            (r#""temperature": 0"#, "`temperature` is 0; scoring needs a positive number, at least 1e-6"),
            (r#""temperature": -0.5"#, "`temperature` is -0.5; scoring needs a positive number, at least 1e-6"),
            (r#""temperature": 1e40"#, "`temperature` is 1e+40; scoring needs a positive number, at least 1e-6"),
            (r#""temperature": "1""#, "`temperature` is \"1\"; scoring needs a positive number, at least 1e-6"),
            (r#""temperatur": 1"#, "`temperatur`: did you mean `temperature`?"),
        ];
        for (keys, want) in cases {
            let text = format!("{{\"ids\": [1]}}\n{{\"ids\": [1, 2, 3], {keys}}}\n");
            assert_eq!(parsed(&text).unwrap_err(), format!("s.jsonl:2: {want}"));
        }
        let text = parsed("{\"prompt\": \"x\"}").unwrap_err();
        assert_eq!(text, "s.jsonl:1: --ids takes lines {\"ids\": [...]}; use --prompts for text");
        assert_eq!(parsed("{\"ids\": []}").unwrap_err(), "s.jsonl:1: `ids` is empty");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none.jsonl");
        assert!(matches!(read(&file, 10), Err(PromptError::Read { .. })));
        std::fs::write(&file, "{\"ids\": [3]}").unwrap();
        assert_eq!(read(&file, 10).unwrap()[0].ids, [3]);
    }
}
