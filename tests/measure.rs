//! `leeway measure` as a user has it: nothing is exactly nothing, the parts are those of the whole, logged rollouts say what
//! sampled ones say, and logprobs that do not belong to their rollouts are refused by name.

mod common;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

fn number(object: &Value, pointer: &str) -> f64 {
    object.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {pointer} in {object}"))
}

/// `measure` of the folder `model` with some more words.
fn words(dir: &Path, more: &[&str]) -> Vec<String> {
    let model = dir.join("model").display().to_string();
    ["measure", "--model", &model].iter().chain(more).map(|&word| word.to_owned()).collect()
}

fn measure(dir: &Path, more: &[&str]) -> Value {
    common::run_json(words(dir, more))
}

/// What the failure says.
fn refused(dir: &Path, more: &[&str]) -> String {
    let output = common::run(words(dir, more));
    assert!(!output.status.success(), "{more:?} went through");
    common::stderr(&output)
}

/// A model, an older one, and a teacher: three random ones.
fn models(dir: &Path) -> [String; 2] {
    common::task_model(&dir.join("model"), 1);
    ["older", "teacher"].map(|name| {
        common::task_model(&dir.join(name), if name == "older" { 2 } else { 3 });
        dir.join(name).display().to_string()
    })
}

#[test]
fn the_null_arm_is_exactly_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let [_, teacher] = models(dir);
    let model = dir.join("model").display().to_string();
    let tail = ["-n", "6", "--max-tokens", "12", "--task", "sort", "--by-layer", "--samples", "2"];
    // A stale model that is the model is none.
    for more in [vec![], vec!["--teacher", &teacher[..]], vec!["--stale", &model], vec!["--temperature", "0.7"]] {
        let words: Vec<&str> = ["--recipe", "identity"].into_iter().chain(tail).chain(more.clone()).collect();
        let object = measure(dir, &words);
        for key in
            ["/d_nats", "/ci95/0", "/ci95/1", "/k3", "/k1", "/by_source_sum", "/chi2_token", "/m2", "/drift/hazard"]
        {
            assert_eq!(number(&object, key).to_bits(), 0, "{more:?}: {key}");
        }
        for key in ["/ess", "/ratio_mean", "/ppl_ratio"] {
            assert_eq!(number(&object, key).to_bits(), 1.0_f64.to_bits(), "{more:?}: {key}");
        }
        for at in object["survival"].as_array().expect("a list") {
            assert_eq!(number(at, "/s").to_bits(), 1.0_f64.to_bits(), "{more:?}: {at}");
        }
        for source in ["weights", "activations", "kv", "staleness"] {
            assert_eq!(object["by_source"][source], 0.0, "{more:?}: {source}");
        }
        assert_eq!((&object["drift"]["half_life"], &object["logged_gap_nats"]), (&Value::Null, &json!(0.0)));
        for layer in object["by_layer"].as_array().expect("a list") {
            assert_eq!(layer["d_nats"], 0.0, "{more:?}: {layer}");
        }
        if more.contains(&"--teacher") {
            assert_eq!(number(&object, "/drift/delta_loss/difference"), 0.0);
            assert!(number(&object, "/drift/delta_loss/trained") > 0.0, "the teacher is another model");
        }
    }
}

#[test]
fn parts_of_a_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let [older, teacher] = models(dir);
    let tail = ["-n", "24", "--max-tokens", "16", "--task", "sort"];
    let all = [
        &["--recipe", "fp8", "--trained-recipe", "bf16", "--stale", &older, "--teacher", &teacher, "--by-layer"][..],
        &["--layer-tokens", "100"],
        &tail,
    ]
    .concat();
    let object = measure(dir, &all);
    let d = number(&object, "/d_nats");
    assert!(d > 0.05 && number(&object, "/ci95/0") <= d && d <= number(&object, "/ci95/1"), "{object}");
    assert_eq!((&object["k3_agrees"], &object["logged_gap_nats"]), (&json!(true), &json!(0.0)), "{object}");
    let [weights, activations, kv, stale] =
        ["weights", "activations", "kv", "staleness"].map(|name| number(&object, &format!("/by_source/{name}")));
    assert!(weights > 0.0 && kv > 0.0 && stale > 10.0 * (weights + kv) && activations == 0.0, "{object}");
    let sum = weights + activations + kv + stale;
    assert!((number(&object, "/by_source_sum") - sum).abs() < 1e-12, "{object}");
    assert!((number(&object, "/by_source_cross") - (d - sum)).abs() < 1e-12, "{object}");
    assert_eq!(object["by_layer"].as_array().map(Vec::len), Some(3), "two layers and the ends");
    let layers = number(&object, "/layer_tokens");
    assert!((10.0..=100.0).contains(&layers), "{layers}");

    // S falls, the bounds hold each other, and D is the positions' mean.
    let survival = object["survival"].as_array().expect("a list");
    assert!(survival.windows(2).all(|two| number(&two[1], "/s") <= number(&two[0], "/s")), "{survival:?}");
    for bound in object["drift"]["bounds"].as_array().expect("a list") {
        let least = ["coupling", "pinsker", "bretagnolle_huber"].map(|name| number(bound, &format!("/{name}")));
        assert_eq!(number(bound, "/tv"), least.into_iter().fold(f64::INFINITY, f64::min));
    }
    let positions = object["by_position"].as_array().expect("a list");
    let total: f64 = positions.iter().map(|p| number(p, "/d_nats") * number(p, "/tokens")).sum();
    assert!((total / number(&object, "/tokens") - d).abs() < 1e-9, "{object}");
    let delta = number(&object, "/drift/delta_loss/difference");
    let [on_mu, on_pi] = ["rollout", "trained"].map(|name| number(&object, &format!("/drift/delta_loss/{name}")));
    assert!((on_mu - on_pi - delta).abs() < 1e-12 && delta != 0.0, "{object}");
    assert_eq!(object["drift"]["snis"]["functional"], "kl_teacher");
    assert!((number(&object, "/drift/snis/rollout") - on_mu).abs() < 1e-12, "{object}");

    // The keys are those documented, and no others.
    let docs = fs::read_to_string(common::repository("docs/formats.md")).expect("committed");
    let documented =
        docs.lines().find_map(|line| line.strip_prefix("| `measure` | `")?.split('`').next()).expect("a row");
    let keys: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys.join(" "), documented);

    // One source is the whole of it; a replicate of itself is coherent; nothing depends on threads or instruction set.
    let model = dir.join("model").display().to_string();
    let kv8 = [&["--recipe", "kv8", "--trained-recipe", "bf16", "--replicate", &model][..], &tail].concat();
    let mut one = measure(dir, &kv8);
    assert_eq!(one["by_source"]["kv"], one["d_nats"]);
    assert!((number(&one, "/coherence") - 1.0).abs() < 1e-9, "{one}");
    let mut again = measure(dir, &[&kv8[..], &["--isa", "portable"]].concat());
    for key in ["wall_s", "device"] {
        one[key] = Value::Null;
        again[key] = Value::Null;
    }
    assert_eq!(one, again);
    let other =
        measure(dir, &[&["--recipe", "kv8", "--trained-recipe", "bf16", "--replicate", &older][..], &tail].concat());
    let share = number(&other, "/coherence");
    assert!(share.abs() < 0.5, "the roundings of two unrelated models have little in common: {share}");
    // The screen says the same.
    let output = common::run(words(dir, &kv8));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("D, nats per token") && text.contains("half-life of coupled prefixes"), "{text}");
}

/// Lines of `generate --out` under a recipe, as another program would hand them over.
fn logged(dir: &Path, more: &[&str]) -> Vec<Value> {
    let prompts: String =
        (0..40).map(|i| format!("{{\"ids\": [1, {}, {}, {}]}}\n", 4 + i % 7, 5 + i / 7, 11 + i % 3)).collect();
    fs::write(dir.join("ids.jsonl"), prompts).expect("written");
    let [model, ids, out] = ["model", "ids.jsonl", "out.jsonl"].map(|name| dir.join(name).display().to_string());
    let words = ["generate", "--model", &model, "--ids", &ids, "--out", &out, "--max-tokens", "16", "--ignore-eos"];
    let output = common::run(words.iter().chain(more));
    assert!(output.status.success(), "{}", common::stderr(&output));
    let text = fs::read_to_string(out).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Writes changed lines and returns the file's name.
fn changed(dir: &Path, lines: &[Value], change: impl Fn(&mut Value)) -> String {
    let mut lines = lines.to_vec();
    lines.iter_mut().for_each(change);
    let file = dir.join("changed.jsonl");
    fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("written");
    file.display().to_string()
}

#[test]
fn logged_rollouts() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let lines = logged(dir, &["--recipe", "fp8"]);
    let file = changed(dir, &lines, |_| ());
    let alone = measure(dir, &["--rollouts", &file]);
    assert_eq!((&alone["d_nats"], &alone["by_source"]), (&Value::Null, &Value::Null));
    assert_eq!(alone["by_version"][0]["version"], 0);
    assert!(alone["by_position"][0].get("d_nats").is_none() && number(&alone, "/by_position/0/k3") > 0.0, "{alone}");
    let exact = measure(dir, &["--rollouts", &file, "--recipe", "fp8", "--by-layer"]);
    assert_eq!((&exact["logged_gap_nats"], &exact["k3_agrees"]), (&json!(0.0), &json!(true)), "{exact}");
    for key in ["k3", "k1", "ess", "chi2_token", "m2", "ppl_ratio", "survival", "ratio_mean", "log_ratio_p999"] {
        assert_eq!(alone[key], exact[key], "{key}");
    }
    assert!(number(&exact, "/d_nats") > 0.0 && number(&exact, "/by_source/weights") > 0.0, "{exact}");
    // Any name will do for a recipe that is not ours.
    let foreign = changed(dir, &lines, |line| line["recipe"] = json!("another engine's FP8"));
    assert_eq!(measure(dir, &["--rollouts", &foreign, "--recipe", "fp8"])["d_nats"], exact["d_nats"]);

    let file = changed(dir, &lines, |_| ());
    let message = refused(dir, &["--rollouts", &file, "--recipe", "kv8"]);
    assert!(message.contains("give the recipe that the rollouts were sampled in"), "{message}");
    for key in ["recipe", "versions", "logprobs_rollout"] {
        let file = changed(dir, &lines, |line| drop(line.as_object_mut().expect("an object").remove(key)));
        let message = refused(dir, &["--rollouts", &file]);
        assert!(message.contains(&format!("changed.jsonl:1: there is no `{key}`")), "{message}");
    }
    let short = changed(dir, &lines, |line| drop(line["logprobs_rollout"].as_array_mut().expect("a list").pop()));
    let message = refused(dir, &["--rollouts", &short]);
    assert!(message.contains("`logprobs_rollout` has 15 entries and `ids` has 16"), "{message}");
    let one = changed(dir, &lines[..1], |_| ());
    assert!(refused(dir, &["--rollouts", &one]).contains("at least 2 are needed"));
    let message = refused(dir, &["--rollouts", &file, "--by-layer"]);
    assert!(message.contains("needs its --recipe"), "{message}");
}

#[test]
fn logprobs_of_something_else_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let lines = logged(dir, &["--recipe", "fp8", "--temperature", "0.6"]);
    let file = changed(dir, &lines, |_| ());
    measure(dir, &["--rollouts", &file]);
    let warm = changed(dir, &lines, |line| line["temperature"] = json!(1.0));
    let message = refused(dir, &["--rollouts", &warm]);
    assert!(message.contains("those of temperature 0.6") && message.contains("says 1"), "{message}");
    let shifted = changed(dir, &lines, |line| line["logprobs_rollout"].as_array_mut().expect("a list").rotate_left(1));
    let message = refused(dir, &["--rollouts", &shifted]);
    assert!(message.contains("entry i is that of token i + 1"), "{message}");
    let other = changed(dir, &lines, |line| {
        line["ids"]
            .as_array_mut()
            .expect("a list")
            .iter_mut()
            .for_each(|id| *id = json!((id.as_u64().unwrap() + 20) % 64));
    });
    assert!(refused(dir, &["--rollouts", &other]).contains("ids of another tokenizer"), "ids moved by 20");

    let lines = logged(dir, &["--recipe", "fp8", "--temperature", "0.6", "--top-p", "0.8"]);
    let honest = changed(dir, &lines, |_| ());
    assert!(refused(dir, &["--rollouts", &honest]).contains("`top_p` is 0.8"));
    let hidden = changed(dir, &lines, |line| line["top_p"] = json!(1.0));
    let message = refused(dir, &["--rollouts", &hidden]);
    assert!(message.contains("must be 1") && message.contains("a nucleus, top_p near 0.8"), "{message}");
}

#[test]
fn intervals_that_are_too_wide_say_how_many_prompts_would_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    models(dir);
    let tail = ["--recipe", "fp8", "--max-tokens", "8", "--task", "sort", "--half-width"];
    let message = refused(dir, &[&["-n", "4"][..], &tail, &["0.05"]].concat());
    let need: usize = message.split("give -n ").nth(1).and_then(|rest| rest.trim().parse().ok()).expect("a number");
    assert!((50..5000).contains(&need), "{message}");
    // About as many, with room for luck.
    let more = (need * 3 / 2).to_string();
    let object = measure(dir, &[&["-n", &more][..], &tail, &["0.05"]].concat());
    let [low, high] = ["/ci95/0", "/ci95/1"].map(|key| number(&object, key));
    assert!(0.5 * (high - low) <= 0.05 * number(&object, "/d_nats"), "{object}");

    for (more, want) in [
        (&["-n", "1", "--task", "sort"][..], "an interval needs at least 2 prompts"),
        (&["--max-tokens", "0"], "--max-tokens must be at least 1"),
        (&["--temperature", "0"], "it must be a positive number"),
        (&["--half-width", "0"], "it must be a positive share"),
        (&["--trained-recipe", "fp8"], "invalid value"),
    ] {
        assert!(refused(dir, more).contains(want), "{more:?}: {}", refused(dir, more));
    }
    let golden = common::repository("tests/golden/llama").display().to_string();
    let message = refused(dir, &["--task", "sort", "--stale", &golden]);
    assert!(message.contains("not a checkpoint of the same model"), "{message}");
}
