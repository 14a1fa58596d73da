//! What a user gets wrong, one row each: the binary says what and where in one message, ends with status 1 (2 for wrong
//! usage), never panics, and leaves nothing half written. Requests beside a bad one are served.

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{leeway, stderr, task_model};
use serde_json::Value;
use tempfile::TempDir;

/// Models that the rows spoil copies of: `plain` without a tokenizer, `tasks` with that of the built-in tasks.
struct Bench {
    root: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().expect("a temporary folder");
        let bench = Bench { root };
        copy(common::golden_copy("llama", |_| {}).path(), &bench.path("plain"));
        task_model(&bench.path("tasks"), 0);
        task_model(&bench.path("teacher"), 1);
        bench.file("ids.jsonl", "{\"ids\": [1, 2, 3]}\n");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> OsString {
        std::fs::write(self.path(name), content).expect("written");
        self.path(name).into()
    }

    /// A copy of `from`, changed.
    fn model(&self, name: &str, from: &str, change: impl FnOnce(&Path)) -> OsString {
        copy(&self.path(from), &self.path(name));
        change(&self.path(name));
        self.path(name).into()
    }

    fn run_file(&self, name: &str, more: &str) -> OsString {
        let out = self.path(&format!("{name}.out"));
        let text = format!(
            "student = \"tasks\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 2\n\
             task = {{ name = \"modular-chain\", depth = 3 }}\n{more}\n"
        );
        self.file(name, text)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Changes the weights file.
fn weights(change: impl FnOnce(&mut Vec<u8>)) -> impl FnOnce(&Path) {
    |dir| {
        let path = dir.join("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("read");
        change(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
    }
}

/// Changes a JSON file.
fn json(file: &'static str, change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
    move |dir| {
        let text = std::fs::read_to_string(dir.join(file)).expect("read");
        let mut value = serde_json::from_str(&text).expect("JSON");
        change(&mut value);
        std::fs::write(dir.join(file), value.to_string()).expect("written");
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

/// `generate` on a model, with ids that are fine.
fn generate(bench: &Bench, model: OsString) -> Vec<OsString> {
    generate_ids(model, bench.path("ids.jsonl").into())
}

fn generate_ids(model: OsString, ids: OsString) -> Vec<OsString> {
    let mut all = words(["generate", "--max-tokens", "4", "--model"]);
    all.extend([model, "--ids".into(), ids]);
    all
}

/// `generate` on a model that is fine, with more words.
fn with<const N: usize>(bench: &Bench, more: [&str; N]) -> Vec<OsString> {
    let mut all = generate(bench, bench.path("plain").into());
    all.extend(words(more));
    all
}

fn prompts(bench: &Bench, name: &str, content: &[u8]) -> Vec<OsString> {
    let mut all = words(["generate", "--max-tokens", "4", "--model"]);
    all.extend([bench.path("tasks").into(), "--prompts".into(), bench.file(name, content)]);
    all
}

fn train(file: OsString, more: &[&str]) -> Vec<OsString> {
    let mut all = vec!["train".into(), file];
    all.extend(more.iter().map(OsString::from));
    all
}

/// One row: its words, its status, and what standard error must say.
type Row = (Vec<OsString>, i32, &'static [&'static str]);

fn model_rows(b: &Bench) -> Vec<Row> {
    let spoilt = |name: &str, change: &mut dyn FnMut(&Path)| generate(b, b.model(name, "plain", |dir| change(dir)));
    let mut rows: Vec<Row> = Vec::new();
    let mut weights_row = |name: &str, say: &'static [&'static str], change: fn(&mut Vec<u8>)| {
        rows.push((spoilt(name, &mut |dir| weights(change)(dir)), 1, say));
    };
    weights_row("cut", &["cut", "model.safetensors", "truncated", "fetch it again"], |w| w.truncate(w.len() - 10));
    weights_row("cut-header", &["model.safetensors", "truncated", "header"], |w| w.truncate(100));
    weights_row("four-bytes", &["model.safetensors", "truncated"], |w| w.truncate(4));
    weights_row("empty-file", &["model.safetensors", "truncated"], Vec::clear);
    weights_row("huge-header", &["model.safetensors", "first 8 bytes", "no safetensors file"], |w| w[..8].fill(0xff));
    weights_row("no-header", &["model.safetensors", "header"], |w| w[8] = b'x');
    weights_row("trailing", &["model.safetensors", "3 bytes", "belong to no tensor"], |w| w.extend([1, 2, 3]));
    weights_row("nan", &["model.safetensors", "tensor", "element", "NaN", "finite"], |w| {
        let end = w.len();
        w[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let mut config_row = |name: &str, say: &'static [&'static str], change: fn(&mut Value)| {
        rows.push((spoilt(name, &mut |dir| json("config.json", change)(dir)), 1, say));
    };
    config_row("shape", &["tensor", "has shape [131, 40]", "[130, 40]"], |c| c["vocab_size"] = 130.into());
    config_row("missing", &["model.layers.3.", "is missing", "config.json"], |c| c["num_hidden_layers"] = 4.into());
    config_row("unknown", &["model.layers.2.", "is not one that config.json calls for"], |c| {
        c["num_hidden_layers"] = 2.into();
    });
    config_row("rope", &["config.json", "rope", "spiral"], |c| c["rope_parameters"]["rope_type"] = "spiral".into());
    config_row("arch", &["config.json", "mamba"], |c| c["model_type"] = "mamba".into());
    config_row("layers", &["config.json", "num_hidden_layers", "4000000000"], |c| {
        c["num_hidden_layers"] = 4_000_000_000_u64.into();
    });
    let file = |name: &'static str| move |dir: &Path| std::fs::remove_file(dir.join(name)).expect("removed");
    rows.push((spoilt("no-config", &mut |dir| file("config.json")(dir)), 1, &["no-config", "config.json"]));
    rows.push((
        spoilt("no-weights", &mut |dir| file("model.safetensors")(dir)),
        1,
        &["no-weights", "no model.safetensors"],
    ));
    rows.push((
        spoilt("bad-config", &mut |dir| std::fs::write(dir.join("config.json"), "{").expect("written")),
        1,
        &["bad-config", "config.json", "line 1"],
    ));
    rows.push((generate(b, b.file("a-file", "")), 1, &["a-file", "config.json"]));
    rows.push((generate(b, b.path("nowhere").into()), 1, &["nowhere", "config.json"]));
    let tokenizer =
        b.model("bad-tokenizer", "tasks", |dir| std::fs::write(dir.join("tokenizer.json"), "{}").expect("written"));
    rows.push((generate(b, tokenizer), 1, &["tokenizer.json", "not a tokenizer"]));
    rows
}

fn request_rows(b: &Bench) -> Vec<Row> {
    let plain = || b.path("plain").into();
    let ids = |name: &str, content: &str| generate_ids(plain(), b.file(name, content));
    // More tokens than can be counted are as many as the context holds.
    let mut endless = words(["generate", "--max-tokens=18446744073709551615", "--kv-memory=9KiB", "--model"]);
    endless.extend([plain(), "--ids".into(), b.path("ids.jsonl").into()]);
    let long = |n: usize| format!("{{\"ids\": {:?}}}\n", vec![1; n]);
    vec![
        (ids("no-ids.jsonl", "{\"ids\": []}\n"), 1, &["no-ids.jsonl:1", "empty"]),
        (ids("negative.jsonl", "{\"ids\": [1]}\n{\"ids\": [1, -4]}\n"), 1, &["negative.jsonl:2", "-4", "token id"]),
        (ids("range.jsonl", "{\"ids\": [1, 131]}\n"), 1, &["prompt 0", "token 1", "id 131", "0..131"]),
        (ids("long.jsonl", &long(256)), 1, &["prompt 0", "256 tokens", "context"]),
        (ids("no-prompts.jsonl", "\n"), 1, &["no-prompts.jsonl", "no prompts"]),
        (with(b, ["--kv-memory", "9KiB"]), 1, &["prompt 0", "KV pages", "raise --kv-memory"]),
        (with(b, ["--kv-memory", "1000TiB"]), 1, &["--kv-memory", "memory"]),
        (with(b, ["--kv-memory", "much"]), 2, &["--kv-memory", "much"]),
        (endless, 1, &["prompt 0", "256 tokens need", "lower --max-tokens"]),
        (with(b, ["--temperature=-1"]), 1, &["temperature", "-1"]),
        (with(b, ["--temperature=nan"]), 1, &["temperature", "NaN"]),
        (with(b, ["--top-p=1.5"]), 1, &["top_p", "1.5"]),
        (with(b, ["--top-p=0"]), 1, &["top_p", "0"]),
        (with(b, ["--min-p=2"]), 1, &["min_p", "2"]),
        (with(b, ["--n=0"]), 2, &["--n", "0 is not in 1"]),
        (with(b, ["--n=4294967295"]), 2, &["--n", "1000000"]),
        (with(b, ["--stop-id=99999"]), 1, &["--stop-id 99999", "ids 0.."]),
        (with(b, ["--logprobs=99999"]), 1, &["--logprobs 99999"]),
        (with(b, ["--step-tokens=0"]), 2, &["--step-tokens", "from 1 to"]),
        (with(b, ["--stop="]), 1, &["stop string 0 is empty"]),
        (with(b, ["--recipe", "nofile.toml"]), 1, &["nofile.toml", "does not exist", "kv8"]),
        (with(b, ["--recipe", "nowhere/mixed.toml"]), 1, &["nowhere/mixed.toml", "does not exist"]),
        (with(b, ["--recipe", "bf61"]), 1, &["unknown recipe", "bf61", "did you mean \"bf16\""]),
        (with(b, ["--device", "tpu"]), 1, &["unknown device", "tpu", "cuda", "cpu"]),
        (with(b, ["--isa", "sse9"]), 1, &["sse9", "available", "portable"]),
        (with(b, ["--threads", "1000000"]), 1, &["--threads is 1000000", "at most"]),
        (with(b, ["--prompt", "1+2="]), 2, &["--prompt", "cannot be used with"]),
        (with(b, ["--bacth", "3"]), 2, &["--bacth", "--batch"]),
        (words(["generate", "--prompt", "1"]), 2, &["--model"]),
        (words([]), 2, &["Usage"]),
        (words(["genrate"]), 2, &["genrate", "generate"]),
        (
            prompts(b, "utf8.jsonl", b"{\"prompt\": \"1+2=\"}\n{\"prompt\": \"\xff\"}\n"),
            1,
            &["utf8.jsonl:2", "UTF-8", "0xff"],
        ),
        (prompts(b, "json.jsonl", b"{\"prompt\": \"1+2=\"}\n\n{\"prompt\": \n"), 1, &["json.jsonl:3", "not JSON"]),
        (prompts(b, "key.jsonl", b"{\"promt\": \"1+2=\"}\n"), 1, &["key.jsonl:1", "`promt`", "`prompt`"]),
        (
            prompts(b, "chat.jsonl", b"{\"messages\": [{\"role\": \"user\", \"content\": \"1+2=\"}]}\n"),
            1,
            &["chat.jsonl:1", "no chat template"],
        ),
        (candidates(b, "lists.jsonl", "[[1]]"), 1, &["lists.jsonl:1", "`candidates` has 1 lists", "3 ids take 2"]),
        (
            candidates(b, "listed.jsonl", "[[1], [9999]]"),
            1,
            &["listed.jsonl:1", "`candidates[1][0]` is id 9999", "ids 0.."],
        ),
        (words(["score", "--prompt", "1", "--temperature=0", "--model", "x"]), 1, &["--temperature is 0", "positive"]),
    ]
}

fn candidates(b: &Bench, name: &str, lists: &str) -> Vec<OsString> {
    let file = b.file(name, format!("{{\"ids\": [1, 2, 3], \"candidates\": {lists}}}\n"));
    vec!["score".into(), "--model".into(), b.path("plain").into(), "--ids".into(), file]
}

fn train_rows(b: &Bench) -> Vec<Row> {
    b.model("other-tokens", "teacher", |dir| {
        let text = std::fs::read_to_string(dir.join("tokenizer.json")).expect("read");
        let changed = text.replace("\"*\"", "\"x\"");
        assert_ne!(text, changed, "a token to rename");
        std::fs::write(dir.join("tokenizer.json"), changed).expect("written");
    });
    b.model("spoilt-teacher", "teacher", weights(|w| w.truncate(5000)));
    let file = |name: &str, more: &str| b.run_file(name, more);
    let set = |set: &str| train(file("set.toml", ""), &["--set", set]);
    vec![
        (train(b.path("none.toml").into(), &[]), 1, &["none.toml"]),
        (
            train(file("key.toml", "[train]\nlearning_rate = 1"), &[]),
            1,
            &["key.toml:7", "`train.learning_rate`", "did you mean"],
        ),
        (train(file("top.toml", "[train]\n[rolout]\nn = 1"), &[]), 1, &["top.toml:7", "`rolout`", "`rollout`"]),
        (train(file("kind.toml", "[train]\nlr = \"high\""), &[]), 1, &["kind.toml:7", "`train.lr`", "a number"]),
        (train(file("toml.toml", "[train"), &[]), 1, &["toml.toml:6", "not TOML"]),
        (set("train.lrr=1"), 1, &["--set train.lrr", "unknown key", "`train.lr`"]),
        (set("train.lr"), 1, &["--set train.lr", "key=value"]),
        (set("rollout.temperature=0"), 1, &["rollout.temperature", "more than 0"]),
        (set("rollout.temperature=-1"), 1, &["rollout.temperature", "more than 0"]),
        (set("rollout.top_p=0.9"), 1, &["rollout.top_p", "0.9", "must be 1"]),
        (set("rollout.top_p=1.1"), 1, &["rollout.top_p", "1.1", "must be 1"]),
        (set("rollout.recipe=fp9"), 1, &["rollout.recipe", "fp9", "did you mean \"fp8\""]),
        (set("rollout.n=0"), 1, &["rollout.n", "at least 1"]),
        (set("rollout.max_tokens=5000"), 1, &["context of 256"]),
        (set("task.name=chain"), 1, &["task.name", "chain", "modular-chain"]),
        (set("teacher=nowhere"), 1, &["teacher", "nowhere", "config.json"]),
        (set("teacher=spoilt-teacher"), 1, &["teacher", "spoilt-teacher", "truncated"]),
        (set("teacher=other-tokens"), 1, &["different tokenizers"]),
        (set("student=teacher"), 1, &["nothing to distil", "same checkpoint"]),
        (set("out=ids.jsonl/run"), 1, &["ids.jsonl"]),
        (words(["init", "--out", "/dev/null/model"]), 1, &["/dev/null"]),
        (words(["init", "--out", "x", "--device", "cuda"]), 1, &["--device cuda", "runs on the CPU alone"]),
        (words(["init", "--out", "x", "--from", "y", "--seed", "1"]), 2, &["--from", "--seed"]),
        (words(["init", "--out", "x", "--from", "y", "--keep-layers", "0-9999999999"]), 2, &["0-9999999999"]),
        (words(["init", "--out", "x", "--from", "y", "--keep-layers", "5-3"]), 2, &["5-3", "range"]),
        (words(["init", "--out", "x", "--tasks", "--vocab", "9"]), 2, &["--tasks", "--vocab"]),
        (
            words(["pretrain", "--model", "x", "--out", "y", "--task", "copy", "--until", "0.5"]),
            1,
            &["--until", "--eval-every"],
        ),
    ]
}

/// What every failure has in common.
fn check_failure(output: &Output, status: i32, says: &[&str], what: &dyn std::fmt::Debug) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{what:?}: {said}");
    for part in says {
        assert!(said.contains(part), "{what:?} must say {part:?}, and says: {said}");
    }
    for part in ["panicked", "backtrace", "unwrap", "Err(", "Some("] {
        assert!(!said.contains(part), "{what:?} shows its insides: {said}");
    }
    if status == 1 {
        assert!(said.contains("error: "), "{what:?}: {said}");
    }
}

fn check_rows(rows: Vec<Row>, b: &Bench) {
    for (words, status, says) in rows {
        let output = leeway().current_dir(b.root.path()).args(&words).output().expect("the binary runs");
        check_failure(&output, status, says, &words);
    }
}

#[test]
fn model_folders() {
    let bench = Bench::new();
    check_rows(model_rows(&bench), &bench);
}

#[test]
fn requests_and_settings() {
    let bench = Bench::new();
    check_rows(request_rows(&bench), &bench);
}

#[test]
fn run_files() {
    let bench = Bench::new();
    check_rows(train_rows(&bench), &bench);
}

#[test]
fn requests_beside_a_bad_one_are_served() {
    let b = Bench::new();
    let long = format!("{:?}", vec![1; 256]);
    let lines = format!("{{\"ids\": [1, 2, 3]}}\n{{\"ids\": [9999]}}\n{{\"ids\": {long}}}\n{{\"ids\": [5]}}\n");
    let ids = b.file("mixed.jsonl", lines);
    for command in ["generate", "score"] {
        let mut all = words(["--json", command, "--model"]);
        all.extend([b.path("plain").into(), "--ids".into(), ids.clone()]);
        let output = leeway().args(&all).output().expect("the binary runs");
        let result = common::last_line(&output);
        let failed: Vec<u64> =
            result["errors"].as_array().unwrap().iter().map(|e| e["index"].as_u64().unwrap()).collect();
        if command == "generate" {
            check_failure(&output, 1, &["prompt 1", "9999", "prompt 2", "256 tokens"], &all);
            assert_eq!(failed, [1, 2]);
            let served: Vec<u64> =
                result["rows"].as_array().unwrap().iter().map(|r| r["index"].as_u64().unwrap()).collect();
            assert_eq!(served, [0, 3]);
        } else {
            check_failure(&output, 1, &["row 1", "9999"], &all);
            assert_eq!(failed, [1]);
            let lengths: Vec<Option<usize>> =
                result["logprobs"].as_array().unwrap().iter().map(|l| l.as_array().map(Vec::len)).collect();
            assert_eq!(lengths, [Some(2), None, Some(255), Some(0)]);
        }
    }
}

#[test]
fn an_earlier_run_is_set_aside_and_another_is_not_resumed() {
    let b = Bench::new();
    let file = b.run_file("twice.toml", "[train]\nbatch = 1\n[rollout]\nn = 2\n[eval]\nproblems = 2");
    let first = common::run(train(file.clone(), &[]));
    assert!(first.status.success(), "{}", stderr(&first));
    let log = std::fs::read(b.path("twice.toml.out/metrics.jsonl")).expect("written");
    let again = common::run(train(file.clone(), &[]));
    assert!(again.status.success() && stderr(&again).contains("twice.toml.out.1"), "{}", stderr(&again));
    let aside = std::fs::read(b.path("twice.toml.out.1/metrics.jsonl")).expect("kept");
    assert_eq!(log, aside, "the first run is whole");
    let inside = format!("student={}", b.path("twice.toml.out/checkpoints/000002").display());
    let output = common::run(train(file.clone(), &["--set", &inside]));
    check_failure(&output, 1, &["twice.toml.out", "set aside", "another folder"], &"a student in the run's folder");
    let other = common::run(train(file.clone(), &["--resume", "--set", "train.lr=0.5"]));
    check_failure(&other, 1, &["twice.toml.out", "train.lr", "--resume"], &"another run");
    let log = std::fs::read(b.path("twice.toml.out/metrics.jsonl")).expect("written");
    let last = common::run_json(train(file, &["--resume"]));
    assert_eq!(log, std::fs::read(b.path("twice.toml.out/metrics.jsonl")).expect("there"));
    let log: Vec<Value> =
        std::str::from_utf8(&log).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let evals: Vec<&Value> = log.iter().filter_map(|line| line.get("eval")).collect();
    assert_eq!(last["kl_teacher_before"], evals[0]["kl_teacher"], "a finished run reports what it found");
    assert_eq!(last["kl_teacher_after"], evals[1]["kl_teacher"]);
}

/// A recipe file that is not what it was when the run began, though its path is.
#[test]
fn a_run_is_not_resumed_with_another_recipe() {
    let b = Bench::new();
    b.file("mixed.toml", b"[default]\nk = 'e4m3'\nv = 'e4m3'\n");
    let settings = "[train]\nbatch = 1\n[rollout]\nn = 2\nrecipe = 'mixed.toml'\n[eval]\nproblems = 2";
    let file = b.run_file("recipe.toml", settings);
    let first = common::run_json(train(file.clone(), &[]));
    assert!(first["mismatch_nats"].as_f64().expect("a number") > 0.0, "the file's formats are in use");
    b.file("mixed.toml", b"[default]\nk = 'e5m2'\nv = 'e4m3'\n");
    let other = common::run(train(file, &["--resume"]));
    check_failure(&other, 1, &["recipe with hash", "rollout.recipe", "back as they were"], &"another recipe");
}

/// Training makes weights that no folder has scales for.
#[test]
fn training_refuses_a_checkpoints_cache_scales() {
    let b = Bench::new();
    b.file("own.toml", b"[default]\nk = 'e4m3'\nv = 'e4m3'\nkv_scale = 'checkpoint'\n");
    let file = b.run_file("run.toml", "[rollout]\nrecipe = 'own.toml'");
    let output = common::run(train(file, &[]));
    check_failure(&output, 1, &["student", "layer 0, weights version 0", "come without scales"], &"no scales");
}

/// Files in a folder and the folders below, by their paths from it.
#[cfg(unix)]
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        found.push(path.clone());
        found.extend(tree(&path));
    }
    found
}

/// A limit on the size of files stands for a full disk: writes beyond it fail.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let b = Bench::new();
    let limited = |blocks: u32, args: &[OsString]| {
        // Ignored, the signal leaves the write to fail with an error.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_leeway"), "--quiet", "--threads", "1", "--json"]);
        command.args(args).output().expect("the shell runs")
    };
    let target = b.path("target");
    let empty = |what: &str| assert_eq!(tree(&target), Vec::<PathBuf>::new(), "{what}");
    std::fs::create_dir(&target).expect("made");

    let mut init = words(["init", "--vocab", "4000", "--out"]);
    init.push(target.join("model").into());
    check_failure(&limited(64, &init), 1, &["model.safetensors", "File too large"], &init);
    empty("init");

    let mut pretrain =
        words(["pretrain", "--task", "copy", "--updates", "1", "--batch", "2", "--problems", "2", "--model"]);
    pretrain.extend([b.path("tasks").into(), "--out".into(), target.join("model").into()]);
    check_failure(&limited(32, &pretrain), 1, &["model.safetensors", "File too large"], &pretrain);
    empty("pretrain");

    let mut generate = generate(&b, b.path("plain").into());
    generate.extend(words(["--n", "200", "--logprobs", "1", "--out"]));
    generate.push(target.join("rollouts.jsonl").into());
    check_failure(&limited(32, &generate), 1, &["rollouts.jsonl", "File too large"], &generate);
    empty("generate");

    // 48 KiB stop the weights, 128 KiB the trainer's state beside them.
    for blocks in [96, 256] {
        let name = format!("full-{blocks}.toml");
        let file = b.run_file(&name, "[train]\nbatch = 1\nprecision = \"f32\"\n[rollout]\nn = 2\n[eval]\nproblems = 2");
        check_failure(&limited(blocks, &train(file, &[])), 1, &["checkpoints", "File too large"], &name);
        assert_eq!(tree(&b.path(&format!("{name}.out")).join("checkpoints")), Vec::<PathBuf>::new(), "{name}");
    }

    if Path::new("/dev/full").exists() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let mut command = leeway();
        command.arg("--json").args(with(&b, [])).stdout(full);
        check_failure(&command.output().expect("runs"), 1, &["standard output"], &"/dev/full");
    }
}

/// Prompts are looked at before anything is trained: the line and the id are named.
#[test]
fn an_id_that_no_model_has() {
    let b = Bench::new();
    let line = |at: u32| format!("{{\"ids\": [1, {}, 7]}}\n", if at == 24 { 999 } else { 3 + at % 9 });
    b.file("late.jsonl", (0..30).map(line).collect::<String>());
    let run = format!(
        "student = \"tasks\"\nteacher = \"teacher\"\nout = {:?}\nupdates = 2\n[task]\nprompts = \"late.jsonl\"\n[train]\nbatch = 2\n",
        b.path("late.out")
    );
    let file = b.file("late.toml", run);
    let output = leeway().arg("train").arg(&file).output().expect("the binary runs");
    check_failure(&output, 1, &["late.jsonl:25: token 1 of the prompt is id 999", "ids 0 to 63"], &"train");
    assert!(!b.path("late.out").exists(), "nothing was begun");
}
