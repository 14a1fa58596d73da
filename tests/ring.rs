//! Runs whose teacher is `leeway teach` in another process: the weights of a run with the teacher at home, bit for bit;
//! and what becomes of a run whose teacher dies, is another one, or never comes.
#![cfg(unix)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{leeway, stderr, task_model};
use serde_json::Value;

const UPDATES: u64 = 6;

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        task_model(&folder.path().join("student"), 0);
        task_model(&folder.path().join("teacher"), 1);
        task_model(&folder.path().join("other"), 2);
        Bench { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn teach(&self, ring: &str, model: &str, more: &[&str]) -> Child {
        let mut command = leeway();
        command.args(["teach", "--precision", "bf16", "--max-tokens", "40", "--quiet"]).args(more);
        command.arg("--ring").arg(self.path(ring).with_extension("ring")).arg("--model").arg(self.path(model));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs")
    }

    fn run_file(&self, name: &str, top: &str) -> PathBuf {
        let file = self.path(&format!("{name}.toml"));
        let text = format!(
            "student = \"student\"\nteacher = \"teacher\"\nout = {:?}\nupdates = {UPDATES}\nseed = 5\n{top}\n[task]\n\
             name = \"modular-chain\"\ndepth = 6\n[rollout]\nrecipe = \"kv8\"\nn = 3\n[train]\nbatch = 5\nlr = 1e-3\nwarmup = 2\n\
             [eval]\nproblems = 8\nevery = 3\n[checkpoint]\nevery = 2\n",
            self.path(name)
        );
        std::fs::write(&file, text).expect("written");
        file
    }

    fn train(&self, file: &Path, ring: Option<&str>) -> std::process::Output {
        let mut command = leeway();
        command.arg("train").arg(file);
        if let Some(ring) = ring {
            command.arg("--teacher").arg(format!("ring:{}", self.path(ring).with_extension("ring").display()));
        }
        command.output().expect("the binary runs")
    }

    fn state(&self, run: &str) -> Vec<u8> {
        std::fs::read(self.path(run).join(format!("checkpoints/{UPDATES:06}/trainer.safetensors"))).expect("written")
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The last norm of a bf16 teacher is rounded to bf16 before its head, so what the ring carries is all there is.
#[test]
fn over_the_ring_the_weights_are_the_same() {
    let bench = Bench::new();
    for (i, top) in ["", "schedule = { steps_off = 2 }"].into_iter().enumerate() {
        let (home, away, ring) = (format!("home{i}"), format!("away{i}"), format!("ring{i}"));
        let output = bench.train(&bench.run_file(&home, top), None);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut teacher = bench.teach(&ring, "teacher", &[]);
        let output = bench.train(&bench.run_file(&away, top), Some(&ring));
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(teacher.wait().expect("it ends with the run").success());
        assert!(bench.state(&home) == bench.state(&away), "{top}: the weights differ");
        let first = &lines(&bench.path(&away).join("metrics.jsonl"))[0];
        assert_eq!(first["origin"]["bridge"], "hidden rows, bf16");
    }
}

/// The teacher is killed in the midst of a run, several times, and started again each time.
#[test]
fn a_teacher_that_is_started_again_goes_on() {
    let bench = Bench::new();
    let output = bench.train(&bench.run_file("home", ""), None);
    assert!(output.status.success(), "{}", stderr(&output));
    for (name, top) in [("sync", ""), ("async", "schedule = \"async\"")] {
        let mut teacher = bench.teach(name, "teacher", &["--delay", "0.003"]);
        let file = bench.run_file(name, top);
        let ring = format!("ring:{}", bench.path(name).with_extension("ring").display());
        let mut run = leeway();
        run.arg("train").arg(&file).args(["--teacher", &ring]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = run.spawn().expect("the binary runs");
        let out = bench.path(&format!("{name}/metrics.jsonl"));
        let mut kills = 0;
        while run.try_wait().expect("the system knows its child").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(60));
            if kills < 4 && lines(&out).len() > kills {
                teacher.kill().expect("it runs");
                teacher.wait().expect("it is gone");
                teacher = bench.teach(name, "teacher", &["--delay", "0.003"]);
                kills += 1;
            }
        }
        let output = run.wait_with_output().expect("it ended");
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        // One that was started after the run's end waits for another learner.
        drop(teacher.kill());
        teacher.wait().expect("it is gone");
        assert!(kills > 1, "{name}: {kills} kills");
        let updates: Vec<Value> = lines(&out).into_iter().filter(|line| line["update"].is_u64()).collect();
        assert_eq!(updates.len() as u64, UPDATES);
        assert!(updates.iter().all(|line| line["rollouts"] == 15 && line["missing"] == 0), "{name}: none is missing");
        if name == "sync" {
            assert!(bench.state("home") == bench.state("sync"), "the weights differ");
        }
    }
}

#[test]
fn a_teacher_that_cannot_be_is_named() {
    let bench = Bench::new();
    let none = bench.train(&bench.run_file("none", "wait_s = 0.3"), Some("nothing"));
    let error = stderr(&none);
    assert!(!none.status.success() && error.contains("for the ring ") && error.contains("nothing"), "{error}");

    for (name, top) in [("other", ""), ("other-async", "schedule = \"async\"")] {
        let mut teacher = bench.teach(name, "other", &[]);
        let output = bench.train(&bench.run_file(&format!("run-{name}"), top), Some(name));
        let error = stderr(&output);
        assert!(!output.status.success() && error.contains("the teacher is model "), "{error}");
        assert!(error.contains(" is expected: start `leeway teach` with the model that the learner names"), "{error}");
        teacher.kill().expect("it runs");
        teacher.wait().expect("it is gone");
    }

    let mut teacher = leeway();
    teacher.args(["teach", "--precision", "bf16", "--max-tokens", "40", "--payload", "sampled", "--quiet"]);
    teacher.arg("--ring").arg(bench.path("logprobs.ring")).arg("--model").arg(bench.path("teacher"));
    let mut teacher = teacher.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let output = bench.train(&bench.run_file("run-logprobs", ""), Some("logprobs"));
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("start `leeway teach` with --payload hidden"), "{error}");
    teacher.kill().expect("it runs");
    teacher.wait().expect("it is gone");
}
