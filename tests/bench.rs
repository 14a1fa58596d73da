//! `leeway bench`: what its object holds, which numbers can be, what is refused, and that a file is written whole or not at all.

mod common;

use std::path::{Path, PathBuf};

use common::{last_line, leeway, run_json, stderr};
use serde_json::Value;
use tempfile::TempDir;

/// A model without a tokenizer, whose context is 128 tokens.
fn model() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a temporary folder");
    let dir = root.path().join("model");
    let mut words =
        vec!["init", "--hidden", "32", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--head-dim", "16"];
    words.extend(["--ffn", "64", "--vocab", "96", "--max-positions", "128", "--dtype", "bf16", "--out"]);
    let made = leeway().args(words).arg(&dir).output().expect("the binary runs");
    assert!(made.status.success(), "{}", stderr(&made));
    (root, dir)
}

fn words<'a>(dir: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "--model", dir.to_str().expect("Unicode"), "--rounds", "2"], more].concat()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn figures_stand_beside_limits() {
    let (_root, dir) = model();
    let all = "decode,prefill,score,capacity,update,train";
    let more = ["--what", all, "--batch", "1,3", "--context", "16,64", "--prompt", "100", "--train-len", "32"];
    let object = run_json(words(&dir, &[&more[..], &["--recipe", "fp8", "--seed", "7"]].concat()));
    for key in ["device", "isa", "model", "model_type", "recipe", "recipe_hash", "cpu"] {
        assert!(object[key].is_string(), "{key}: {}", object[key]);
    }
    for (key, want) in [("threads", 2), ("weights_version", 0), ("seed", 7)] {
        assert_eq!(object[key], want, "{key}");
    }
    assert_eq!((&object["model_type"], &object["recipe"]), (&"qwen3".into(), &"fp8".into()));
    for key in ["parameters", "weights_bytes", "rss_bytes"] {
        assert!(object[key].as_u64() > Some(0), "{key}: {}", object[key]);
    }
    assert!(object["rss_bytes"].as_u64() < Some(256 << 20), "what limits are read from is not the model's");
    for key in ["read_gb_s", "read_one_gb_s", "fma_gflop_s", "fma_one_gflop_s"] {
        assert!(number(&object["limits"][key]) > 0.1, "{key}: {}", object["limits"]);
    }

    let figures = object["figures"].as_array().expect("a list");
    let what: Vec<&str> = figures.iter().map(|figure| figure["what"].as_str().expect("a name")).collect();
    assert_eq!(what, ["decode", "decode", "decode", "decode", "prefill", "score", "update", "train"]);
    let sizes = |at: usize| [&figures[at]["batch"], &figures[at]["context"], &figures[at]["tokens"]].map(Value::as_u64);
    let of = |list: [u64; 3]| list.map(Some);
    assert_eq!([0, 1, 2, 3].map(sizes), [of([1, 16, 1]), of([3, 16, 3]), of([1, 64, 1]), of([3, 64, 3])]);
    assert_eq!((sizes(4)[2], sizes(5)[2], sizes(7)), (Some(100), Some(100), of([4, 32, 128])));
    for figure in figures {
        assert_eq!(figure["rounds"], 2);
        let seconds = &figure["seconds"];
        let [low, median, high] = ["low", "median", "high"].map(|key| number(&seconds[key]));
        assert!(0.0 < low && low <= median && median <= high, "{figure}");
        let share = number(&figure["share"]);
        assert!(share > 0.0 && share < 2.0, "{figure}");
        let shares = ["share_read", "share_fma"].map(|key| figure[key].as_f64());
        let bound = if shares[0] > shares[1] { "read" } else { "fma" };
        assert_eq!(figure["bound"], bound, "{figure}");
        assert_eq!(shares.into_iter().flatten().fold(0.0, f64::max), share, "{figure}");
        let (rate, tokens) = (figure.get("tokens_per_s"), figure.get("tokens"));
        assert_eq!(rate.is_some(), tokens.is_some(), "{figure}");
        if let (Some(rate), Some(tokens)) = (rate, tokens) {
            assert!((number(rate) * median / number(tokens) - 1.0).abs() < 1e-9, "{figure}");
        }
        for (rate, share, limit) in [("gb_s", "share_read", "read_gb_s"), ("gflop_s", "share_fma", "fma_gflop_s")] {
            assert_eq!(figure.get(rate).is_some(), figure.get(share).is_some(), "{figure}");
            if figure.get(rate).is_some() {
                let ratio = number(&figure[rate]) / number(&figure[limit]);
                assert!((ratio / number(&figure[share]) - 1.0).abs() < 1e-9, "{figure}");
            }
        }
    }
    assert!(figures[6].get("share_fma").is_none() && figures[7].get("share_read").is_none(), "{figures:?}");
    assert!(figures[6]["rss_growth_bytes"].as_u64() < Some(8 << 20), "{}", figures[6]);

    // 2 layers x (K, V) x 16 values of 8 bits; the pool that was not given is 1 GiB.
    let capacity = &object["capacity"];
    assert_eq!((number(&capacity["bytes_per_token"]), number(&capacity["ratio_kv"])), (64.0, 2.0));
    assert_eq!((&capacity["kv_bytes"], &capacity["length"]), (&(1 << 30).into(), &100.into()));
}

#[test]
fn what_is_not_asked_for_is_not_measured() {
    let (_root, dir) = model();
    let object = run_json(words(&dir, &["--what", "capacity", "--memory", "64MiB"]));
    assert!(object["figures"].as_array().is_some_and(Vec::is_empty), "{object}");
    assert!(number(&object["limits"]["read_gb_s"]) > 0.1);
    assert_eq!(object["capacity"]["memory_bytes"], 64 << 20);
    let object = run_json(words(&dir, &["--what", "update"]));
    assert!(!keys(&object).contains(&"capacity"), "{object}");
    assert_eq!(keys(&object["figures"][0])[0], "what");
}

#[test]
fn a_table_for_people_and_a_file_for_programs() {
    let (root, dir) = model();
    let out = root.path().join("bench.json");
    let path = out.to_str().expect("Unicode");
    let output = leeway().args(words(&dir, &["--batch", "2", "--json", "--out", path])).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&out).expect("it was written");
    assert_eq!(text.lines().count(), 1);
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), last_line(&output));
    let output = leeway().args(words(&dir, &["--batch", "2"])).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    for word in
        ["reading, all threads", "decode", "prefill", "score", "update", "largest batch at length 128", "weights"]
    {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let (root, dir) = model();
    let out = root.path().join("bench.json");
    let folder = root.path().to_str().expect("Unicode");
    let missing = root.path().join("no/bench.json").display().to_string();
    // Words, exit status, and what the message says.
    let rows: [(&[&str], i32, &[&str]); 17] = [
        (&["--batch", "0"], 2, &["--batch", "no whole number from 1"]),
        (&["--batch", "1,,2"], 2, &["--batch"]),
        (&["--batch", "eight"], 2, &["\"eight\""]),
        (&["--context", "0"], 2, &["--context"]),
        (&["--prompt", "0"], 2, &["--prompt"]),
        (&["--rounds", "0"], 2, &["--rounds"]),
        (&["--train-rows", "0"], 2, &["--train-rows"]),
        (&["--what", "decode,speed"], 2, &["\"speed\"", "decode, prefill, score"]),
        (&["--what", ""], 2, &["--what"]),
        (&["--context", "20,128"], 1, &["--context 128", "128 tokens", "at most 127"]),
        (&["--prompt", "129"], 1, &["--prompt 129", "at most 128"]),
        (&["--prompt", "1"], 1, &["--prompt 1", "at least 2"]),
        (&["--what", "train", "--train-len", "1"], 1, &["--train-len 1", "at least 2"]),
        (&["--kv-memory", "8KiB", "--batch", "1,40"], 1, &["decode", "40 x 128", "raise --kv-memory", "lower --batch"]),
        (&["--device", "cuda"], 1, &["--device cuda", "CPU", "selftest"]),
        (&["--recipe", "fp9"], 1, &["fp9"]),
        (&["--out", folder], 1, &["not a file"]),
    ];
    for (more, status, says) in rows {
        let with_out = if more[0] == "--out" { Vec::new() } else { vec!["--out", out.to_str().expect("Unicode")] };
        let output = leeway().args(words(&dir, more)).args(with_out).output().expect("it runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{more:?}: {said}");
        assert!(output.stdout.is_empty(), "{more:?}: no result beside an error");
        for word in says {
            assert!(said.contains(word), "{more:?}: no {word:?} in {said}");
        }
        assert!(!out.exists() && !root.path().join("bench.json.part").exists(), "{more:?} left a file behind");
    }
    let output = leeway().args(words(&dir, &["--out", &missing])).output().expect("it runs");
    assert!(!output.status.success() && stderr(&output).contains("bench.json.part"), "{}", stderr(&output));
}
