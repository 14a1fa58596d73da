//! `leeway capacity` from a `config.json` alone: the numbers against the formula, and what it says when nothing fits.

mod common;

use std::path::Path;

use common::{leeway, run_json, stderr};
use serde_json::{Value, json};
use tempfile::TempDir;

const LAYERS: usize = 28;
const GIB: usize = 1 << 30;

/// The shape of Qwen3-0.6B, without weights or tokenizer.
fn qwen3() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = json!({
        "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": LAYERS, "head_dim": 128,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "vocab_size": 151_936,
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    dir
}

fn recipe(dir: &Path, text: &str) -> String {
    let path = dir.join("recipe.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("Unicode").to_owned()
}

fn capacity(dir: &Path, words: &[&str]) -> Value {
    run_json([&["capacity", "--model", dir.to_str().expect("Unicode")], words].concat())
}

fn number(value: &Value, key: &str) -> usize {
    let number = value[key].as_u64().unwrap_or_else(|| panic!("`{key}` of {value} is no whole number"));
    usize::try_from(number).expect("fits")
}

fn ratio(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {value} is no number"))
}

/// Bytes of a token's keys or values in one layer: 8 heads of 128.
const SIDE: usize = 8 * 128;

#[test]
fn the_ratio_is_that_of_the_bytes() {
    let dir = qwen3();
    let eight = "[default]\nk = 'e4m3'\nv = 'e4m3'\n";
    let one_bf16 = format!("{eight}[[layer]]\nmatch = 'layers.0'\nk = 'bf16'\nv = 'bf16'\n");
    let e5m2 = "[default]\nk = 'e5m2'\nv = 'f32'\n";
    let rows = [
        ("all 8-bit", eight, LAYERS * 2 * SIDE),
        ("one layer bf16", &one_bf16, 27 * 2 * SIDE + 4 * SIDE),
        ("keys alone", "[default]\nk = 'e4m3'\n", LAYERS * 3 * SIDE),
        ("scales by token", "[default]\nk = 'e4m3'\nv = 'e4m3'\nkv_scale = 'token'\n", LAYERS * 2 * (SIDE + 8)),
        ("wide values", e5m2, LAYERS * 5 * SIDE),
    ];
    for (what, text, per_token) in rows {
        let file = recipe(dir.path(), text);
        for page_len in [1, 16, 256] {
            let words = ["--recipe", &file, "--kv-memory", "8GiB", "--page-len", &page_len.to_string()];
            let got = capacity(dir.path(), &words);
            let bf16 = LAYERS * 4 * SIDE;
            let pages = 8 * GIB / (per_token * page_len);
            assert_eq!(number(&got, "bytes_per_token"), per_token, "{what}");
            assert_eq!((number(&got, "pages"), number(&got, "page_bytes")), (pages, per_token * page_len), "{what}");
            assert_eq!(number(&got, "tokens"), pages * page_len, "{what}");
            assert_eq!(number(&got, "tokens_bf16"), 8 * GIB / (bf16 * page_len) * page_len, "{what}");
            assert_eq!(number(&got, "max_batch"), pages / 4096_usize.div_ceil(page_len), "{what}");
            // To one page of either count.
            let want = bf16 as f64 / per_token as f64;
            let slack = want / number(&got, "pages") as f64 + 1.0 / (number(&got, "tokens_bf16") / page_len) as f64;
            assert!((ratio(&got, "ratio_kv") - want).abs() <= slack, "{what}: {got}");
            assert_eq!(got["ratio_total"], got["ratio_kv"], "{what}");
            if page_len == 16 && what == "all 8-bit" {
                assert!((ratio(&got, "ratio_kv") - 2.0).abs() < 0.002, "{got}");
            }
            if page_len == 16 && what == "one layer bf16" {
                assert!((ratio(&got, "ratio_kv") - 56.0 / 29.0).abs() < 0.002, "{got}");
                let layers = got["bytes_per_token_by_layer"].as_array().expect("a list");
                let bytes: Vec<u64> = layers.iter().map(|bytes| bytes.as_u64().expect("whole")).collect();
                assert_eq!((bytes[0], &bytes[1..]), (4096, &[2048; 27][..]));
            }
        }
    }
}

#[test]
fn memory_is_divided_without_rest() {
    let dir = qwen3();
    let words = |recipe| ["--recipe", recipe, "--memory", "4GiB", "--length", "2000"];
    let (fp8, bf16) = (capacity(dir.path(), &words("fp8")), capacity(dir.path(), &words("bf16")));
    for got in [&fp8, &bf16] {
        let parts = ["weights_bytes", "workspace_bytes", "kv_bytes"].map(|key| number(got, key));
        assert_eq!(parts.iter().sum::<usize>(), 4 * GIB, "{got}");
        assert_eq!(number(got, "memory_bytes"), 4 * GIB);
        assert_eq!(number(got, "pages"), parts[2] / number(got, "page_bytes"));
        // Logits of 64 rows alone are 37 MiB.
        assert!(parts[1] > 64 * 151_936 * 4 && parts[1] < GIB / 8, "{got}");
    }
    // 595,776,512 matrix elements with the tied head, in bf16; norms, frequencies and static scales in f32.
    let vectors = LAYERS * (2 * 1024 + 2 * 128 + 2 * 8) + 1024 + 64;
    assert_eq!(number(&bf16, "weights_bytes"), 2 * 595_984_384 + 4 * vectors, "{bf16}");
    let total = number(&fp8, "tokens") as f64 / number(&bf16, "tokens") as f64;
    assert_eq!((ratio(&fp8, "ratio_total"), ratio(&bf16, "ratio_total")), (total, 1.0));
    assert!(total > ratio(&fp8, "ratio_kv"), "8-bit weights leave more to the pool: {fp8}");

    // Where the weights in bf16 do not fit there is nothing to compare with.
    let small = capacity(dir.path(), &["--recipe", "fp8", "--memory", "1GiB", "--length", "2000"]);
    assert!(small["ratio_total"].is_null() && number(&small, "max_batch") > 0, "{small}");
    // Without weights to look at, the configuration says what `identity` is.
    let same = capacity(dir.path(), &["--memory", "4GiB"]);
    assert_eq!(same["recipe_hash"], bf16["recipe_hash"]);
    let text = std::fs::read_to_string(dir.path().join("config.json")).expect("read").replace("bfloat16", "float32");
    std::fs::write(dir.path().join("config.json"), text).expect("written");
    let single = capacity(dir.path(), &["--memory", "4GiB"]);
    assert_ne!(single["recipe_hash"], bf16["recipe_hash"]);
    assert_eq!(number(&single, "bytes_per_token"), 2 * number(&bf16, "bytes_per_token"));
}

#[test]
fn groups_share_their_prompts() {
    let dir = qwen3();
    let words =
        ["--recipe", "fp8", "--kv-memory", "2GiB", "--length", "1000", "--prompt-length", "777", "--samples", "8"];
    let got = capacity(dir.path(), &words);
    // 48 whole pages are shared; the 49th, partial, is each sample's own.
    assert_eq!((number(&got, "prompt_pages"), number(&got, "tail_pages_per_sample")), (48, 63 - 48));
    assert_eq!(number(&got, "groups"), number(&got, "pages") / (48 + 8 * 15));
    let without = capacity(dir.path(), &words[..6]);
    assert!(["prompt_pages", "tail_pages_per_sample", "groups"].iter().all(|key| without[*key].is_null()), "{without}");
}

#[test]
fn the_table_says_the_same() {
    let dir = qwen3();
    let file = recipe(dir.path(), "[default]\nk = 'e4m3'\nv = 'e4m3'\n[[layer]]\nmatch = 'layers.0-2'\nk = 'bf16'\n");
    let words = ["capacity", "--recipe", &file, "--kv-memory", "1GiB", "--model"];
    let output = leeway().args(words).arg(dir.path()).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    let cells = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(cells("bytes per token"), ["60416"]);
    assert_eq!(cells("0-2 ")[..3], ["bf16", "e4m3", "3072"]);
    assert_eq!(cells("3-27 ")[..3], ["e4m3", "e4m3", "2048"]);
    assert_eq!(cells("largest batch at length 4096"), ["4"]);
    assert_eq!(cells("unused tail of a sequence, mean")[0], "7.5");
}

/// Runs the command, which must fail, and returns its status and what it says.
fn failure(dir: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = leeway().arg("capacity").args(words).arg("--model").arg(dir).output().expect("the binary runs");
    assert!(output.stdout.is_empty(), "{words:?}: a failure prints no result");
    (output.status.code(), stderr(&output))
}

#[test]
fn what_cannot_be_says_why_and_what_would_do() {
    let dir = qwen3();
    let rows: [(&[&str], i32, &[&str]); 14] = [
        (&["--memory", "1GiB"], 1, &["1073741824 bytes of memory are too few", "weights take 1192232960", "at least"]),
        (&["--kv-memory", "100MiB"], 1, &["has 57 pages of 16 tokens", "needs 256", "at least 469762048 bytes"]),
        (&["--kv-memory", "1GiB", "--length", "40961"], 1, &["length 40961", "context of 40960"]),
        (&["--kv-memory", "1GiB", "--page-len", "24"], 2, &["--page-len", "power of two from 1 to 256"]),
        (&["--kv-memory", "1GiB", "--page-len", "512"], 2, &["power of two from 1 to 256"]),
        (&["--kv-memory", "1GB"], 2, &["unknown unit \"GB\"", "GiB"]),
        (&["--kv-memory", "lots"], 2, &["lots"]),
        (&["--kv-memory", "1GiB", "--memory", "1GiB"], 2, &["cannot be used with"]),
        (&[], 2, &["--memory", "--kv-memory"]),
        (&["--kv-memory", "1GiB", "--length", "0"], 2, &["--length", "from 1"]),
        (&["--kv-memory", "1GiB", "--samples", "4"], 2, &["--prompt-length"]),
        (&["--kv-memory", "1GiB", "--prompt-length", "4"], 2, &["--samples"]),
        (
            &["--kv-memory", "1GiB", "--length", "64", "--prompt-length", "64", "--samples", "2"],
            1,
            &["--prompt-length is 64", "nothing is left to sample"],
        ),
        (&["--kv-memory", "1GiB", "--recipe", "fp9"], 1, &["unknown recipe \"fp9\"", "fp8"]),
    ];
    for (words, status, says) in rows {
        let (code, text) = failure(dir.path(), words);
        assert_eq!(code, Some(status), "{words:?}: {text}");
        for part in says {
            assert!(text.contains(part), "{words:?}: no {part:?} in {text}");
        }
    }
    let empty = tempfile::tempdir().expect("a temporary folder");
    let (code, text) = failure(empty.path(), &["--memory", "1GiB"]);
    assert!(code == Some(1) && text.contains("config.json: no such file"), "{text}");

    // The numbers of the errors do.
    for words in [["--memory", "1GiB"], ["--kv-memory", "100MiB"]] {
        let (_, text) = failure(dir.path(), &words);
        let (_, after) = text.split_once("at least ").expect("what would do");
        let bytes = after.split_whitespace().next().expect("a number");
        let got = capacity(dir.path(), &[words[0], bytes]);
        assert_eq!(number(&got, "max_batch"), 1, "{got}");
    }
}

#[test]
fn generate_takes_memory_in_all() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = dir.path().join("model");
    common::task_model(&model, 0);
    let generate = |memory: &[&str]| {
        let words = ["--json", "generate", "--prompt", "abc>", "--max-tokens", "4", "--model"];
        leeway().args(words).arg(&model).args(memory).output().expect("the binary runs")
    };
    let plan = capacity(&model, &["--memory", "64MiB", "--batch", "32", "--length", "8"]);
    assert!(number(&plan, "kv_bytes") > 0);
    let given = generate(&["--memory", "64MiB"]);
    assert!(given.status.success(), "{}", stderr(&given));
    assert_eq!(common::last_line(&given)["rows"], common::last_line(&generate(&[]))["rows"]);
    let few = generate(&["--memory", "64KiB"]);
    assert_eq!(few.status.code(), Some(1));
    assert!(stderr(&few).contains("65536 bytes of memory are too few"), "{}", stderr(&few));
    let both = generate(&["--memory", "64MiB", "--kv-memory", "1MiB"]);
    assert_eq!(both.status.code(), Some(2));
    let huge = generate(&["--memory", "100TiB"]);
    assert!(stderr(&huge).contains("--memory is 109951162777600 bytes; this machine has"), "{}", stderr(&huge));
}
