//! Measurements on the disk, a line each, so that whatever ends the process loses at most the one in work.
//!
//! The first line says what was measured on what. A measurement is known by the hashes of the recipe measured and of the
//! one it was measured against, so it serves wherever the two come up again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::meter::Sum;

/// Its name in the folder.
pub const STATE: &str = "state.jsonl";

/// Why measurements cannot be kept or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        source: std::io::Error,
    },
    /// Another process writes there.
    #[error("{}: another process is tuning there; wait for it, or give another folder", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The folder holds measurements of something else.
    #[error("{}: these measurements were made otherwise: {difference}; give another --out, or what was given then", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs, as `key was .. and is ..`.
        difference: String,
    },
    /// A line is no measurement.
    #[error("{}:{line}: not a measurement; give another --out, or remove the file to measure again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The measurements of a folder; its file is this process's alone.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    file: File,
    held: HashMap<[String; 2], Vec<Sum>>, // by reference and recipe
}

impl State {
    /// Opens the folder `out`, made if need be, for measurements under `header`. A last line that was cut off is dropped.
    pub fn open(out: &Path, header: &Map<String, Value>) -> Result<State, StateError> {
        let path = out.join(STATE);
        let io = |source| StateError::Io { path: path.clone(), source };
        fs::create_dir_all(out).map_err(io)?;
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StateError::Busy { path }),
            Err(fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let bytes = fs::read(&path).map_err(io)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        // A header without measurements binds nobody.
        let lines = bytes[..whole].iter().filter(|&&byte| byte == b'\n').count();
        let whole = if lines == 1 { 0 } else { whole };
        file.set_len(whole as u64).map_err(io)?;
        let mut state = State { path, file, held: HashMap::new() };
        for (line, bytes) in (1..).zip(bytes[..whole].split_inclusive(|&byte| byte == b'\n')) {
            let value = serde_json::from_slice::<Value>(bytes).ok();
            let damaged = || StateError::Damaged { path: state.path.clone(), line };
            let value = value.ok_or_else(damaged)?;
            if line == 1 {
                let before = value.as_object().ok_or_else(damaged)?;
                if let Some(difference) = difference(before, header) {
                    return Err(StateError::Other { path: state.path, difference });
                }
            } else {
                let (recipes, sums) = measurement(&value).ok_or_else(damaged)?;
                state.held.insert(recipes, sums);
            }
        }
        state.file.seek(SeekFrom::End(0)).map_err(|source| StateError::Io { path: state.path.clone(), source })?;
        if whole == 0 {
            state.line(&Value::Object(header.clone()))?;
        }
        Ok(state)
    }

    /// The measurement of one recipe against another, both by their hashes.
    #[must_use]
    pub fn get(&self, reference: &str, recipe: &str) -> Option<&[Sum]> {
        self.held.get(&[reference.to_owned(), recipe.to_owned()]).map(Vec::as_slice)
    }

    /// Whether nothing was measured yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Keeps a measurement; it is on the disk when this returns. `name` is for people.
    pub fn add(&mut self, name: &str, reference: &str, recipe: &str, sums: Vec<Sum>) -> Result<(), StateError> {
        let clusters: Vec<(f64, u64)> = sums.iter().map(|sum| (sum.nats, sum.tokens)).collect();
        self.line(&json!({"name": name, "reference": reference, "recipe": recipe, "clusters": clusters}))?;
        self.held.insert([reference.to_owned(), recipe.to_owned()], sums);
        Ok(())
    }

    fn line(&mut self, value: &Value) -> Result<(), StateError> {
        let done = self.file.write_all(format!("{value}\n").as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|source| StateError::Io { path: self.path.clone(), source })
    }
}

fn difference(before: &Map<String, Value>, now: &Map<String, Value>) -> Option<String> {
    let keys = now.keys().chain(before.keys().filter(|key| !now.contains_key(*key)));
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let differs = keys.filter(|key| before.get(*key) != now.get(*key));
    let all: Vec<String> =
        differs.map(|key| format!("`{key}` was {} and is {}", shown(before.get(key)), shown(now.get(key)))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn measurement(value: &Value) -> Option<([String; 2], Vec<Sum>)> {
    let clusters: Vec<(f64, u64)> = serde_json::from_value(value["clusters"].clone()).ok()?;
    let sums = clusters.into_iter().map(|(nats, tokens)| Sum { nats, tokens }).collect();
    Some(([value["reference"].as_str()?.to_owned(), value["recipe"].as_str()?.to_owned()], sums))
}

/// Writes a file under its name only when it is whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(model: &str) -> Map<String, Value> {
        json!({"format": 1, "model": model, "seed": 3}).as_object().unwrap().clone()
    }

    fn sums(nats: f64) -> Vec<Sum> {
        vec![Sum { nats, tokens: 2 }, Sum { nats: 1.0 / 3.0, tokens: 7 }]
    }

    /// Cut off anywhere, the file gives every measurement whose line is whole, and takes further ones.
    #[test]
    fn a_torn_line_is_lost_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::open(dir.path(), &header("a")).unwrap();
        state.add("one", "r", "h1", sums(1e-300)).unwrap();
        state.add("two", "r", "h2", sums(0.1)).unwrap();
        drop(state);
        assert_eq!(State::open(dir.path(), &header("a")).unwrap().get("h1", "r"), None, "against another reference");
        let path = dir.path().join(STATE);
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').map(|at| at + 1).collect();
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let mut state = State::open(dir.path(), &header("a")).unwrap();
            assert_eq!(state.get("r", "h1"), (len >= ends[1]).then_some(&sums(1e-300)[..]), "{len} bytes");
            assert_eq!(state.get("r", "h2").is_some(), len >= ends[2], "{len} bytes");
            state.add("two", "r", "h2", sums(0.2)).unwrap();
            drop(state);
            assert_eq!(
                State::open(dir.path(), &header("a")).unwrap().get("r", "h2"),
                Some(&sums(0.2)[..]),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn other_settings_and_damage_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::open(dir.path(), &header("a")).unwrap();
        let busy = State::open(dir.path(), &header("a")).unwrap_err();
        assert!(matches!(busy, StateError::Busy { .. }), "{busy}");
        state.add("one", "r", "h1", sums(1.0)).unwrap();
        drop(state);
        let mut other = header("b");
        other.remove("seed");
        let error = State::open(dir.path(), &other).unwrap_err().to_string();
        assert!(error.contains("`model` was \"a\" and is \"b\", `seed` was 3 and is absent"), "{error}");
        let path = dir.path().join(STATE);
        let text = fs::read_to_string(&path).unwrap().replace("clusters", "cluster") + "{}\n";
        fs::write(&path, text).unwrap();
        let error = State::open(dir.path(), &header("a")).unwrap_err().to_string();
        assert!(error.contains("state.jsonl:2: not a measurement"), "{error}");
    }
}
