//! Every target and divergence, from run files through `train`; and what all of them share: the rollout's view is
//! measured and never trained on, threads change no bit, and agreement is an error.

mod common;

use std::path::Path;

use common::{leeway, stderr, task_model};
use engine::model::Model;
use opd::config::Config;
use opd::learner::{Learner, Views};
use opd::loss::{Objective, View};
use opd::sequences::Row;
use opd::side::Side;
use ptx::Cpu;
use ptx::ops::divergence::Kind;
use serde_json::Value;

/// What stands in `[loss]`.
const ARMS: [&str; 20] = [
    "kind = 'reverse-kl'",
    "kind = 'forward-kl'",
    "kind = 'jsd'\nbeta = 0.3",
    "kind = 'skewed-reverse-kl'\nalpha = 0.8",
    "kind = 'skewed-forward-kl'\nalpha = 0.8",
    "support = 'teacher-top-k'\nk = 4",
    "support = 'teacher-top-k'\nk = 4\ntail = false",
    "support = 'student-top-k'\nk = 4\nkind = 'forward-kl'",
    "support = 'student-top-k'\nk = 4\ntail = false",
    "kind = 'sampled'\nbaseline = false",
    "kind = 'sampled'",
    "kind = 'head-tail'\nsupport = 'student-top-k'\nk = 4",
    "kind = 'head-tail'\nsupport = 'teacher-top-k'\nk = 2",
    "target = 'extrapolated'\nlambda = 1.25",
    "target = 'extrapolated'\nlambda = 0.5\nreference = 'third'\nkind = 'jsd'",
    "target = 'bounded'\ndelta = 0.01",
    "target = 'bounded'\ndelta = 0.05\nreference = 'third'\nkind = 'forward-kl'",
    "target = 'bounded'\ndelta = 0.01\nkind = 'sampled'",
    "target = 'trust-region'\neps = 0.02",
    "target = 'trust-region'\neps = 0.02\nsupport = 'teacher-top-k'",
];

fn models(root: &Path) {
    for (seed, name) in (0..).zip(["student", "teacher", "third"]) {
        task_model(&root.join(name), seed);
    }
}

fn run_file(root: &Path, name: &str, loss: &str, top: &str) -> std::path::PathBuf {
    let file = root.join(format!("{name}.toml"));
    let text = format!(
        "student = 'student'\nout = {:?}\nseed = 5\n{top}\n[task]\nname = 'copy'\nlen_max = 5\n[loss]\n{loss}\n\
         [rollout]\nn = 2\n[train]\nprecision = 'f32'\nbatch = 4\nlr = 1e-3\nwarmup = 0\n[eval]\nproblems = 4\nevery = 0\n",
        root.join(name)
    );
    std::fs::write(&file, text).expect("written");
    file
}

const TWO: &str = "teacher = 'teacher'\nupdates = 2";

/// Trains with some `[loss]`; the updates' lines, the weights after them, and standard error.
fn train(root: &Path, name: &str, loss: &str) -> (Vec<Value>, Vec<u8>, String) {
    train_with(root, name, loss, &[])
}

/// The same with overrides.
fn train_with(root: &Path, name: &str, loss: &str, sets: &[&str]) -> (Vec<Value>, Vec<u8>, String) {
    let mut command = leeway();
    command.arg("train").arg(run_file(root, name, loss, TWO));
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{loss}: {}", stderr(&output));
    let text = std::fs::read_to_string(root.join(name).join("metrics.jsonl")).expect("written");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let weights = std::fs::read(root.join(name).join("checkpoints/000002/trainer.safetensors")).expect("written");
    (lines.filter(|line| line["update"].is_u64()).collect(), weights, stderr(&output))
}

#[test]
fn every_arm_trains_from_a_run_file() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let mut all: Vec<(&str, Vec<u8>)> = Vec::new();
    for (i, loss) in ARMS.into_iter().enumerate() {
        let (updates, weights, _) = train(dir.path(), &format!("run{i}"), loss);
        assert_eq!(updates.len(), 2);
        for line in &updates {
            let finite = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{loss}: {key} in {line}"));
            assert!(finite("loss").is_finite() && finite("grad_norm") > 0.0 && finite("kl_teacher") > 0.0, "{line}");
            assert_eq!(line["mismatch_nats"], 0.0, "{loss}");
            let target = &line["target"];
            assert_eq!(target.is_object(), loss.contains("target ="), "{loss}: {line}");
            let bound = ["delta = ", "eps = "]
                .iter()
                .find_map(|key| loss.split_once(key))
                .map(|(_, rest)| rest.lines().next().expect("a line").parse::<f64>().expect("a number"));
            if let Some(bound) = bound {
                let (max, mean) = (target["kl_max"].as_f64().expect("set"), target["kl_mean"].as_f64().expect("set"));
                assert!(max <= bound * (1.0 + 1e-6) && mean > 0.5 * bound && mean <= max, "{loss}: {target}");
            }
        }
        all.push((loss, weights));
    }
    // Every arm is an update of its own.
    for (i, (loss, weights)) in all.iter().enumerate() {
        for (other, others) in &all[..i] {
            assert!(weights != others, "{loss:?} and {other:?} train the same");
        }
    }
    // What reduces to the teacher has its bits, and so have the ends of the JSD, which are the KLs.
    for (i, (loss, plain)) in [
        ("target = 'extrapolated'\nlambda = 1", 0),
        ("target = 'bounded'\ndelta = 0.0\nreference = 'third'", 0),
        ("kind = 'jsd'\nbeta = 1.0", 0),
        ("kind = 'jsd'\nbeta = 0", 1),
    ]
    .into_iter()
    .enumerate()
    {
        let (_, weights, _) = train(dir.path(), &format!("same{i}"), loss);
        assert!(weights == all[plain].1, "{loss}: not the bits of the plain loss");
    }
    // The three estimates of a sampled token are other numbers with one gradient.
    let k1 = all.iter().find(|(loss, _)| loss.contains("baseline = false")).expect("an arm");
    let mut values = Vec::new();
    for kind in ["k2", "k3-straight-through"] {
        let (updates, weights, _) = train(dir.path(), kind, &format!("kind = '{kind}'"));
        assert!(weights == k1.1, "{kind}: not the gradient of the sampled loss");
        values.push(updates[0]["loss"].as_f64().expect("a number"));
        assert!(values.iter().all(|&loss| loss > 0.0), "{kind}: {values:?}");
    }
    assert!(values[0].to_bits() != values[1].to_bits(), "{values:?}");
    // The lamp lights once, where the log says that it must.
    let (updates, _, said) = train(dir.path(), "far", "target = 'extrapolated'\nlambda = 10");
    assert!(updates.iter().all(|line| line["target"]["lambda_star"].as_f64().is_some_and(|star| star < 10.0)));
    assert_eq!(said.matches("5 % quantile of lambda*").count(), 1, "{said}");
}

#[test]
fn agreement_is_an_error_for_every_arm() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    for (i, loss) in ARMS.into_iter().enumerate() {
        if loss.contains("third") {
            continue; // leads away from another reference, so there is something to learn
        }
        let file = run_file(dir.path(), &format!("run{i}"), loss, "teacher = 'student'\nupdates = 1");
        let output = leeway().arg("train").arg(file).output().expect("the binary runs");
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains("nothing to distil"), "{loss}: {said}");
    }
}

#[test]
fn resuming_asks_for_the_same_reference() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let loss = "target = 'bounded'\nreference = 'third'";
    let (_, whole, _) = train(dir.path(), "whole", loss);
    let resume = |updates: u32| {
        let file = run_file(dir.path(), "parts", loss, &format!("teacher = 'teacher'\nupdates = {updates}"));
        leeway().arg("train").arg(file).arg("--resume").output().expect("the binary runs")
    };
    assert!(resume(1).status.success());
    assert!(resume(2).status.success());
    let parts = std::fs::read(dir.path().join("parts/checkpoints/000002/trainer.safetensors")).expect("written");
    assert!(parts == whole, "a resumed run has other bits");
    std::fs::remove_dir_all(dir.path().join("third")).expect("there");
    task_model(&dir.path().join("third"), 9);
    let said = stderr(&resume(3));
    assert!(said.contains("began with reference"), "{said}");
}

/// A run from before there were these keys goes on: they have the defaults that it ran with.
#[test]
fn an_older_run_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let (_, whole, _) = train(dir.path(), "whole", "");
    let resume = |updates: u32| {
        let file = run_file(dir.path(), "parts", "", &format!("teacher = 'teacher'\nupdates = {updates}"));
        let output = leeway().arg("train").arg(file).arg("--resume").output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
    };
    resume(1);
    let path = dir.path().join("parts/config.toml");
    let text = std::fs::read_to_string(&path).expect("written");
    let older = text.replace("support = \"dense\"\n", "").replace("target = \"teacher\"\n", "");
    assert_eq!(older.lines().count() + 2, text.lines().count());
    std::fs::write(&path, older).expect("written");
    resume(2);
    let parts = std::fs::read(dir.path().join("parts/checkpoints/000002/trainer.safetensors")).expect("written");
    assert!(parts == whole, "a resumed run has other bits");
}

/// Gradient bits of a micro-batch.
fn gradient(cpu: &Cpu, models: [&Model; 4], objective: Objective, rows: &[Row], rubbish: bool) -> Vec<u32> {
    let [student, teacher, reference, behaviour] = models;
    let tokens = rows.iter().map(|row| row.ids.len()).sum();
    let sides = [teacher, reference, behaviour].map(|model| {
        let mut side = Side::new(model, tokens, rows.len());
        side.run(cpu, model, rows);
        side
    });
    let mut learner = Learner::new(student, tokens, rows.len());
    let draws: Vec<f32> = (0..tokens).map(|i| ptx::rng::sample_uniform(3, i as u64, 0)).collect();
    let views = Views {
        draws: Some(&draws),
        factors: None,
        teacher: Some(View { head: teacher.head(), hidden: &sides[0].hidden }.into()),
        reference: Some(View { head: reference.head(), hidden: &sides[1].hidden }.into()),
        behaviour: rubbish.then(|| View { head: behaviour.head(), hidden: &sides[2].hidden }.into()),
    };
    learner.micro_batch(cpu, student, objective, rows, views, 64, 0.01, true).expect("the loss is finite");
    let tensors = 0..learner.gradients.params().len();
    tensors.flat_map(|i| learner.gradients.tensor(i).iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
}

/// The rollout's distribution may say what it likes, and any number of threads may share the rows.
#[test]
fn gradients_depend_on_neither_behaviour_nor_threads() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    task_model(&dir.path().join("rubbish"), 77);
    let one = Cpu::new(1);
    let models =
        ["student", "teacher", "third", "rubbish"].map(|name| common::load(&one, &dir.path().join(name), "f32"));
    let models = models.each_ref();
    let rows: Vec<Row> = (0..4).map(|i| Row::new((0..12 + i).map(|t| (i * 17 + t * 5) % 60).collect(), 3)).collect();
    let mut kernel = [Kind::ReverseKl, Kind::ForwardKl].into_iter();
    for loss in ARMS {
        let file = run_file(dir.path(), "arm", loss, TWO);
        let objective = Config::load(&file, &[]).expect("it loads").loss.objective();
        let objective = Objective::Composed { objective, inv_temp: 1.25 };
        let want = gradient(&one, models, objective, &rows, false);
        assert!(want.iter().any(|&bits| bits << 1 != 0), "{loss}: no gradient");
        if let Some(kind) = kernel.next() {
            // The first two arms are the kernel itself.
            let direct = Objective::Distill { kind, inv_temp: 1.25 };
            assert!(gradient(&one, models, direct, &rows, false) == want, "{loss}: not the kernel's bits");
        }
        assert!(gradient(&one, models, objective, &rows, true) == want, "{loss}: the rollout's view was trained on");
        assert!(gradient(&Cpu::new(3), models, objective, &rows, true) == want, "{loss}: threads change bits");
    }
}

/// An estimate whose gradient is not that of what it estimates is no loss, and the error says which one is.
#[test]
fn estimates_that_are_no_losses_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (kind, want) in [("k1", "`loss.kind` is \"k1\"; it must be \"sampled\""), ("k3", "the gradient of k2")] {
        let file = run_file(dir.path(), "refused", &format!("kind = '{kind}'"), TWO);
        let said = Config::load(&file, &[]).expect_err("refused").to_string();
        assert!(said.contains(want) && said.contains("refused.toml:"), "{said}");
    }
}

/// Weights are all 1 where rollout and trainer are the same bits, and something where they are not.
#[test]
fn weights_are_of_the_mismatch() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let (same, other) = (&["train.batch=16"][..], &["train.batch=16", "rollout.recipe=kv8"][..]);
    let plain = [same, other].map(|sets| train_with(dir.path(), &format!("plain{}", sets.len()), "", sets).1);
    let arms = [
        "weight = 'token-tis'",
        "weight = 'sequence-tis'",
        "weight = 'mask'\nwindow = 'geometric'",
        "weight = 'mask'\nwindow_low = 0.999\nwindow_high = 1.001",
        "weight = 'prefix-snis'",
    ];
    let mut all = vec![plain[1].clone()];
    for (i, arm) in arms.into_iter().enumerate() {
        let (lines, weights, _) = train_with(dir.path(), &format!("same{i}"), arm, same);
        assert!(weights == plain[0], "{arm}: other bits than without weights, and there is no mismatch");
        assert_eq!((lines[0]["weight"]["mean"].as_f64(), lines[0]["weight"]["ess"].as_f64()), (Some(1.0), Some(1.0)));
        let (lines, weights, _) = train_with(dir.path(), &format!("other{i}"), arm, other);
        assert!(!all.contains(&weights), "{arm}: trains as another arm does");
        all.push(weights);
        let number = |key: &str| lines[0]["weight"][key].as_f64().expect("a number");
        assert!(number("ess") > 0.0 && number("ess") < 1.0 && number("mean") > 0.0, "{arm}: {}", lines[0]);
        assert_eq!(number("masked") > 0.0, arm.contains("mask"), "{arm}: {}", lines[0]);
    }
}

/// Rewards are the task's own judgement; the teacher is measured and not trained on.
#[test]
fn rewards_train_too() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    models(dir.path());
    let able = dir.path().join("able");
    let mut pretrain = leeway();
    pretrain.args(["pretrain", "--task", "{ name = \"copy\", len_max = 5 }", "--updates", "300", "--lr", "5e-3"]);
    pretrain.args(["--precision", "f32", "--problems", "8", "--model"]).arg(dir.path().join("student"));
    let output = pretrain.arg("--out").arg(&able).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let run = |name: &str, loss: &str, sets: &[&str]| {
        let sets = [&["student=able", "train.batch=16", "rollout.n=8", "rollout.temperature=1.5"], sets].concat();
        let (lines, weights, _) = train_with(dir.path(), name, &format!("kind = 'grpo'\n{loss}"), &sets);
        for line in &lines {
            let number = |key: &str| line["grpo"][key].as_f64().expect("a number");
            assert!(number("reward") > 0.0 && number("reward") < 1.0 && number("flat_groups") < 1.0, "{line}");
            assert!(line["grad_norm"].as_f64() > Some(0.0) && line["kl_teacher"].as_f64() > Some(0.0), "{line}");
            assert_eq!(number("clipped"), 0.0, "{line}");
            let (right, of) = (line["correct"].as_f64().expect("judged"), line["rollouts"].as_f64().expect("some"));
            assert_eq!(number("reward").to_bits(), (right / of).to_bits());
        }
        weights
    };
    let recomputed = run("recomputed", "", &[]);
    assert!(run("naive", "ratio = 'naive'", &[]) == recomputed, "without mismatch both ratios are 1");
    assert!(run("other", "", &["teacher=third"]) == recomputed, "the teacher was trained on");
    assert!(run("centred", "scaled = false", &[]) != recomputed);
    let kv8 = ["rollout.recipe=kv8"];
    let arms = [
        "",
        "ratio = 'naive'\nclip_low = 1.0\nclip_high = 50",
        "weight = 'token-tis'",
        "weight = 'mask'\nwindow = 'geometric'",
    ];
    let all: Vec<_> = arms.iter().enumerate().map(|(i, arm)| run(&format!("arm{i}"), arm, &kv8)).collect();
    for (i, weights) in all.iter().enumerate() {
        assert!(!all[..i].contains(weights), "{}: trains as another arm does", arms[i]);
    }
    std::fs::write(dir.path().join("prompts.jsonl"), "{\"ids\": [1, 2, 3]}\n").expect("written");
    let file = run_file(dir.path(), "unjudged", "kind = 'grpo'", TWO);
    let output = leeway().arg("train").arg(file).args(["--set", "task={prompts='prompts.jsonl'}"]).output();
    let said = stderr(&output.expect("the binary runs"));
    assert!(said.contains("cannot be judged"), "{said}");
}
