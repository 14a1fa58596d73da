//! Memory that is promised: a large vocabulary never means logits of every token, and loading holds the weights once.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::checkpoint::CheckpointError;
use engine::config::ModelConfig;
use engine::engine::{Engine, LOGIT_ROWS};
use engine::model::{Gradients, Model, WeightSource};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, ScoreRow, score};
use opd::learner::{Learner, Views};
use opd::loss::{BLOCK_BYTES, ByRow, LossWorkspace, Objective, Rows, View, loss};
use opd::sequences::Row;
use opd::side::Side;
use ptx::Cpu;
use ptx::ops::divergence::Kind;
use ptx::rng::{Purpose, Stream};

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

/// Most bytes held beyond what was held before, while `run` runs.
fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = run();
    (PEAK.load(Ordering::Relaxed) - before, result)
}

/// Weights drawn as they are asked for.
struct Random;

impl WeightSource for Random {
    fn rows(&mut self, _: &str, first: usize, _: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let mut draw = Stream::new(1, Purpose::Data, first as u64);
        out.iter_mut().for_each(|x| *x = draw.normal() * 0.3);
        Ok(())
    }
}

const VOCAB: usize = 151_936;
const TOKENS: usize = 230;
/// Logits of one model for one block of rows.
const BLOCK: usize = LOGIT_ROWS * VOCAB * 4;
/// Activations of this narrow model, the cache, scratch.
const SMALL: usize = 8 << 20;

fn wide_model(cpu: &Cpu) -> Model {
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 16,
        "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
        "head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "vocab_size": VOCAB,
    });
    let config = ModelConfig::parse(&config.to_string()).expect("a configuration");
    let recipe = Recipe::built_in("f32", Precision::F32, &config).expect("known");
    let mut model = Model::empty(config, recipe);
    model.update(cpu, 0, &mut Random).expect("read");
    model
}

/// One test, so that nothing else allocates meanwhile: the other one of this file runs another process.
#[test]
fn logits_exist_for_a_block_of_rows_at_a_time() {
    const { assert!(3 * BLOCK_BYTES + SMALL < TOKENS * VOCAB * 4, "the bound is below one [tokens, vocab]") };
    let cpu = Arc::new(Cpu::new(2));
    let mut draw = Stream::new(2, Purpose::Data, 0);
    let ids: Vec<u32> = (0..TOKENS).map(|_| draw.below(u32::try_from(VOCAB).expect("small"))).collect();

    let mut engine = Engine::new(Arc::clone(&cpu), wide_model(&cpu), 16, 32, VOCAB);
    let mut scored = Vec::new();
    let (held, ()) = peak(|| {
        score(&mut engine, &[ScoreRow::new(ids.clone())], Limits::default(), &mut |_, scores| {
            scored = scores.expect("served").logprobs
        });
    });
    assert_eq!(scored.len(), TOKENS - 1);
    println!("scoring {TOKENS} tokens: {:.1} MB", held as f64 / 1e6);
    assert!(held < BLOCK + SMALL, "scoring held {held} bytes");

    // Training holds two models' logits at a time, and lays the gradient of a tile out for the head's matmuls: three times
    // what a workspace is given. The sampler's model stands for the teacher too.
    let model = engine.model();
    let rows = [Row::new(ids, 1)];
    let (mut learner, mut side) = (Learner::new(model, TOKENS, 1), Side::new(model, TOKENS, 1));
    let (held, sums) = peak(|| {
        side.run(&cpu, model, &rows);
        let view = Some(View { head: model.head(), hidden: &side.hidden });
        let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 0.5 };
        let views = Views { teacher: view.map(Into::into), behaviour: view.map(Into::into), ..Views::default() };
        learner.micro_batch(&cpu, model, objective, &rows, views, VOCAB, 0.01, true)
    });
    assert_eq!(usize::try_from(sums.expect("the loss is finite").tokens).expect("small"), TOKENS - 1);
    println!("training on {TOKENS} tokens: {:.1} MB", held as f64 / 1e6);
    assert!(held < 3 * BLOCK_BYTES + SMALL, "training held {held} bytes");

    // The loss alone against the tile's own figure, in whole rows and in vocabulary tiles.
    let (count, width) = (100, 16);
    let hidden: Vec<f32> = (0..count * width).map(|_| draw.normal()).collect();
    let (targets, mut gradients) = (vec![7; count], Gradients::zeros(&model.config));
    for bytes in [BLOCK_BYTES, 2 << 20] {
        // Fresh threads: what products keep on each of them is part of the figure.
        let cpu = Cpu::new(2);
        let tile = LossWorkspace::within(bytes).tile(VOCAB);
        let bound = tile.bytes(&cpu, width, 2);
        let (held, (ws, sums)) = std::thread::scope(|scope| {
            let run = || {
                let view = View { head: model.head(), hidden: &hidden };
                let rows = Rows {
                    hidden: &hidden,
                    targets: &targets,
                    teacher: Some(view.into()),
                    behaviour: Some(view.into()),
                    reference: None,
                    factors: None,
                    draws: None,
                    valid: VOCAB,
                    weight: 0.01,
                };
                peak(|| {
                    let (mut by_row, mut dhidden) = (ByRow::default(), Vec::new());
                    let mut ws = LossWorkspace::within(bytes);
                    let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 0.5 };
                    let gradients = Some((&mut gradients, &mut dhidden));
                    let sums = loss(&cpu, objective, model, rows, gradients, &mut by_row, &mut ws);
                    (ws, sums)
                })
            };
            scope.spawn(run).join().expect("it ran")
        });
        assert_eq!(sums.expect("the loss is finite").loss, 0.0, "the teacher is the student");
        println!("{tile:?}: {:.2} MB held, {:.2} MB stated", held as f64 / 1e6, bound as f64 / 1e6);
        // Beside the tile only what is held for each of the rows.
        assert!(held <= bound + 64 * 1024, "{tile:?}: {held} bytes, {bound} stated");
        assert!(held > bound / 2, "{tile:?}: {held} bytes, {bound} stated");
        drop(ws);
    }
}

/// Peak resident bytes of a process so far.
#[cfg(target_os = "linux")]
fn peak_resident(id: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

/// Mapped pages go back as they are packed: a process that loads a model and samples holds the weights once, not twice.
#[cfg(target_os = "linux")]
#[test]
fn a_loaded_model_is_resident_once() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (model, ids) = (dir.path().join("model"), dir.path().join("ids.jsonl"));
    let mut init =
        vec!["init", "--hidden", "512", "--layers", "6", "--heads", "8", "--kv-heads", "4", "--head-dim", "64"];
    init.extend(["--ffn", "1536", "--vocab", "24000", "--max-positions", "512", "--out"]);
    let made = common::leeway().args(init).arg(&model).output().expect("the binary runs");
    assert!(made.status.success(), "{}", common::stderr(&made));
    let weights =
        usize::try_from(std::fs::metadata(model.join("model.safetensors")).expect("there").len()).expect("fits");
    assert!(weights > 100_000_000, "{weights} bytes of weights");
    std::fs::write(&ids, "{\"ids\": [1, 2, 3]}\n").expect("written");
    let kv_memory = 16 << 20;

    let mut child = common::leeway()
        .args(["generate", "--max-tokens", "60", "--kv-memory", "16MiB", "--recipe", "f32", "--model"])
        .arg(&model)
        .arg("--ids")
        .arg(&ids)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut most = 0;
    let status = loop {
        most = most.max(peak_resident(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("the system knows its child") {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    assert!(status.success());
    println!("{:.1} MB of weights, {:.1} MB resident at most", weights as f64 / 1e6, most as f64 / 1e6);
    assert!(most > weights, "the peak was seen");
    let bound = weights + kv_memory + (32 << 20);
    assert!(most < bound, "{most} bytes resident at most, for {weights} bytes of weights");
}
