//! What `engine::plan` promises is what is held: a model that is loaded, has run its largest step, decoded a full batch
//! and taken new weights holds at its peak what was planned, to one percent. One test, so that nothing else allocates
//! meanwhile.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::engine::{Engine, LOGIT_ROWS};
use engine::init::{InitSpec, random};
use engine::model::Model;
use engine::plan::{Memory, Plan, Settings};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, Request, ScoreRow, generate, score};
use ptx::ops::sample::Params;
use ptx::{Cpu, DType};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator as it came. Growing goes through both and so counts the two copies
// that exist meanwhile.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LENGTH: usize = 256;
const MEMORY: usize = 96 << 20;

/// Bytes of the weights that do not come from the allocator.
fn mapped(model: &Model) -> usize {
    let layers = model.layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]);
    layers.chain([&model.embed]).map(ptx::ops::linear::Packed::mapped_bytes).sum()
}

/// Bytes held at most beyond what was held before, and the plan.
fn run(dir: &Path, recipe: &str, threads: usize) -> (usize, Plan) {
    let cpu = Arc::new(Cpu::new(threads));
    let checkpoint = Checkpoint::open(dir).expect("opens");
    let config = checkpoint.config().clone();
    let limits = Limits { batch: 40, step_tokens: 512, ..Limits::default() };
    let recipe = Recipe::built_in(recipe, Precision::Bf16, &config).expect("known");
    let settings = Settings { batch: limits.batch, ..Settings::new(threads, cpu.isa(), LENGTH) };
    let plan = Plan::new(&config, &recipe, settings, Memory::All(MEMORY)).expect("it fits");
    assert_eq!(plan.total(), MEMORY);

    let ids =
        |len: usize, first: u32| (0..len).map(|i| first + u32::try_from(i % 100).expect("small")).collect::<Vec<_>>();
    let rows = [ids(LENGTH, 1), ids(LENGTH, 7)];
    let request = |i: u64| Request {
        prompt: ids(64, u32::try_from(i).expect("small")),
        samples: 5,
        first_sample: 0,
        seed: i,
        params: Params { top_p: 0.9, ..Params::default() },
        max_tokens: 3,
        ..Request::default()
    };
    let requests: Vec<Request> = (0..8).map(request).collect();

    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let model = Model::load(&cpu, &checkpoint, recipe).expect("loads");
    let mut engine = Engine::new(Arc::clone(&cpu), model, settings.page_len, plan.capacity.pages, config.vocab);
    let mut served = 0;
    // A decode batch first, so that buffers grow on the way; then a step of all rows, with its logits 64 at a time.
    generate(&mut engine, &requests, limits, &mut |_, rollout| {
        served += usize::from(rollout.expect("served").ids.len() == 3);
    });
    assert_eq!(served, 40);
    let rows = rows.map(ScoreRow::new);
    score(&mut engine, &rows, limits, &mut |_, scores| {
        served += usize::from(scores.expect("served").logprobs.len() == LENGTH - 1);
    });
    assert_eq!((served, rows.len() * LENGTH), (42, limits.step_tokens));
    // Rows of both sequences share blocks.
    assert_eq!(engine.last_logits().len() / config.vocab, 2 * (LENGTH - 1) % LOGIT_ROWS);
    engine.update(1, &mut &checkpoint).expect("read");
    let held = PEAK.load(Ordering::Relaxed) - before + mapped(engine.model());
    (held, plan)
}

#[test]
fn what_is_held_is_what_was_planned() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let spec = InitSpec {
        arch: Arch::Qwen3,
        hidden: 384,
        layers: 4,
        heads: 6,
        kv_heads: 2,
        head_dim: 64,
        ffn: 1024,
        vocab: 16_000,
        tied: true,
        seed: 1,
        dtype: DType::Bf16,
        max_positions: 512,
        rope_theta: 10_000.0,
        std: 0.05,
    };
    random(dir.path(), &spec, None).expect("written");
    for (recipe, threads) in [("bf16", 1), ("fp8", 2)] {
        // On threads of its own, the caller's too: scratch stays with a thread, and that of an earlier run would not count.
        let dir = dir.path().to_owned();
        let (held, plan) = std::thread::spawn(move || run(&dir, recipe, threads)).join().expect("it ran");
        let (weights, workspace, pool) = (plan.weights.total(), plan.workspace.total(), plan.pool);
        println!("{recipe}: {held} bytes held, {MEMORY} planned: {weights} + {workspace} + {pool}");
        assert!(
            weights > 10 << 20 && workspace > 10 << 20 && pool > 10 << 20,
            "each part is large enough to be missed"
        );
        assert!(held.abs_diff(MEMORY) < MEMORY / 100, "{recipe}: {held} bytes held, {MEMORY} planned: {plan:#?}");
    }
}
