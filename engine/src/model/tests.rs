//! Weights in the recipe's formats, and static scales of the KV cache by version.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use kv::{KvCache, Layout};
use ptx::dtype::{round_bf16, scale_pow2};
use ptx::kv_tile::{KvScale, Span};
use ptx::ops::linear::{self, Codes8, Job, WeightScale};
use ptx::ops::round;
use ptx::rng::{Purpose, Stream};
use ptx::{Cpu, DType};
use serde_json::{Value, json};

use super::*;
use crate::checkpoint::CheckpointError;
use crate::config::ModelConfig;
use crate::engine::kv_shapes;
use crate::recipe::{Activations, Calibration, LayerRecipe, Precision, Proj, Recipe, StaticScales, WeightFormat};

fn config(family: &str, changes: &[(&str, Value)]) -> ModelConfig {
    let mut raw = json!({
        "model_type": family, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 140, "vocab_size": 50, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "max_position_embeddings": 64, "rope_theta": 1e4, "eos_token_id": 2,
    });
    for (key, value) in changes {
        raw[*key] = value.clone();
    }
    ModelConfig::parse(&raw.to_string()).unwrap()
}

/// Random parameters, those whose name ends with `scaled.0` times `scaled.1`.
#[derive(Clone, Default)]
struct Random {
    scaled: Option<(&'static str, f32)>,
    kv_scales: Option<(f32, f32)>,
}

impl WeightSource for Random {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let width = out.len() / rows;
        let index = name.bytes().fold(0, |h, b| h * 31 % 1_000_003 + u64::from(b));
        let factor = self.scaled.filter(|(end, _)| name.ends_with(end)).map_or(1.0, |(_, factor)| factor);
        let shift = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let mut stream = Stream::new(1, Purpose::Test, index << 32 | (first + row) as u64);
            out.iter_mut().for_each(|x| *x = round_bf16((0.3 * stream.normal() + shift) * factor));
        }
        Ok(())
    }

    fn kv_scales(&self, _layer: usize) -> Option<(f32, f32)> {
        self.kv_scales
    }
}

fn recipe(text: &str, config: &ModelConfig) -> Recipe {
    Recipe::parse(text, Path::new("test.toml"), config).unwrap_or_else(|e| panic!("{e}"))
}

fn load(cpu: &Cpu, config: &ModelConfig, recipe: Recipe, mut source: Random) -> Model {
    let mut model = Model::empty(config.clone(), recipe);
    model.update(cpu, 0, &mut source).unwrap_or_else(|e| panic!("{e}"));
    model
}

/// What a pass over one sequence computes: keys and values by layer, hidden rows, counts.
#[derive(Default)]
struct Seen {
    keys_values: Vec<[Vec<f32>; 2]>,
    hidden: Vec<f32>,
    counts: Vec<ptx::kv_tile::KvCounts>,
}

impl Observe for Seen {
    fn keys_values(&mut self, _layer: usize, k: &[f32], v: &[f32]) {
        self.keys_values.push([k.to_vec(), v.to_vec()]);
    }
}

fn pass(cpu: &Cpu, model: &Model, ids: &[u32]) -> Seen {
    let mut kv = KvCache::new(Layout::new(kv_shapes(&model.config, &model.recipe, 4)), 16);
    let mut sequence = kv.sequence(ids.len());
    kv.append(&mut sequence, ids.len()).unwrap();
    let positions: Vec<u32> = (0..ids.len()).map(|p| u32::try_from(p).unwrap()).collect();
    let span = Span { first_row: 0, row_count: ids.len(), first_position: 0, block_table: sequence.block_table() };
    let batch = Batch { ids, positions: &positions, spans: &[span] };
    let (mut ws, mut seen) = (Workspace::default(), Seen::default());
    forward_observed(cpu, model, &mut kv, batch, &mut ws, None, &mut seen);
    Seen { hidden: ws.hidden, counts: ws.counts, ..seen }
}

fn ids() -> Vec<u32> {
    (0..30).map(|i| i * 7 % 50).collect()
}

fn logits(cpu: &Cpu, model: &Model, hidden: &[f32]) -> Vec<f32> {
    let m = hidden.len() / model.config.hidden;
    let mut y = vec![0.0; m * model.config.vocab];
    linear::forward(cpu, m, hidden, &mut [Job { w: model.head(), bias: None, y: &mut y }]);
    y
}

/// What a projection computes depends on its own formats, not on those of its neighbours.
#[test]
fn projections_that_share_an_input_are_rounded_apart() {
    let (cpu, config) = (Cpu::new(1), config("qwen2", &[]));
    let all = [Activations::F32, Activations::Bf16, Activations::E4m3];
    let model = |activations: [Activations; 3]| {
        let mut recipe = Recipe::built_in("bf16", Precision::Bf16, &config).unwrap();
        for (proj, activations) in [Proj::Q, Proj::K, Proj::V].into_iter().zip(activations) {
            recipe.layers[0][proj].activations = activations;
        }
        load(&cpu, &config, recipe, Random::default())
    };
    let alike = all.map(|a| pass(&cpu, &model([a; 3]), &ids()).keys_values.remove(0));
    assert!(alike[0] != alike[1] && alike[1] != alike[2], "the formats differ, or the test shows nothing");
    for (q, k, v) in all.iter().flat_map(|&q| all.iter().flat_map(move |&k| all.map(|v| (q, k, v)))) {
        let [keys, values] = pass(&cpu, &model([q, k, v]), &ids()).keys_values.remove(0);
        assert_eq!(keys, alike[k as usize][0], "keys of {k:?} beside {q:?} and {v:?}");
        assert_eq!(values, alike[v as usize][1], "values of {v:?} beside {q:?} and {k:?}");
    }
}

/// A recipe written projection by projection is the recipe written at once.
#[test]
fn equal_rows_give_equal_bits_however_they_are_written() {
    let (cpu, config) = (Cpu::new(1), config("qwen3", &[]));
    let formats = "weights='e4m3'\nweights_scale='block128'\nactivations='e4m3'\n";
    let whole = format!("[default]\n{formats}k='e5m2'\nv='e4m3'\n[lm_head]\nactivations='bf16'");
    let mut parts = "[[layer]]\nmatch='layers.0-1'\nk='e5m2'\nv='e4m3'\n".to_owned();
    for proj in Proj::ALL {
        parts += &format!("[[layer]]\nmatch='layers.*.{}.{}'\n{formats}", proj.module(), proj.name());
    }
    let [a, b] = [whole, parts].map(|text| recipe(&text, &config));
    assert_eq!(a.hash(), b.hash());
    let [a, b] = [a, b].map(|recipe| pass(&cpu, &load(&cpu, &config, recipe, Random::default()), &ids()));
    assert_eq!(a.keys_values, b.keys_values);
    assert_eq!(a.hidden, b.hidden);
}

/// Rows of codes for the head, and the values of the codes, give one result.
#[test]
fn an_8_bit_head_is_the_same_from_codes_and_from_values() {
    let (cpu, config) = (Cpu::new(1), config("llama", &[]));
    let head = |activations: &str| {
        let text = format!("[lm_head]\nweights='e4m3'\nweights_scale='tensor'\nactivations='{activations}'");
        load(&cpu, &config, recipe(&text, &config), Random::default())
    };
    let exact = pass(&cpu, &head("f32"), &ids()).hidden;
    let (mut codes, mut scales) = (vec![0; exact.len()], vec![0.0; ids().len()]);
    round::e4m3_rows(&cpu, config.hidden, &exact, &mut codes, &mut scales);
    let model = head("e4m3");
    let mut want = vec![0.0; ids().len() * config.vocab];
    let codes = Codes8 { codes: &codes, scales: &scales };
    linear::forward_e4m3(&cpu, ids().len(), codes, &mut [Job { w: model.head(), bias: None, y: &mut want }]);
    let hidden = pass(&cpu, &model, &ids()).hidden;
    assert_ne!(hidden, exact);
    assert_eq!(logits(&cpu, &model, &hidden), want);
}

/// The scales of each weight format, against the definition on the whole matrix.
#[test]
fn weights_that_are_read_in_blocks_have_the_scales_of_the_whole() {
    let cpu = Cpu::new(1);
    let (n, k) = (300, 40);
    let name = "layers.0.mlp.up_proj.weight";
    let mut whole = vec![0.0; n * k];
    Random::default().rows(name, 0, n, &mut whole).unwrap();
    whole[290 * k + 3] = 40.0; // the largest comes last
    struct Fixed(Vec<f32>, usize);
    impl WeightSource for Fixed {
        fn rows(&mut self, _: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
            assert!(out.len() == rows * self.1 && rows < 300, "in blocks, or the test shows nothing");
            out.copy_from_slice(&self.0[first * self.1..][..out.len()]);
            Ok(())
        }
    }
    let amax = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |m, x| m.max(x.abs())) / 448.0;
    for scale in [WeightScale::Tensor, WeightScale::Channel, WeightScale::Block128] {
        let mut packed = linear::Packed::new(DType::E4m3, scale, n, k);
        let mut source = Fixed(whole.clone(), k);
        let mut block = vec![0.0; 140 * k];
        let mut read = read::Reader { cpu: &cpu, source: &mut source, block: &mut block, version: 0 };
        read.matrix(name, Activations::Bf16, &mut packed).unwrap();
        let rows =
            |rows: usize| whole.chunks(rows * k).map(|rows| amax(&mut rows.iter().copied())).collect::<Vec<f32>>();
        let want = match scale {
            WeightScale::Tensor => rows(n),
            WeightScale::Channel => rows(1),
            WeightScale::Block128 => rows(128),
        };
        assert_eq!(packed.scales(), Some(&want[..]), "{scale:?}");
    }
}

fn kv8(k: &str, v: &str, more: &str) -> String {
    format!("[default]\nk='{k}'\nv='{v}'\n{more}")
}

/// Bounds hold, with a bias that is most of every key too, and for every format of the cache and of matmul inputs.
#[test]
fn bounds_never_saturate() {
    let cpu = Cpu::new(1);
    for (family, scaled) in [
        ("qwen2", Some(("k_proj.bias", 4000.0))),
        ("qwen2", Some(("v_proj.bias", 4000.0))),
        ("qwen3", None),
        ("llama", None),
    ] {
        let config = config(family, &[]);
        for (k, v, activations) in [("e4m3", "e5m2", "bf16"), ("e5m2", "e4m3", "e4m3"), ("e4m3", "e4m3", "f32")] {
            let text = kv8(k, v, &format!("activations='{activations}'"));
            let model = load(&cpu, &config, recipe(&text, &config), Random { scaled, ..Random::default() });
            let seen = pass(&cpu, &model, &ids());
            let elements = 30 * 8;
            for (index, counts) in seen.counts.iter().enumerate() {
                let label = format!("{family} {k} {v} {activations} {index}");
                assert_eq!((counts.k.elements, counts.v.elements), (elements, elements), "{label}");
                assert_eq!((counts.k.saturated, counts.v.saturated), (0, 0), "{label}");
            }
            if let Some((name, _)) = scaled {
                let which = usize::from(name == "v_proj.bias");
                let largest = seen.keys_values[0][which].iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let scale = [&model.layers[0].k_scales, &model.layers[0].v_scales][which][0];
                assert!(largest > 448.0 && scale > 1.0 / 64.0, "{family}: the bias counts: {largest}, {scale}");
            }
        }
    }
}

/// Calibrated scales are those of the largest keys and values of these ids, with room, and below the bounds.
#[test]
fn calibrated_scales_cover_what_the_ids_have() {
    let (cpu, config) = (Cpu::new(1), config("qwen2", &[]));
    for (k, v, largest) in [("e4m3", "e4m3", 448.0), ("e5m2", "e5m2", 57_344.0)] {
        let mut calibrated = recipe(&kv8(k, v, "activations='f32'"), &config);
        let rows = vec![ids(), vec![49, 48]];
        calibrated.static_scales = StaticScales::Calibrated(Calibration::new(rows.clone(), 2.0));
        let model = load(&cpu, &config, calibrated.clone(), Random::default());
        let bounds = load(&cpu, &config, recipe(&kv8(k, v, ""), &config), Random::default());
        // The same layers over an f32 cache, which is what calibration reads.
        let wide =
            load(&cpu, &config, recipe("[default]\nactivations='f32'\nk='f32'\nv='f32'", &config), Random::default());
        let seen: Vec<Seen> = rows.iter().map(|row| pass(&cpu, &wide, row)).collect();
        for (index, layer) in model.layers.iter().enumerate() {
            for (which, scales) in [&layer.k_scales, &layer.v_scales].into_iter().enumerate() {
                let bounds = [&bounds.layers[index].k_scales, &bounds.layers[index].v_scales][which];
                for (head, (&scale, &bound)) in scales.iter().zip(bounds).enumerate() {
                    let of_head =
                        seen.iter().flat_map(|s| s.keys_values[index][which].chunks_exact(8).skip(head).step_by(2));
                    let amax = of_head.flatten().fold(0.0_f32, |m, x| m.max(x.abs()));
                    assert_eq!(scale, scale_pow2(2.0 * amax, largest), "layer {index}, {which}, head {head}");
                    assert!(scale <= bound, "layer {index}, {which}, head {head}: {scale} above the bound's {bound}");
                }
            }
        }
        let counts = pass(&cpu, &model, &ids()).counts;
        assert!(counts.iter().all(|c| c.k.saturated == 0 && c.v.saturated == 0));
        // With less than the room that there is, values saturate: so the scales are in use.
        let mut tight = model;
        tight.layers.iter_mut().for_each(|l| l.v_scales.iter_mut().for_each(|s| *s /= 8.0));
        assert!(pass(&cpu, &tight, &ids()).counts.iter().any(|c| c.v.saturated > 0));
    }
}

/// Scales belong to a version: they change with the weights, and without new ones the model does not run.
#[test]
fn scales_die_with_their_version() {
    let (cpu, config) = (Cpu::new(1), config("llama", &[]));
    let doubled = Random { scaled: Some(("v_proj.weight", 2.0)), ..Random::default() };
    let mut from_ids = recipe(&kv8("e4m3", "e4m3", ""), &config);
    from_ids.static_scales = StaticScales::Calibrated(Calibration::new(vec![ids()], 2.0));
    for recipe in [recipe(&kv8("e4m3", "e4m3", ""), &config), from_ids] {
        let mut model = load(&cpu, &config, recipe.clone(), Random::default());
        let before = model.layers[0].v_scales.clone();
        model.update(&cpu, 1, &mut doubled.clone()).unwrap();
        let twice: Vec<f32> = before.iter().map(|s| s * 2.0).collect();
        assert_eq!(model.layers[0].v_scales, twice);
        let new = load(&cpu, &config, recipe.clone(), doubled.clone());
        for (a, b) in model.layers.iter().zip(&new.layers) {
            assert_eq!((&a.k_scales, &a.v_scales), (&b.k_scales, &b.v_scales), "an update leaves nothing of what was");
        }
        // Diverged weights have no scales.
        let diverged = Random { scaled: Some(("layers.1.self_attn.v_proj.weight", 3e38)), ..Random::default() };
        let error = model.update(&cpu, 2, &mut diverged.clone()).unwrap_err().to_string();
        assert!(error.contains("layer 1, weights version 2: keys or values"), "{error}");
        assert!(catch_unwind(AssertUnwindSafe(|| pass(&cpu, &model, &ids()))).is_err(), "it must not run");
        model.update(&cpu, 3, &mut Random::default()).unwrap();
        assert_eq!((model.version(), &model.layers[0].v_scales), (3, &before));
    }
}

#[test]
fn a_checkpoints_scales_are_rounded_up_and_never_kept() {
    let (cpu, config) = (Cpu::new(1), config("llama", &[]));
    let own = |k, v| Random { kv_scales: Some((k, v)), ..Random::default() };
    let text = kv8("e4m3", "e4m3", "kv_scale='checkpoint'\n[[layer]]\nmatch='layers.0'\nk='bf16'");
    let recipe = recipe(&text, &config);
    let mut model = load(&cpu, &config, recipe.clone(), own(0.3, 0.25));
    assert_eq!((&model.layers[0].k_scales[..], &model.layers[0].v_scales[..]), (&[1.0, 1.0][..], &[0.25, 0.25][..]));
    assert_eq!((&model.layers[1].k_scales[..], &model.layers[1].v_scales[..]), (&[0.5, 0.5][..], &[0.25, 0.25][..]));
    pass(&cpu, &model, &ids());

    let error = model.update(&cpu, 1, &mut Random::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::NoKvScales { layer: 0, version: 1 }), "{error}");
    let error = error.to_string();
    for want in ["layer 0, weights version 1", "come without scales", "kv_scale = \"static\" or \"token\""] {
        assert!(error.contains(want), "want {want:?}: {error}");
    }
    assert!(catch_unwind(AssertUnwindSafe(|| model.version())).is_err(), "the old scales must not serve new weights");
    model.update(&cpu, 2, &mut own(2.5, 8.0)).unwrap();
    assert_eq!((model.layers[1].k_scales[0], model.layers[1].v_scales[0]), (4.0, 8.0));
    let beyond = model.update(&cpu, 3, &mut own(3e38, 1.0)).unwrap_err();
    assert!(matches!(beyond, CheckpointError::KvBound { layer: 1, version: 3 }), "{beyond}");
    let mut fresh = Model::empty(config, recipe);
    assert!(fresh.update(&cpu, 0, &mut Random::default()).is_err(), "a folder without scales");
}

/// A layer that takes other formats is the layer of a model that was made with them, scales included.
#[test]
fn a_changed_layer_is_as_if_loaded_so() {
    let (cpu, config) = (Cpu::new(1), config("qwen2", &[]));
    for (scales, source) in [
        (StaticScales::Bounds, Random::default()),
        (StaticScales::Checkpoint, Random { kv_scales: Some((0.3, 0.1)), ..Random::default() }),
        (StaticScales::Calibrated(Calibration::new(vec![ids()], 1.0)), Random::default()),
    ] {
        let text =
            "[default]\nk='e4m3'\nv='e4m3'\nactivations='e4m3'\n[[layer]]\nmatch='layers.0'\nweights='e4m3'\nk='e5m2'";
        let mut want = recipe(text, &config);
        want.static_scales = scales.clone();
        let mut start = want.clone();
        let plain = Recipe::built_in("bf16", Precision::Bf16, &config).unwrap().layers[0];
        start.layers[0] = LayerRecipe { kv_scale: KvScale::Token, k: DType::E4m3, ..plain };
        let mut model = load(&cpu, &config, start, source.clone());
        let head = want.head.weights;
        drop(model.set_layer(&cpu, 0, want.layers[0], &mut source.clone()).unwrap());
        drop(model.set_head(&cpu, WeightFormat::new(DType::E4m3), &mut source.clone()).unwrap());
        drop(model.set_head(&cpu, head, &mut source.clone()).unwrap());
        let want = load(&cpu, &config, want, source.clone());
        assert_eq!(model.recipe, want.recipe);
        for (a, b) in model.layers.iter().zip(&want.layers) {
            assert_eq!((&a.k_scales, &a.v_scales), (&b.k_scales, &b.v_scales), "{scales:?}");
        }
        let [a, b] = [&model, &want].map(|model| pass(&cpu, model, &ids()));
        assert_eq!((a.hidden, a.counts), (b.hidden, b.counts), "{scales:?}");
    }
}

#[test]
fn gradients_are_refused_where_none_are_defined() {
    let (cpu, config) = (Cpu::new(1), config("llama", &[]));
    for text in [
        "[lm_head]\nactivations='e4m3'",
        "[default]\nactivations='e4m3'\n[lm_head]\nactivations='bf16'",
        "[[layer]]\nmatch='layers.1.self_attn.k_proj'\nactivations='f32'",
    ] {
        let model = load(&cpu, &config, recipe(text, &config), Random::default());
        assert!(catch_unwind(AssertUnwindSafe(|| model.assert_has_gradients())).is_err(), "{text}");
    }
    for name in ["f32", "bf16", "fp8"] {
        load(&cpu, &config, Recipe::built_in(name, Precision::Bf16, &config).unwrap(), Random::default())
            .assert_has_gradients();
    }
}
