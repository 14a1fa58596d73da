//! Finished runs on the disk, a line each: whatever ends the process loses at most the runs in work.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::run::{Record, Task};

/// Its name in the folder.
pub const RUNS: &str = "runs.jsonl";

/// Why runs cannot be kept or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        source: std::io::Error,
    },
    /// Another process writes there.
    #[error("{}: another calibration is going on there; wait for it, or set `out` to another folder", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A line is no run.
    #[error("{}:{line}: not a run ({what}); remove the line to make that run again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// The runs of a folder; its file is this process's alone.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
    torn: bool,
}

impl Store {
    /// Opens the folder `out`, made if need be. A last line without its end was being written when a process died: it is
    /// dropped.
    pub fn open(out: &Path) -> Result<Store, StoreError> {
        let path = out.join(RUNS);
        let io = |source| StoreError::Io { path: path.clone(), source };
        fs::create_dir_all(out).map_err(io)?;
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Busy { path }),
            Err(fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let bytes = fs::read(&path).map_err(io)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let torn = whole < bytes.len();
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut records = Vec::new();
        for (line, bytes) in (1..).zip(bytes[..whole].split_inclusive(|&byte| byte == b'\n')) {
            let record = serde_json::from_slice(bytes);
            let damaged = |e: serde_json::Error| StoreError::Damaged { path: path.clone(), line, what: e.to_string() };
            records.push(record.map_err(damaged)?);
        }
        Ok(Store { path, file, records, torn })
    }

    /// The record of a run, if it was made.
    #[must_use]
    pub fn get(&self, config: &str, task: &Task) -> Option<&Record> {
        self.records.iter().find(|record| record.is_of(config, task))
    }

    /// Runs that were made under another configuration.
    #[must_use]
    pub fn others(&self, config: &str) -> usize {
        self.records.iter().filter(|record| record.config != config).count()
    }

    /// Whether a line was dropped.
    #[must_use]
    pub fn torn(&self) -> bool {
        self.torn
    }

    /// Keeps a run; it is on the disk when this returns.
    pub fn add(&mut self, record: Record) -> Result<(), StoreError> {
        let line = serde_json::to_string(&record).expect("plain data") + "\n";
        let done = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|source| StoreError::Io { path: self.path.clone(), source })?;
        self.records.push(record);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::run::Role;
    use super::*;

    pub fn record(role: Role, seed: u64, target_nats: Option<f64>) -> Record {
        Record {
            config: "c".to_owned(),
            role,
            family: target_nats.map(|_| super::super::run::Family::Coherent),
            target_nats,
            seed,
            accuracy_before: None,
            accuracy_after: Some(1.0 / 3.0),
            kl_teacher_before: None,
            kl_teacher_after: 0.1,
            d_nats: 1e-300,
            d_early_nats: 0.1,
            d_late_nats: 0.2,
            sigma_first: None,
            sigma_last: None,
            drift: None,
            wall_s: 1.0,
        }
    }

    fn task(record: &Record) -> Task {
        Task { role: record.role, family: record.family, target_nats: record.target_nats, seed: record.seed }
    }

    /// Cut off anywhere, the file gives every run whose line is whole, says whether one was cut, and takes further ones.
    #[test]
    fn a_torn_line_is_lost_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (record(Role::Baseline, 0, None), record(Role::Rung, 1, Some(0.1)));
        let mut store = Store::open(dir.path()).unwrap();
        store.add(a.clone()).unwrap();
        store.add(b.clone()).unwrap();
        drop(store);
        let path = dir.path().join(RUNS);
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let mut store = Store::open(dir.path()).unwrap();
            assert_eq!(store.torn(), len != 0 && len != first && len != whole.len(), "{len} bytes");
            assert_eq!(store.get("c", &task(&a)), (len >= first).then_some(&a), "{len} bytes");
            assert_eq!(store.get("c", &task(&b)), (len >= whole.len()).then_some(&b), "{len} bytes");
            store.add(b.clone()).unwrap();
            drop(store);
            assert_eq!(Store::open(dir.path()).unwrap().get("c", &task(&b)), Some(&b), "{len} bytes");
        }
    }

    #[test]
    fn runs_are_told_apart_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let rung = record(Role::Rung, 1, Some(0.1));
        let mut store = Store::open(dir.path()).unwrap();
        assert!(matches!(Store::open(dir.path()).unwrap_err(), StoreError::Busy { .. }));
        store.add(rung.clone()).unwrap();
        let task = task(&rung);
        for other in [
            Task { seed: 2, ..task },
            Task { role: Role::Growth, ..task },
            Task { target_nats: Some(0.3), ..task },
            Task { family: Some(super::super::run::Family::ZeroMean), ..task },
        ] {
            assert_eq!(store.get("c", &other), None, "{other:?}");
        }
        assert_eq!((store.get("d", &task), store.others("d"), store.others("c")), (None, 1, 0));
        drop(store);
        let path = dir.path().join(RUNS);
        let text = fs::read_to_string(&path).unwrap() + "{\"config\": 3}\n";
        fs::write(&path, text).unwrap();
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("runs.jsonl:2: not a run"), "{error}");
    }
}
