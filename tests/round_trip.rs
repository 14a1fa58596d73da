//! What training writes: a checkpoint that opens to the same bits, and a run that ends at the same bits when it was
//! killed on the way.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{leeway, stderr, task_model};
use serde_json::Value;

const UPDATES: u64 = 6;

/// A run whose updates take long enough to be interrupted.
fn run_file(root: &Path, name: &str, precision: &str, batch: u32) -> (PathBuf, PathBuf) {
    let (file, out) = (root.join(format!("{name}.toml")), root.join(name));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = {UPDATES}\nseed = 5\n\
         [task]\nname = \"modular-chain\"\ndepth = 6\n[rollout]\nn = 4\n[train]\nprecision = \"{precision}\"\n\
         batch = {batch}\nlr = 1e-3\nwarmup = 2\n[eval]\nproblems = 8\nevery = 2\n[checkpoint]\nevery = 3\n"
    );
    std::fs::write(&file, text).expect("written");
    (file, out)
}

fn models(root: &Path) {
    task_model(&root.join("student"), 0);
    task_model(&root.join("teacher"), 1);
}

fn train(file: &Path, more: &[&str]) {
    let output = leeway().arg("train").arg(file).args(more).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Bytes of the checkpoint after `update`: the model and the trainer's state.
fn checkpoint(out: &Path, update: u64) -> [Vec<u8>; 2] {
    let dir = out.join("checkpoints").join(format!("{update:06}"));
    ["model.safetensors", "trainer.safetensors"]
        .map(|file| std::fs::read(dir.join(file)).unwrap_or_else(|e| panic!("{file} of {}: {e}", dir.display())))
}

/// The log of a run without what depends on the clock.
fn timeless(out: &Path) -> Vec<Value> {
    let mut all = lines(&out.join("metrics.jsonl"));
    for line in &mut all {
        line.as_object_mut().expect("an object").retain(|key, _| !key.ends_with("_s"));
    }
    all
}

/// Starts a run and kills it once its log has `updates` updates and `more` holds.
fn killed(file: &Path, out: &Path, updates: usize, more: impl Fn() -> bool) {
    let mut child = leeway()
        .arg("train")
        .arg(file)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let log = out.join("metrics.jsonl");
    loop {
        let done = lines(&log).iter().filter(|line| line.get("update").is_some()).count();
        if done >= updates && more() {
            break;
        }
        assert!(child.try_wait().expect("the system knows its child").is_none(), "the run ended before it was killed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().expect("it runs"); // SIGKILL: nothing of the program's own runs any more
    child.wait().expect("it is gone");
    assert!(!out.join("checkpoints").join(format!("{UPDATES:06}")).exists(), "killed in time");
}

#[test]
fn a_killed_run_ends_at_the_same_bits() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, whole) = run_file(root.path(), "whole", "bf16", 24);
    train(&file, &[]);
    let want = checkpoint(&whole, UPDATES);
    let rollouts = std::fs::read(whole.join("rollouts.jsonl")).expect("written");
    let checks = ["early", "late"];
    for name in checks {
        let (file, out) = run_file(root.path(), name, "bf16", 24);
        let third = out.join("checkpoints/000003");
        if name == "early" {
            // Before there is any checkpoint: the run begins again.
            killed(&file, &out, 1, || true);
            assert!(!third.exists());
        } else {
            // Between two checkpoints: update 4 is in the log and is done again.
            killed(&file, &out, 4, || true);
            assert!(third.join("trainer.json").exists());
            // What an interruption while writing leaves behind is passed over: an unnamed folder, a damaged state.
            std::fs::create_dir(out.join("checkpoints/.000004.x")).expect("made");
            let damaged = out.join("checkpoints/000005");
            std::fs::create_dir(&damaged).expect("made");
            std::fs::copy(third.join("trainer.json"), damaged.join("trainer.json")).expect("copied");
            std::fs::write(damaged.join("trainer.safetensors"), "half").expect("written");
            // So is one under a number that is written again: it is replaced.
            let last = out.join(format!("checkpoints/{UPDATES:06}"));
            std::fs::create_dir(&last).expect("made");
            for file in ["config.json", "model.safetensors", "trainer.json"] {
                std::fs::copy(third.join(file), last.join(file)).expect("copied");
            }
            std::fs::write(last.join("trainer.safetensors"), "half").expect("written");
            // And the last line of a log may be torn.
            let log = std::fs::OpenOptions::new().append(true).open(out.join("metrics.jsonl"));
            std::io::Write::write_all(&mut log.expect("opens"), b"{\"update\": 5, \"los").expect("written");
        }
        train(&file, &["--resume"]);
        assert!(checkpoint(&out, UPDATES) == want, "{name}: model or state differ");
        assert!(std::fs::read(out.join("rollouts.jsonl")).expect("written") == rollouts, "{name}: rollouts differ");
        assert_eq!(timeless(&out), timeless(&whole), "{name}");
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for line in lines(&out.join("metrics.jsonl")) {
            line["update"].as_u64().into_iter().for_each(|update| *times.entry(update).or_default() += 1);
        }
        assert_eq!(times, (1..=UPDATES).map(|update| (update, 1)).collect(), "{name}: each update once");
    }
}

#[test]
fn a_checkpoint_opens_to_the_same_bits() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for precision in ["f32", "bf16"] {
        let (file, out) = run_file(root.path(), precision, precision, 2);
        train(&file, &[]);
        let [model, state] = checkpoint(&out, UPDATES);
        let model = safetensors::SafeTensors::deserialize(&model).expect("sound");
        let state = safetensors::SafeTensors::deserialize(&state).expect("sound");
        let dir = out.join(format!("checkpoints/{UPDATES:06}"));
        let opened = engine::checkpoint::Checkpoint::open(&dir).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(model.len(), opened.tensors().len());
        let mut moved = 0;
        let start = engine::checkpoint::Checkpoint::open(&root.path().join("student")).expect("opens");
        for tensor in opened.tensors() {
            let mut values = vec![0.0; tensor.shape.iter().product()];
            opened.read_rows(&tensor.name, 0, tensor.shape[0], &mut values).expect("finite");
            let master = state.tensor(&format!("weights.{}", tensor.name)).expect("every weight has its master");
            let master = master.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            for (at, (value, master)) in values.iter().zip(master).enumerate() {
                let want = if precision == "f32" {
                    master
                } else {
                    ptx::dtype::bf16_to_f32(ptx::dtype::bf16_from_f32(master))
                };
                assert_eq!(value.to_bits(), want.to_bits(), "{precision}: {}[{at}]", tensor.name);
            }
            let mut before = vec![0.0; values.len()];
            start.read_rows(&tensor.name, 0, tensor.shape[0], &mut before).expect("finite");
            moved += u32::from(before != values);
        }
        assert!(moved > 5, "training moved the weights");
        // The folder is a model like any other, tokenizer included.
        let again =
            common::run_json(["generate", "--prompt", "1+2=", "--max-tokens", "3", "--model", dir.to_str().unwrap()]);
        assert_eq!(again["model"], opened.model_hash());
    }
}

/// A run that is being written is not tidied by one that wants to go on with it.
#[test]
fn resuming_a_run_that_goes_on_touches_nothing() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, out) = run_file(root.path(), "busy", "bf16", 24);
    let under_way = out.join("checkpoints/.000003.x");
    std::fs::create_dir_all(&under_way).expect("made");
    std::fs::write(under_way.join("trainer.safetensors"), "being written").expect("written");
    let lock = std::fs::File::create(out.join(".lock")).expect("made");
    lock.try_lock().expect("nobody else has it");
    let resume = || leeway().args(["train", "--resume"]).arg(&file).output().expect("the binary runs");
    let output = resume();
    assert!(!output.status.success() && stderr(&output).contains("busy"), "{}", stderr(&output));
    assert!(under_way.join("trainer.safetensors").exists(), "it belongs to the other run");
    drop(lock);
    let output = resume();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!under_way.exists(), "nobody writes it any more");
}
