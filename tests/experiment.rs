//! Experiments as files: what is missing is run, once; what was cut short goes on; the report says what rules say.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{stderr, task_model};

const EXPERIMENT: &str = r#"
title = "Eight bits"
claim = "Rollouts in 8 bits train as well."
supports = "Not worse by more than the margin."
run = "pairs/run.toml"
seeds = 2
series = ["loss"]

[analysis]
kind = "paired"
quality = { metric = "kl_teacher_after", less_is_better = true, margin = 10.0, baseline = "identity" }
columns = ["mismatch_nats", "series:loss"]
expect = [
    { arm = "fp8", is = "not-worse" },
    { arm = "count", is = "at-least", key = "ratio_kv", value = 1.9 },
]

[[arm]]
name = "identity"

[[arm]]
name = "fp8"
set = ["rollout.recipe=fp8"]

[[arm]]
name = "count"
seeds = 1
command = ["capacity", "--model", "student", "--recipe", "kv8", "--memory", "64MiB"]
"#;

const RUN: &str = r#"
student = "../../student"
teacher = "../../teacher"
updates = 2
out = "runs/x"

[task]
name = "copy"
len_min = 2
len_max = 3

[train]
batch = 4

[eval]
problems = 8
kl_prompts = 8
every = 0
"#;

/// A folder with two models and one experiment.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    task_model(&dir.path().join("student"), 1);
    task_model(&dir.path().join("teacher"), 2);
    std::fs::create_dir_all(dir.path().join("experiments/pairs")).unwrap();
    std::fs::write(dir.path().join("experiments/pairs/run.toml"), RUN).unwrap();
    std::fs::write(dir.path().join("experiments/e1.toml"), EXPERIMENT).unwrap();
    dir
}

fn leeway(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leeway"));
    command.current_dir(dir).args(["--quiet", "--threads", "2"]).args(words).output().expect("the binary runs")
}

fn lines(dir: &Path, name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join(format!("experiments/results/{name}.jsonl"))).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_missing_is_run_and_reported() {
    let dir = folder();
    let dir = dir.path();
    let first = leeway(dir, &["experiment", "e1", "--at-most", "2"]);
    assert!(first.status.success(), "{}", stderr(&first));
    assert_eq!(lines(dir, "e1").len(), 2);
    let before = leeway(dir, &["report", "--out", "results.md"]);
    assert!(before.status.success(), "{}", stderr(&before));
    let page = std::fs::read_to_string(dir.join("results.md")).unwrap();
    assert!(page.contains("| e1 | Rollouts in 8 bits train as well. | not run |"), "{page}");

    let rest = leeway(dir, &["experiment", "e1"]);
    assert!(rest.status.success(), "{}", stderr(&rest));
    let made = lines(dir, "e1");
    assert_eq!(made.len(), 5, "two arms of two seeds, one count");
    for line in made.iter().filter(|line| line["command"] == "train") {
        assert_eq!(line["series"]["loss"].as_array().map(Vec::len), Some(2), "{line}");
        assert_eq!(line["curve"].as_array().map(Vec::len), Some(2), "{line}");
        assert!(line["result"]["flop"]["train"].as_f64() > Some(0.0), "{line}");
        assert!(line["result"].get("out").is_none() && !line.to_string().contains(dir.to_str().unwrap()), "{line}");
        let nats = line["result"]["mismatch_nats"].as_f64().unwrap();
        assert_eq!(nats == 0.0, line["arm"] == "identity", "{line}");
    }
    assert!(!dir.join("runs/experiments/e1/identity-0-train").exists());

    let again = leeway(dir, &["experiment", "e1"]);
    assert!(stderr(&again).contains("e1: 5 runs, 5 of them there"), "{}", stderr(&again));
    assert_eq!(lines(dir, "e1").len(), 5);

    let report = leeway(dir, &["report", "--out", "docs/results.md"]);
    assert!(report.status.success(), "{}", stderr(&report));
    let page = std::fs::read_to_string(dir.join("docs/results.md")).unwrap();
    for part in
        ["| supported | 5 |", "yes: `fp8` within the margin of `identity`", "yes: `ratio_kv` of `count` at least 1.9"]
    {
        assert!(page.contains(part), "{part}\n{page}");
    }
    let html = std::fs::read_to_string(dir.join("docs/results.html")).unwrap();
    assert!(html.contains("<code>ratio_kv</code>") && !html.contains("http"), "{html}");
}

/// A run that depends on the same things is one run; another learning rate is another.
#[test]
fn runs_are_known_by_what_they_depend_on() {
    let dir = folder();
    let dir = dir.path();
    assert!(leeway(dir, &["experiment", "e1"]).status.success());
    let text = EXPERIMENT
        .replace("name = \"identity\"", "name = \"as it is\"")
        .replace("baseline = \"identity\"", "baseline = \"as it is\"");
    std::fs::write(dir.join("experiments/e2.toml"), text.replace("rollout.recipe=fp8", "train.lr=0.5")).unwrap();
    let output = leeway(dir, &["experiment", "e2"]);
    assert!(stderr(&output).contains("e2: 5 runs, 3 of them there"), "{}", stderr(&output));
    let (old, new) = (lines(dir, "e1"), lines(dir, "e2"));
    assert_eq!(new.len(), 5);
    let taken: Vec<_> = new.iter().filter(|line| line["arm"] == "as it is").collect();
    assert_eq!(taken.len(), 2);
    assert!(
        taken.iter().all(|line| old.iter().any(|old| old["key"] == line["key"] && old["result"] == line["result"]))
    );
    // A model that was exchanged is another run.
    task_model(&dir.join("student2"), 3);
    std::fs::remove_dir_all(dir.join("student")).unwrap();
    std::fs::rename(dir.join("student2"), dir.join("student")).unwrap();
    let output = leeway(dir, &["experiment", "e1", "--at-most", "1"]);
    assert!(stderr(&output).contains("e1: 5 runs, 0 of them there"), "{}", stderr(&output));
}

#[test]
fn a_failing_run_is_a_result_only_where_the_file_says_so() {
    let dir = folder();
    let dir = dir.path();
    // What the rule needs is no part of a gradient that is not finite: the learning rate alone makes it so.
    let failing = EXPERIMENT.replace("rollout.recipe=fp8\"]", "train.lr=1e30\", \"updates=4\"]");
    std::fs::write(dir.join("experiments/e1.toml"), &failing).unwrap();
    let output = leeway(dir, &["experiment", "e1", "--jobs", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("e1 fp8, seed 0: error: "), "{}", stderr(&output));
    let there = lines(dir, "e1").len();
    let failing = failing.replace("\"updates=4\"]", "\"updates=4\"]\nmay_fail = true");
    std::fs::write(dir.join("experiments/e1.toml"), failing).unwrap();
    let output = leeway(dir, &["experiment", "e1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let made = lines(dir, "e1");
    assert!(made.len() == 5 && there < 5);
    assert!(made.iter().filter(|line| line["arm"] == "fp8").all(|line| line["error"].is_string() && line["exit"] == 5));
}

#[test]
fn what_is_wrong_with_a_file_is_said_before_anything_runs() {
    let dir = folder();
    let dir = dir.path();
    let cases = [
        ("title = \"Eight bits\"", "titel = \"Eight bits\"", "e1.toml:2: unknown field `titel`"),
        ("baseline = \"identity\"", "baseline = \"none\"", "[analysis] names the arm `none`, which is not there"),
        ("name = \"fp8\"", "name = \"identity\"", "two arms are called `identity`"),
        ("run = \"pairs/run.toml\"\n", "", "arm `identity` trains, and there is no `run`"),
        ("rollout.recipe=fp8", "rollout.recipy=fp8", "unknown key `rollout.recipy`"),
        ("seeds = 2", "seeds = 0", "has no seed"),
        ("seeds = 2", "seeds = 1", "arm `identity` has 1 seeds; this analysis needs 2"),
        ("margin = 10.0", "margin = nan", "margin = NaN; it must be more than 0"),
        ("rollout.recipe=fp8", "seed=4", "`set` has seed=4"),
        ("is = \"not-worse\" }", "is = \"at-least\" }", "of which `key`, and what `value`?"),
        ("command = [\"capacity\"", "command = [\"train\"", "a training has no `command`"),
    ];
    for (from, to, want) in cases {
        assert!(EXPERIMENT.contains(from), "{from}");
        std::fs::write(dir.join("experiments/e1.toml"), EXPERIMENT.replacen(from, to, 1)).unwrap();
        let output = leeway(dir, &["experiment", "e1"]);
        assert!(!output.status.success() && stderr(&output).contains(want), "{want}\n{}", stderr(&output));
        assert!(lines(dir, "e1").is_empty(), "{want}");
    }
    std::fs::write(dir.join("experiments/e1.toml"), EXPERIMENT).unwrap();
    let output = leeway(dir, &["experiment", "e9"]);
    assert!(stderr(&output).contains("there are: e1"), "{}", stderr(&output));
}
