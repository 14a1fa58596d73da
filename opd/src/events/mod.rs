//! A run's scalars as TensorBoard reads them: `out/events/events.out.tfevents.<second>.leeway.<process>`.
//!
//! The lines of `metrics.jsonl` are turned into scalars as they are, so that a new key there is a new curve here. The
//! crates that write these files bring image codecs or a protocol buffer runtime for what are two small functions.

mod proto;
mod record;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::clock::unix_s;
use proto::{What, event};

/// An event file that is being written.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: fs::File,
}

impl Events {
    /// Begins a new file in `out/events/`. A run that goes on gives its `updates` so far: steps after them in earlier
    /// files are void, and TensorBoard is told so.
    pub fn create(out: &Path, resumed: Option<u64>) -> io::Result<Events> {
        let dir = out.join("events");
        fs::create_dir_all(&dir)?;
        let second = unix_s();
        // TensorBoard reads the files of a folder by name, so later ones have larger names.
        let named = |n: u32| {
            dir.join(format!("events.out.tfevents.{:010.0}.leeway.{:010}.{n}", second.floor(), std::process::id()))
        };
        let path = (0..).map(named).find(|path| !path.exists()).expect("some number is free");
        let file = fs::OpenOptions::new().create_new(true).write(true).open(&path)?;
        let mut events = Events { path, file };
        events.add(event(second, 0, What::FileVersion))?;
        if let Some(updates) = resumed {
            events.add(event(second, updates + 1, What::Start))?;
        }
        Ok(events)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line of `metrics.jsonl`.
    pub fn line(&mut self, line: &Value) -> io::Result<()> {
        let (step, scalars) = scalars(line);
        self.add(event(unix_s(), step, What::Scalars(&scalars)))
    }

    fn add(&mut self, event: Vec<u8>) -> io::Result<()> {
        record::write(&mut self.file, &event)?;
        self.file.flush()
    }
}

/// Step and scalars of a line of `metrics.jsonl`, the narrowing to f32 being TensorBoard's. Numbers of an update are
/// `update/<key>`, those of an evaluation `eval/<key>`, those in an object `<object>/<key>`; a stage has `seconds/<stage>` and
/// `tokens_per_s/<stage>`.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // as said
pub fn scalars(line: &Value) -> (u64, Vec<(String, f32)>) {
    let (group, report) = match line.get("eval") {
        Some(report) => ("eval", report),
        None => ("update", line),
    };
    let step = report["update"].as_u64().unwrap_or(0);
    let tokens = report["tokens"].as_f64();
    let mut out = Vec::new();
    let mut add = |tag: String, value: f64| out.push((tag, value as f32));
    for (key, value) in report.as_object().into_iter().flatten() {
        match (value, value.as_f64()) {
            (Value::Object(inner), _) => {
                for (inner, value) in inner {
                    if let Some(value) = value.as_f64() {
                        add(format!("{key}/{inner}"), value);
                    }
                }
            }
            (_, Some(value)) => match key.strip_suffix("_s") {
                Some(stage) => {
                    add(format!("seconds/{stage}"), value);
                    if let Some(tokens) = tokens.filter(|_| value > 0.0) {
                        add(format!("tokens_per_s/{stage}"), tokens / value);
                    }
                }
                None if key == "update" || key == "version" => {}
                None => add(format!("{group}/{key}"), value),
            },
            _ => {}
        }
    }
    if let (Some(rollouts), Some(tokens)) = (report["rollouts"].as_f64().filter(|&n| n > 0.0), tokens) {
        add("update/length".to_owned(), tokens / rollouts);
        if let Some(correct) = report["correct"].as_f64() {
            add("update/accuracy".to_owned(), correct / rollouts);
        }
    }
    (step, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_becomes_scalars_by_group() {
        let line = json!({"update": 3, "version": 3, "loss": 0.5, "by_source": {"numerics": 0.25}, "tokens": 40,
            "rollouts": 8, "correct": 2, "teacher_s": 2.0, "sync_s": 0.0, "nothing": null});
        let (step, got) = scalars(&line);
        let mut got: Vec<(&str, f32)> = got.iter().map(|(tag, value)| (&tag[..], *value)).collect();
        got.sort_by(|a, b| a.0.cmp(b.0));
        let want = [
            ("by_source/numerics", 0.25),
            ("seconds/sync", 0.0),
            ("seconds/teacher", 2.0),
            ("tokens_per_s/teacher", 20.0),
            ("update/accuracy", 0.25),
            ("update/correct", 2.0),
            ("update/length", 5.0),
            ("update/loss", 0.5),
            ("update/rollouts", 8.0),
            ("update/tokens", 40.0),
        ];
        assert_eq!((step, &got[..]), (3, &want[..]));
        let (step, got) = scalars(&json!({"eval": {"update": 7, "accuracy": 0.5}, "origin": {"device": "cpu"}}));
        assert_eq!((step, got), (7, vec![("eval/accuracy".to_owned(), 0.5)]));
    }
}
