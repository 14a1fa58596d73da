//! Real models against references made by another implementation (tests/golden/real): tokens, logprobs in f32 and bf16,
//! greedy text. A model that was not fetched is skipped, and says so; the larger ones run in the release profile.

mod common;

use std::sync::Arc;

use engine::engine::{Engine, PAGE_LEN};
use engine::rollout::{Limits, Request, ScoreRow, generate, score};
use engine::tokenizer::Tokenizer;
use opd::clock::Stopwatch;
use ptx::Cpu;
use ptx::ops::sample::Params;
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("a list")
        .iter()
        .map(|x| u32::try_from(x.as_u64().expect("an id")).expect("an id"))
        .collect()
}

/// Mean distance of logprobs from the reference, over the tokens of all rows.
fn mean_difference(engine: &mut Engine, rows: &[Value], want: &str) -> f64 {
    let all: Vec<ScoreRow> = rows.iter().map(|row| ScoreRow::new(ids(&row["ids"]))).collect();
    let (mut sum, mut count) = (0.0, 0);
    score(engine, &all, Limits::default(), &mut |i, scores| {
        let (got, want) = (scores.expect("served").logprobs, numbers(&rows[i][want]));
        assert_eq!(got.len(), want.len());
        sum += got.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).abs()).sum::<f64>();
        count += want.len();
    });
    sum / f64::from(u32::try_from(count).expect("small"))
}

/// Greedy continuations; a step may go another way only where the reference hardly preferred its own.
fn check_greedy(engine: &mut Engine, rows: &[Value]) {
    let requests: Vec<Request> = rows
        .iter()
        .map(|row| Request {
            prompt: ids(&row["ids"]),
            samples: 1,
            first_sample: 0,
            seed: 0,
            params: Params { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
            max_tokens: row["greedy_f32"]["ids"].as_array().expect("a list").len(),
            stop_ids: Vec::new(),
            ..Request::default()
        })
        .collect();
    generate(engine, &requests, Limits::default(), &mut |i, rollout| {
        let got = rollout.expect("served").ids;
        let (want, margins) = (ids(&rows[i]["greedy_f32"]["ids"]), numbers(&rows[i]["greedy_f32"]["margins"]));
        let apart = got.iter().zip(&want).position(|(got, want)| got != want);
        if let Some(at) = apart {
            assert!(margins[at] < 2e-3, "row {i}, token {at}: {} instead of {}", got[at], want[at]);
        }
        assert_eq!(got.len(), want.len());
    });
}

fn check(name: &str, fetch: &str, large: bool) {
    let dir = common::repository("models").join(name);
    if !dir.exists() {
        println!("{name}: skipped: run scripts/fetch-models {fetch}");
        return;
    }
    if large && cfg!(debug_assertions) {
        println!("{name}: skipped: run cargo test --release --test real");
        return;
    }
    let text = std::fs::read_to_string(common::repository("tests/golden/real").join(format!("{name}.json")));
    let reference: Value = serde_json::from_str(&text.expect("the fixture is committed")).expect("JSON");
    let rows = reference["rows"].as_array().expect("a list");
    let tokenizer = Tokenizer::open(&dir).expect("opens").expect("it has one");
    for row in rows {
        let text = row["text"].as_str().expect("text");
        assert_eq!(tokenizer.encode(text, true).expect("encodes"), ids(&row["ids"]), "{name}: {text:?}");
    }
    let cpu = Arc::new(Cpu::new(2));
    for recipe in ["f32", "bf16"] {
        let model = common::load(&cpu, &dir, recipe);
        let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, 64, tokenizer.size());
        let watch = Stopwatch::start();
        let difference = mean_difference(&mut engine, rows, "logprobs_f32");
        println!("{name}: {recipe}: mean difference {difference:.2e} nats, scored in {:.2} s", watch.elapsed_s());
        if recipe == "f32" {
            assert!(difference <= 1e-3, "{name}: f32: mean difference {difference:e} nats");
            check_greedy(&mut engine, rows);
            continue;
        }
        // The reference's bf16 also rounds the residual stream and every result, which this one keeps in f32. So the
        // two bf16 are not near each other: this one is held to the f32 reference, and theirs is printed beside it.
        let theirs = distance(rows, "logprobs_bf16", "logprobs_f32");
        println!("{name}: bf16 of the reference: {theirs:.2e} nats");
        assert!(difference <= 0.03, "{name}: bf16: mean difference {difference:e} nats");
    }
}

/// Mean distance of two references.
fn distance(rows: &[Value], a: &str, b: &str) -> f64 {
    let all = |key: &str| rows.iter().flat_map(|row| numbers(&row[key])).collect::<Vec<f64>>();
    let (a, b) = (all(a), all(b));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f64>() / f64::from(u32::try_from(a.len()).expect("small"))
}

#[test]
fn smollm2() {
    check("smollm2-135m", "smollm2", false);
}

#[test]
fn qwen_half() {
    check("qwen2.5-coder-0.5b", "qwen0.5b", true);
}

#[test]
fn qwen_one_and_a_half() {
    check("qwen2.5-coder-1.5b", "qwen1.5b", true);
}
