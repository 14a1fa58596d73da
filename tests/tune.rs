//! `leeway recipe tune` as a user has it: planted outliers are found and nothing else, interrupted work goes on, a goal
//! out of reach is an error, and the recipe that is written can be used.

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use engine::checkpoint::Checkpoint;
use engine::outliers::{Outlier, Place, plant};
use serde_json::Value;

/// A small random model of the task vocabulary, its layers so weak that none stands out, and the same function with
/// outliers in the keys of layer 5 and in the values of layer 3.
fn models(dir: &Path) {
    let words = "init --tasks --layers 8 --hidden 64 --head-dim 16 --heads 4 --kv-heads 2 --ffn 96 --std 0.005 --seed 3 \
                 --dtype bf16 --arch qwen3 --out";
    let output = common::leeway().args(words.split_whitespace()).arg(dir.join("plain")).output().expect("it runs");
    assert!(output.status.success(), "{}", common::stderr(&output));
    let plain = Checkpoint::open(&dir.join("plain")).expect("a model");
    let keys = Outlier { layer: 5, place: Place::Keys { kv_head: 0, pair: 3 }, factor: 65536.0 };
    let values = |kv_head| Outlier { layer: 3, place: Place::Values { kv_head, dim: 5 }, factor: 65536.0 };
    plant(&plain, &[keys, values(0), values(1)], &dir.join("planted")).expect("it is written");
}

fn tune(dir: &Path, model: &str, out: &str, more: &[&str]) -> Vec<String> {
    let (model, out) = (dir.join(model), dir.join(out));
    let words = ["recipe", "tune", "-n", "8", "--max-tokens", "12", "--random-recipes", "4"];
    let paths = ["--model".into(), model.display().to_string(), "--out".into(), out.display().to_string()];
    words.iter().chain(more).map(|&word| word.to_owned()).chain(paths).collect()
}

fn names(object: &Value, chosen: bool) -> Vec<&str> {
    let units = object["units"].as_array().expect("a list");
    units.iter().filter(|u| u["chosen"] == chosen).map(|u| u["unit"].as_str().expect("a name")).collect()
}

fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", object[key]))
}

#[test]
fn planted_outliers_are_found_and_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let kv = ["--units", "kv", "--kv-ratio", "1.75"];
    let plain = common::run_json(tune(dir, "plain", "plain.out", &kv));
    assert_eq!(plain["concentrated"], false, "{plain}");
    let planted = common::run_json(tune(dir, "planted", "planted.out", &kv));
    assert_eq!(planted["concentrated"], true, "{planted}");
    // Both models sampled the same completions, being one function.
    assert_eq!(planted["rollouts"], plain["rollouts"]);
    assert_ne!(planted["model"], plain["model"]);

    let mut worst: Vec<(f64, &str)> = planted["units"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|unit| (number(unit, "d_nats"), unit["unit"].as_str().expect("a name")))
        .collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut two = [worst[0].1, worst[1].1];
    two.sort_unstable();
    assert_eq!(two, ["layers.3.v", "layers.5.k"], "{worst:?}");
    assert!(worst[1].0 > 5.0 * worst[2].0, "{worst:?}");
    // 16 units of equal bytes: 1.75 leaves two of them out, and those are the two.
    let mut left = names(&planted, false);
    left.sort_unstable();
    assert_eq!(left, two);
    assert!((number(&planted, "kv_ratio") - 32.0 / 18.0).abs() < 1e-12, "{planted}");
    let [d, all] = ["d_nats", "d_all_nats"].map(|key| number(&planted, key));
    assert!(d > 0.0 && 5.0 * d < all, "{d} of {all}");
    let ci = planted["ci95"].as_array().expect("two ends");
    assert!(ci[0].as_f64() <= Some(d) && Some(d) <= ci[1].as_f64(), "{planted}");

    // The recipe can be used, and is the one that was measured.
    let out = dir.join("planted.out");
    let words = ["score", "--prompt", "<bos>cab:", "--recipe"].map(String::from);
    let paths = [planted["recipe"].as_str().expect("a path").into(), "--model".into()];
    let model = dir.join("planted").display().to_string();
    let score = common::run_json(words.into_iter().chain(paths).chain([model]));
    assert_eq!(score["recipe"], planted["recipe_hash"]);
    // Its file says what was asked for and what came of it; the next goal writes another.
    let text = fs::read_to_string(out.join("recipe.toml")).expect("written");
    assert!(
        text.starts_with("# leeway recipe tune, KV tokens at least 1.75 of bf16's: 14 of 16 units in 8 bits\n"),
        "{text}"
    );
    assert!(text.contains(&format!("\n# model {}\n", planted["model"].as_str().expect("a hash"))), "{text}");
    let csv = fs::read_to_string(out.join("sensitivity.csv")).expect("written");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (17, "unit,layer,kind,bytes_saved,d_nats,low,high,chosen"));
    assert!(lines[11].starts_with("layers.5.k,5,k,") && lines[11].ends_with(",false"), "{csv}");
    assert!(fs::read_to_string(out.join("sensitivity.svg")).expect("written").contains("nats per token"));
}

/// Killed at any point it goes on: the same object as in one go, whatever was measured twice.
#[test]
fn interrupted_work_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let all = ["--budget", "1e-6", "--units", "all"];
    let whole = common::run_json(tune(dir, "plain", "whole", &all));
    assert!(number(&whole, "d_nats") <= 1e-6, "{whole}");
    assert!(number(&whole, "additivity_worst_ratio") > 0.0 && number(&whole, "additivity_r2") <= 1.0, "{whole}");
    assert_eq!(whole["units"].as_array().map(Vec::len), Some(8 * 9 + 1));
    assert!(!names(&whole, true).is_empty(), "{whole}");

    let state = dir.join("parts/state.jsonl");
    for lines in [1, 5, 20] {
        let words = tune(dir, "plain", "parts", &all);
        let mut child = common::leeway().args(&words).stdout(Stdio::null()).spawn().expect("it starts");
        for _ in 0..2000 {
            let held = fs::read(&state).map_or(0, |bytes| bytes.iter().filter(|&&byte| byte == b'\n').count());
            if held > lines || child.try_wait().expect("a child").is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().ok();
        child.wait().expect("it ends");
    }
    let before = fs::read_to_string(&state).expect("there is a state");
    // A line that was being written when the power went.
    fs::write(&state, format!("{before}{{\"name\": \"laye")).expect("written");
    let resumed = common::run_json(tune(dir, "plain", "parts", &all));
    let after = fs::read_to_string(&state).expect("there is a state");
    assert!(after.starts_with(&before), "what was measured stays");
    let same = |mut object: Value| {
        for key in ["wall_s", "out", "recipe"] {
            object.as_object_mut().expect("an object").remove(key);
        }
        object
    };
    assert_eq!(same(resumed), same(whole));

    // A model stored in bf16 and trained in f32 is another reference.
    let output = common::run(tune(dir, "plain", "parts", &["--kv-ratio", "1.9", "--precision", "f32"]));
    assert!(common::stderr(&output).contains("`reference` was "), "{}", common::stderr(&output));

    // A recipe for another goal takes what was measured; other rollouts are refused.
    let other = common::run_json(tune(dir, "plain", "parts", &["--kv-ratio", "1.9"]));
    assert!(number(&other, "kv_ratio") >= 1.9, "{other}");
    let output = common::run(tune(dir, "plain", "parts", &["--kv-ratio", "1.9", "--seed", "1"]));
    let message = common::stderr(&output);
    assert!(!output.status.success() && message.contains("`seed` was 0 and is 1"), "{message}");

    // Rollouts that were changed under the measurements are refused too; a header alone binds nobody.
    let file = dir.join("parts/rollouts.jsonl");
    let text = fs::read_to_string(&file).expect("sampled");
    fs::write(&file, text.lines().skip(1).flat_map(|line| [line, "\n"]).collect::<String>()).expect("written");
    let output = common::run(tune(dir, "plain", "parts", &["--kv-ratio", "1.9"]));
    assert!(common::stderr(&output).contains("not the rollouts that"), "{}", common::stderr(&output));
    let header = fs::read_to_string(&state).expect("there").lines().next().expect("a line").to_owned() + "\n";
    fs::create_dir(dir.join("refused")).expect("made");
    fs::write(dir.join("refused/state.jsonl"), header).expect("written");
    common::run_json(tune(dir, "plain", "refused", &["--kv-ratio", "1.9", "--seed", "1"]));
}

#[test]
fn goals_out_of_reach_say_what_can_be_reached() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let refused = |more: &[&str], want: &str| {
        let output = common::run(tune(dir, "plain", "out", more));
        let message = common::stderr(&output);
        assert!(!output.status.success() && message.contains(want), "{more:?}: {message}");
    };
    refused(&["--kv-ratio", "2.01"], "the pool holds 2.0000 times the tokens of bf16");
    refused(&["--kv-ratio", "1.5", "--units", "weights"], "use --units kv or all");
    refused(&["--kv-ratio", "0"], "it must be a positive number");
    refused(&["--budget", "0"], "it must be a positive number of nats");
    refused(&["--budget", "1", "--units", "mlp"], "use kv, weights or all");
    refused(&["--budget", "1", "--memory", "10KiB"], "leaves no room for a KV page");
    refused(&["--budget", "1e-14", "--units", "kv"], "buys nothing: the cheapest unit, layers.");
    refused(&[], "required");
    let golden = common::repository("tests/golden/llama").display().to_string();
    let output = common::run(["recipe", "tune", "--budget", "1", "--out", "x", "--model", &golden]);
    let message = common::stderr(&output);
    assert!(message.contains("there are no built-in prompts for this model: give --prompts"), "{message}");
}
