//! A teacher in a process of its own gives a learner what the same model gives in the learner's process, whatever becomes of
//! either process on the way.
#![cfg(unix)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bridge::{Consumer, Kind, Meta, Patience, Producer};
use common::{leeway, load, stderr, task_model};
use engine::checkpoint::Checkpoint;
use engine::recipe::Precision;
use opd::sequences::Row;
use opd::side::Side;
use opd::teach::{Expected, Received, RingTeacher, TeachError, hash_word, requests_path};
use ptx::Cpu;
use ptx::dtype::{bf16_from_f32, bf16_to_f32};
use ptx::ops::linear::{self, Job};
use ptx::ops::log_softmax;

const LONG: Duration = Duration::from_secs(60);
const TEMPERATURE: f32 = 0.8;

struct Bench {
    folder: tempfile::TempDir,
    ring: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        task_model(&folder.path().join("model"), 3);
        let ring = folder.path().join("ring");
        Bench { folder, ring }
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn teach(&self, more: &[&str]) -> Command {
        let mut command = leeway();
        command.args(["--json", "teach", "--max-tokens", "40"]).args(more);
        if !more.contains(&"--slots") {
            command.args(["--slots", "4"]);
        }
        command.arg("--ring").arg(&self.ring).arg("--model").arg(self.model());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, more: &[&str]) -> Child {
        self.teach(more).spawn().expect("the binary runs")
    }

    fn connect(&self) -> RingTeacher {
        let checkpoint = Checkpoint::open(&self.model()).expect("a model");
        RingTeacher::connect(&Cpu::new(1), &self.ring, &checkpoint, self.expected(), LONG).expect("a teacher")
    }

    fn expected(&self) -> Expected {
        let model_hash = Checkpoint::open(&self.model()).expect("a model").model_hash();
        Expected { model_hash, precision: Precision::F32, temperature: TEMPERATURE, longest: 40 }
    }
}

/// Micro-batches of rows of many lengths.
fn batch(seed: u32, rows: u32) -> Vec<Row> {
    let row = |at: u32| {
        let (length, prompt) = (3 + (seed * 7 + at * 5) % 30, 1 + (seed + at) % 2);
        Row::new((0..length).map(|i| (seed * 31 + at * 17 + i * 13) % 60).collect(), prompt as usize)
    };
    (0..rows).map(row).collect()
}

/// What the teacher's model says here: hidden rows rounded to bf16, logits, and log-normalisers.
fn here(bench: &Bench, rows: &[Row]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let cpu = Arc::new(Cpu::new(2));
    let model = load(&cpu, &bench.model(), "f32");
    let mut side = Side::new(&model, 4000, rows.len());
    side.run(&cpu, &model, rows);
    let hidden: Vec<f32> = side.hidden.iter().map(|&x| bf16_to_f32(bf16_from_f32(x))).collect();
    let (count, vocab) = (hidden.len() / model.config.hidden, model.config.vocab);
    let mut logits = vec![0.0; count * vocab];
    linear::forward(&cpu, count, &side.hidden, &mut [Job { w: model.head(), bias: None, y: &mut logits }]);
    let mut lse = vec![0.0; count];
    log_softmax::lse(&cpu, count, vocab, vocab, 1.0 / TEMPERATURE, &logits, &mut lse).expect("finite");
    (hidden, logits, lse)
}

fn targets(rows: &[Row]) -> Vec<u32> {
    rows.iter().flat_map(|row| row.targets().to_vec()).collect()
}

fn end(child: Child) -> serde_json::Value {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
    common::last_line(&output)
}

#[test]
fn scores_are_those_of_the_model_here() {
    let bench = Bench::new();
    for (payload, more) in
        [("hidden", vec![]), ("logits", vec![]), ("sampled", vec![]), ("top-k", vec!["--top-k", "5"])]
    {
        let mut words = vec!["--payload", payload];
        words.extend(more);
        let child = bench.start(&words);
        let mut teacher = bench.connect();
        // More rows than slots, and micro-batches that are asked for before the first is answered.
        let batches = [batch(1, 9), batch(2, 1), batch(3, 6)];
        for rows in &batches {
            teacher.send(rows, 7).expect("sent");
        }
        for rows in &batches {
            let (hidden, logits, lse) = here(&bench, rows);
            let got = teacher.receive().expect("scores");
            assert_eq!(teacher.lse(), lse, "{payload}");
            let vocab = logits.len() / lse.len();
            let logprob = |row: usize, id: u32| logits[row * vocab + id as usize] * (1.0 / TEMPERATURE) - lse[row];
            match got {
                Received::Hidden(got) => {
                    assert_eq!(got, hidden, "the bits of the model here, rounded to bf16");
                    assert_eq!(teacher.view().hidden, hidden);
                    let cpu = Cpu::new(1);
                    let mut again = vec![0.0; logits.len()];
                    let (own, view) = (load(&cpu, &bench.model(), "f32"), teacher.view());
                    linear::forward(&cpu, lse.len(), &hidden, &mut [Job { w: view.head, bias: None, y: &mut again }]);
                    let mut want = vec![0.0; logits.len()];
                    linear::forward(&cpu, lse.len(), &hidden, &mut [Job { w: own.head(), bias: None, y: &mut want }]);
                    assert_eq!(again, want, "the learner's head is the model's");
                }
                Received::Logits(got) => assert_eq!(got, logits),
                Received::Sampled(got) => {
                    let want: Vec<f32> = (0..).zip(targets(rows)).map(|(row, id)| logprob(row, id)).collect();
                    assert_eq!(got, want);
                }
                Received::TopK { ids, ln_q, tail } => {
                    for (row, ids) in ids.chunks(5).enumerate() {
                        let mut order: Vec<u32> = (0..u32::try_from(vocab).expect("small")).collect();
                        order.sort_by(|&a, &b| logprob(row, b).total_cmp(&logprob(row, a)).then(a.cmp(&b)));
                        assert_eq!(ids, &order[..5]);
                        let all: f64 = ids.iter().map(|&id| f64::from(logprob(row, id)).exp()).sum();
                        assert!((all + f64::from(tail[row]).exp() - 1.0).abs() < 1e-5, "{all} and {}", tail[row]);
                        let want: Vec<f32> = ids.iter().map(|&id| logprob(row, id)).collect();
                        assert_eq!(ln_q[row * 5..][..5], want);
                    }
                }
            }
        }
        teacher.finish();
        let said = end(child);
        let rows: usize = batches.iter().map(|rows| targets(rows).len()).sum();
        assert_eq!((&said["requests"], &said["missing"], &said["payload"]), (&16.into(), &0.into(), &payload.into()));
        assert_eq!(said["rows"], rows);
        let page = std::fs::read_to_string(common::repository("docs/formats.md")).expect("committed");
        let promised = page.lines().find_map(|line| line.strip_prefix("| `teach` | `")).expect("its row");
        let mut promised: Vec<&str> = promised.trim_end_matches("` |").split_whitespace().collect();
        let mut keys: Vec<&String> = said.as_object().expect("an object").keys().collect();
        promised.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys, promised, "docs/formats.md");
        for path in [bench.ring.clone(), requests_path(&bench.ring)] {
            assert!(!path.exists(), "{} is taken away when the learner has finished", path.display());
        }
    }
}

#[test]
fn a_killed_teacher_loses_and_doubles_nothing() {
    let bench = Bench::new();
    let mut child = bench.start(&[]);
    let mut teacher = bench.connect();
    let batches: Vec<Vec<Row>> = (0..24).map(|seed| batch(seed, 8)).collect();
    for rows in &batches {
        teacher.send(rows, 1).expect("sent");
    }
    let (mut deaths, mut answered) = (0, 0);
    for (at, rows) in batches.iter().enumerate() {
        // While an answer is waited for, after a time that differs: in the midst of a sequence, an answer or a wait.
        let first = std::thread::scope(|scope| {
            if at % 2 == 1 && at < 20 {
                let child = &mut child;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(at as u64 * 977 % 3000));
                    child.kill().expect("killed");
                    child.wait().expect("dead");
                });
            }
            teacher.receive()
        });
        if at % 2 == 1 && at < 20 {
            child = bench.start(&[]);
        }
        let mut next = Some(first);
        let got = loop {
            match next.take().unwrap_or_else(|| teacher.receive()) {
                Ok(got) => break got,
                Err(error @ TeachError::Dead { .. }) => {
                    let text = error.to_string();
                    assert!(
                        text.contains("epoch") && text.contains("process") && text.contains("leeway teach"),
                        "{text}"
                    );
                    deaths += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(other) => panic!("{other}"),
            }
        };
        answered += rows.len() as u64;
        assert_eq!(got, Received::Hidden(here(&bench, rows).0), "micro-batch {at}");
    }
    assert!(deaths >= 5, "{deaths}");
    // One answer for each request, and none that another teacher would give again.
    child.kill().expect("killed");
    child.wait().expect("dead");
    assert_eq!(Producer::attach(&bench.ring).expect("the teacher is gone").next(), answered);
    let child = bench.start(&[]);
    let rows = batch(99, 3);
    teacher.send(&rows, 1).expect("sent");
    let got = loop {
        match teacher.receive() {
            Ok(got) => break got,
            Err(TeachError::Dead { .. }) => std::thread::sleep(Duration::from_millis(10)), // not there yet
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(got, Received::Hidden(here(&bench, &rows).0));
    teacher.finish();
    let said = end(child);
    assert_eq!(said["requests"], rows.len(), "{said}");
}

#[test]
fn a_teacher_whom_nobody_asks_gives_up() {
    let bench = Bench::new();
    let output = bench.teach(&["--wait-s", "0.2"]).output().expect("it ends");
    assert!(!output.status.success());
    let error = stderr(&output);
    assert!(error.contains("no learner was there for 200ms") && error.contains("--wait-s"), "{error}");
    assert!(bench.ring.exists() && requests_path(&bench.ring).exists(), "for the next one");
    // With a learner that is there and says nothing it waits on.
    let child = bench.start(&["--wait-s", "1"]);
    let mut teacher = bench.connect();
    std::thread::sleep(Duration::from_millis(1600));
    let rows = batch(3, 2);
    teacher.send(&rows, 1).expect("sent");
    assert_eq!(teacher.receive().expect("an answer"), Received::Hidden(here(&bench, &rows).0));
    teacher.finish();
    end(child);
}

#[test]
fn what_is_wrong_is_named() {
    let bench = Bench::new();
    let checkpoint = Checkpoint::open(&bench.model()).expect("a model");
    let connect =
        |expected: Expected, deadline| RingTeacher::connect(&Cpu::new(1), &bench.ring, &checkpoint, expected, deadline);
    let short = Duration::from_millis(50);
    let error = connect(bench.expected(), short).map(drop).expect_err("nobody is there").to_string();
    assert!(error.contains("ring") && error.contains("no teacher has made it"), "{error}");

    let mut child = bench.start(&[]);
    let ask = |expected: Expected, rows: &[Row]| {
        let mut teacher = connect(expected, LONG).expect("a teacher");
        teacher.send(rows, 0).and_then(|()| teacher.receive())
    };
    let other = Expected { model_hash: "0123456789abcdef".repeat(4), ..bench.expected() };
    let error = ask(other, &batch(1, 2)).expect_err("another model");
    assert!(matches!(error, TeachError::Model { .. }), "{error}");
    let hash = bench.expected().model_hash;
    assert!(error.to_string().contains("0123456789abcdef") && error.to_string().contains(&hash[..16]), "{error}");
    let error = ask(Expected { precision: Precision::Bf16, ..bench.expected() }, &batch(1, 2)).expect_err("other head");
    assert!(matches!(error, TeachError::Head { expected: 1, found: 2 }), "{error}");
    // An id that is none: that row alone has no scores, and the next micro-batch is served.
    let mut teacher = connect(bench.expected(), LONG).expect("a teacher");
    let mut rows = batch(4, 3);
    rows[1].ids[0] = 5000;
    teacher.send(&rows, 0).expect("sent");
    teacher.send(&batch(5, 2), 0).expect("sent");
    let error = teacher.receive().expect_err("one row is missing");
    assert!(matches!(&error, TeachError::Missing { rows, .. } if rows == &[1]), "{error}");
    assert_eq!(teacher.receive().expect("scores"), Received::Hidden(here(&bench, &batch(5, 2)).0));
    let error = teacher.send(&[Row::new(vec![1; 500], 1)], 0).expect_err("too long");
    assert!(matches!(error, TeachError::Row { tokens: 500, .. }), "{error}");
    drop(teacher);

    child.kill().expect("killed");
    child.wait().expect("dead");
    let error = ask(bench.expected(), &batch(1, 1)).expect_err("dead");
    assert!(matches!(error, TeachError::Dead { peer, .. } if peer.pid == child.id()), "{error}");
    assert!(error.to_string().contains("epoch 1"), "{error}");

    // A teacher that is there and does not answer, and one that answers something else.
    let mut scores = Producer::attach(&bench.ring).expect("the teacher is dead");
    let mut teacher = connect(bench.expected(), short).expect("rings");
    teacher.send(&batch(6, 1), 0).expect("sent");
    let number = Consumer::attach(&requests_path(&bench.ring)).expect("free").next();
    let error = teacher.receive().expect_err("no answer");
    let named = error.to_string();
    assert!(matches!(error, TeachError::Deadline { .. } | TeachError::Dead { .. }), "{named}");
    assert!(named.contains("the scores of request"), "{named}");
    while scores.next() <= number + 1 {
        let missing = Meta { missing: true, ..Meta::new(Kind::Hidden) };
        let meta = Meta { teacher_hash: hash_word(&hash), temperature: 0.5, ..Meta::new(Kind::Hidden) };
        let is_last = scores.next() == number + 1;
        let mut draft = scores.claim(if is_last { &meta } else { &missing }, Patience::NONE).expect("free");
        draft.arrays_mut().mask.fill(0);
        draft.publish().expect("sound");
    }
    let error = teacher.receive().expect_err("another temperature");
    assert!(matches!(error, TeachError::Temperature { expected: TEMPERATURE, found: 0.5 }), "{error}");
}

/// A learner that is killed leaves as many answers as there are slots, and requests behind them.
#[test]
fn a_teacher_with_full_rings_and_no_learner_gives_up() {
    let bench = Bench::new();
    let child = bench.start(&["--wait-s", "1", "--slots", "2"]);
    let mut teacher = bench.connect();
    teacher.send(&batch(3, 2), 1).expect("sent");
    // Both answers are there and not taken; two more requests wait behind them.
    let full = || Producer::attach(&bench.ring).is_err() && bench.ring.exists();
    assert!(full(), "the teacher holds its role");
    std::thread::sleep(Duration::from_millis(500));
    drop(teacher.send(&batch(5, 2), 1));
    drop(teacher); // it does not say that it has finished
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success() && stderr(&output).contains("no learner was there"), "{}", stderr(&output));
}

#[test]
fn rings_of_another_teacher_are_refused() {
    let bench = Bench::new();
    let mut child = bench.start(&["--payload", "sampled"]);
    drop(bench.connect());
    child.kill().expect("killed");
    child.wait().expect("dead");
    let refused = |more: &[&str], words: &str| {
        let output = bench.teach(more).output().expect("the binary runs");
        let error = stderr(&output);
        assert!(!output.status.success() && error.contains(words) && error.contains("remove both files"), "{error}");
    };
    refused(&[], "an answer of this --payload for --max-tokens 40 does not fit");
    // The same kind for shorter sequences would leave the longer ones without scores.
    for path in [bench.ring.clone(), requests_path(&bench.ring)] {
        std::fs::remove_file(path).expect("removed");
    }
    let long = |tokens: &'static str| {
        let mut command = leeway();
        command.args(["--json", "teach", "--wait-s", "0.1", "--max-tokens", tokens, "--ring"]).arg(&bench.ring);
        command.arg("--model").arg(bench.model()).output().expect("the binary runs")
    };
    for _ in 0..2 {
        let error = stderr(&long("120")); // makes them, and then finds them as they have to be
        assert!(error.contains("no learner was there"), "{error}");
    }
    let error = stderr(&long("200"));
    assert!(error.contains("does not fit"), "{error}");
    let error = stderr(&long("100"));
    assert!(error.contains("they take longer sequences than --max-tokens 100"), "{error}");
}

#[test]
fn half_a_pair_of_rings_is_refused() {
    let bench = Bench::new();
    let mut child = bench.start(&[]);
    drop(bench.connect());
    child.kill().expect("killed");
    child.wait().expect("dead");
    std::fs::remove_file(requests_path(&bench.ring)).expect("removed");
    let refused = |more: &[&str], words: &str| {
        let output = bench.teach(more).output().expect("the binary runs");
        assert!(!output.status.success() && stderr(&output).contains(words), "{}", stderr(&output));
    };
    refused(&[], "they are made together");
    std::fs::remove_file(&bench.ring).expect("removed");
    refused(&["--slots", "3"], "power of two");
    refused(&["--payload", "top-k", "--top-k", "9999"], "--top-k");
    refused(&["--top-k", "3"], "no meaning");
    refused(&["--device", "cuda"], "runs on the CPU alone");
    assert!(!Path::new(&bench.ring).exists(), "nothing is made by what was refused");
}
