//! Runs whose rollouts and scores go on beside updates: how old what they train on is, and what a killed one goes on with.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{leeway, stderr, task_model};
use opd::sequences::Row;
use opd::side::Side;
use ptx::ops::divergence;
use ptx::ops::linear::{self, Job};
use ptx::rng::{Purpose, Stream};
use serde_json::Value;

const UPDATES: u64 = 8;
const BATCH: u64 = 6;
const SAMPLES: u64 = 3;

fn run_file(root: &Path, name: &str, top: &str, rollout: &str) -> (PathBuf, PathBuf) {
    let (file, out) = (root.join(format!("{name}.toml")), root.join(name));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = {UPDATES}\nseed = 5\n{top}\n\
         [task]\nname = \"modular-chain\"\ndepth = 6\n[rollout]\nn = {SAMPLES}\n{rollout}\n[train]\n\
         batch = {BATCH}\nlr = 1e-3\nwarmup = 2\n[eval]\nproblems = 8\nevery = 0\n[checkpoint]\nevery = 2\n"
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

fn refused(file: &Path, more: &[&str]) -> String {
    let output = leeway().arg("train").arg(file).args(more).output().expect("the binary runs");
    assert!(!output.status.success());
    stderr(&output)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn updates(out: &Path) -> Vec<Value> {
    lines(&out.join("metrics.jsonl")).into_iter().filter(|line| line["update"].is_u64()).collect()
}

fn state(out: &Path, update: u64) -> Vec<u8> {
    std::fs::read(out.join(format!("checkpoints/{update:06}/trainer.safetensors"))).expect("written")
}

/// The versions that sampled each completion's tokens, by update.
fn versions(out: &Path) -> BTreeMap<u64, Vec<Vec<u64>>> {
    let mut all: BTreeMap<u64, Vec<Vec<u64>>> = BTreeMap::new();
    for line in lines(&out.join("rollouts.jsonl")) {
        let of = line["versions"].as_array().expect("a list").iter().map(|pair| pair[1].as_u64().expect("a version"));
        all.entry(line["update"].as_u64().expect("a number")).or_default().push(of.collect());
    }
    all
}

/// Every prompt of the data was trained on in its own update, and every sample of it once.
fn check_order(out: &Path) {
    let sequences = BATCH * SAMPLES;
    let rollouts = lines(&out.join("rollouts.jsonl"));
    let order: Vec<(u64, u64)> = rollouts
        .iter()
        .map(|line| (line["update"].as_u64().expect("a number"), line["sample"].as_u64().expect("a number")))
        .collect();
    let want = (0..UPDATES * sequences).map(|sample| (sample / sequences + 1, sample));
    assert_eq!(order, want.collect::<Vec<_>>());
    let numbers: Vec<u64> = updates(out).iter().map(|line| line["update"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=UPDATES).collect::<Vec<_>>());
}

/// Kills a run once `due` says so; true if it was still going.
fn kill_when(file: &Path, more: &[&str], mut due: impl FnMut() -> bool) -> bool {
    let quiet = |child: &mut std::process::Command| child.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = quiet(leeway().arg("train").arg(file).args(more)).expect("the binary runs");
    loop {
        if child.try_wait().expect("the system knows its child").is_some() {
            return false;
        }
        if due() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().expect("it runs"); // SIGKILL: nothing of the program's own runs any more
    child.wait().expect("it is gone");
    true
}

#[test]
fn steps_off_is_exact_and_resumes_at_the_same_bits() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for steps in [1, 3] {
        let top = format!("schedule = {{ steps_off = {steps} }}");
        let (file, whole) = run_file(root.path(), &format!("whole{steps}"), &top, "recipe = \"kv8\"");
        train(&file, &["--threads", "2"]);
        check_order(&whole);
        for (update, of) in versions(&whole) {
            let want = (update - 1_u64).saturating_sub(steps);
            assert!(of.iter().all(|versions| *versions == [want]), "update {update}: {of:?}");
        }
        for line in updates(&whole) {
            let age = (line["update"].as_u64().expect("a number") - 1).min(steps);
            assert_eq!((line["age"]["max"].as_u64(), line["age"]["unmeasured"].as_u64()), (Some(age), Some(0)));
            assert_eq!(line["by_source"]["staleness"].as_f64() > Some(0.0), age > 0, "{line}");
        }
        let (file, again) = run_file(root.path(), &format!("again{steps}"), &top, "recipe = \"kv8\"");
        let third = again.join("checkpoints/000004/trainer.json");
        kill_when(&file, &["--threads", "1"], || third.exists());
        // A machine that is busy elsewhere may let it come further: it goes on from there all the same.
        for later in 5..=UPDATES {
            drop(std::fs::remove_dir_all(again.join(format!("checkpoints/{later:06}"))));
        }
        assert!(again.join("checkpoints/000004/in_flight.jsonl").exists());
        train(&file, &["--resume"]);
        assert!(state(&again, UPDATES) == state(&whole, UPDATES), "{steps} steps off: the weights differ");
        // The device's name has its threads in it.
        let rollouts = |out: &Path| -> Vec<Value> {
            let mut all = lines(&out.join("rollouts.jsonl"));
            all.iter_mut().for_each(|line| line["device"] = Value::Null);
            all
        };
        assert!(rollouts(&again) == rollouts(&whole), "{steps} steps off: rollouts differ");
    }
}

/// D of tokens of an earlier version against the same computed here, from the two versions' folders alone.
#[test]
fn staleness_is_measured_against_the_version_that_sampled() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, out) = run_file(root.path(), "run", "schedule = { steps_off = 1 }", "");
    let text = std::fs::read_to_string(&file).expect("written");
    let text = text.replace("lr = 1e-3\nwarmup = 2", "lr = 1e-2\nwarmup = 0\nprecision = \"f32\"");
    std::fs::write(&file, text.replace("[checkpoint]\nevery = 2", "[checkpoint]\nevery = 1")).expect("written");
    train(&file, &[]);
    let cpu = ptx::Cpu::new(1);
    for update in [2_u64, 3, 5] {
        let folder = |version: u64| match version {
            0 => root.path().join("student"),
            version => out.join(format!("checkpoints/{version:06}")),
        };
        let all = lines(&out.join("rollouts.jsonl"));
        let ids = |line: &Value, key: &str| -> Vec<u32> {
            let list = line[key].as_array().expect("ids").iter();
            list.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("an id")).collect()
        };
        let rows: Vec<Row> = all
            .iter()
            .filter(|line| line["update"].as_u64() == Some(update))
            .map(|line| {
                let prompt = ids(line, "prompt_ids");
                Row::new([&prompt[..], &ids(line, "ids")].concat(), prompt.len())
            })
            .collect();
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        let logits = |version: u64| {
            let model = common::load(&cpu, &folder(version), "f32");
            let mut side = Side::new(&model, rows.iter().map(|row| row.ids.len()).sum(), rows.len());
            side.run(&cpu, &model, &rows);
            let mut y = vec![0.0; tokens * model.config.vocab];
            linear::forward(&cpu, tokens, &side.hidden, &mut [Job { w: model.head(), bias: None, y: &mut y }]);
            y
        };
        let (sampled, trained) = (logits(update - 2), logits(update - 1));
        let vocab = sampled.len() / tokens;
        let mut d = vec![0.0; tokens];
        divergence::kl(&cpu, tokens, vocab, opd::tasks::VOCAB_LEN, 1.0, &sampled, &trained, &mut d).expect("numbers");
        let want = d.iter().sum::<f64>() / tokens as f64;
        let lines = updates(&out);
        let line = lines.iter().find(|line| line["update"].as_u64() == Some(update)).expect("it is there");
        let got = line["by_source"]["staleness"].as_f64().expect("a number");
        assert!(want > 1e-6 && (got - want).abs() <= 1e-9 * want, "update {update}: {got}, and {want} here");
    }
}

#[test]
fn asynchronous_runs_stay_within_the_cap() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    for (name, in_flight, cap) in [("keep", "keep", 2), ("recompute", "recompute", 1), ("drain", "drain", 3)] {
        let rollout = format!("in_flight = {in_flight:?}\nstaleness_max = {cap}");
        let (file, out) = run_file(root.path(), name, "schedule = \"async\"", &rollout);
        train(&file, &[]);
        check_order(&out);
        for (update, of) in versions(&out) {
            let fresh = |version: &u64| *version < update && update - 1 - version <= cap;
            assert!(of.iter().flatten().all(fresh), "{name}, update {update}: {of:?}");
            assert!(name != "drain" || of.iter().all(|versions| versions.len() == 1), "{name}: {of:?}");
        }
        for line in updates(&out) {
            let ages = line["age"]["tokens"].as_array().expect("a list");
            let tokens: u64 = ages.iter().map(|count| count.as_u64().expect("a count")).sum();
            assert_eq!(Some(tokens), line["tokens"].as_u64());
            assert!(line["age"]["max"].as_u64() <= Some(cap));
            // The identity recipe at the present version is the trainer itself; an earlier version is another model.
            assert_eq!(line["by_source"]["numerics"], 0.0, "{name}: {line}");
            let old = ages.iter().skip(1).any(|count| count.as_u64() > Some(0));
            assert_eq!(line["by_source"]["staleness"].as_f64() > Some(0.0), old, "{name}: {line}");
        }
    }
}

#[test]
fn killed_asynchronous_runs_lose_and_double_nothing() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let mut draw = Stream::new(1, Purpose::Data, 0);
    let mut kills = 0;
    for run in 0..6 {
        let in_flight = ["keep", "recompute", "drain"][run % 3];
        let rollout = format!("recipe = \"fp8\"\nin_flight = {in_flight:?}\nstaleness_max = 2");
        let (file, out) = run_file(root.path(), &format!("run{run}"), "schedule = \"async\"", &rollout);
        for attempt in 0..5 {
            let more: &[&str] = if attempt == 0 { &[] } else { &["--resume"] };
            // Somewhere within an update or a checkpoint.
            let (lines_before, delay) = (updates(&out).len(), draw.below(60));
            let mut polls = 0;
            let going = kill_when(&file, more, || {
                polls += u32::from(updates(&out).len() > lines_before);
                polls > delay
            });
            if !going {
                break;
            }
            kills += 1;
        }
        train(&file, &["--resume"]);
        check_order(&out);
        for (update, of) in versions(&out) {
            let fresh = |version: &u64| *version < update && update - 1 - version <= 2;
            assert!(of.iter().flatten().all(fresh), "update {update}: {of:?}");
        }
    }
    assert!(kills > 2, "{kills} kills of 30");
    println!("{kills} kills");
}

/// What lies in a checkpoint beside the weights is looked at too.
#[test]
fn a_damaged_list_of_rollouts_is_passed_over() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, out) = run_file(root.path(), "run", "schedule = { steps_off = 2 }", "");
    train(&file, &[]);
    let (want, last) = (state(&out, UPDATES), out.join("checkpoints/000008"));
    std::fs::remove_dir_all(last).expect("removed");
    let torn = out.join("checkpoints/000006/in_flight.jsonl");
    let text = std::fs::read_to_string(&torn).expect("written");
    std::fs::write(&torn, &text[..text.len() / 2]).expect("written");
    train(&file, &["--resume"]);
    assert!(state(&out, UPDATES) == want);
    assert_eq!(updates(&out).len() as u64, UPDATES);
}

#[test]
fn every_wait_ends_and_says_what_it_waited_for() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, _) = run_file(root.path(), "run", "schedule = \"async\"\nwait_s = 1e-9\nupdates = 200", "");
    let text = std::fs::read_to_string(&file).expect("written").replacen("updates = 8\n", "", 1);
    std::fs::write(&file, text).expect("written");
    let error = refused(&file, &[]);
    // Whichever wait was the first that was not over at once: an update's, or a checkpoint's.
    let what = ["s for the rollouts of prompt ", "s for what the rollout stage has under way"];
    assert!(what.iter().any(|what| error.contains(what)), "{error}");
    assert!(error.contains("the rollout stage has ") && error.contains("`wait_s` waits longer"), "{error}");
}

#[test]
fn other_prompts_are_another_run() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let prompts = root.path().join("prompts.jsonl");
    let write = |first: u32| {
        let text: String = (0..40).map(|i| format!("{{\"ids\": [1, {}, 7]}}\n", first + i % 5)).collect();
        std::fs::write(&prompts, text).expect("written");
    };
    write(3);
    let (file, out) = (root.path().join("run.toml"), root.path().join("run"));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 2\nschedule = \"async\"\n[task]\n\
         prompts = \"prompts.jsonl\"\n[rollout]\nn = 1\nmax_tokens = 4\n[train]\nbatch = 4\n[eval]\nproblems = 4\nevery = 0\n"
    );
    std::fs::write(&file, text).expect("written");
    train(&file, &[]);
    write(4);
    let error = refused(&file, &["--resume", "--set", "updates=4"]);
    assert!(error.contains("the run there has prompts with hash"), "{error}");
    write(3);
    train(&file, &["--resume", "--set", "updates=4"]);
    assert_eq!(updates(&out).len(), 4);
}

#[test]
fn with_a_decay_the_length_belongs_to_the_run() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    let (file, out) = (root.path().join("run.toml"), root.path().join("run"));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 6\n[task]\nname = \"copy\"\n[rollout]\nn = 1\n\
         [train]\nbatch = 2\nlr = 0.5e-3\nwarmup = 2\ndecay = 3\n[eval]\nproblems = 2\nevery = 0\n"
    );
    std::fs::write(&file, text).expect("written");
    train(&file, &[]);
    let rates: Vec<f64> = updates(&out).iter().map(|line| line["lr"].as_f64().expect("a number") * 2e3).collect();
    let expected = [0.5, 1.0, 1.0, 0.75, 0.5, 0.25];
    assert!(rates.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-6), "{rates:?}");
    let error = refused(&file, &["--resume", "--set", "updates=8"]);
    assert!(error.contains("`updates`"), "{error}");
}

/// Sequences that do not fit in the pool wait; who waits decides nothing.
#[test]
fn a_small_pool_has_the_same_bits() {
    let root = tempfile::tempdir().expect("a temporary folder");
    models(root.path());
    // Enough for a few of the eighteen sequences, and for less than one.
    let (few, none) = ("kv_memory = 8192", "kv_memory = 512");
    for (name, top, recipe) in
        [("turns", "", "kv8"), ("own", "", "identity"), ("stages", "schedule = { steps_off = 1 }", "kv8")]
    {
        let of = |which: &str, more: &str| {
            run_file(root.path(), &format!("{name}-{which}"), top, &format!("recipe = \"{recipe}\"\n{more}"))
        };
        let ((file, whole), (small, tight)) = (of("whole", ""), of("small", few));
        train(&file, &[]);
        train(&small, &[]);
        assert!(state(&whole, UPDATES) == state(&tight, UPDATES), "{name}: weights differ");
        let ids = |out: &Path| -> Vec<Value> {
            lines(&out.join("rollouts.jsonl"))
                .iter()
                .map(|line| serde_json::json!([line["ids"], line["logprobs"]]))
                .collect()
        };
        assert!(ids(&whole) == ids(&tight), "{name}: rollouts differ");
        // What decides nothing may be another when a run goes on.
        train(
            &small,
            &["--resume", "--set", "rollout.kv_memory=5000000000", "--set", &format!("updates={}", UPDATES + 2)],
        );
        train(&file, &["--resume", "--set", &format!("updates={}", UPDATES + 2)]);
        assert!(state(&whole, UPDATES + 2) == state(&tight, UPDATES + 2), "{name}: weights differ after more updates");
    }
    let (file, out) = run_file(root.path(), "none", "", none);
    let error = refused(&file, &[]);
    assert!(error.contains("rollout.kv_memory: a sequence of up to") && !out.exists(), "{error}");
}
