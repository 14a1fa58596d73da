//! The models of experiments: made by commands with fixed seeds, so that any machine makes the same bits, and checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use engine::checkpoint::Checkpoint;
use serde::Deserialize;

use super::Failure;

/// `experiments/models.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    #[serde(rename = "model")]
    models: Vec<Model>,
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

/// Makes those of `wanted` that are not there.
pub fn make(folder: &Path, wanted: &[String]) -> Result<(), Failure> {
    if wanted.is_empty() {
        return Ok(());
    }
    let path = folder.join("models.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let Models { models } = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    for name in wanted {
        let Some(model) = models.iter().find(|model| model.name == *name) else {
            return Err(format!("{}: there is no model `{name}`", path.display()).into());
        };
        model.ready()?;
    }
    Ok(())
}

impl Model {
    fn ready(&self) -> Result<(), Failure> {
        let shown = self.out.display();
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
                let status = Command::new(std::env::current_exe()?).args(words).arg("--quiet").status()?;
                if !status.success() {
                    return Err(format!("{}: a command that makes it failed ({status})", self.name).into());
                }
            }
            std::fs::rename(&made, &self.out).map_err(|e| format!("{shown}: {e}; no command wrote {{out}}"))?;
            std::fs::remove_dir_all(&part)?;
        }
        let hash = Checkpoint::open(&self.out)?.model_hash();
        if hash == self.hash {
            return Ok(());
        }
        Err(format!(
            "{shown}: the model {} has hash {hash}, and models.toml says {}: remove the folder to make it again, or write the \
             new hash there if its commands changed",
            self.name, self.hash
        )
        .into())
    }
}
