//! The result object of every command: the keys that scripts read.

mod common;

use common::{run_json, task_model};
use serde_json::Value;

fn has(value: &Value, command: &str, keys: &[&str]) {
    for key in keys {
        assert!(!value[*key].is_null(), "{command}: no `{key}` in {value}");
    }
}

#[test]
fn results_have_their_documented_keys() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| root.path().join(name).to_str().expect("Unicode").to_owned();
    let (student, teacher, file) = (path("student"), path("teacher"), path("run.toml"));
    let init = run_json(["init", "--tasks", "--layers", "1", "--hidden", "32", "--out", &path("fresh")]);
    has(&init, "init", &["parameters", "model", "seed"]);
    task_model(root.path().join("student").as_path(), 0);
    let pretrain = run_json([
        "pretrain",
        "--model",
        &student,
        "--out",
        &teacher,
        "--task",
        "copy",
        "--updates",
        "3",
        "--batch",
        "4",
        "--problems",
        "8",
    ]);
    has(&pretrain, "pretrain", &["accuracy", "ci95", "n", "loss", "updates", "tokens", "wall_s", "model"]);
    assert_eq!((pretrain["updates"].as_u64(), pretrain["n"].as_u64()), (Some(3), Some(8)));

    let out = path("out");
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 2\n[task]\nname = \"copy\"\n\
         [train]\nbatch = 2\n[rollout]\nn = 2\nrecipe = \"fp8\"\n[eval]\nproblems = 4\n"
    );
    std::fs::write(&file, text).expect("written");
    let train = run_json(["train", &file]);
    let keys = ["accuracy_before", "accuracy_after", "kl_teacher_before", "kl_teacher_after", "mismatch_nats"];
    has(&train, "train", &keys);
    has(&train, "train", &["updates", "tokens", "wall_s", "recipe_hash", "student", "teacher", "device", "seed"]);
    assert!(train["kl_teacher_before"].as_f64() > Some(0.0) && train["mismatch_nats"].as_f64() > Some(0.0));
    assert_eq!(train["updates"], 2);
    let exact =
        run_json(["train", &file, "--set", "rollout.recipe=identity", "--set", &format!("out={}", path("exact"))]);
    assert_eq!(exact["mismatch_nats"].as_f64(), Some(0.0), "rollout and trainer are one function");

    let eval = run_json(["eval", "--model", &teacher, "--task", "copy", "--problems", "6"]);
    has(&eval, "eval", &["accuracy", "ci95", "n", "weights_version", "recipe_hash", "model"]);
    assert_eq!((eval["n"].as_u64(), eval["ci95"].as_array().map(Vec::len)), (Some(6), Some(2)));

    let generate = run_json([
        "generate",
        "--model",
        &student,
        "--prompt",
        "abc>",
        "--n",
        "2",
        "--max-tokens",
        "5",
        "--logprobs",
        "3",
        "--prompt-logprobs",
    ]);
    has(&generate, "generate", &["rows", "errors", "tokens", "wall_s", "weights_version", "recipe_hash", "model"]);
    let rows = generate["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for row in rows {
        has(row, "generate", &["ids", "text", "logprobs", "finish", "sample", "index", "prompt_logprobs"]);
        let len = |key: &str| row[key].as_array().map(Vec::len);
        assert!(len("ids") > Some(0) && len("ids") == len("logprobs") && len("ids") == len("top_logprobs"));
        assert!(["stop", "length"].contains(&row["finish"].as_str().expect("a word")));
    }

    let ids = path("ids.jsonl");
    let line = |row: &Value| serde_json::json!({"ids": row["ids"]}).to_string();
    std::fs::write(&ids, rows.iter().map(|row| line(row) + "\n").collect::<String>()).expect("written");
    let score = run_json(["score", "--model", &student, "--ids", &ids]);
    has(&score, "score", &["logprobs", "tokens", "weights_version", "recipe", "errors", "model", "wall_s"]);
    assert_eq!(score["logprobs"].as_array().map(Vec::len), Some(2));
    assert_eq!(score["recipe"], generate["recipe_hash"]);
    let again = run_json(["score", "--model", &student, "--ids", &ids, "--isa", "portable"]);
    assert_eq!(score["logprobs"], again["logprobs"]);

    // A list for each id but the first, the id itself last in it: the same logprob, at the row's own temperature too.
    let asked = |row: &Value, more: &str| {
        let ids: Vec<u64> = row["ids"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
        let lists: Vec<Vec<u64>> =
            ids[1..].iter().enumerate().map(|(i, &id)| if i == 1 { vec![] } else { vec![3, id] }).collect();
        format!("{{\"ids\": {ids:?}, \"candidates\": {lists:?}{more}}}\n{{\"ids\": {ids:?}{more}}}\n")
    };
    let (asked_path, out) = (path("asked.jsonl"), path("scored.jsonl"));
    std::fs::write(&asked_path, asked(&rows[0], "") + &asked(&rows[0], ", \"temperature\": 0.5")).expect("written");
    let score = run_json(["score", "--model", &student, "--ids", &asked_path, "--temperature", "1.5", "--out", &out]);
    let plain =
        |t: &str| run_json(["score", "--model", &student, "--ids", &ids, "--temperature", t])["logprobs"][0].clone();
    let want = [plain("1.5"), plain("0.5")];
    assert_eq!(score["temperatures"], serde_json::json!([1.5, 1.5, 0.5, 0.5]));
    let lines = std::fs::read_to_string(&out).expect("read");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for row in 0..4 {
        assert_eq!(score["logprobs"][row], want[row / 2]);
        assert_eq!(lines[row]["candidates"], score["candidates"][row]);
        assert_eq!(lines[row]["temperature"], score["temperatures"][row]);
        let Some(lists) = score["candidates"][row].as_array() else {
            assert!(row % 2 == 1 && score["candidates"][row].is_null() && lines[row].get("candidates").is_none());
            continue;
        };
        assert_eq!(lists.len(), want[0].as_array().expect("a list").len());
        for (i, list) in lists.iter().enumerate() {
            let list = list.as_array().expect("a list");
            assert_eq!(list.len(), if i == 1 { 0 } else { 2 });
            assert!(i == 1 || list[1] == want[row / 2][i], "row {row}, list {i}: {list:?}");
        }
    }

    let show = run_json(["recipe", "show", "--model", &student, "--recipe", "fp8"]);
    has(&show, "recipe show", &["model_type", "recipe", "recipe_hash", "static_scales", "table"]);
    assert_eq!(show["recipe_hash"], train["recipe_hash"]);
    assert_eq!(show["table"]["layers"][0]["k"], "e4m3");

    let doctor = run_json(["doctor", "--model", &student]);
    has(&doctor, "doctor", &["device", "isa", "threads", "recipes", "model"]);
    has(&doctor["model"], "doctor", &["architecture", "parameters", "hash", "kv"]);
}

/// The teacher of the quickstart writes one character a token, so a stop text of two spans tokens.
#[test]
fn stop_texts_cut_the_text_and_nothing_else() {
    let teacher = common::repository("examples/quickstart/teacher").display().to_string();
    let words = ["generate", "--model", &teacher, "--prompt", "<bos>7+5-3%9=", "--max-tokens", "20", "--ignore-eos"];
    let run = |more: &[&str]| run_json(words.iter().chain(more))["rows"][0].clone();
    let whole = run(&[]);
    let text = whole["text"].as_str().expect("text");
    assert!(text.len() > 6, "{text:?}");
    let stop = &text[3..5];
    let start = text.find(stop).expect("it is a part");
    let cut = run(&["--stop", "\u{7f}never", "--stop", stop]);
    assert_eq!((cut["text"].as_str(), cut["finish"].as_str()), (Some(&text[..start]), Some("stop")));
    let list = |row: &Value, key: &str| row[key].as_array().expect("a list").clone();
    let len = list(&cut, "ids").len();
    assert!(len < 20 && len > start);
    for key in ["ids", "logprobs", "logprobs_raw", "support"] {
        assert_eq!(list(&cut, key), list(&whole, key)[..len], "{key}");
    }
    // The id that completes it stops as well when it is given as an id.
    let last = list(&cut, "ids")[len - 1].to_string();
    assert!(list(&run(&["--stop-id", &last]), "ids").len() <= len);
    let refused = common::leeway().args(words).args(["--stop", ""]).output().expect("it runs");
    assert!(!refused.status.success() && common::stderr(&refused).contains("stop string 0 is empty"));
}
