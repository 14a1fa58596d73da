//! The folder of a run: an earlier run is set aside, never mixed with or written over; a resumed one must be the same.

use std::fs;
use std::path::{Path, PathBuf};

use super::save::SaveError;
use crate::config::Config;

/// Keys that a resumed run may change: how far it goes and how it is watched, not what is computed on the way. (With a decay of
/// the learning rate, how far it goes is part of what is computed.)
const FREE: [&str; 6] = ["updates", "eval", "checkpoint", "dynamics", "wait_s", "out"];

fn holds_run(out: &Path) -> bool {
    ["config.toml", "metrics.jsonl", "checkpoints"].iter().any(|name| out.join(name).exists())
}

/// The first of `models` that [`prepare`] would move away with an earlier run in `out`.
#[must_use]
pub fn model_inside<'a>(out: &Path, models: impl IntoIterator<Item = &'a Path>) -> Option<&'a Path> {
    if !holds_run(out) {
        return None;
    }
    let out = out.canonicalize().ok()?;
    models.into_iter().find(|model| model.canonicalize().is_ok_and(|model| model.starts_with(&out)))
}

/// Keeps a run's folder to one process; given back when dropped, or when the process dies.
#[derive(Debug)]
pub struct FolderLock {
    _file: fs::File,
}

impl FolderLock {
    fn take(out: &Path) -> Result<FolderLock, SaveError> {
        let path = out.join(".lock");
        let io = |source| SaveError::Io { path: path.clone(), source };
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(SaveError::Busy { path: out.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(io(source)),
        }
    }
}

/// Takes the folder of a run that is to be gone on with, before anything in it is read or tidied: another process may be
/// writing there. None where there is no folder yet.
pub fn hold(out: &Path) -> Result<Option<FolderLock>, SaveError> {
    out.exists().then(|| FolderLock::take(out)).transpose()
}

/// Makes `out` the folder of this process's run, which may have been [`hold`]-ed to go on with the run there. A run that is not
/// gone on with is moved to `out.1`, `out.2`, ... (the first name that is free); where it went is returned too.
pub fn prepare(out: &Path, held: Option<FolderLock>) -> Result<(FolderLock, Option<PathBuf>), SaveError> {
    if out.join("config.json").exists() {
        return Err(SaveError::ModelFolder { path: out.to_owned() });
    }
    if let Some(lock) = held {
        return Ok((lock, None));
    }
    let io = |source| SaveError::Io { path: out.to_owned(), source };
    let mut aside = None;
    if holds_run(out) {
        let _nobody_writes = FolderLock::take(out)?;
        let free = (1_u32..)
            .map(|n| {
                let mut name = out.as_os_str().to_owned();
                name.push(format!(".{n}"));
                PathBuf::from(name)
            })
            .find(|path| !path.exists())
            .expect("some number is free");
        fs::rename(out, &free).map_err(io)?;
        aside = Some(free);
    }
    fs::create_dir_all(out).map_err(io)?;
    Ok((FolderLock::take(out)?, aside))
}

/// Whether `config` goes on with the run that `out` holds: everything that decides a bit must be as it was.
///
/// # Errors
/// The first key that differs, or a folder that cannot be read.
pub fn check_same(config: &Config) -> Result<(), SaveError> {
    let path = config.out.join("config.toml");
    match fs::read_to_string(&path) {
        // A run that was killed before it wrote anything.
        Ok(text) if text.is_empty() => return Ok(()),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SaveError::Io { path, source }),
    }
    let differs = |key: String| SaveError::AnotherRun { path: path.clone(), key };
    // Read as a run file, so that keys which are newer than the run have the defaults that it ran with.
    let before = Config::load(&path, &[]).map_err(|_| differs("the whole file".into()))?;
    let table =
        |config: &Config| -> toml::Table { config.to_toml().parse().expect("a resolved configuration is TOML") };
    let (before, now) = (table(&before), table(config));
    let free = |key: &str| FREE.contains(&key) && (key != "updates" || config.train.decay == 0);
    for key in before.keys().chain(now.keys()).filter(|key| !free(key)) {
        match (before.get(key), now.get(key)) {
            (Some(toml::Value::Table(a)), Some(toml::Value::Table(b))) => {
                let decides = |inner: &&String| !(key == "rollout" && *inner == "kv_memory");
                let mut inner = a.keys().chain(b.keys()).filter(decides);
                if let Some(inner) = inner.find(|inner| a.get(*inner) != b.get(*inner)) {
                    return Err(differs(format!("{key}.{inner}")));
                }
            }
            (a, b) if a != b => return Err(differs(key.clone())),
            _ => {}
        }
    }
    Ok(())
}
