//! The folder of a run: an earlier run is set aside, never mixed with or written over; a resumed one must be the same.

use std::fs;
use std::path::{Path, PathBuf};

use super::save::SaveError;
use crate::config::Config;

/// Keys that a resumed run may change: how far it goes and how it is watched, not what is computed on the way.
const FREE: [&str; 4] = ["updates", "eval", "checkpoint", "out"];

fn holds_run(out: &Path) -> bool {
    ["config.toml", "metrics.jsonl", "checkpoints"].iter().any(|name| out.join(name).exists())
}

/// The first of `models` that [`set_aside`] would move away with an earlier run in `out`.
#[must_use]
pub fn model_inside<'a>(out: &Path, models: [&'a Path; 2]) -> Option<&'a Path> {
    if !holds_run(out) {
        return None;
    }
    let out = out.canonicalize().ok()?;
    models.into_iter().find(|model| model.canonicalize().is_ok_and(|model| model.starts_with(&out)))
}

/// Moves a run that `out` holds to `out.1`, `out.2`, ... (the first name that is free) and returns where it went.
pub fn set_aside(out: &Path) -> Result<Option<PathBuf>, SaveError> {
    if !holds_run(out) {
        return Ok(None);
    }
    let aside = (1_u32..)
        .map(|n| {
            let mut name = out.as_os_str().to_owned();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        })
        .find(|path| !path.exists())
        .expect("some number is free");
    fs::rename(out, &aside).map_err(|source| SaveError::Io { path: out.to_owned(), source })?;
    Ok(Some(aside))
}

/// Whether `config` goes on with the run that `out` holds: everything that decides a bit must be as it was.
pub(super) fn check_same(config: &Config) -> Result<(), SaveError> {
    let path = config.out.join("config.toml");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SaveError::Io { path, source }),
    };
    let differs = |key: String| SaveError::AnotherRun { path: path.clone(), key };
    let before: toml::Table = text.parse().map_err(|_| differs("the whole file".into()))?;
    let now: toml::Table = config.to_toml().parse().expect("a resolved configuration is TOML");
    for key in before.keys().chain(now.keys()).filter(|key| !FREE.contains(&key.as_str())) {
        match (before.get(key), now.get(key)) {
            (Some(toml::Value::Table(a)), Some(toml::Value::Table(b))) => {
                if let Some(inner) = a.keys().chain(b.keys()).find(|inner| a.get(*inner) != b.get(*inner)) {
                    return Err(differs(format!("{key}.{inner}")));
                }
            }
            (a, b) if a != b => return Err(differs(key.clone())),
            _ => {}
        }
    }
    Ok(())
}
