//! What an engine takes of a CUDA device: as much as was foretold, whatever the model, and no more in any later step.

use std::sync::Arc;

use engine::config::ModelConfig;
use engine::cuda::{Room, fixed_bytes};
use engine::engine::{Device, Engine, kv_shapes};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, Request, generate};
use engine::selftest::{Seeded, models};
use kv::Layout;
use ptx::Cpu;
use ptx::cuda::Gpu;
use ptx::cuda::simulator::{self, Mode};
use ptx::ops::sample::Params;
use serde_json::json;

/// Real ids, fewer than the vocabulary.
const VALID: usize = 190;
const TOKENS: usize = 150;
const PAGE_LEN: usize = 16;

/// A model of one layer with this many heads; nothing of it is a round number.
fn odd(family: &str, heads: usize, kv_heads: usize, head_dim: usize, tied: bool) -> ModelConfig {
    let text = json!({
        "model_type": family, "hidden_act": "silu", "hidden_size": 72, "intermediate_size": 104,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "vocab_size": 203, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
        "rope_theta": 1e4, "tie_word_embeddings": tied, "attention_bias": false, "use_sliding_window": false,
    });
    ModelConfig::parse(&text.to_string()).expect("a configuration")
}

/// Opens an engine with room for steps of so many rows and sequences, runs the largest of them, and holds what the device
/// has allocated against what was foretold, to the byte.
fn check(gpu: &Gpu, name: &str, config: &ModelConfig, recipe: &Recipe, rows: usize, batch: usize, truncated: bool) {
    let what = format!("{name}, {} on {}, {rows} rows, {batch} sequences", recipe.name, gpu.name());
    let used = || usize::try_from(gpu.memory_info().expect("it tells").used).expect("64 bits");
    let (before, room) = (used(), Room { rows, sequences: batch, tokens: TOKENS });
    let fixed = fixed_bytes(gpu, config, recipe, PAGE_LEN, room, VALID).expect("it has kernels");
    let pages = batch * TOKENS.div_ceil(PAGE_LEN);
    let pool = pages * Layout::new(kv_shapes(config, recipe, PAGE_LEN)).page_bytes();
    let device = Device::Cuda { ordinal: 0, gpu: gpu.clone(), cpu: Arc::new(Cpu::new(1)) };
    let mut source = Seeded { seed: 1, std: 0.2, head_std: 0.15 };
    let (own, formats) = (config.clone(), recipe.clone());
    let mut engine =
        Engine::open(&device, own, formats, 0, &mut source, PAGE_LEN, pages, VALID).expect("it has kernels");
    engine.make_room(room).expect("memory");
    let made = used() - before;

    let limits = Limits { batch, step_tokens: rows, ..Limits::default() };
    let top_p = if truncated { 0.8 } else { 1.0 };
    let requests: Vec<Request> = (0..batch)
        .map(|i| Request {
            // Cut so that all decode side by side; the first comes to the last token that there is room for.
            prompt: (0..TOKENS - 4 - i % 2).map(|t| u32::try_from((t * 7 + i) % VALID).expect("an id")).collect(),
            params: Params { top_p, ..Params::default() },
            max_tokens: 4,
            top_logprobs: if truncated { 3 } else { 0 },
            seed: i as u64,
            ..Request::default()
        })
        .collect();
    let mut served = 0;
    generate(&mut engine, &requests, limits, &mut |_, rollout| {
        rollout.expect("there is room");
        served += 1;
    });
    assert_eq!(served, batch);
    assert!(batch > 256 || engine.graph_steps() > 0, "{what}: steps that decode alone run as graphs");
    assert_eq!(used() - before, fixed + pool, "{what}: used when all has run, and foretold");
    assert_eq!(made, fixed + pool, "{what}: no step makes room anew");
    drop(engine);
    assert_eq!(used(), before, "{what}: all comes back");
}

fn fast(gpu: Gpu) -> Gpu {
    gpu.simulator().expect("it is simulated").set_mode(Mode::Fast).expect("it takes modes");
    gpu
}

/// Every family and format, tied and untied heads, on both sets of kernels.
#[test]
fn bytes_of_every_family_are_foretold() {
    let [sm89, sm80] =
        [simulator::open(), simulator::open_sm80()].map(|gpu| fast(gpu.expect("built beside this test")));
    let models = models();
    for (gpu, model, rows, batch) in [(&sm89, 0, 40, 3), (&sm89, 1, 7, 9), (&sm89, 2, 64, 2), (&sm80, 3, 33, 5)] {
        let small = &models[model];
        check(gpu, small.name, &small.config, &small.recipe, rows, batch, model % 2 == 1);
    }
}

/// Many query heads to a kv head take more than one tile of attention each, and many rows are more than a graph's.
#[test]
fn bytes_of_large_groups_are_foretold() {
    let gpu = fast(simulator::open().expect("built beside this test"));
    for (family, heads, kv_heads, head_dim, tied, recipe, rows) in [
        ("qwen2", 16, 1, 64, true, "kv8", 270),
        ("qwen3", 24, 2, 128, false, "fp8", 50),
        ("llama", 12, 3, 96, true, "bf16", 20),
    ] {
        let config = odd(family, heads, kv_heads, head_dim, tied);
        let recipe = Recipe::built_in(recipe, Precision::Bf16, &config).expect("a built-in name");
        check(&gpu, family, &config, &recipe, rows, 2, false);
    }
}
