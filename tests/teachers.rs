//! Several teachers: each prompt's completions are scored by the one that its line names.

mod common;

use std::path::{Path, PathBuf};

use common::{leeway, stderr, task_model};
use serde_json::Value;

/// A student, two teachers of different width, and forty prompts that take turns.
fn folder() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    task_model(&root.path().join("student"), 0);
    task_model(&root.path().join("first"), 1);
    let wide = ["--tasks", "--layers", "3", "--hidden", "48", "--head-dim", "16", "--heads", "2", "--kv-heads", "1"];
    let output = leeway()
        .args(["init", "--ffn", "64", "--std", "0.2", "--seed", "2"])
        .args(wide)
        .arg("--out")
        .arg(root.path().join("wide"))
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    prompts(root.path(), |at| if at % 2 == 0 { "" } else { ", \"teacher\": \"wide\"" });
    root
}

fn prompts(root: &Path, more: impl Fn(u32) -> &'static str) {
    let line = |at: u32| format!("{{\"ids\": [{}, {}, {}]{}}}\n", 5 + at, 9 + at, 55 - at, more(at));
    std::fs::write(root.join("prompts.jsonl"), (0..40).map(line).collect::<String>()).expect("written");
}

fn run_file(root: &Path, name: &str, teachers: &str, top: &str, tables: &str) -> (PathBuf, PathBuf) {
    let (file, out) = (root.join(format!("{name}.toml")), root.join(name));
    let text = format!(
        "student = \"student\"\nout = {out:?}\nupdates = 3\nseed = 5\n{top}\n[task]\nprompts = \"prompts.jsonl\"\n{teachers}\n\
         [rollout]\nn = 2\nmax_tokens = 6\n[train]\nbatch = 4\nlr = 3e-3\nwarmup = 0\n[eval]\nproblems = 8\nevery = 1\n{tables}"
    );
    std::fs::write(&file, text).expect("written");
    (file, out)
}

const BOTH: &str = "teachers = { wide = \"wide\" }";

fn train(file: &Path, more: &[&str]) -> String {
    let output = leeway().arg("train").arg(file).args(more).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(file: &Path, more: &[&str]) -> String {
    let output = leeway().arg("train").arg(file).args(more).output().expect("the binary runs");
    assert!(!output.status.success());
    stderr(&output)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn first_samples(out: &Path) -> Vec<Value> {
    let all = lines(&out.join("samples.jsonl"));
    let first: Vec<Value> = all.into_iter().filter(|line| line["update"] == 1).collect();
    assert_eq!(first.len(), 8, "every completion of the update");
    first
}

#[test]
fn every_completion_is_scored_by_its_own_teacher() {
    let root = folder();
    let root = root.path();
    let (both, out) = run_file(root, "both", BOTH, "teacher = \"first\"", "");
    let table = train(&both, &["--threads", "2"]);
    assert!(table.contains("  on prompts of teacher") && table.contains("  on prompts of wide"), "{table}");
    // The rollouts of the first update do not depend on the teacher: its scores are those of runs with one teacher.
    let mut alone = Vec::new();
    for name in ["first", "wide"] {
        let (file, out) = run_file(root, &format!("only-{name}"), "", &format!("teacher = \"{name}\""), "");
        train(&file, &[]);
        alone.push(first_samples(&out));
    }
    let same = |a: &Value, b: &Value| a["prompt_ids"] == b["prompt_ids"] && a["sample"] == b["sample"];
    let (mut sums, mut counts) = ([0.0; 2], [0; 2]);
    let mixed = first_samples(&out);
    for line in &mixed {
        let odd = line["prompt_ids"][0].as_u64().expect("an id") % 2 == 0; // prompts begin with 5 + their number
        let which = usize::from(odd);
        assert_eq!(line["teacher"], ["teacher", "wide"][which]);
        let own = alone[which].iter().find(|other| same(line, other)).expect("the same rollouts");
        assert_eq!((&line["ids"], &line["kl_teacher"]), (&own["ids"], &own["kl_teacher"]), "bit for bit");
        let other = alone[1 - which].iter().find(|other| same(line, other)).expect("the same rollouts");
        assert_ne!(line["kl_teacher"], other["kl_teacher"], "the teachers differ");
        let kl: Vec<f64> =
            line["kl_teacher"].as_array().expect("a list").iter().map(|kl| kl.as_f64().unwrap()).collect();
        sums[which] += kl.iter().sum::<f64>();
        counts[which] += kl.len();
    }
    assert!(counts.iter().all(|&count| count > 0), "both teachers have prompts in the first update");
    let metrics = lines(&out.join("metrics.jsonl"));
    let update = metrics.iter().find(|line| line["update"] == 1).expect("a line an update");
    for (which, name) in ["teacher", "wide"].into_iter().enumerate() {
        #[allow(clippy::cast_precision_loss)] // few tokens
        let mean = sums[which] / counts[which] as f64;
        let said = update["kl_by_teacher"][name].as_f64().expect("a number");
        assert!((said - mean).abs() < 1e-12, "{name}: {said} and {mean}");
    }
    assert_eq!(metrics[0]["origin"]["teachers"]["wide"].as_str().map(str::len), Some(64));
    assert!(metrics[0]["eval"]["kl_by_teacher"].is_object());
}

#[test]
fn where_all_prompts_name_one_it_alone_trains() {
    let root = folder();
    let root = root.path();
    prompts(root, |_| ", \"teacher\": \"wide\"");
    let (named, named_out) = run_file(root, "named", BOTH, "teacher = \"first\"", "");
    let (alone, alone_out) = run_file(root, "alone", "", "teacher = \"wide\"", "");
    train(&named, &[]);
    train(&alone, &[]); // without `task.teachers` the key is the file's own
    let weights = |out: &Path| std::fs::read(out.join("checkpoints/000003/model.safetensors")).expect("written");
    assert!(weights(&named_out) == weights(&alone_out), "the same bits");
}

#[test]
fn a_scoring_stage_routes_as_well() {
    let root = folder();
    let root = root.path();
    let (sync, sync_out) = run_file(root, "sync", BOTH, "teacher = \"first\"", "");
    let (steps, steps_out) = run_file(root, "steps", BOTH, "teacher = \"first\"\nschedule = { steps_off = 1 }", "");
    train(&sync, &[]);
    train(&steps, &[]);
    let of = |out: &Path| {
        let all = lines(&out.join("metrics.jsonl"));
        all.into_iter().find(|line| line["update"] == 1).expect("a line an update")
    };
    // Nothing is stale in the first update.
    assert_eq!(of(&sync_out)["kl_by_teacher"], of(&steps_out)["kl_by_teacher"]);
    assert_eq!(of(&sync_out)["grad_norm"], of(&steps_out)["grad_norm"]);
}

#[test]
fn text_of_the_teachers_is_each_ones_own() {
    let root = folder();
    let root = root.path();
    let (file, out) = run_file(root, "offline", BOTH, "teacher = \"first\"", "[offline]\nupdates = 2\n");
    train(&file, &[]);
    let origin = lines(&out.join("metrics.jsonl"))[0]["origin"].clone();
    let mut seen = [0, 0, 0];
    for line in lines(&out.join("rollouts.jsonl")) {
        let model = &line["model"];
        if line["update"].as_u64() > Some(2) {
            assert_eq!(model, &origin["student"]);
            seen[2] += 1;
        } else if line["teacher"] == "wide" {
            assert_eq!(model, &origin["teachers"]["wide"]);
            seen[1] += 1;
        } else {
            assert_eq!((&line["teacher"], model), (&Value::from("teacher"), &origin["teacher"]));
            seen[0] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn what_is_wrong_is_named() {
    let root = folder();
    let root = root.path();
    prompts(root, |at| if at == 3 { ", \"teacher\": \"wd\"" } else { "" });
    let (file, _) = run_file(root, "unknown", BOTH, "teacher = \"first\"", "");
    let error = refused(&file, &[]);
    assert!(error.contains("prompts.jsonl:4: `teacher` is \"wd\", which is none of task.teachers: wide"), "{error}");
    let (file, _) = run_file(root, "absent", "teachers = { wide = \"nowhere\" }", "teacher = \"first\"", "");
    let error = refused(&file, &[]);
    assert!(error.contains("teacher") && error.contains("nowhere"), "{error}");
    let (file, _) = run_file(root, "number", "teachers = { wide = 3 }", "teacher = \"first\"", "");
    let error = refused(&file, &[]);
    assert!(error.contains("`task.teachers.wide` is 3, a whole number; it must be text in quotes"), "{error}");
    let (file, _) = run_file(root, "reserved", "teachers = { teacher = \"wide\" }", "teacher = \"first\"", "");
    let error = refused(&file, &[]);
    assert!(error.contains("task.teachers.teacher") && error.contains("not \"teacher\""), "{error}");
    let (file, _) = run_file(root, "ring", BOTH, "teacher = \"first\"", "");
    let error = refused(&file, &["--set", "ring=/dev/shm/leeway-nobody"]);
    assert!(error.contains("absent with `task.teachers`"), "{error}");
    // A procedural task has one.
    std::fs::write(
        root.join("task.toml"),
        "student = \"student\"\nteacher = \"first\"\n[task]\nname = \"copy\"\nteachers = { a = \"wide\" }\n",
    )
    .expect("written");
    let error = refused(&root.join("task.toml"), &[]);
    assert!(error.contains("unknown key `task.teachers`"), "{error}");
}

#[test]
fn a_resumed_run_has_the_same_teachers() {
    let root = folder();
    let root = root.path();
    let (whole, whole_out) = run_file(root, "whole", BOTH, "teacher = \"first\"", "");
    train(&whole, &[]);
    let (part, part_out) = run_file(root, "part", BOTH, "teacher = \"first\"", "");
    train(&part, &["--set", "updates=2"]);
    // Other weights under the same name.
    let folder = root.join("wide");
    let kept = root.join("kept");
    std::fs::rename(&folder, &kept).expect("renamed");
    task_model(&folder, 7);
    let error = refused(&part, &["--resume"]);
    assert!(error.contains("task.teachers") && error.contains("wide"), "{error}");
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::rename(&kept, &folder).expect("renamed");
    train(&part, &["--resume"]);
    let weights = |out: &Path| std::fs::read(out.join("checkpoints/000003/model.safetensors")).expect("written");
    assert!(weights(&whole_out) == weights(&part_out), "the same bits");
}
