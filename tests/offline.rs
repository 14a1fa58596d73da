//! Updates on the teacher's text before the on-policy ones.

mod common;

use std::path::{Path, PathBuf};

use common::{leeway, stderr, task_model};
use serde_json::Value;

fn run_file(root: &Path, name: &str, more: &str) -> (PathBuf, PathBuf) {
    let (file, out) = (root.join(format!("{name}.toml")), root.join(name));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 6\nseed = 5\n[task]\nname = \"copy\"\nlen_max = 5\n\
         [rollout]\nn = 2\nrecipe = \"kv8\"\n[train]\nbatch = 6\nlr = 3e-3\nwarmup = 0\n[eval]\nproblems = 8\nevery = 3\n\
         [checkpoint]\nevery = 2\n{more}"
    );
    std::fs::write(&file, text).expect("written");
    (file, out)
}

fn train(file: &Path, more: &[&str]) {
    let output = leeway().arg("train").arg(file).args(more).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn state(out: &Path) -> Vec<u8> {
    std::fs::read(out.join("checkpoints/000006/trainer.safetensors")).expect("written")
}

#[test]
fn the_first_updates_train_on_the_teachers_text() {
    let root = tempfile::tempdir().expect("a temporary folder");
    task_model(&root.path().join("student"), 0);
    task_model(&root.path().join("teacher"), 1);
    let mut weights = Vec::new();
    for loss in ["forward-kl", "sft"] {
        let table = format!("[offline]\nupdates = 3\nloss = \"{loss}\"\n");
        let (file, whole) = run_file(root.path(), loss, &table);
        train(&file, &["--threads", "2"]);
        let metrics = lines(&whole.join("metrics.jsonl"));
        let updates: Vec<&Value> = metrics.iter().filter(|line| line["update"].is_u64()).collect();
        assert_eq!(updates.len(), 6);
        let (student, teacher) = (&metrics[0]["origin"]["student"], &metrics[0]["origin"]["teacher"]);
        for (line, number) in updates.iter().zip(1_u64..) {
            let offline = number <= 3;
            assert_eq!(line["phase"] == "offline", offline, "{line}");
            for key in ["mismatch_nats", "k3"] {
                assert_eq!(line[key].is_null(), offline, "{key} of {line}");
            }
            assert!(line["kl_teacher"].as_f64() > Some(0.0) && line["kl_forward"].as_f64() > Some(0.0));
            assert_eq!(line["rollouts"], 12);
        }
        // On its text the dense loss is the forward KL itself, and cross-entropy has the teacher's entropy on top.
        let first = updates[0];
        if loss == "forward-kl" {
            assert_eq!(first["loss"], first["kl_forward"]);
        } else {
            assert!(first["loss"].as_f64() > first["kl_forward"].as_f64(), "{first}");
        }
        assert!(updates[2]["kl_forward"].as_f64() < updates[0]["kl_forward"].as_f64(), "{loss}: it learns");
        for line in lines(&whole.join("rollouts.jsonl")) {
            let by = if line["update"].as_u64() <= Some(3) { teacher } else { student };
            assert_eq!(&line["model"], by);
        }
        // Interrupted among them and after them, on other threads: the same weights.
        for kept in [2_u64, 4] {
            for later in (kept + 1)..=6 {
                drop(std::fs::remove_dir_all(whole.join(format!("checkpoints/{later:06}"))));
            }
            train(&file, &["--resume", "--threads", "1"]);
            assert_eq!(lines(&whole.join("metrics.jsonl")).iter().filter(|line| line["update"].is_u64()).count(), 6);
        }
        let (again, other) = run_file(root.path(), &format!("again-{loss}"), &table);
        train(&again, &[]);
        assert!(state(&whole) == state(&other), "{loss}: a resumed run has other weights");
        weights.push(state(&whole));
    }
    let (file, plain) = run_file(root.path(), "plain", "");
    train(&file, &[]);
    weights.push(state(&plain));
    assert!(weights[0] != weights[1] && weights[1] != weights[2] && weights[0] != weights[2], "three ways to train");
}
