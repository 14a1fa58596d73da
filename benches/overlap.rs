//! What stages beside updates are worth: a teacher that answers late costs a synchronous run its whole delay and an
//! asynchronous one next to nothing; and the time to a quality on the quickstart, both with all cores.
//!
//! Time is the learner's: what it computes and what it waits for, update by update, from `metrics.jsonl`; so opening and
//! evaluating are left out. The delay is that of `leeway teach --delay`, half an update's time from request to answer.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::Record;
use opd::bench::Spread;
use serde_json::{Value, json};

const BATCH: u32 = 64;
const SAMPLES: u32 = 4;

fn leeway() -> Command {
    Command::new(env!("CARGO_BIN_EXE_leeway"))
}

/// Trains the quickstart; seconds of the learner and KL to the teacher, by update.
fn train(dir: &Path, name: &str, updates: u32, more: &[String]) -> Vec<(f64, f64)> {
    let out = dir.join(name);
    drop(std::fs::remove_dir_all(&out));
    let mut command = leeway();
    command.args(["train", "examples/quickstart.toml", "--quiet"]).args(more);
    for set in [
        format!("updates={updates}"),
        format!("out={}", out.display()),
        "eval={problems=1,every=0}".to_owned(),
        format!("train.batch={BATCH}"),
        format!("rollout.n={SAMPLES}"),
    ] {
        command.args(["--set", &set]);
    }
    let output = command.stdout(Stdio::null()).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).expect("written");
    let updates = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let seconds = |line: &Value| {
        let of = |key: &str| line[key].as_f64().expect("seconds");
        let own = of("behaviour_s") + of("train_s") + of("sync_s");
        match line["age"]["wait_s"].as_f64() {
            Some(wait) => own + wait,
            None => own + of("rollout_s") + of("teacher_s"),
        }
    };
    updates
        .filter(|line| line["update"].is_u64())
        .map(|line| (seconds(&line), line["kl_teacher"].as_f64().expect("a distance")))
        .collect()
}

/// Seconds of an update: the median, the first left out.
fn update_s(updates: &[(f64, f64)]) -> f64 {
    Spread::of(updates[1..].iter().map(|&(seconds, _)| seconds)).median
}

/// An update's seconds with a teacher that holds every answer back for `delay` seconds.
fn with_teacher(dir: &Path, schedule: &str, updates: u32, delay: f64) -> f64 {
    let ring = dir.join("ring");
    for end in ["", ".producer", ".consumer", ".requests", ".requests.producer", ".requests.consumer"] {
        drop(std::fs::remove_file(dir.join(format!("ring{end}"))));
    }
    let mut teach = leeway();
    teach.args([
        "teach",
        "--model",
        "examples/quickstart/teacher",
        "--precision",
        "bf16",
        "--quiet",
        "--slots",
        "1024",
    ]);
    teach.args(["--delay", &delay.to_string()]).arg("--ring").arg(&ring);
    let mut teach = teach.stdout(Stdio::null()).spawn().expect("the binary runs");
    let more = [format!("--teacher=ring:{}", ring.display()), format!("--set=schedule={schedule}")];
    let updates = train(dir, "late", updates, &more);
    assert!(teach.wait().expect("it ends with the run").success());
    // The mean, since asynchronous updates wait now and then.
    updates[2..].iter().map(|&(seconds, _)| seconds).sum::<f64>() / (updates.len() - 2) as f64
}

/// A line for people and the same for the record: how many times as long.
fn say(record: &mut Record, what: &str, values: &[f64]) {
    let spread = Spread::of(values.iter().copied());
    let Spread { low, median, high } = spread;
    record.say(format_args!("{what}: {median:.3} times as long ({low:.3} to {high:.3}, {} rounds)", values.len()));
    record.push("ratios", json!({"what": what, "ratio": spread.json(), "rounds": values.len()}));
}

/// Seconds until the running mean of ten updates' KL is down to `quality`; none if it never is.
fn reach(updates: &[(f64, f64)], quality: f64) -> Option<f64> {
    let at = updates.windows(10).position(|w| w.iter().map(|&(_, kl)| kl).sum::<f64>() / 10.0 <= quality)?;
    Some(updates[..at + 10].iter().map(|&(seconds, _)| seconds).sum())
}

fn main() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dir = dir.path();
    let mut record = Record::new("overlap", &std::sync::Arc::new(ptx::Cpu::new(0)));
    let (rounds, updates, long) = if common::is_full() { (5, 24, 300) } else { (1, 4, 12) };
    if common::is_wanted("late-teacher") {
        let (mut sync, mut ahead) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let plain = with_teacher(dir, "sync", updates, 0.0);
            let delay = 0.5 * plain;
            sync.push(with_teacher(dir, "sync", updates, delay) / plain);
            let plain = with_teacher(dir, "async", updates, 0.0);
            ahead.push(with_teacher(dir, "async", updates, delay) / plain);
        }
        say(&mut record, "a sync update with a teacher half an update late", &sync);
        say(&mut record, "an async update with a teacher half an update late", &ahead);
    }
    if common::is_wanted("time-to-quality") {
        let (mut whole, mut time) = (Vec::new(), Vec::new());
        for seed in 0..rounds {
            let run = |schedule: &str| {
                let more = [format!("--set=seed={seed}"), format!("--set=schedule={schedule}")];
                train(dir, "quality", long, &more)
            };
            let (sync, ahead) = (run("sync"), run("async"));
            whole.push(update_s(&ahead) / update_s(&sync));
            // 95 % of the way that the synchronous run came.
            let last = sync[sync.len() - 10..].iter().map(|&(_, kl)| kl).sum::<f64>() / 10.0;
            let quality = last + 0.05 * (sync[0].1 - last);
            let sync_s = reach(&sync, quality).expect("it came there");
            // A run that never gets there counts as worse than any.
            time.push(reach(&ahead, quality).map_or(f64::INFINITY, |ahead_s| ahead_s / sync_s));
        }
        say(&mut record, "the quickstart, an async update beside a sync one", &whole);
        say(&mut record, "the quickstart, async to the quality of sync", &time);
    }
    record.finish();
}
