//! The engine on the simulated CUDA devices: the same bits however the work is cut, and logits near the CPU's.

use std::sync::Arc;

use engine::engine::{Device, Engine, EngineError};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Answer, InFlight, Limits, Request, RequestError, Session, generate, replay};
use engine::selftest::{Finding, Seeded, Sizes, agreement, invariance, models, roofline};
use ptx::Cpu;
use ptx::cuda::simulator::{self, Mode};
use ptx::cuda::{CudaError, Gpu};

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
