//! A logprob is a function of weights, recipe and the tokens before it, to the last bit: whatever the batch, the pages,
//! the threads, the instruction set, the pieces of the prefill, whether a prefix was in the cache, whether the sample was
//! preempted, and whether a rollout, a re-scoring, a replay or the trainer's forward pass computes it.

mod common;

use std::path::Path;
use std::sync::Arc;

use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::engine::Engine;
use engine::model::{Model, WeightSource};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{
    Answer, InFlight, Limits, Request, Reservation, Rollout, ScoreRow, Session, generate, replay, score,
};
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
    /// Everything was asked for once before, so prefixes are in the cache.
    warm: bool,
    /// Prefixes are not remembered.
    forgetful: bool,
    /// Pages for few sequences, taken as they are needed: the youngest are preempted.
    pressed: bool,
    /// Some sample is preempted every third step, thirty times at most: a long prompt must come to its end.
    interrupted: bool,
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
        warm: false,
        forgetful: false,
        pressed: false,
        interrupted: false,
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
        Setup { warm: true, batch: 9, poisoned: true, ..plain() },
        Setup { warm: true, page_len: 4, step_tokens: 7, batch: 32, ..plain() },
        Setup { forgetful: true, batch: 32, threads: 2, ..plain() },
        Setup { pressed: true, page_len: 4, batch: 32, poisoned: true, ..plain() },
        Setup { pressed: true, forgetful: true, batch: 32, step_tokens: 33, ..plain() },
        Setup { interrupted: true, page_len: 4, batch: 11, threads: 2, poisoned: true, ..plain() },
        Setup { interrupted: true, forgetful: true, batch: 32, step_tokens: 5, ..plain() },
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
        ..Request::default()
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

/// Recipes beyond the built-in ones: every format once at least.
const FILES: &[(&str, &str)] = &[
    ("e5m2", "k = 'e5m2'\nv = 'e5m2'"),
    ("token", "k = 'e4m3'\nv = 'e5m2'\nkv_scale = 'token'"),
    ("w8a8", "weights = 'e4m3'\nweights_scale = 'block128'\nactivations = 'e4m3'\nk = 'e4m3'\nv = 'e4m3'"),
    (
        "mixed",
        "weights = 'e4m3'\nweights_scale = 'tensor'\nk = 'e4m3'\nv = 'bf16'\n[[layer]]\nmatch = 'layers.0'\nk = 'bf16'\n\
         [[layer]]\nmatch = 'layers.1.mlp.down_proj'\nweights = 'f32'\nactivations = 'e4m3'\n[lm_head]\nweights = 'e4m3'",
    ),
];

fn recipe(dir: &Path, name: &str, config: &engine::config::ModelConfig) -> Recipe {
    let Some((_, text)) = FILES.iter().find(|file| file.0 == name) else {
        return Recipe::built_in(name, Precision::F32, config).expect("a built-in name");
    };
    let file = dir.join(format!("{name}.toml"));
    let model = config.arch.model_type();
    std::fs::write(&file, format!("model = '{model}'\n[default]\n{text}\n")).expect("written");
    let file = file.to_str().expect("a plain path");
    Recipe::open(file, Precision::F32, config).unwrap_or_else(|e| panic!("{e}"))
}

fn engine(dir: &Path, name: &str, setup: Setup) -> Engine {
    let cpu = Arc::new(Cpu::with_isa(setup.threads, setup.isa));
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    let recipe = recipe(dir, name, checkpoint.config());
    let model = Model::load(&cpu, &checkpoint, recipe).unwrap_or_else(|e| panic!("{e}"));
    let tokens = if setup.pressed { 320 } else { 3000 };
    let pages = tokens / setup.page_len;
    let mut engine = Engine::new(cpu, model, setup.page_len, pages, VALID);
    if setup.churned {
        churn(&mut engine);
    }
    if setup.poisoned {
        engine.kv_mut().arena_mut().poison();
    }
    engine.kv_mut().set_prefix_reuse(!setup.forgetful);
    assert_eq!(engine.kv().free_pages(), pages);
    engine
}

fn limits(setup: Setup) -> Limits {
    let reservation = if setup.pressed { Reservation::Optimistic } else { Reservation::Lifetime };
    Limits { batch: setup.batch, step_tokens: setup.step_tokens, reservation, ..Limits::default() }
}

/// Runs requests to the end; every third step of an interrupted setup takes some sample's pages away.
fn run(engine: &mut Engine, setup: Setup) -> Vec<Rollout> {
    let mut session = Session::new(engine, limits(setup));
    for (number, request) in requests(setup).into_iter().enumerate() {
        session.submit(engine, number, request).expect("it can be served");
    }
    let (mut all, mut step) = (Vec::new(), 0_usize);
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => all.push(rollout),
        other => panic!("{other:?}"),
    };
    while session.step(engine, &mut answer) {
        step += 1;
        if setup.interrupted && step.is_multiple_of(3) && step <= 90 {
            let all: Vec<_> = session.scheduler().under_way().collect();
            if let Some(&sample) = all.get(step / 3 % all.len().max(1)) {
                session.preempt(engine, sample);
            }
        }
    }
    if setup.pressed || setup.interrupted {
        assert!(session.stats().preempted > 0, "{setup:?}: nothing was preempted, so the test shows nothing");
    }
    all
}

fn sampled(engine: &mut Engine, setup: Setup) -> Vec<Sampled> {
    if setup.warm {
        run(engine, setup);
    }
    let hits = engine.kv().prefix_stats().hit_tokens;
    let mut all: Vec<Sampled> = run(engine, setup)
        .into_iter()
        .map(|r| {
            assert_eq!(r.versions, [(0, 0)]);
            let (logprobs, raw) = (bits(&r.logprobs), bits(&r.logprobs_raw));
            Sampled { sample: r.sample, ids: r.ids, logprobs, raw }
        })
        .collect();
    let hits = engine.kv().prefix_stats().hit_tokens - hits;
    assert!(!setup.warm || hits > 0, "{setup:?}: no prefix was in the cache, so the test shows nothing");
    assert!(!setup.forgetful || hits == 0, "{setup:?}: remembered after all");
    all.sort_by_key(|s| s.sample);
    assert_eq!(engine.kv().available_pages(), engine.kv().pages(), "every page came back");
    all
}

/// Logprob bits of the sampled tokens, from whole rows.
fn scored(engine: &mut Engine, setup: Setup, rows: &[&Row], temperature: f32) -> Vec<Vec<u32>> {
    let asked: Vec<ScoreRow> =
        rows.iter().map(|row| ScoreRow { temperature, ..ScoreRow::new(row.ids.clone()) }).collect();
    let mut all = vec![Vec::new(); rows.len()];
    score(engine, &asked, limits(setup), &mut |i, scores| {
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
    let views = Views { teacher: view.map(Into::into), behaviour: view.map(Into::into), ..Views::default() };
    let sums = learner.micro_batch(cpu, model, objective, rows, views, VALID, 1.0, true).expect("the loss is finite");
    assert!(learner.by_row.mismatch.iter().all(|&d| d == 0.0), "a model is at no distance from itself");
    assert_eq!((sums.kl_reverse, sums.kl_forward), (0.0, 0.0));
    [raw, bits(&learner.by_row.logprobs)]
}

fn check(arch: &str) {
    let dir = common::golden_copy(arch, |config| config["max_position_embeddings"] = 400.into());
    for recipe in ["f32", "bf16", "kv8", "fp8"].into_iter().chain(FILES.iter().map(|file| file.0)) {
        let mut reference = engine(dir.path(), recipe, plain());
        let want = sampled(&mut reference, plain());
        let prompts = prompts();
        let rows: Vec<Row> = want
            .iter()
            .map(|s| {
                let prompt = &prompts[usize::try_from(s.sample).expect("small") / SAMPLES as usize];
                Row::new([&prompt[..], &s.ids].concat(), prompt.len())
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

/// The weights of a folder moved a little, differently for every version. With `rescales`, keys and values are four times
/// as large from version 1 on, so that their static scales change once.
struct Moved<'a> {
    checkpoint: &'a Checkpoint,
    version: u64,
    rescales: bool,
}

impl WeightSource for Moved<'_> {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.checkpoint.read_rows(name, first, rows, out)?;
        let key = name.bytes().fold(0, |key: u64, byte| key.wrapping_mul(31) + u64::from(byte));
        let scaled = ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part));
        // What static scales depend on is the same in every later version.
        let fixed = self.rescales && (scaled || name.contains("input_layernorm"));
        let version = if fixed { 1 } else { self.version };
        let mut noise = Stream::new(version, Purpose::Data, key + first as u64);
        let factor = if self.rescales && scaled { 4.0 } else { 1.0 };
        for x in out.iter_mut() {
            *x *= factor * (1.0 + 0.2 * (noise.uniform() - 0.5));
        }
        Ok(())
    }
}

/// One run in which the weights change twice; with `preempt` every sample loses its pages after each change.
fn switched(dir: &Path, name: &str, setup: Setup, policy: InFlight, preempt: bool) -> (Engine, Vec<Rollout>) {
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    let mut engine = engine(dir, name, setup);
    engine.retain_versions(2);
    let mut session = Session::new(&mut engine, Limits { in_flight: policy, ..limits(setup) });
    for (number, request) in requests(setup).into_iter().enumerate() {
        session.submit(&engine, number, request).expect("it can be served");
    }
    let (mut all, mut step, mut version) = (Vec::new(), 0, 0);
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => all.push(rollout),
        other => panic!("{other:?}"),
    };
    loop {
        let more = session.step(&mut engine, &mut answer);
        step += 1;
        if (step == 3 || step == 6) && version < 2 {
            session.request_update();
        }
        if step >= 3 * (version + 1) && version < 2 && session.may_update() {
            version += 1;
            session
                .update(&mut engine, version, &mut Moved { checkpoint: &checkpoint, version, rescales: false })
                .expect("read");
            if preempt {
                for sample in session.scheduler().under_way().collect::<Vec<_>>() {
                    session.preempt(&mut engine, sample);
                }
            }
        } else if !more {
            break;
        }
    }
    session.close(&mut engine);
    all.sort_by_key(|r| r.sample);
    (engine, all)
}

/// Weights that change in mid-sequence: what a rollout says of itself is enough to compute its logprobs again, and a
/// sample that lost its pages after a change goes on as if it had kept them.
fn check_switch(arch: &str) {
    let dir = common::golden_copy(arch, |config| config["max_position_embeddings"] = 400.into());
    let setup = Setup { batch: 32, page_len: 4, threads: 2, poisoned: true, ..plain() };
    for name in ["bf16", "kv8"].into_iter().chain(FILES.iter().map(|file| file.0)) {
        for policy in [InFlight::Keep, InFlight::Recompute, InFlight::Drain] {
            let (mut engine, all) = switched(dir.path(), name, setup, policy, false);
            let mixed = all.iter().filter(|r| r.versions.len() > 1).count();
            assert_eq!(mixed > 0, policy != InFlight::Drain, "{name} {policy:?}: {mixed} rollouts of several versions");
            let requests = requests(setup);
            for rollout in &all {
                let request = &requests[rollout.request];
                let (logprobs, raw) = replay(&mut engine, request, rollout, 9).expect("all versions are retained");
                assert_eq!(bits(&logprobs), bits(&rollout.logprobs), "{arch} {name} {policy:?}: {rollout:?}");
                assert_eq!(bits(&raw), bits(&rollout.logprobs_raw), "{arch} {name} {policy:?}: {rollout:?}");
            }
            if policy == InFlight::Keep {
                // Samples that are computed again fall behind the others, so the second change finds them elsewhere:
                // each must still be what its own record says.
                let (mut engine, preempted) = switched(dir.path(), name, setup, policy, true);
                for rollout in &preempted {
                    let request = &requests[rollout.request];
                    let (logprobs, _) = replay(&mut engine, request, rollout, 1000).expect("all versions are retained");
                    assert_eq!(bits(&logprobs), bits(&rollout.logprobs), "{arch} {name}, preempted: {rollout:?}");
                }
            }
        }
    }
}

/// Samples that are broken off and gone on with by another engine, one version later or not: what comes out says how to
/// compute it again, and without a change of weights it is what an undisturbed run gives.
#[test]
fn broken_off_and_gone_on_with() {
    let dir = common::golden_copy("qwen3", |config| config["max_position_embeddings"] = 400.into());
    let checkpoint = Checkpoint::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    let setup = Setup { batch: 32, page_len: 4, threads: 2, poisoned: true, ..plain() };
    let requests = requests(setup);
    for (name, moves) in [("bf16", false), ("bf16", true), ("kv8", false), ("kv8", true)] {
        let mut undisturbed = run(&mut engine(dir.path(), name, setup), setup);
        undisturbed.sort_by_key(|r| r.sample);
        let mut first = engine(dir.path(), name, setup);
        let mut session = Session::new(&mut first, limits(setup));
        for (number, request) in requests.iter().enumerate() {
            session.submit(&first, number, request.clone()).expect("it can be served");
        }
        let mut all = Vec::new();
        for _ in 0..5 {
            session.step(&mut first, &mut |answer| match answer {
                Answer::Rollout(rollout) => all.push(rollout),
                other => panic!("{other:?}"),
            });
        }
        let partials = session.partials();
        assert!(partials.len() > 3, "{} samples are under way", partials.len());
        session.close(&mut first);
        // Those that had no token yet begin anew; that they are missing from the list is part of what is tested.
        let mut rest = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            for sample in request.first_sample..request.first_sample + u64::from(request.samples) {
                if all.iter().any(|r| r.sample == sample) {
                    continue;
                }
                let begun = partials.iter().find(|partial| partial.sample == sample);
                let ids = begun.map_or(&[][..], |partial| &partial.ids);
                let prompt = [&request.prompt[..], ids].concat();
                let max_tokens = request.max_tokens - ids.len();
                let asked = Request { prompt, max_tokens, samples: 1, first_sample: sample, ..request.clone() };
                rest.push((number, begun.cloned(), asked));
            }
        }
        let mut second = engine(dir.path(), name, setup);
        second.retain_versions(1);
        if moves {
            second.update(1, &mut Moved { checkpoint: &checkpoint, version: 1, rescales: false }).expect("read");
        }
        let asked: Vec<Request> = rest.iter().map(|(.., asked)| asked.clone()).collect();
        generate(&mut second, &asked, limits(setup), &mut |at, result| {
            let (number, begun, _) = &rest[at];
            let rollout = result.expect("it can be served");
            let whole = begun.clone().map_or(rollout.clone(), |partial| partial.join(rollout));
            all.push(Rollout { request: *number, ..whole });
        });
        all.sort_by_key(|r| r.sample);
        assert_eq!(all.len(), undisturbed.len());
        for (rollout, undisturbed) in all.iter().zip(&undisturbed) {
            if !moves {
                assert_eq!(rollout.ids, undisturbed.ids, "{name}");
                assert_eq!(bits(&rollout.logprobs), bits(&undisturbed.logprobs), "{name}");
                assert_eq!(rollout.finish, undisturbed.finish, "{name}");
            }
            let replayed = replay(&mut second, &requests[rollout.request], rollout, 9).expect("versions are retained");
            assert_eq!(bits(&replayed.0), bits(&rollout.logprobs), "{name}, moves {moves}: {rollout:?}");
        }
    }
}

/// A change of static scales takes what was kept, and a second change arrives while that is being computed anew in
/// pieces: each rollout still says how to compute it again.
#[test]
fn qwen2_rescaled_in_mid_sequence() {
    let dir = common::golden_copy("qwen2", |config| config["max_position_embeddings"] = 400.into());
    let checkpoint = Checkpoint::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    let setup = Setup { batch: 32, page_len: 4, step_tokens: 9, poisoned: true, ..plain() };
    let (mut mixed, mut kept) = (0, 0);
    for name in ["kv8", "e5m2", "token"] {
        let mut engine = engine(dir.path(), name, setup);
        engine.retain_versions(3);
        let mut session = Session::new(&mut engine, Limits { in_flight: InFlight::Keep, ..limits(setup) });
        let requests = requests(setup);
        for (number, request) in requests.iter().enumerate() {
            session.submit(&engine, number, request.clone()).expect("it can be served");
        }
        let (mut all, mut step, mut version) = (Vec::new(), 0, 0);
        let mut answer = |answer| match answer {
            Answer::Rollout(rollout) => all.push(rollout),
            other => panic!("{other:?}"),
        };
        while session.step(&mut engine, &mut answer) {
            step += 1;
            if [25, 27, 60].contains(&step) {
                version += 1;
                let source = &mut Moved { checkpoint: &checkpoint, version, rescales: true };
                let switch = session.update(&mut engine, version, source).expect("read");
                assert_eq!(switch.same_scales, name == "token" || version > 1, "{name}, version {version}");
            }
        }
        session.close(&mut engine);
        for rollout in &all {
            let rebuilt = &rollout.rebuilt;
            assert!(
                rebuilt.windows(2).all(|pair| pair[0].first < pair[1].first) && (name != "token" || rebuilt.is_empty())
            );
            mixed += rebuilt.iter().filter(|rebuilt| rebuilt.kv.len() > 1).count();
            kept += usize::from(rebuilt.is_empty() && rollout.versions.len() > 1);
            let (logprobs, raw) = replay(&mut engine, &requests[rollout.request], rollout, 9).expect("retained");
            assert_eq!(bits(&logprobs), bits(&rollout.logprobs), "{name}: {rollout:?}");
            assert_eq!(bits(&raw), bits(&rollout.logprobs_raw), "{name}: {rollout:?}");
        }
    }
    assert!(mixed > 0 && kept > 0, "{mixed} rebuilt under two versions, {kept} kept across versions");
}

#[test]
fn qwen3_switched() {
    check_switch("qwen3");
}

#[test]
fn qwen2_switched() {
    check_switch("qwen2");
}
