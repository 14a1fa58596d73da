//! Runs whose teacher is `leeway teach` in another process: the weights of a run with the teacher at home, bit for bit;
//! and what becomes of a run whose teacher dies, is another one, or never comes.
#![cfg(unix)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bridge::{Consumer, Geometry, Kind, Meta, Patience, Producer};
use common::{leeway, stderr, task_model};
use engine::checkpoint::Checkpoint;
use engine::recipe::Precision;
use opd::sequences::Row;
use opd::teach::{Payload, Scorer, requests_path};
use ptx::Cpu;
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
        command.args(["teach", "--precision", "bf16", "--quiet"]).args(more);
        if !more.contains(&"--max-tokens") {
            command.args(["--max-tokens", "40"]);
        }
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
        let mut teacher = bench.teach(name, "teacher", &["--delay", "0.05"]);
        let file = bench.run_file(name, top);
        let ring = format!("ring:{}", bench.path(name).with_extension("ring").display());
        let mut run = leeway();
        run.arg("train").arg(&file).args(["--teacher", &ring]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = run.spawn().expect("the binary runs");
        let out = bench.path(&format!("{name}/metrics.jsonl"));
        let mut kills = 0;
        while run.try_wait().expect("the system knows its child").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
            if kills < 4 && lines(&out).len() > kills {
                teacher.kill().expect("it runs");
                teacher.wait().expect("it is gone");
                teacher = bench.teach(name, "teacher", &["--delay", "0.05"]);
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

/// A teacher that has no scores of some requests: it says so for every seventh of those of updates.
fn forgetful(ring: &Path, model: &Path, updates: std::ops::Range<u64>) {
    let cpu = Arc::new(Cpu::new(1));
    let checkpoint = Checkpoint::open(model).expect("a model");
    let valid = checkpoint.config().vocab;
    let mut scorer = Scorer::load(&cpu, &checkpoint, Precision::Bf16, Payload::Hidden, valid, 40).expect("a teacher");
    let asked = Meta { rows: 40, missing: true, ..Meta::new(Kind::Sampled) };
    let requests = requests_path(ring);
    bridge::create(&requests, Geometry::for_blocks(32, &asked).expect("a size")).expect("made");
    bridge::create(ring, Geometry::for_blocks(32, &scorer.meta(40)).expect("a size")).expect("made");
    let mut scores = Producer::attach(ring).expect("a ring");
    let mut requests = Consumer::attach(&requests).expect("a ring");
    loop {
        let lease = match requests.receive(Patience::until(Duration::from_millis(50))) {
            Ok(Some(lease)) => lease,
            Ok(None) => return,
            Err(_) => continue, // nothing was asked yet
        };
        let arrays = lease.arrays();
        let prompt = arrays.mask.iter().position(|&mask| mask == 1).expect("a completion");
        let row = Row::new(arrays.tokens.to_vec(), prompt);
        let forgets = updates.contains(&lease.number()) && lease.number().is_multiple_of(7);
        scorer.run(&row, lease.meta().temperature).expect("it can be scored");
        let first = if forgets { 0 } else { prompt };
        let rows = u32::try_from(row.ids.len() - first).expect("few");
        let (uid, temperature) = (lease.meta().sequence_uid, lease.meta().temperature);
        let meta = Meta { missing: forgets, sequence_uid: uid, temperature, ..scorer.meta(rows) };
        let mut draft = scores.claim(&meta, Patience::until(Duration::from_secs(20))).expect("a slot");
        let mut into = draft.arrays_mut();
        into.tokens.copy_from_slice(&arrays.tokens[first..]);
        into.logprobs.fill(0.0);
        into.versions.fill(0);
        into.mask.fill(u8::from(!forgets));
        if forgets {
            into.lse.fill(0.0);
        } else {
            scorer.write(&mut into, temperature);
        }
        draft.publish().expect("published");
    }
}

/// Completions without scores are counted, their prompts are not trained on, and what is reported is of the others.
#[test]
fn what_has_no_scores_is_counted_and_not_trained_on() {
    let bench = Bench::new();
    let (ring, model) = (bench.path("forgetful.ring"), bench.path("teacher"));
    let file = bench.run_file("some", "");
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, text.replace("problems = 8\nevery = 3", "problems = 1\nevery = 0")).expect("written");
    // The first request is an evaluation's, the last too.
    let updates = 1..1 + 15 * UPDATES;
    let asked = updates.clone();
    let teacher = std::thread::spawn(move || forgetful(&ring, &model, asked));
    let output = bench.train(&file, Some("forgetful"));
    assert!(output.status.success(), "{}", stderr(&output));
    teacher.join().expect("it ends with the run");
    let groups: std::collections::BTreeSet<u64> =
        updates.filter(|number| number.is_multiple_of(7)).map(|number| (number - 1) / 3).collect();
    let lines = lines(&bench.path("some/metrics.jsonl"));
    for line in lines.iter().filter(|line| line["update"].is_u64()) {
        let update = line["update"].as_u64().expect("a number");
        let missing = groups.iter().filter(|&&group| group / 5 + 1 == update).count() as u64;
        assert_eq!(line["missing"].as_u64(), Some(3 * missing), "{line}");
        assert_eq!(line["rollouts"].as_u64(), Some(15 - 3 * missing), "{line}");
        assert!(missing > 0, "every update has some");
    }
    let rollouts = std::fs::read_to_string(bench.path("some/rollouts.jsonl")).expect("written");
    assert_eq!(rollouts.lines().count() as u64, 15 * UPDATES - 3 * groups.len() as u64);
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

    let mut teacher = bench.teach("short", "teacher", &["--max-tokens", "12"]);
    let error = stderr(&bench.train(&bench.run_file("run-short", ""), Some("short")));
    assert!(error.contains("does not fit the ring of requests") && !error.contains("update"), "{error}");
    assert!(error.contains("start `leeway teach` with more --max-tokens"), "{error}");
    teacher.kill().expect("it runs");
    teacher.wait().expect("it is gone");

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

/// The learner is killed in the midst of a run, several times, and goes on with the teacher that is still there: what it had
/// asked for and not taken is no answer to what it asks afterwards.
#[test]
fn a_learner_that_is_killed_goes_on_with_the_same_teacher() {
    let bench = Bench::new();
    for (i, top) in ["", "schedule = { steps_off = 1 }"].into_iter().enumerate() {
        let (home, away) = (format!("home{i}"), format!("away{i}"));
        let output = bench.train(&bench.run_file(&home, top), None);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut teacher = bench.teach(&away, "teacher", &["--delay", "0.02"]);
        let file = bench.run_file(&away, top);
        let ring = format!("ring:{}", bench.path(&away).with_extension("ring").display());
        let log = bench.path(&away).join("metrics.jsonl");
        let start = || {
            let mut run = leeway();
            run.arg("train")
                .arg(&file)
                .args(["--resume", "--teacher", &ring])
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            run.spawn().expect("the binary runs")
        };
        let mut kills = 0;
        let output = loop {
            let (mut run, before) = (start(), lines(&log).len());
            let ended = loop {
                if run.try_wait().expect("the system knows its child").is_some() {
                    break true;
                }
                if kills < 4 && lines(&log).len() > before {
                    std::thread::sleep(Duration::from_millis(7 * kills));
                    break false;
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            if ended {
                break run.wait_with_output().expect("it ended");
            }
            run.kill().expect("it can be killed"); // SIGKILL
            run.wait().expect("it is gone");
            kills += 1;
        };
        assert!(output.status.success(), "{top}: {}", stderr(&output));
        assert!(teacher.wait().expect("it ends with the run").success());
        assert!(kills > 1, "{top}: {kills} kills");
        assert!(bench.state(&home) == bench.state(&away), "{top}: the weights differ");
        let updates: Vec<u64> = lines(&log).iter().filter_map(|line| line["update"].as_u64()).collect();
        assert_eq!(updates, (1..=UPDATES).collect::<Vec<_>>(), "{top}: each update once");
    }
}
