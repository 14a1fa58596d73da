//! Results: a line for each finished run, in a file that this process has alone. A line counts for whatever experiment asks
//! for the same run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Failure;

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// What it is known by: a hash of everything that it depends on.
    pub key: String,
    /// The experiment that made it.
    pub experiment: String,
    /// The arm.
    pub arm: String,
    /// The seed.
    pub seed: u64,
    /// `train`, `admit`, or the name of another command.
    pub command: String,
    /// What it printed.
    pub result: Value,
    /// Evaluations: update, accuracy, KL to the teacher, seconds in updates before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<Value>,
    /// Values by update.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<Value>>,
    /// Its exit status.
    pub exit: i32,
    /// Of a training that ended with one, the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds that it took.
    pub wall_s: f64,
    /// Threads that it had; 0 where that was not kept.
    #[serde(default)]
    pub threads: usize,
    /// How many runs were going on side by side, itself included; 0 where that was not kept.
    #[serde(default)]
    pub at_a_time: usize,
    /// The version that made it.
    pub leeway: String,
}

/// The lines of a file; one that was cut off is not there.
pub fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(format!("{}: {e}", path.display()).into()),
    };
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let line = |(number, text): (usize, &[u8])| {
        serde_json::from_slice(text).map_err(|e| {
            format!("{}:{number}: not a result ({e}); remove the line to run it again", path.display()).into()
        })
    };
    (1..).zip(bytes[..whole].split_inclusive(|&byte| byte == b'\n')).map(line).collect()
}

/// All lines of a folder's results, file by file.
pub fn all(folder: &Path) -> Result<Vec<Line>, Failure> {
    let results = folder.join("results");
    let Ok(entries) = fs::read_dir(&results) else { return Ok(Vec::new()) };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>, Failure>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        found.extend(read(&path)?);
    }
    Ok(found)
}

/// A file of results, open for more.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Opens a file, made if need be. A last line without its end was being written when a process died: it is dropped.
    pub fn open(path: &Path) -> Result<Writer, Failure> {
        let named = |e: std::io::Error| -> Failure { format!("{}: {e}", path.display()).into() };
        fs::create_dir_all(path.parent().expect("a file in a folder")).map_err(named)?;
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).map_err(named)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{}: this experiment is going on in another process", path.display()).into());
            }
            Err(TryLockError::Error(e)) => return Err(named(e)),
        }
        let bytes = fs::read(path).map_err(named)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(whole as u64).map_err(named)?;
        file.seek(SeekFrom::End(0)).map_err(named)?;
        Ok(Writer { path: path.to_owned(), file })
    }

    /// Keeps a run; it is on the disk when this returns.
    pub fn add(&mut self, line: &Line) -> Result<(), Failure> {
        let text = serde_json::to_string(line)? + "\n";
        let done = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|e| format!("{}: {e}", self.path.display()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str) -> Line {
        Line {
            key: key.to_owned(),
            experiment: "e".to_owned(),
            arm: "a".to_owned(),
            seed: 1,
            command: "train".to_owned(),
            result: serde_json::json!({"x": 1.0 / 3.0}),
            curve: Vec::new(),
            series: BTreeMap::new(),
            exit: 0,
            error: None,
            wall_s: 1.0,
            threads: 1,
            at_a_time: 2,
            leeway: "0".to_owned(),
        }
    }

    #[test]
    fn a_torn_line_is_lost_alone_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results/e.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        assert!(Writer::open(&path).unwrap_err().to_string().contains("another process"));
        writer.add(&line("a")).unwrap();
        writer.add(&line("b")).unwrap();
        drop(writer);
        let whole = fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let before = read(&path).unwrap().len();
            Writer::open(&path).unwrap().add(&line("c")).unwrap();
            let found = all(dir.path()).unwrap();
            assert_eq!((found.len(), found.iter().any(|line| line.key == "c")), (before + 1, true), "{len} bytes");
        }
        fs::write(&path, "{}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("e.jsonl:1: not a result"));
    }
}
