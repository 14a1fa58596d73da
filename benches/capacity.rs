//! What is a KV cache of 8 bits worth where the pool bounds a run? A pool that holds four sequences of 1,024 tokens in bf16; sixteen requests
//! wait for it, and each recipe runs all of them, in turns. Decoding so few sequences is bound by reading weights, so twice as
//! many at a time should be nearly twice the tokens a second; `kv8` changes the cache alone, `fp8` the weights too. 107 million
//! parameters.

mod common;

use std::sync::Arc;

use common::{Record, Shape, gauge, is_full, rounds, table::Table};
use engine::engine::{Engine, PAGE_LEN, kv_layout};
use engine::recipe::Precision;
use engine::rollout::{Answer, Limits, Request, Session};
use opd::bench::{LimitsSpread, Spread};
use opd::clock::Stopwatch;
use ptx::Cpu;
use serde_json::json;

#[derive(Clone, Copy)]
struct Case {
    shape: Shape,
    prompt: usize,
    completion: usize,
    requests: usize,
    /// Sequences in bf16 that the pool holds.
    held: usize,
}

const FULL: Case = Case { shape: Shape::M107, prompt: 640, completion: 384, requests: 16, held: 4 };
const SMOKE: Case = Case { shape: Shape::SMOKE, prompt: 20, completion: 12, requests: 6, held: 2 };
const RECIPES: [&str; 3] = ["bf16", "kv8", "fp8"];

/// Runs all requests; their completions' tokens a second, and how many were under way at most.
fn run(engine: &mut Engine, case: &Case) -> (f64, usize) {
    let mut session = Session::new(engine, Limits::default());
    let id = |request: usize, t: usize| u32::try_from((request * 131 + t * 7) % case.shape.vocab).expect("ids are u32");
    let watch = Stopwatch::start();
    for number in 0..case.requests {
        let prompt = (0..case.prompt).map(|t| id(number, t)).collect();
        let request = Request { prompt, max_tokens: case.completion, seed: number as u64, ..Request::default() };
        session.submit(engine, number, request).expect("it fits");
    }
    let (mut tokens, mut most) = (0, 0);
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => tokens += rollout.ids.len(),
        other => panic!("{other:?}"),
    };
    while session.step(engine, &mut answer) {
        most = most.max(session.scheduler().under_way().count());
    }
    let seconds = watch.elapsed_s();
    assert_eq!(tokens, case.requests * case.completion, "a model without stop ids goes on to the end");
    (tokens as f64 / seconds, most)
}

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("capacity", &cpu));
    let case = if is_full() { FULL } else { SMOKE };
    let length = case.prompt + case.completion;
    let mut bytes = 0;
    let mut engines = RECIPES.map(|recipe| {
        let model = common::model(&cpu, case.shape, recipe, Precision::Bf16);
        let layout = kv_layout(&model, PAGE_LEN);
        if bytes == 0 {
            // The first is bf16.
            bytes = case.held * layout.pages_for(length) * layout.page_bytes();
        }
        let pages = layout.capacity(bytes).pages;
        let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, pages, case.shape.vocab);
        engine.kv_mut().set_prefix_reuse(false);
        engine
    });
    let (mut limits, mut rates, mut most) = (Vec::new(), RECIPES.map(|_| Vec::new()), RECIPES.map(|_| 0));
    if is_full() {
        // Caches and buffers are warm after one sequence.
        for engine in &mut engines {
            run(engine, &Case { requests: 1, ..case });
        }
    }
    for _ in 0..rounds(5) {
        for (at, engine) in engines.iter_mut().enumerate() {
            let limit = gauge.measure();
            let (rate, under_way) = run(engine, &case);
            limits.push(limit);
            rates[at].push(rate);
            most[at] = under_way;
        }
    }
    let mut table = Table::new([
        "recipe",
        "KV bytes a token",
        "tokens",
        "at a time",
        "tokens/s",
        "low to high",
        "capacity",
        "tokens/s of bf16",
    ]);
    for (at, engine) in engines.iter().enumerate() {
        let (layout, pages) = (engine.kv().layout(), engine.kv().pages());
        let capacity = pages as f64 / engines[0].kv().pages() as f64;
        let ratio = Spread::of(rates[at].iter().zip(&rates[0]).map(|(own, bf16)| own / bf16));
        let rate = Spread::of(rates[at].iter().copied());
        table.row([
            RECIPES[at].into(),
            layout.token_bytes_total().to_string(),
            (pages * PAGE_LEN).to_string(),
            most[at].to_string(),
            format!("{:.1}", rate.median),
            format!("{:.1} to {:.1}", rate.low, rate.high),
            format!("{capacity:.3}"),
            format!("{:.3} ({:.3} to {:.3})", ratio.median, ratio.low, ratio.high),
        ]);
        let object = json!({
            "recipe": RECIPES[at], "bytes_per_token": layout.token_bytes_total(), "tokens": pages * PAGE_LEN,
            "under_way_max": most[at], "tokens_per_s": rate.json(), "capacity_ratio": capacity,
            "tokens_per_s_ratio": ratio.json(), "rounds": rates[at].len(),
        });
        record.push("recipes", object);
    }
    record.say(&table);
    for (key, value) in [("pool_bytes", bytes), ("requests", case.requests), ("prompt", case.prompt)] {
        record.put(key, value);
    }
    record.put("completion", case.completion);
    record.put("limits", LimitsSpread::of(limits.iter()).json());
    record.finish();
}
