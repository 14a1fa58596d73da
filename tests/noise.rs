//! Injected mismatch from run files: it reaches rollouts alone, D is held where it is told, a resumed run has the bits of
//! one that was never stopped, and without it no bit changes.

mod common;

use std::path::{Path, PathBuf};

use common::{leeway, stderr, task_model};
use serde_json::Value;

fn models(root: &Path) {
    for (seed, name) in (0..).zip(["student", "teacher"]) {
        task_model(&root.join(name), seed);
    }
}

fn run_file(root: &Path, name: &str, updates: u32, noise: &str) -> PathBuf {
    let file = root.join(format!("{name}.toml"));
    let text = format!(
        "student = 'student'\nteacher = 'teacher'\nupdates = {updates}\nout = {:?}\nseed = 5\n[task]\nname = 'copy'\n\
         len_max = 5\n{noise}\n[rollout]\nn = 4\n[train]\nbatch = 16\nlr = 5e-4\nwarmup = 0\n[eval]\nproblems = 4\n\
         every = 0\n",
        root.join(name)
    );
    std::fs::write(&file, text).expect("written");
    file
}

struct Trained {
    updates: Vec<Value>,
    result: Value,
    weights: Vec<u8>,
}

fn train(root: &Path, name: &str, updates: u32, noise: &str, words: &[&str]) -> Trained {
    let mut command = leeway();
    command.arg("--json").arg("train").arg(run_file(root, name, updates, noise)).args(words);
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{noise}: {}", stderr(&output));
    let text = std::fs::read_to_string(root.join(name).join("metrics.jsonl")).expect("written");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let state = root.join(name).join(format!("checkpoints/{updates:06}/trainer.safetensors"));
    Trained {
        updates: lines.filter(|line| line["update"].is_u64()).collect(),
        result: common::last_line(&output),
        weights: std::fs::read(state).expect("written"),
    }
}

fn d(line: &Value) -> f64 {
    line["mismatch_nats"].as_f64().unwrap_or_else(|| panic!("no D in {line}"))
}

const KINDS: [&str; 6] = [
    "[noise]\nkind = 'weights'\nsigma = 0.05",
    "[noise]\nkind = 'weights'\ndraw = 'frozen'\nnats = 0.05",
    "[noise]\nkind = 'norm-gains'\nnats = 0.02",
    "[noise]\nkind = 'logits'\nnats = 0.05",
    "[noise]\nkind = 'logits'\ndraw = 'frozen'\nsigma = 0.2",
    "[noise]\nkind = 'staleness'\nstaleness = 2",
];

#[test]
fn every_kind_disturbs_rollouts_and_resumes_with_the_same_bits() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let plain = train(dir.path(), "plain", 4, "", &[]);
    assert_eq!(plain.result["mismatch_nats"], 0.0);
    assert!(plain.updates.iter().all(|line| line.get("noise").is_none() && line["by_source"].get("noise").is_none()));
    for (i, noise) in KINDS.into_iter().enumerate() {
        let whole = train(dir.path(), &format!("whole{i}"), 4, noise, &[]);
        assert!(whole.weights != plain.weights, "{noise}: the same training");
        let name = format!("parts{i}");
        train(dir.path(), &name, 2, noise, &[]);
        let parts = train(dir.path(), &name, 4, noise, &["--resume"]);
        assert!(whole.weights == parts.weights, "{noise}: other weights after a resumption");
        for (a, b) in whole.updates.iter().zip(&parts.updates) {
            let of = |line: &Value| (d(line).to_bits(), line["noise"].clone(), line["by_source"].clone());
            assert_eq!(of(a), of(b), "{noise}");
            if noise.contains("staleness") {
                // Version 0 is its own first rollout; after that rollouts are behind.
                let source = &a["by_source"];
                assert_eq!((source["numerics"].as_f64(), a["noise"].is_null()), (Some(0.0), true), "{a}");
                assert_eq!(d(a) > 0.0, a["update"] != 1, "{a}");
                assert_eq!(source["staleness"].as_f64(), Some(d(a)), "{a}");
            } else {
                assert!(d(a) > 0.0 && a["noise"]["sigma"].as_f64().is_some_and(|sigma| sigma > 0.0), "{a}");
                assert_eq!(
                    (a["by_source"]["noise"].as_f64(), a["by_source"]["numerics"].as_f64()),
                    (Some(d(a)), Some(0.0))
                );
            }
        }
    }
}

/// The mean of D over the later half is the rung, for zero-mean and coherent noise, over two decades.
#[test]
fn the_closed_loop_holds_its_rung() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let cases = [
        ("weights", "fresh", 0.01),
        ("weights", "frozen", 0.01),
        ("weights", "fresh", 1.0),
        ("norm-gains", "fresh", 0.1),
        ("logits", "fresh", 0.1),
    ];
    for (i, (kind, draw, nats)) in cases.into_iter().enumerate() {
        let noise = format!("[noise]\nkind = '{kind}'\ndraw = '{draw}'\nnats = {nats}");
        let run = train(dir.path(), &format!("run{i}"), 24, &noise, &[]);
        let late = &run.updates[8..];
        #[allow(clippy::cast_precision_loss)] // a count
        let mean = late.iter().map(d).sum::<f64>() / late.len() as f64;
        println!("{kind}, {draw}: {mean:.4} for {nats}, first {:.4}", d(&run.updates[0]));
        assert!((mean / nats - 1.0).abs() < 0.15, "{kind}, {draw}: D is {mean} and was to be {nats}");
        assert!((d(&run.updates[0]) / nats - 1.0).abs() < 0.3, "{kind}, {draw}: it began at {}", run.updates[0]);
    }
    // Without the loop sigma stays what it was found to be.
    let run = train(dir.path(), "loose", 4, "[noise]\nnats = 0.05\nhold = false", &[]);
    let sigma = |line: &Value| line["noise"]["sigma"].as_f64().expect("a number").to_bits();
    assert!(run.updates.iter().all(|line| sigma(line) == sigma(&run.updates[0])), "sigma moved");
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let cases = [
        ("[noise]\nkind = 'weight'\nsigma = 1", "did you mean \"weights\""),
        ("[noise]\nsigmas = 1", "did you mean `noise.sigma`"),
        ("[noise]\nkind = 'logits'", "`noise.sigma` is missing; it must be set, or `noise.nats`"),
        ("[noise]\nsigma = 0.1\nnats = 0.1", "left out with `noise.nats`"),
        ("[noise]\nsigma = 0", "`noise.sigma` is 0; it must be more than 0"),
        ("[noise]\nsigma = 0.1\nhold = true", "`noise.hold`"),
        ("[noise]\nkind = 'staleness'\nstaleness = 0", "`noise.staleness` is 0; it must be at least 1"),
        ("[noise]\nkind = 'staleness'\nstaleness = 1\ndraw = 'fresh'", "`noise.draw`"),
        ("[noise]\nsigma = 0.1\nstaleness = 1", "`noise.staleness` is 1; it must be left out"),
        ("[noise]\nnats = 21", "1e-9 to 20"),
    ];
    for (noise, want) in cases {
        let output =
            leeway().arg("train").arg(run_file(dir.path(), "bad", 1, noise)).output().expect("the binary runs");
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(want) && said.contains("bad.toml:"), "{noise}: {said}");
    }
    let file = run_file(dir.path(), "bad", 1, "[noise]\nsigma = 0.1");
    let output = leeway().arg("train").arg(file).args(["--set", "schedule=async"]).output().expect("the binary runs");
    assert!(stderr(&output).contains("\"sync\" with `noise`"), "{}", stderr(&output));
}
