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
const ARMS: [&str; 18] = [
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
    let output = leeway().arg("train").arg(run_file(root, name, loss, TWO)).output().expect("the binary runs");
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
    let views = Views {
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
    let rows: Vec<Row> =
        (0..4).map(|i| Row { ids: (0..12 + i).map(|t| (i * 17 + t * 5) % 60).collect(), prompt: 3 }).collect();
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
