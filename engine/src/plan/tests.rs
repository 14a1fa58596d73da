//! What is planned is what is held: weights and buffers byte for byte, and the tokens that the pool hands out.

use std::sync::Arc;

use kv::KvCache;
use proptest::prelude::*;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::WeightScale;
use ptx::{Cpu, DType, Isa};
use serde_json::json;

use super::*;
use crate::checkpoint::CheckpointError;
use crate::engine::{Engine, Feed, LOGIT_ROWS};
use crate::model::{Model, WeightSource};
use crate::recipe::{Activations, Proj, WeightFormat};

/// Every value is a little above zero.
struct Constant;

impl WeightSource for Constant {
    fn rows(&mut self, _: &str, _: usize, _: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        out.fill(0.01);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    arch: &'static str,
    layers: usize,
    hidden: usize,
    group: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    tied: bool,
    biases: bool,
}

fn config(s: Shape) -> ModelConfig {
    let text = json!({
        "model_type": s.arch, "hidden_act": "silu", "hidden_size": s.hidden, "intermediate_size": s.ffn,
        "num_attention_heads": s.group * s.kv_heads, "num_key_value_heads": s.kv_heads, "num_hidden_layers": s.layers,
        "head_dim": s.head_dim, "max_position_embeddings": 1 << 20, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": s.tied, "vocab_size": s.vocab, "attention_bias": s.biases && s.arch != "qwen2",
        "mlp_bias": s.biases && s.arch == "llama",
    });
    ModelConfig::parse(&text.to_string()).expect("a configuration")
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        prop::sample::select(vec!["qwen3", "qwen2", "llama"]),
        (1..4_usize, 1..70_usize, 1..4_usize, 1..4_usize, 1..20_usize),
        (1..90_usize, 1..300_usize, any::<bool>(), any::<bool>()),
    )
        .prop_map(|(arch, (layers, hidden, group, kv_heads, half), (ffn, vocab, tied, biases))| Shape {
            arch,
            layers,
            hidden,
            group,
            kv_heads,
            head_dim: 2 * half,
            ffn,
            vocab,
            tied,
            biases,
        })
}

/// A recipe with formats of its own in every layer, taken from `choices`.
fn mixed(config: &ModelConfig, choices: &[usize]) -> Recipe {
    let mut recipe = Recipe::built_in("bf16", Precision::Bf16, config).expect("known");
    let mut choices = choices.iter().copied().cycle();
    let mut choice = |count| choices.next().expect("endless") % count;
    let caches = [DType::F32, DType::Bf16, DType::E4m3, DType::E5m2];
    for layer in &mut recipe.layers {
        layer.k = caches[choice(4)];
        layer.v = caches[choice(4)];
        layer.kv_scale = [KvScale::Static, KvScale::Token][choice(2)];
    }
    let scales = [WeightScale::Tensor, WeightScale::Channel, WeightScale::Block128];
    let mut format = || WeightFormat { dtype: caches[choice(3)], scale: scales[choice(3)] };
    for layer in &mut recipe.layers {
        for projection in &mut layer.projections {
            projection.weights = format();
        }
    }
    recipe.head.weights = format();
    recipe.embed = if config.tied { recipe.head.weights } else { format() };
    recipe
}

fn settings(page_len: usize, length: usize) -> Settings {
    Settings { page_len, ..Settings::new(1, Isa::detect(), length) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn weights_are_what_a_model_holds(shape in shapes(), choices in prop::collection::vec(0..12_usize, 1..40)) {
        let config = config(shape);
        let recipe = mixed(&config, &choices);
        let planned = Weights::of(&config, &recipe).total();
        prop_assert_eq!(planned, Model::empty(config, recipe).held_bytes());
    }

    #[test]
    fn the_pool_hands_out_the_tokens_that_are_planned(
        shape in shapes(),
        choices in prop::collection::vec(0..12_usize, 1..40),
        page_log in 0..9_u32,
        pages in 0..40_usize,
        more in 0.0..1.0_f64,
        length in 1..600_usize,
        all in any::<bool>(),
    ) {
        let config = config(shape);
        let recipe = mixed(&config, &choices);
        let settings = settings(1 << page_log, length);
        let layout = Layout::new(kv_shapes(&config, &recipe, settings.page_len));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // less than a page
        let pool = pages * layout.page_bytes() + (more * layout.page_bytes() as f64) as usize;
        let memory = if all {
            let fixed = Workspace::of(&config, &recipe, settings, pages).total() + Weights::of(&config, &recipe).total();
            Memory::All(fixed + pool)
        } else {
            Memory::Pool(pool)
        };
        let plan = Plan::new(&config, &recipe, settings, memory).expect("it fits");
        prop_assert_eq!(plan.capacity.pages, pages);
        if let Memory::All(bytes) = memory {
            prop_assert_eq!(plan.total(), bytes);
        }

        // One sequence, token by token, takes all of it.
        let mut cache = KvCache::new(layout, plan.capacity.pages);
        prop_assert!(cache.arena().bytes() <= plan.pool && plan.pool < cache.arena().bytes() + plan.layout.page_bytes());
        let mut one = cache.sequence(0);
        while cache.append(&mut one, 1).is_ok() {}
        prop_assert_eq!(one.len(), plan.capacity.tokens);
        cache.end(one);

        // As many of the planned length as are promised, and not one more.
        let most = plan.sequences();
        for _ in 0..most.clone().unwrap_or(0) {
            let mut sequence = cache.sequence(length);
            prop_assert!(cache.append(&mut sequence, length).is_ok());
        }
        let mut sequence = cache.sequence(length);
        prop_assert!(cache.append(&mut sequence, length).is_err());
        prop_assert_eq!(most.is_err(), settings.page_len * pages < length);

        // A pool of what the error asks for holds one.
        if let Err(PlanError::Pool { pool_want, memory_want, .. }) = most {
            for memory in [Memory::Pool(pool_want), Memory::All(memory_want)] {
                let plan = Plan::new(&config, &recipe, settings, memory).expect("it fits");
                prop_assert_eq!(plan.sequences(), Ok(1));
            }
            prop_assert!(Plan::new(&config, &recipe, settings, Memory::Pool(pool_want - 1)).expect("fits").sequences().is_err());
        }
    }
}

#[test]
fn too_little_memory_says_what_would_do() {
    let shape = Shape {
        arch: "qwen3",
        layers: 2,
        hidden: 64,
        group: 2,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 500,
        tied: true,
        biases: false,
    };
    let config = config(shape);
    let recipe = Recipe::built_in("fp8", Precision::Bf16, &config).expect("known");
    let settings = settings(16, 100);
    let error = Plan::new(&config, &recipe, settings, Memory::All(1000)).expect_err("weights alone are more");
    let PlanError::Memory { memory: 1000, weights, workspace, want, .. } = error else { panic!("{error}") };
    assert_eq!(weights, Weights::of(&config, &recipe).total());
    assert!(workspace > 0 && want > weights + workspace);
    let plan = Plan::new(&config, &recipe, settings, Memory::All(want)).expect("it fits");
    assert_eq!((plan.sequences(), plan.total()), (Ok(1), want));
    let plan = Plan::new(&config, &recipe, settings, Memory::All(want - 1)).expect("it fits");
    assert!(matches!(plan.sequences(), Err(PlanError::Pool { memory_want, .. }) if memory_want == want));

    let long = Settings { length: (1 << 20) + 1, ..settings };
    let error = Plan::new(&config, &recipe, long, Memory::Pool(1 << 20)).expect_err("beyond the context");
    assert_eq!(error, PlanError::Length { length: (1 << 20) + 1, max: 1 << 20 });
}

/// Sizes that no machine has are too large, and never small.
#[test]
fn absurd_shapes_do_not_wrap() {
    let most = 1 << 24;
    let shape = Shape {
        arch: "llama",
        layers: 1 << 12,
        hidden: most,
        group: 1,
        kv_heads: most,
        head_dim: most,
        ffn: most,
        vocab: most,
        tied: false,
        biases: true,
    };
    let config = config(shape);
    let recipe = Recipe::built_in("f32", Precision::Bf16, &config).expect("known");
    let settings = Settings { step_tokens: 1 << 30, batch: 1 << 30, threads: 1024, ..settings(256, 1) };
    let error = Plan::new(&config, &recipe, settings, Memory::All(1 << 60)).expect_err("far too large");
    assert!(matches!(error, PlanError::Memory { weights, .. } if weights > 1 << 60), "{error}");
    let plan = Plan::new(&config, &recipe, settings, Memory::Pool(1 << 60)).expect("a pool without a page");
    assert_eq!(plan.capacity.pages, 0);
}

/// Steps of growing and shrinking sizes leave buffers of exactly the planned size.
#[test]
fn a_steps_buffers_are_what_is_planned() {
    let shape = Shape {
        arch: "qwen2",
        layers: 2,
        hidden: 64,
        group: 2,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 500,
        tied: false,
        biases: true,
    };
    let config = config(shape);
    let kv8 = Recipe::built_in("kv8", Precision::Bf16, &config).expect("known");
    let mut eight = kv8.clone();
    eight.layers[1].projections[Proj::Down as usize].activations = Activations::E4m3;
    for recipe in [kv8, eight] {
        let cpu = Arc::new(Cpu::new(1));
        let mut model = Model::empty(config.clone(), recipe.clone());
        model.update(&cpu, 0, &mut Constant).expect("read");
        let settings = Settings { step_tokens: 90, batch: 70, ..settings(16, 100) };
        let mut engine = Engine::new(cpu, model, 16, 8, 500);
        for tokens in [33, 61, 7, 90, 64] {
            let mut sequence = engine.kv().sequence(tokens);
            engine.kv_mut().append(&mut sequence, tokens).expect("room");
            engine.step([Feed { sequence: &sequence, ids: &vec![1; tokens] }]).expect("no device");
            engine.logits(0..tokens.min(LOGIT_ROWS)).expect("no device");
            engine.kv_mut().end(sequence);
        }
        let planned = Workspace::of(&config, &recipe, settings, 8);
        let step = crate::model::Workspace::bytes_for(&config, &recipe, 90);
        assert_eq!(engine.buffer_bytes(), (step, planned.logits));
        assert!(planned.step >= step && planned.step < step + 90 * 200, "{planned:?}");
    }
}
