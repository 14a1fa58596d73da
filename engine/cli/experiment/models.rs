//! The models of experiments: made by commands with fixed seeds, so that any machine makes the same bits, and checked.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::checkpoint::Checkpoint;
use serde::Deserialize;

use super::Failure;

/// How often a command is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// `experiments/models.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    #[serde(default, rename = "model")]
    models: Vec<Model>,
    /// The file.
    #[serde(skip)]
    path: PathBuf,
}

/// A model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    /// Its folder, from the current folder.
    out: PathBuf,
    /// Words of `leeway`, one list a command; `{out}` is the folder.
    make: Vec<Vec<String>>,
    /// The hash that it has.
    hash: String,
}

impl Models {
    /// Those of a folder of experiments; none where it has no such file.
    pub fn open(folder: &Path) -> Result<Models, Failure> {
        let path = folder.join("models.toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let read: Models = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
                Ok(Models { path, ..read })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Models { path, ..Models::default() }),
            Err(e) => Err(format!("{}: {e}", path.display()).into()),
        }
    }

    /// Hashes that they have, by folder, whether they are made yet or not.
    pub fn hashes(&self) -> Result<impl Iterator<Item = (PathBuf, String)>, Failure> {
        let whole = |model: &Model| Ok((std::path::absolute(&model.out)?, model.hash.clone()));
        Ok(self.models.iter().map(whole).collect::<Result<Vec<_>, Failure>>()?.into_iter())
    }

    /// Makes those of `wanted` that are not there, until `stop`.
    pub fn make(&self, wanted: &[String], stop: &AtomicBool) -> Result<(), Failure> {
        for name in wanted {
            let Some(model) = self.models.iter().find(|model| model.name == *name) else {
                return Err(format!("{}: there is no model `{name}`", self.path.display()).into());
            };
            model.ready(stop)?;
        }
        // Runs are known by what the file says of a model, so that another in its place must not be trained.
        self.models
            .iter()
            .filter(|model| model.out.join("config.json").exists())
            .try_for_each(|model| model.check(&self.path))
    }
}

impl Model {
    fn ready(&self, stop: &AtomicBool) -> Result<(), Failure> {
        let shown = self.out.display();
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        // Another process that needs it waits for this one, and finds it made.
        let lock = File::create(self.out.with_extension("lock")).map_err(|e| format!("{shown}.lock: {e}"))?;
        lock.lock().map_err(|e| format!("{shown}.lock: {e}"))?;
        if !self.out.join("config.json").exists() {
            eprintln!("making the model {} in {shown}", self.name);
            // Whole or not at all: under another name until it is finished.
            let part = self.out.with_extension("part");
            if part.exists() {
                std::fs::remove_dir_all(&part)?;
            }
            std::fs::create_dir_all(&part)?;
            let made = part.join("made");
            for words in &self.make {
                let text = |path: &Path| path.to_string_lossy().into_owned();
                let (made, part) = (text(&made), text(&part));
                let words = words.iter().map(|word| word.replace("{out}", &made).replace("{part}", &part));
                self.command(words, stop)?;
            }
            std::fs::rename(&made, &self.out).map_err(|e| format!("{shown}: {e}; no command wrote {{out}}"))?;
            std::fs::remove_dir_all(&part)?;
        }
        Ok(())
    }

    fn check(&self, file: &Path) -> Result<(), Failure> {
        let hash = Checkpoint::open(&self.out)?.model_hash();
        if hash == self.hash {
            return Ok(());
        }
        Err(format!(
            "{}: the model {} has hash {hash}, and {} says {}: remove the folder to make it again, or write the new hash there \
             if its commands changed",
            self.out.display(),
            self.name,
            file.display(),
            self.hash
        )
        .into())
    }

    fn command(&self, words: impl Iterator<Item = String>, stop: &AtomicBool) -> Result<(), Failure> {
        let mut child = Command::new(std::env::current_exe()?).args(words).arg("--quiet").spawn()?;
        loop {
            let status = child.try_wait()?;
            if stop.load(Ordering::Relaxed) {
                child.kill()?;
                child.wait()?;
                return Err(format!("{}: stopped before it was made", self.name).into());
            }
            match status {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{}: a command that makes it failed ({status})", self.name).into()),
                None => std::thread::sleep(LOOK),
            }
        }
    }
}
