//! A warmed decode step and a warmed training step allocate nothing. One test, so that nothing else allocates meanwhile.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::engine::Engine;
use engine::init::{InitSpec, random};
use engine::recipe::Precision;
use engine::rollout::{Limits, Request, generate};
use opd::learner::{Learner, Views};
use opd::loss::{Objective, View};
use opd::master::Master;
use opd::sequences::Row;
use opd::side::Side;
use ptx::ops::adamw::AdamW;
use ptx::ops::divergence::Kind;
use ptx::ops::sample::Params;
use ptx::{Cpu, DType};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator as it came. Growing goes through `alloc` and so counts too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The fewest allocations of some runs: each thread warms its own buffers when it first takes part in an op, and which
/// thread takes part is chance, but what a step itself allocates it allocates every time.
fn fewest(mut run: impl FnMut()) -> usize {
    let once = |_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..12).map(once).min().expect("it ran")
}

/// Samples `tokens` tokens of a few prompts.
fn decode(engine: &mut Engine, params: Params, tokens: usize) {
    let request = |i: u64| Request {
        prompt: vec![3, 1, 4, 1, 5],
        samples: 3,
        first_sample: i * 3,
        seed: 1,
        params,
        max_tokens: tokens,
        stop_ids: vec![u32::MAX],
        ..Request::default()
    };
    let mut served = 0;
    generate(engine, &[request(0), request(1)], Limits::default(), &mut |_, rollout| {
        assert_eq!(rollout.expect("served").ids.len(), tokens);
        served += 1;
    });
    assert_eq!(served, 6);
}

fn check_decode(cpu: &Arc<Cpu>, dir: &Path, recipe: &str) {
    let model = common::load(cpu, dir, recipe);
    let vocab = model.config.vocab;
    let mut engine = Engine::new(Arc::clone(cpu), model, 16, 64, vocab);
    let plain = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    for params in [plain, Params { temperature: 0.0, ..plain }, Params { top_p: 0.9, top_k: 40, ..plain }] {
        decode(&mut engine, params, 60);
        let few = fewest(|| decode(&mut engine, params, 20));
        let many = fewest(|| decode(&mut engine, params, 60));
        assert!(few > 0, "starting a rollout allocates, and the counter counts");
        assert_eq!(many, few, "{recipe}: forty more decode steps allocate, with {params:?}");
    }
}

fn check_training(cpu: &Cpu, dir: &Path, precision: Precision, recipe: &str) {
    let model = common::load(cpu, dir, precision.name());
    let sampler = common::load(cpu, dir, recipe);
    let checkpoint = Checkpoint::open(dir).expect("opens");
    let mut master = Master::load(&checkpoint, precision).expect("loads");
    let rows: Vec<Row> = (0..6_usize)
        .map(|i| {
            let ids = (0..30 + i).map(|t| u32::try_from((i * 31 + t * 7) % 500).expect("small"));
            Row::new(ids.collect(), 4 + i)
        })
        .collect();
    let tokens = rows.iter().map(|row| row.ids.len()).sum();
    let (mut learner, mut side) = (Learner::new(&model, tokens, 6), Side::new(&sampler, tokens, 6));
    let hyper = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let vocab = model.config.vocab;
    for objective in [Objective::Supervised, Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 }] {
        let count = fewest(|| {
            side.run(cpu, &sampler, &rows);
            let view = Some(View { head: sampler.head(), hidden: &side.hidden });
            let views = Views { teacher: view.map(Into::into), behaviour: view.map(Into::into), ..Views::default() };
            learner.gradients.clear();
            let micro = learner.micro_batch(cpu, &model, objective, &rows, views, vocab, 0.01, true);
            assert!(micro.expect("the loss is finite").loss > 0.0);
            assert!(master.update(cpu, &learner.gradients, hyper, 1.0) > 0.0);
        });
        assert_eq!(count, 0, "{recipe} against {}: a training step allocates, with {objective:?}", precision.name());
    }
}

#[test]
fn warm_steps_allocate_nothing() {
    let cpu = Arc::new(Cpu::new(2));
    for (arch, tied) in [(Arch::Qwen3, true), (Arch::Qwen2, false)] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let spec = InitSpec {
            arch,
            hidden: 128,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            ffn: 384,
            vocab: 2000,
            tied,
            seed: 1,
            dtype: DType::F32,
            max_positions: 128,
            rope_theta: 10_000.0,
            std: 0.1,
        };
        random(dir.path(), &spec, None).expect("written");
        for recipe in ["f32", "bf16", "kv8", "fp8", &common::mixed()] {
            check_decode(&cpu, dir.path(), recipe);
        }
        check_training(&cpu, dir.path(), Precision::F32, "bf16");
        check_training(&cpu, dir.path(), Precision::Bf16, "fp8");
        check_training(&cpu, dir.path(), Precision::Bf16, &common::mixed());
    }
}
