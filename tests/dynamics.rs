//! What is measured around an update: a small step does what a straight line predicts, and watching changes nothing.

mod common;

use std::path::{Path, PathBuf};

use common::{leeway, stderr, task_model};
use serde_json::Value;

fn models(root: &Path) {
    task_model(&root.join("student"), 0);
    task_model(&root.join("teacher"), 1);
}

fn train(root: &Path, name: &str, text: &str) -> PathBuf {
    let (file, out) = (root.join(format!("{name}.toml")), root.join(name));
    let text = format!("student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nseed = 5\n{text}");
    std::fs::write(&file, text).expect("written");
    let output = leeway().arg("train").arg(&file).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    out
}

fn updates(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).expect("written");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["update"].is_u64()).collect()
}

fn number(line: &Value, key: &str) -> f64 {
    line["dynamics"][key].as_f64().unwrap_or_else(|| panic!("{key} of {line}"))
}

const TASK: &str = "[task]\nname = \"copy\"\nlen_max = 5\n[eval]\nproblems = 4\nevery = 0\n";

#[test]
fn a_small_step_converts_whole_and_a_large_one_does_not() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for loss in ["", "[loss]\nkind = \"jsd\"\n", "[loss]\ntarget = \"extrapolated\"\nlambda = 1.2\n"] {
        let run = |name: &str, lr: &str| {
            let text = format!(
                "updates = 3\n{TASK}{loss}[train]\nprecision = \"f32\"\nbatch = 8\nlr = {lr}\nwarmup = 0\n[dynamics]\n\
                 every = 1\nprompts = 6\ncontinuations = 3\n"
            );
            updates(&train(root.path(), name, &text))
        };
        let small = run("small", "1e-5");
        assert_eq!(small.len(), 3);
        for line in &small {
            // The second order of a step of 1e-5 on each of some 20,000 weights is a few percent of the first.
            let conversion = number(line, "conversion");
            assert!((conversion - 1.0).abs() < 0.05, "{loss}: {line}");
            assert!(number(line, "predicted") > 0.0);
            for key in ["kl_before", "kl_fixed", "kl_fresh"] {
                assert!(number(line, key) > 0.0, "{key}");
            }
            for key in ["fail_before", "fail_fixed", "fail_fresh", "probe_student_teacher", "probe_teacher_teacher"] {
                assert!((0.0..=1.0).contains(&number(line, key)), "{key}");
            }
            let fresh = 1.0 - number(line, "probe_student_student");
            assert!((number(line, "fail_fresh") - fresh).abs() < 1e-12);
        }
        let large = run("large", "3e-2");
        let conversions: Vec<f64> = large.iter().map(|line| number(line, "conversion")).collect();
        assert!(conversions.iter().any(|conversion| (conversion - 1.0).abs() > 0.2), "{loss}: {conversions:?}");
    }
}

/// The same weights with and without it, under each schedule whose bits do not depend on timing.
#[test]
fn watching_changes_nothing() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for (i, schedule) in ["\"sync\"", "{ steps_off = 1 }"].into_iter().enumerate() {
        let run = |name: &str, more: &str| {
            let text =
                format!("updates = 4\nschedule = {schedule}\n{TASK}[train]\nbatch = 6\nlr = 1e-3\nwarmup = 0\n{more}");
            let out = train(root.path(), &format!("{name}{i}"), &text);
            let state = std::fs::read(out.join("checkpoints/000004/trainer.safetensors")).expect("written");
            (updates(&out), state)
        };
        let (plain, watched) = (run("plain", ""), run("watched", "[dynamics]\nevery = 2\nprompts = 3\n"));
        assert!(plain.1 == watched.1, "{schedule}: the weights differ");
        assert!(plain.0.iter().all(|line| line.get("dynamics").is_none()));
        let seen: Vec<bool> = watched.0.iter().map(|line| line.get("dynamics").is_some()).collect();
        assert_eq!(seen, [false, true, false, true]);
    }
}

/// Without answers there are no right ends; a loss that is not what is differentiated predicts nothing.
#[test]
fn what_cannot_be_judged_is_null() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let prompts: String = (0..30).map(|i| format!("{{\"ids\": [1, {}, 7]}}\n", 3 + i % 9)).collect();
    std::fs::write(root.path().join("prompts.jsonl"), prompts).expect("written");
    let out = train(
        root.path(),
        "run",
        "updates = 1\n[task]\nprompts = \"prompts.jsonl\"\n[loss]\nkind = \"sampled\"\n[rollout]\nmax_tokens = 5\n[train]\n\
         batch = 4\n[eval]\nproblems = 2\nevery = 0\n[dynamics]\nevery = 1\n",
    );
    let lines = updates(&out);
    let dynamics = lines[0]["dynamics"].as_object().expect("an object");
    for (key, value) in dynamics {
        let null = ["actual", "conversion"].contains(&&key[..]) || key.starts_with("fail") || key.starts_with("probe");
        assert_eq!(value.is_null(), null, "{key}: {value}");
    }
}

/// The loss after a step is weighted as the one before it was.
#[test]
fn weighted_losses_are_compared_with_weighted_ones() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for weight in ["token-tis", "prefix-snis"] {
        let text = format!(
            "updates = 3\n{TASK}[loss]\nweight = \"{weight}\"\n[rollout]\nrecipe = \"fp8\"\n[train]\nprecision = \"f32\"\n\
             batch = 8\nlr = 1e-5\nwarmup = 0\n[dynamics]\nevery = 1\nprompts = 4\ncontinuations = 1\n"
        );
        for line in updates(&train(root.path(), weight, &text)) {
            assert!(line["weight"]["mean"] != 1.0, "the weights are not all one: {line}");
            let conversion = number(&line, "conversion");
            assert!((conversion - 1.0).abs() < 0.05, "{weight}: {line}");
        }
    }
}

/// More prompts than an update has sequences: what is measured is cut to what the caches hold.
#[test]
fn many_prompts_fit_in_small_caches() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let text = "updates = 1\n[task]\nname = \"modular-chain\"\ndepth = 6\n[eval]\nproblems = 4\nevery = 0\n[rollout]\nn = 1\n[train]\n\
                batch = 4\n[dynamics]\nevery = 1\nprompts = 200\ncontinuations = 1\n";
    let lines = updates(&train(root.path(), "many", text));
    assert!(number(&lines[0], "kl_fresh") > 0.0);
}
