//! A logprob is a function of weights, recipe and the tokens before it, to the last bit: whatever the batch, the pages,
//! the threads, the instruction set, the pieces of the prefill, and whether a rollout, a re-scoring or the trainer's
//! forward pass computes it.

mod common;

use std::path::Path;
use std::sync::Arc;

use engine::engine::Engine;
use engine::rollout::{Limits, Request, generate, score};
use opd::learner::{Learner, Views};
use opd::loss::{Objective, View};
use opd::sequences::Row;
use opd::side::Side;
use ptx::ops::divergence::Kind;
use ptx::ops::sample::Params;
use ptx::rng::{Purpose, Stream};
use ptx::{Cpu, Isa};

/// Of 131 rows of the embedding; the rest stands for padding.
const VALID: usize = 127;
const IDS: u32 = 127;
const TEMPERATURE: f32 = 0.8;
const SAMPLES: u32 = 2;

/// Everything that must not matter.
#[derive(Clone, Copy, Debug)]
struct Setup {
    isa: Isa,
    threads: usize,
    page_len: usize,
    batch: usize,
    step_tokens: usize,
    /// Samples of a prompt as requests of their own.
    alone: bool,
    /// Pages are taken and given back in another order first.
    churned: bool,
    /// Every slot that nothing has written reads as NaN.
    poisoned: bool,
}

fn plain() -> Setup {
    Setup {
        isa: Isa::detect(),
        threads: 1,
        page_len: 16,
        batch: 1,
        step_tokens: 512,
        alone: false,
        churned: false,
        poisoned: false,
    }
}

fn setups() -> Vec<Setup> {
    let mixed = Setup { page_len: 4, batch: 7, threads: 2, churned: true, poisoned: true, ..plain() };
    let mut all = vec![
        Setup { batch: 7, ..plain() },
        Setup { batch: 32, ..plain() },
        Setup { batch: 32, alone: true, threads: 2, ..plain() },
        Setup { page_len: 4, churned: true, ..mixed },
        Setup { step_tokens: 5, poisoned: true, batch: 32, ..plain() },
        Setup { step_tokens: 64, alone: true, ..mixed },
        Setup { threads: 3, batch: 32, churned: true, poisoned: true, ..plain() },
    ];
    all.extend(Isa::available().into_iter().map(|isa| Setup { isa, ..mixed }));
    all
}

/// Prompts of many lengths; the samples of the last cross from one chunk of 256 keys into the next.
fn prompts() -> Vec<Vec<u32>> {
    let mut draw = Stream::new(5, Purpose::Data, 0);
    let lengths = (1..=16).map(|i| (i * 7) % 23 + 1).chain([252]);
    lengths.map(|len| (0..len).map(|_| draw.below(IDS)).collect()).collect()
}

/// Numbers of the prompts that a setup runs: on the portable path, where a fused multiply-add is a call, only some.
fn chosen(setup: Setup) -> Vec<usize> {
    if setup.isa == Isa::Portable { vec![3, 8, 16] } else { (0..prompts().len()).collect() }
}

fn requests(setup: Setup) -> Vec<Request> {
    let params = Params { temperature: TEMPERATURE, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let request = |prompt: &Vec<u32>, samples: u32, first_sample: u64| Request {
        prompt: prompt.clone(),
        samples,
        first_sample,
        seed: 3,
        params,
        max_tokens: 7,
        stop_ids: vec![7, 11],
        top_logprobs: 0,
    };
    let (apart, each) = if setup.alone { (SAMPLES, 1) } else { (1, SAMPLES) };
    let prompts = prompts();
    let of = |i: usize| {
        let (prompt, first) = (&prompts[i], i as u64 * u64::from(SAMPLES));
        (0..apart).map(move |k| request(prompt, each, first + u64::from(k)))
    };
    chosen(setup).into_iter().flat_map(of).collect()
}

/// A sample with the bits of its logprobs.
#[derive(Debug, PartialEq)]
struct Sampled {
    sample: u64,
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    raw: Vec<u32>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Leaves the free pages of the pool in another order than a fresh one's.
fn churn(engine: &mut Engine) {
    let page_len = engine.kv().layout().page_len();
    let mut held: Vec<_> = (0..40)
        .map(|i| {
            let mut sequence = engine.kv().sequence(0);
            engine.kv_mut().append(&mut sequence, i % 3 * page_len + 1).expect("the pool is larger");
            sequence
        })
        .collect();
    let mut order: Vec<usize> = (0..held.len()).collect();
    Stream::new(9, Purpose::Data, 1).shuffle(&mut order);
    for i in order {
        engine.kv_mut().end(std::mem::take(&mut held[i]));
    }
}

fn engine(dir: &Path, recipe: &str, setup: Setup) -> Engine {
    let cpu = Arc::new(Cpu::with_isa(setup.threads, setup.isa));
    let model = common::load(&cpu, dir, recipe);
    let pages = 3000 / setup.page_len;
    let mut engine = Engine::new(cpu, model, setup.page_len, pages, VALID);
    if setup.churned {
        churn(&mut engine);
    }
    if setup.poisoned {
        engine.kv_mut().arena_mut().poison();
    }
    assert_eq!(engine.kv().free_pages(), pages);
    engine
}

fn limits(setup: Setup) -> Limits {
    Limits { batch: setup.batch, step_tokens: setup.step_tokens }
}

fn sampled(engine: &mut Engine, setup: Setup) -> Vec<Sampled> {
    let mut all = Vec::new();
    generate(engine, &requests(setup), limits(setup), &mut |_, rollout| {
        let r = rollout.expect("served");
        let (logprobs, raw) = (bits(&r.logprobs), bits(&r.logprobs_raw));
        all.push(Sampled { sample: r.sample, ids: r.ids, logprobs, raw });
    });
    all.sort_by_key(|s| s.sample);
    assert_eq!(engine.kv().free_pages(), engine.kv().pages(), "every page came back");
    all
}

/// Logprob bits of the sampled tokens, from whole rows.
fn scored(engine: &mut Engine, setup: Setup, rows: &[&Row], temperature: f32) -> Vec<Vec<u32>> {
    let ids: Vec<&[u32]> = rows.iter().map(|row| &row.ids[..]).collect();
    let mut all = vec![Vec::new(); rows.len()];
    score(engine, &ids, temperature, limits(setup), &mut |i, scores| {
        all[i] = bits(&scores.expect("served").logprobs[rows[i].prompt - 1..]);
    });
    all
}

/// Logprob bits of the sampled tokens, from the trainer's forward pass with its tape, at temperature 1 and at that of
/// the rollouts; at the latter the rollout's own model is behaviour and teacher, which must be at distance zero.
fn trained(engine: &Engine, rows: &[Row]) -> [Vec<u32>; 2] {
    let (cpu, model) = (engine.cpu(), engine.model());
    let tokens = rows.iter().map(|row| row.ids.len()).sum();
    let mut learner = Learner::new(model, tokens, rows.len());
    learner
        .micro_batch(cpu, model, Objective::Supervised, rows, Views::default(), VALID, 1.0, true)
        .expect("the loss is finite");
    let raw = bits(&learner.by_row.logprobs);
    let mut side = Side::new(model, tokens, rows.len());
    side.run(cpu, model, rows);
    let view = Some(View { head: model.head(), hidden: &side.hidden });
    let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 / TEMPERATURE };
    let views = Views { teacher: view, behaviour: view };
    let sums = learner.micro_batch(cpu, model, objective, rows, views, VALID, 1.0, true).expect("the loss is finite");
    assert!(learner.by_row.mismatch.iter().all(|&d| d == 0.0), "a model is at no distance from itself");
    assert_eq!((sums.kl_reverse, sums.kl_forward), (0.0, 0.0));
    [raw, bits(&learner.by_row.logprobs)]
}

fn check(arch: &str) {
    let dir = common::golden_copy(arch, |config| config["max_position_embeddings"] = 400.into());
    for recipe in ["f32", "bf16", "kv8", "fp8"] {
        let mut reference = engine(dir.path(), recipe, plain());
        let want = sampled(&mut reference, plain());
        let prompts = prompts();
        let rows: Vec<Row> = want
            .iter()
            .map(|s| {
                let prompt = &prompts[usize::try_from(s.sample).expect("small") / SAMPLES as usize];
                Row { ids: [&prompt[..], &s.ids].concat(), prompt: prompt.len() }
            })
            .collect();
        let different = want.iter().map(|s| &s.ids).collect::<std::collections::HashSet<_>>();
        assert!(different.len() > rows.len() / 2, "the samples differ, or the test shows nothing");
        let number = |i: usize| i / SAMPLES as usize;
        for setup in setups() {
            let mut other = engine(dir.path(), recipe, setup);
            let chosen = chosen(setup);
            let part: Vec<usize> = (0..want.len()).filter(|&i| chosen.contains(&number(i))).collect();
            let got = sampled(&mut other, setup);
            assert_eq!(got.len(), part.len());
            for (got, &i) in got.iter().zip(&part) {
                assert_eq!(got, &want[i], "{arch} {recipe}: generate with {setup:?}");
            }
            // Half of it: the samples of a prompt differ in their last tokens alone.
            let part: Vec<usize> = part.into_iter().step_by(SAMPLES as usize).collect();
            let some: Vec<&Row> = part.iter().map(|&i| &rows[i]).collect();
            for (got, &i) in scored(&mut other, setup, &some, 1.0).iter().zip(&part) {
                assert_eq!(got, &want[i].raw, "{arch} {recipe}: score of row {i} with {setup:?}");
            }
        }
        let tempered = scored(&mut reference, plain(), &rows.iter().collect::<Vec<_>>(), TEMPERATURE);
        assert!(tempered.iter().zip(&want).all(|(got, want)| *got == want.logprobs), "{arch} {recipe}: temperature");
        if !["f32", "bf16"].contains(&recipe) {
            continue;
        }
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [1, 2, 3].map(|threads| (isa, threads))) {
            // The trainer has a cache of its own; of a setup it takes the device.
            let setup = Setup { isa, threads, ..plain() };
            let part = match (isa, threads) {
                (Isa::Portable, 1 | 3) => continue,
                (Isa::Portable, _) => 4..6,
                _ => 8..want.len(),
            };
            let [raw, tempered] = trained(&engine(dir.path(), recipe, setup), &rows[part.clone()]);
            let all = |of: fn(&Sampled) -> &Vec<u32>| -> Vec<u32> {
                want[part.clone()].iter().flat_map(of).copied().collect()
            };
            assert_eq!(raw, all(|s| &s.raw), "{arch} {recipe}: the trainer with {setup:?}");
            assert_eq!(tempered, all(|s| &s.logprobs), "{arch} {recipe}: the trainer at temperature, {setup:?}");
        }
    }
}

#[test]
fn qwen3() {
    check("qwen3");
}

#[test]
fn qwen2() {
    check("qwen2");
}

#[test]
fn llama() {
    check("llama");
}
