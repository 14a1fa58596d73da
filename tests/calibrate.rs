//! `leeway calibrate` from its file to its certificate: what a kill leaves is gone on with, nothing depends on how many runs
//! go on at once, and what is wrong is named.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use budget::certificate::{Certificate, Kind};
use common::{leeway, run_json, stderr, task_model};
use serde_json::Value;

fn models(root: &Path) {
    for (seed, name) in (0..).zip(["student", "teacher"]) {
        task_model(&root.join(name), seed);
    }
    let run = "student = 'student'\nteacher = 'teacher'\nupdates = 4\n[task]\nname = 'copy'\nlen_max = 4\n[rollout]\n\
               recipe = 'fp8'\nn = 2\n[train]\nbatch = 4\nlr = 1e-3\nwarmup = 0\n[eval]\nproblems = 8\n";
    std::fs::write(root.join("run.toml"), run).expect("written");
}

/// A ladder of two rungs and one more, two seeds: 14 runs, and 18 when both families get the last rung.
fn file(root: &Path, out: &str, rest: &str) -> PathBuf {
    let path = root.join(format!("{out}.toml"));
    let text = format!(
        "run = 'run.toml'\nout = {:?}\nmetric = 'kl-teacher'\nseeds = 2\nrungs = [0.01, 0.1]\nextend = 0.5\n{rest}\n",
        root.join(out)
    );
    std::fs::write(&path, text).expect("written");
    path
}

fn certificate(root: &Path, out: &str) -> Certificate {
    let path = root.join(out).join("certificate.json");
    let text = std::fs::read_to_string(&path).expect("written");
    Certificate::parse(&text, &path.display().to_string()).unwrap_or_else(|e| panic!("{e}"))
}

/// Lines of `runs.jsonl` by what each is of.
fn runs(root: &Path, out: &str) -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(root.join(out).join("runs.jsonl")).expect("written");
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let mut value: Value = serde_json::from_str(line).expect("JSON");
        let key = ["role", "family", "target_nats", "seed"].map(|key| value[key].to_string()).join(" ");
        value["wall_s"] = Value::Null; // the one thing that differs
        assert!(all.insert(key.clone(), value).is_none(), "{key} was made twice");
    }
    all
}

#[test]
fn kills_lose_runs_in_work_alone_and_jobs_change_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = dir.path();
    models(root);
    // A margin that nothing exceeds: every family gets the last rung.
    let whole = run_json(["calibrate", file(root, "whole", "margin = 100.0\njobs = 1").to_str().expect("Unicode")]);
    let expected = runs(root, "whole");
    assert_eq!((expected.len(), whole["runs"].as_u64()), (18, Some(18)));
    assert!(whole["families"].as_array().expect("a list").iter().all(|family| family["at_least"] == true), "{whole}");

    let path = file(root, "killed", "margin = 100.0\njobs = 2");
    let log = root.join("killed/runs.jsonl");
    let lines = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    for target in [2, 6, 11, 15] {
        let mut child: std::process::Child = Command::new(env!("CARGO_BIN_EXE_leeway"))
            .args(["--quiet", "--threads", "2", "calibrate"])
            .arg(&path)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary runs");
        while lines() < target && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().expect("it can be killed"); // SIGKILL
        child.wait().expect("a child");
    }
    assert!(lines() < 18, "nothing was killed");
    // And a line that was being written.
    let mut text = std::fs::read_to_string(&log).expect("written");
    let last = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
    text.truncate(last + 40);
    std::fs::write(&log, text).expect("written");
    let output = leeway().arg("calibrate").arg(&path).output().expect("the binary runs");
    assert!(output.status.success() && stderr(&output).contains("was cut off"), "{}", stderr(&output));
    assert_eq!(runs(root, "killed"), expected);
    assert_eq!(certificate(root, "killed"), certificate(root, "whole"));
    let picture = |out: &str| std::fs::read(root.join(out).join("dose_response.svg")).expect("written");
    assert!(picture("killed") == picture("whole"), "other pictures of the same runs");

    // Nothing is left to do, and other settings leave what is there alone.
    let again = run_json(["calibrate", path.to_str().expect("Unicode"), "--dry-run"]);
    assert_eq!((again["runs"].as_u64(), again["there"].as_u64()), (Some(14), Some(14)));
    file(root, "killed", "margin = 100.0\nset = ['train.lr=2e-3']");
    let other = leeway().args(["--json", "calibrate", "--dry-run"]).arg(&path).output().expect("the binary runs");
    assert_eq!(common::last_line(&other)["there"], 0);
    assert!(stderr(&other).contains("18 runs of another configuration"), "{}", stderr(&other));
}

#[test]
fn a_certificate_says_what_was_run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = dir.path();
    models(root);
    // A margin that no difference of two seeds is within.
    let path = file(root, "out", "margin = 1e-9\nfamilies = ['coherent']");
    let result = run_json(["calibrate", path.to_str().expect("Unicode")]);
    let c = certificate(root, "out");
    assert_eq!((c.runs, c.seeds.clone(), c.margin, c.weights_version), (8, vec![0, 1], 1e-9, 4));
    let settings = &c.settings;
    assert_eq!((settings.updates, settings.n, settings.batch, settings.lr), (4, 2, 4, 1e-3));
    assert_eq!(
        (settings.loss_kind.as_str(), settings.precision.as_str(), settings.clip),
        ("reverse-kl", "bf16", Some(1.0))
    );
    let model = run_json(["doctor", "--model", root.join("student").to_str().expect("Unicode")]);
    assert_eq!(model["model"]["hash"], c.student.as_str());
    let family = c.family(Kind::Coherent).expect("it was calibrated");
    assert_eq!(c.families.len(), 1);
    assert_eq!(result["families"][0]["budget_nats"].as_f64(), Some(family.budget_nats));
    // Without a rung that passed there is no budget, and no rung is added.
    assert_eq!((family.rungs.len(), family.passed_nats, family.budget_nats, family.drift_limit), (2, 0.0, 0.0, None));
    for (rung, target) in family.rungs.iter().zip([0.01, 0.1]) {
        assert_eq!(rung.target_nats, target);
        assert!((rung.d_nats / target - 1.0).abs() < 0.4, "{rung:?}");
    }
    assert!(family.growth.early_nats.iter().all(|&d| d > 0.0), "{:?}", family.growth);
    // The baseline is a run at training precision: its final KL is what `train` reports.
    let lines = runs(root, "out");
    let baseline = &lines["\"baseline\" null null 0"];
    assert_eq!(baseline["d_nats"], 0.0);
    let out = root.join("plain");
    let (run, out) = (root.join("run.toml"), format!("out={}", out.display()));
    let words = ["train", run.to_str().expect("Unicode"), "--set", "rollout.recipe=identity", "--set", &out];
    let trained = run_json(words);
    assert_eq!(trained["kl_teacher_after"], baseline["kl_teacher_after"]);
}

#[test]
fn what_is_wrong_is_named() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = dir.path();
    models(root);
    let cases = [
        ("margins = 1", "bad.toml:7: unknown field `margins`"),
        ("", "missing field `margin`"),
        ("margin = 'much'", "bad.toml:7: invalid type: string"),
        ("margin = 0.0", "`margin` is 0; it must be more than 0"),
        ("margin = 0.1\nfamilies = ['coherent', 'coherent']", "`families`"),
        ("margin = 0.1\nfamilies = ['warm']", "unknown variant `warm`"),
        ("margin = 0.1\ngrowth = 30.0", "`growth` is 30"),
        ("margin = 0.1\nset = ['rolout.n=2']", "unknown key `rolout`; did you mean `rollout`"),
        ("margin = 0.1\nset = ['noise.sigma=0.1']", "`run` is a run with `noise`"),
        ("margin = 0.1\nset = ['ring=/dev/null']", "`run` is a run with `ring`"),
    ];
    for (rest, want) in cases {
        let output = leeway().arg("calibrate").arg(file(root, "bad", rest)).output().expect("the binary runs");
        assert!(!output.status.success() && stderr(&output).contains(want), "{rest}: {}", stderr(&output));
    }
    let text = "run = 'run.toml'\nmetric = 'kl-teacher'\nmargin = 0.1\nrungs = [0.1, 0.01]\n";
    std::fs::write(root.join("falling.toml"), text).expect("written");
    let output = leeway().arg("calibrate").arg(root.join("falling.toml")).output().expect("the binary runs");
    assert!(stderr(&output).contains("`rungs` is [0.1, 0.01]"), "{}", stderr(&output));
}
