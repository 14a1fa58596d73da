//! The engine on the simulated CUDA devices: the same bits however the work is cut, and logits near the CPU's.

use std::sync::Arc;

use engine::checkpoint::{CheckpointError, EMBEDDING, HEAD};
use engine::engine::{Device, Draw, Engine, EngineError, Feed, LOGIT_ROWS};
use engine::model::WeightSource;
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Answer, InFlight, Limits, Request, RequestError, Session, generate, replay};
use engine::selftest::{Finding, Seeded, Sizes, agreement, invariance, models, roofline};
use ptx::Cpu;
use ptx::cuda::simulator::{self, Mode};
use ptx::cuda::{CudaError, Gpu};
use ptx::ops::log_softmax::top_k_of_row;
use ptx::ops::sample::{self, Params, RowDraw};

fn device(gpu: Gpu) -> Device {
    Device::Cuda { ordinal: 0, gpu, cpu: Arc::new(Cpu::new(1)) }
}

/// From now on without the simulator's checks, which take most of its time.
fn fast(gpu: &Gpu) {
    gpu.simulator().expect("it is simulated").set_mode(Mode::Fast).expect("it takes modes");
}

/// Runs both checks of one model, which must find nothing, and prints what they compared.
fn check(number: usize, gpu: Gpu) {
    let (device, small) = (device(gpu), &models()[number]);
    let mut each = |finding: Finding| {
        println!("{}: {}: {:.6}", finding.model, finding.check, finding.worst);
        assert_eq!(finding.failure, None, "{} {}", finding.model, finding.check);
    };
    agreement(&device, small, 8, &mut each).expect("the device works");
    // All launches there are have run with all checks by now.
    fast(device.gpu().expect("it is one"));
    invariance(&device, small, &mut each).expect("the device works");
}

#[test]
fn qwen3() {
    check(0, simulator::open().expect("built beside this test"));
}

#[test]
fn qwen2() {
    check(1, simulator::open().expect("built beside this test"));
}

#[test]
fn llama() {
    check(2, simulator::open().expect("built beside this test"));
}

#[test]
fn codes_as_inputs() {
    check(3, simulator::open().expect("built beside this test"));
}

#[test]
fn codes_as_inputs_without_their_instructions() {
    check(3, simulator::open_sm80().expect("built beside this test"));
}

/// With sums of every matrix instruction, of 16-bit inputs and of 8-bit ones, as inexact as hardware's may be, logits are
/// still near the CPU's.
#[test]
fn inexact_instructions_are_within_the_tolerance() {
    for gpu in [simulator::open(), simulator::open_sm80()] {
        let gpu = gpu.expect("built beside this test");
        gpu.simulator().expect("it is simulated").set_mode(Mode::Pessimistic).expect("it takes modes");
        let device = device(gpu);
        for small in &models() {
            let mut each = |finding: Finding| {
                println!("{}: {}: {:.6}", finding.model, finding.check, finding.worst);
                assert_eq!(finding.failure, None, "{} {}", finding.model, finding.check);
            };
            agreement(&device, small, 3, &mut each).expect("the device works");
        }
    }
}

/// Weights that change under samples, versions kept beside the present one: what each rollout says of itself is enough to
/// compute its logprobs again on the device, bit for bit.
fn changes(policy: InFlight) {
    let (device, small) = (device(simulator::open().expect("built beside this test")), &models()[0]);
    fast(device.gpu().expect("it is one"));
    let (config, recipe, mut source) = (small.config.clone(), small.recipe.clone(), small.weights.clone());
    let mut engine = Engine::open(&device, config, recipe, 0, &mut source, 4, 60, 190).expect("it has kernels");
    engine.retain_versions(2);
    let limits = Limits { in_flight: policy, batch: 3, ..Limits::default() };
    let mut session = Session::new(&mut engine, limits);
    let requests: Vec<Request> = (0..4)
        .map(|i| Request {
            prompt: (0..5 + i).map(|t| (t * 31 + i) % 190).collect(),
            samples: 2,
            first_sample: u64::from(2 * i),
            max_tokens: 9,
            ..Request::default()
        })
        .collect();
    for (number, request) in requests.iter().enumerate() {
        session.submit(&engine, number, request.clone()).expect("it can be served");
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
            let mut next = Seeded { seed: 1, std: small.weights.std * (1.0 + 0.1 * version as f32), ..small.weights };
            let switch = session.update(&mut engine, version, &mut next).expect("read");
            assert_eq!((switch.version, switch.oldest), (version, 0));
        } else if !more {
            break;
        }
    }
    session.close(&mut engine);
    let mixed = all.iter().filter(|rollout| rollout.versions.len() > 1).count();
    assert_eq!(mixed > 0, policy != InFlight::Drain, "{mixed} rollouts of several versions");
    assert_eq!((all.len(), version, engine.version()), (8, 2, 2));
    for rollout in &all {
        let (logprobs, raw) =
            replay(&mut engine, &requests[rollout.request], rollout, 5).expect("versions are retained");
        let bits = |list: &[f32]| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&logprobs), bits(&rollout.logprobs), "{policy:?}: {rollout:?}");
        assert_eq!(bits(&raw), bits(&rollout.logprobs_raw), "{policy:?}: {rollout:?}");
    }
}

#[test]
fn keep() {
    changes(InFlight::Keep);
}

#[test]
fn recompute() {
    changes(InFlight::Recompute);
}

#[test]
fn drain() {
    changes(InFlight::Drain);
}

/// Written over in place, a hundred times: the device holds no more than before, and what is computed is the new
/// version's, from graphs that were captured under an old one too.
#[test]
fn updates_in_place() {
    let gpu = simulator::open().expect("built beside this test");
    let (device, small) = (device(gpu.clone()), &models()[1]);
    let open = |version: u64, source: &mut Seeded| {
        let (config, recipe) = (small.config.clone(), small.recipe.clone());
        Engine::open(&device, config, recipe, version, source, 4, 40, 190).expect("it has kernels")
    };
    let sample = |engine: &mut Engine| {
        let request = Request { prompt: vec![1, 2, 3, 4, 5], max_tokens: 6, ..Request::default() };
        let mut out = None;
        generate(engine, &[request], Limits::default(), &mut |_, rollout| out = Some(rollout.expect("served")));
        out.map(|rollout| (rollout.ids, rollout.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
    };
    fast(&gpu);
    let version = |seed: u64| Seeded { seed, ..small.weights.clone() };
    let mut engine = open(0, &mut version(1));
    (0..3).for_each(|_| drop(sample(&mut engine)));
    let (graphs, held) = (engine.graph_steps(), gpu.memory_info().expect("it tells").used);
    assert!(graphs > 0, "steps that decode alone run as graphs");
    let mut last = sample(&mut engine);
    for seed in 2..6 {
        engine.update(seed, &mut version(seed)).expect("read");
        let now = sample(&mut engine);
        assert_ne!(now, last, "other weights");
        assert_eq!(now, sample(&mut open(9, &mut version(seed))), "the same weights from the start");
        last = now;
    }
    assert!(engine.graph_steps() > graphs);
    assert_eq!(gpu.memory_info().expect("it tells").used, held, "updates take no memory");
}

/// A head whose ids 2i and 2i + 1 have one row, so that their logits are equal; if `broken`, behind a norm that gives no
/// numbers.
struct Paired {
    weights: Seeded,
    broken: bool,
}

impl WeightSource for Paired {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        if name != EMBEDDING && name != HEAD {
            self.weights.rows(name, first, rows, out)?;
            if self.broken && name == "model.norm.weight" {
                out.fill(f32::NAN);
            }
            return Ok(());
        }
        let width = out.len() / rows;
        for (row, out) in (first..).zip(out.chunks_exact_mut(width)) {
            self.weights.rows(name, row / 2 * 2, 1, out)?;
        }
        Ok(())
    }
}

/// Draws and the likeliest ids beside them, a list of another length for each, are what the CPU makes of the same logits, bit
/// for bit: whole blocks of rows and single ones, in any order, with ties, whatever each draw is cut by.
#[test]
fn the_likeliest_ids_are_the_cpus() {
    let (on_89, on_80) = (simulator::open(), simulator::open_sm80());
    let devices = [
        device(on_89.expect("built beside this test")),
        device(on_80.expect("built beside this test")),
        Device::Cpu(Arc::new(Cpu::new(1))),
    ];
    let valid = 190;
    let plain = Params::default();
    let ways = [
        plain,
        Params { top_k: 4, ..plain },
        Params { temperature: 0.0, ..plain },
        Params { temperature: 0.7, top_p: 0.6, ..plain },
        Params { temperature: 1.6, min_p: 0.2, ..plain },
        Params { temperature: 0.9, ..plain },
        Params { temperature: 1.3, top_k: 9, top_p: 0.95, min_p: 0.01 },
    ];
    for device in &devices {
        // Tied and in bf16; with a head of its own whose inputs are codes.
        for number in [0, 3] {
            let small = &models()[number];
            let (config, recipe) = (small.config.clone(), small.recipe.clone());
            let mut source = Paired { weights: small.weights.clone(), broken: false };
            let mut engine =
                Engine::open(device, config, recipe, 0, &mut source, 4, 40, valid).expect("it has kernels");
            let ids: Vec<u32> = (0..80).map(|i| i * 37 % 190).collect();
            let mut sequence = engine.kv().sequence(ids.len());
            engine.kv_mut().append(&mut sequence, ids.len()).expect("the pool is larger");
            engine.step([Feed { sequence: &sequence, ids: &ids }]).expect("the device works");
            engine.kv_mut().end(sequence);
            let used = || device.gpu().map(|gpu| gpu.memory_info().expect("it tells").used);
            let before = used();
            // Some in order, some not; the longer lists are more than there is room for at first.
            for (stride, lengths) in [(1, &[3, 0, 1, 20, 5][..]), (7, &[190, 0, 2, 77][..]), (3, &[0][..])] {
                let draws: Vec<Draw> = (0..ids.len())
                    .map(|i| Draw {
                        row: i * stride % ids.len(),
                        how: RowDraw { params: ways[i % ways.len()], uniform: (i as f32 + 0.5) / 80.0 },
                        top: lengths[i % lengths.len()],
                        prefix: 0,
                    })
                    .collect();
                let (mut next, mut ties, mut cut) = (0, 0, 0);
                while next < draws.len() {
                    let (mut drew, mut tops) = (Vec::new(), Vec::new());
                    let count = engine.draw(&draws[next..], &mut drew, &mut tops).expect("the device works");
                    assert_eq!((count, drew.len()), ((draws.len() - next).min(LOGIT_ROWS), count));
                    let mut lists = &tops[..];
                    for (draw, drew) in draws[next..next + count].iter().zip(&drew) {
                        let (list, behind) = lists.split_at(draw.top);
                        lists = behind;
                        let (isa, params) = (engine.cpu().isa(), draw.how.params);
                        let logits = &engine.logits([draw.row].into_iter()).expect("the device works")[..valid];
                        let want = sample::draw(isa, &params, logits, draw.how.uniform).expect("a distribution");
                        assert_eq!(drew.as_ref(), Ok(&want), "{device}, {draw:?}");
                        if draw.top == 0 {
                            continue;
                        }
                        let (mut ids, mut raw) = (vec![0; draw.top], vec![0.0; draw.top]);
                        let mut logprobs = raw.clone();
                        let lses = want.normalizers;
                        top_k_of_row(isa, logits, params.inv_temp(), lses, &mut ids, &mut logprobs, &mut raw);
                        sample::processed(isa, &params, logits, &ids, &mut logprobs).expect("a distribution");
                        let got: Vec<_> =
                            list.iter().map(|t| (t.id, t.logprob.to_bits(), t.logprob_raw.to_bits())).collect();
                        let want: Vec<_> =
                            (0..draw.top).map(|i| (ids[i], logprobs[i].to_bits(), raw[i].to_bits())).collect();
                        assert_eq!(got, want, "{device}, {draw:?}");
                        ties += list.windows(2).filter(|w| w[0].logprob_raw == w[1].logprob_raw).count();
                        cut += list.iter().filter(|top| top.logprob == f32::NEG_INFINITY).count();
                    }
                    assert!(lists.is_empty(), "{} entries that nobody asked for", lists.len());
                    next += count;
                }
                assert!(lengths == [0] || (ties > 20 && cut > 20), "{ties} ties, {cut} ids that were cut");
                assert!(stride == 7 || lengths == [0] || used() == before, "room for lists of usual length is there");
            }

            engine.update(1, &mut Paired { weights: small.weights.clone(), broken: true }).expect("read");
            let mut sequence = engine.kv().sequence(3);
            engine.kv_mut().append(&mut sequence, 3).expect("the pool is larger");
            engine.step([Feed { sequence: &sequence, ids: &[1, 2, 3] }]).expect("the device works");
            engine.kv_mut().end(sequence);
            let how = |i: usize| RowDraw { params: ways[i], uniform: 0.5 };
            let draws = [0, 1, 2].map(|row| Draw { row, how: how(row), top: 2 * row, prefix: 0 });
            let (mut drew, mut tops) = (Vec::new(), Vec::new());
            engine.draw(&draws, &mut drew, &mut tops).expect("the device works");
            assert!(drew.iter().all(Result::is_err), "{drew:?}");
            assert_eq!(tops.len(), 6);
            assert!(tops.iter().all(|top| top.id == 0 && top.logprob.is_nan() && top.logprob_raw.is_nan()), "{tops:?}");
        }
    }
}

/// What a device does not run is refused before anything is loaded.
#[test]
fn formats_without_kernels_are_refused() {
    let (device, small) = (device(simulator::open().expect("built beside this test")), &models()[0]);
    let f32 = Recipe::built_in("f32", Precision::F32, &small.config).expect("a built-in name");
    let opened = Engine::open(&device, small.config.clone(), f32, 0, &mut small.weights.clone(), 4, 9, 190);
    let error = opened.expect_err("no kernels for f32");
    assert!(matches!(error, EngineError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("the embedding: a matrix in f32 has no CUDA kernel"), "{error}");
}

/// A page length that kernels do not take is refused like a format, before anything is loaded.
#[test]
fn page_lengths_without_kernels_are_refused() {
    let (device, small) = (device(simulator::open().expect("built beside this test")), &models()[0]);
    for page_len in [12, 512] {
        let (config, recipe, mut source) = (small.config.clone(), small.recipe.clone(), small.weights.clone());
        let opened = Engine::open(&device, config, recipe, 0, &mut source, page_len, 9, 190);
        let error = opened.expect_err("no kernels for such pages");
        assert!(matches!(error, EngineError::Unsupported(_)), "{error}");
        assert!(error.to_string().contains(&format!("pages of {page_len} tokens has no CUDA kernel")), "{error}");
    }
}

/// More pages copied on write in one step than one launch copies: samples that part within a page are the same, many at a
/// time and few.
#[test]
fn many_samples_part_at_once() {
    let (device, small) = (device(simulator::open().expect("built beside this test")), &models()[0]);
    fast(device.gpu().expect("it is one"));
    let sample = |batch: usize| {
        let (config, recipe, mut source) = (small.config.clone(), small.recipe.clone(), small.weights.clone());
        let mut engine = Engine::open(&device, config, recipe, 0, &mut source, 16, 150, 190).expect("it has kernels");
        let request = Request { prompt: vec![5, 6, 7, 8, 9], samples: 140, max_tokens: 2, ..Request::default() };
        let mut all = Vec::new();
        let limits = Limits { batch, ..Limits::default() };
        generate(&mut engine, &[request], limits, &mut |_, rollout| {
            let rollout = rollout.expect("served");
            all.push((rollout.sample, rollout.ids, rollout.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
        });
        all.sort();
        all
    };
    let all = sample(140);
    assert_eq!(all.len(), 140);
    assert_eq!(all, sample(7));
}

/// Rows that an earlier, larger step left in the buffers are not the last step's.
#[test]
fn logits_are_of_rows_of_the_last_step_alone() {
    let (device, small) = (device(simulator::open().expect("built beside this test")), &models()[0]);
    fast(device.gpu().expect("it is one"));
    let (config, recipe, mut source) = (small.config.clone(), small.recipe.clone(), small.weights.clone());
    let mut engine = Engine::open(&device, config, recipe, 0, &mut source, 4, 40, 190).expect("it has kernels");
    let mut sequence = engine.kv().sequence(0);
    let ids: Vec<u32> = (0..30).collect();
    for len in [30, 1] {
        engine.kv_mut().append(&mut sequence, len).expect("pages");
        engine.step([Feed { sequence: &sequence, ids: &ids[..len] }]).expect("the device works");
        assert_eq!(engine.logits([len - 1].into_iter()).expect("the device works").len(), small.config.vocab);
    }
    // Row 1 was filled up for a graph at most, and row 20 is of the step before.
    for row in [1, 20] {
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(engine.logits([row].into_iter()))));
        let why = asked.expect_err("not of the last step");
        let why = why.downcast_ref::<String>().expect("a message");
        assert_eq!(*why, format!("row {row} is not of the last step"));
    }
    // Nor is any after a step of nothing.
    engine.step([]).expect("the device works");
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(engine.logits([0].into_iter()))));
    assert!(asked.is_err());
    engine.kv_mut().end(sequence);
}

/// A device that fails ends every request with that error, and nothing is thought to be cached.
#[test]
fn a_failing_device_ends_all_requests() {
    let gpu = simulator::open().expect("built beside this test");
    let (device, small) = (device(gpu.clone()), &models()[0]);
    let (config, recipe, mut source) = (small.config.clone(), small.recipe.clone(), small.weights.clone());
    let mut engine = Engine::open(&device, config, recipe, 0, &mut source, 4, 40, 190).expect("it has kernels");
    let request = Request { prompt: vec![1; 12], samples: 2, max_tokens: 6, ..Request::default() };
    let mut session = Session::new(&mut engine, Limits::default());
    session.submit(&engine, 0, request.clone()).expect("it can be served");
    session.submit(&engine, 1, Request { prompt: vec![2; 3], ..request }).expect("it can be served");
    assert!(session.step(&mut engine, &mut |answer| panic!("{answer:?}")));
    // Something else on the device reads where nothing is.
    let nowhere = gpu.alloc::<f32>(4).expect("memory");
    let (freed, ids) = (nowhere.view(), gpu.upload(&[0_u32, 0, 0, 0]).expect("memory"));
    drop(nowhere);
    let out = gpu.alloc::<f32>(4).expect("memory");
    let launched = ptx::ops::select::cuda::rows(&gpu, 1, 4, freed, ids.view(), out.view());
    assert!(launched.is_err() || gpu.synchronize().is_err());
    let mut failed = Vec::new();
    while session.step(&mut engine, &mut |answer| match answer {
        Answer::Failed { request, sample: None, error: RequestError::Device(error) } => failed.push((request, error)),
        other => panic!("{other:?}"),
    }) {}
    assert_eq!(failed.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [0, 1]);
    assert!(matches!(&failed[0].1, CudaError::Fault { .. }), "{:?}", failed[0].1);
    assert_eq!(engine.kv().free_pages(), engine.kv().pages(), "every page came back, and none is remembered");
}

/// The code that measures speed, on a device that has none: it runs, and says what it measures against what.
#[test]
fn rates_are_of_something() {
    let gpu = simulator::open().expect("built beside this test");
    let sizes =
        Sizes { copy_bytes: 1 << 12, iterations: 2, n: 64, k: 64, rows: 16, sequences: 2, context: 40, repeats: 1 };
    let rates = roofline(&gpu, &Cpu::new(1), sizes).expect("the device works");
    assert_eq!(rates.len(), 8);
    assert_eq!(rates.iter().filter(|rate| rate.share.is_none()).count(), 2, "the limits themselves");
}
