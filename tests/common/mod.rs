//! What the integration tests share: small models in temporary folders, and the built binary.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engine::checkpoint::Checkpoint;
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use ptx::Cpu;
use serde_json::Value;
use tempfile::TempDir;

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A copy of a tiny model of tests/golden, its `config.json` changed: biases and gains there are off their defaults, so
/// that a forgotten one shows.
pub fn golden_copy(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let (from, to) = (repository("tests/golden").join(name), tempfile::tempdir().expect("a temporary folder"));
    for file in ["generation_config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.path().join(file)).expect("the fixture is committed");
    }
    let text = std::fs::read_to_string(from.join("config.json")).expect("the fixture is committed");
    let mut config = serde_json::from_str(&text).expect("JSON");
    change(&mut config);
    std::fs::write(to.path().join("config.json"), config.to_string()).expect("written");
    to
}

/// Loads a folder under a recipe: a built-in name, or a file.
pub fn load(cpu: &Cpu, dir: &Path, recipe: &str) -> Model {
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    let recipe = Recipe::open(recipe, Precision::F32, checkpoint.config()).unwrap_or_else(|e| panic!("{e}"));
    Model::load(cpu, &checkpoint, recipe).unwrap_or_else(|e| panic!("{e}"))
}

/// A recipe file with every format that a built-in recipe lacks.
pub fn mixed() -> String {
    repository("tests/fixtures/recipe.toml").to_str().expect("Unicode").to_owned()
}

/// The binary, not yet started.
pub fn leeway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leeway"));
    command.args(["--quiet", "--threads", "2"]);
    command
}

/// Runs the binary with some words.
pub fn run<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    leeway().args(words).output().expect("the binary runs")
}

/// Runs the binary, which must succeed, and returns the object on the last line of its output.
pub fn run_json<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Value {
    let output = leeway().arg("--json").args(words).output().expect("the binary runs");
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    last_line(&output)
}

/// The object on the last line of standard output.
pub fn last_line(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_else(|| panic!("no output; {}", stderr(output)));
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a model of the built-in tasks' vocabulary with `leeway init`.
pub fn task_model(dir: &Path, seed: u32) {
    let seed = seed.to_string();
    let mut words = vec!["init", "--tasks", "--layers", "2", "--hidden", "32", "--head-dim", "16", "--heads", "2"];
    words.extend(["--kv-heads", "1", "--ffn", "64", "--std", "0.2", "--seed", &seed]);
    let output = leeway().args(words).arg("--out").arg(dir).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
}
