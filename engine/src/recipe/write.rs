//! A resolved recipe as a file: the commonest formats as the default, what differs as entries over ranges of layers.

use std::fmt::Write as _;
use std::ops::Range;

use ptx::DType;
use ptx::ops::linear::WeightScale;

use super::{Activations, LayerRecipe, Proj, Projection, Recipe, StaticScales, WeightFormat};

/// The file of ids, beside the recipe's, that a calibrated recipe is written to take its scales from. Whoever writes the
/// recipe writes it too.
pub const CALIBRATION_FILE: &str = "calibration.jsonl";

/// Keys and values of one table of the file.
type Keys = Vec<(&'static str, &'static str)>;

/// Formats of a layer's keys and values, and what `kv_scale` says of them: `none` where nothing is scaled.
type Cache = (DType, DType, &'static str);

/// The recipe as TOML for models of the type `model_type`, as `config.json` names it. Reading it gives the same table,
/// and so the same hash.
#[must_use]
pub fn to_toml(recipe: &Recipe, model_type: &str) -> String {
    let all = || recipe.layers.iter().flat_map(|layer| layer.projections);
    let (mut projection, mut cache) =
        (commonest(all()), commonest(recipe.layers.iter().map(|layer| cache_of(recipe, layer))));
    // An embedding in f32 comes from a default that is f32 throughout.
    if recipe.embed.dtype == DType::F32 {
        projection = Projection { weights: WeightFormat::new(DType::F32), activations: Activations::F32 };
        cache = (DType::F32, DType::F32, "none");
    }
    let mut text = format!("model = {model_type:?}\n\n");
    let mut keys = projection_keys(projection, None);
    keys.extend([("k", cache.0.name()), ("v", cache.1.name())]);
    if cache.2 != "none" {
        keys.push(("kv_scale", cache.2));
    }
    table(&mut text, "[default]", &keys);
    for (range, suffix, keys) in entries(recipe, projection, cache) {
        let layers = match range.len() {
            1 => range.start.to_string(),
            _ => format!("{}-{}", range.start, range.end - 1),
        };
        let mut all = format!("match = \"layers.{layers}{suffix}\"\n");
        keys.iter().for_each(|(key, value)| writeln!(all, "{key} = {value:?}").expect("a string takes all"));
        write!(text, "\n[[layer]]\n{all}").expect("a string takes all");
    }
    table(&mut text, "\n[lm_head]", &projection_keys(recipe.head, None));
    if let StaticScales::Calibrated(calibration) = &recipe.static_scales {
        write!(text, "\n[calibration]\nids = {CALIBRATION_FILE:?}\nroom = {:?}\n", calibration.room)
            .expect("a string takes all");
    }
    text
}

fn table(text: &mut String, heading: &str, keys: &Keys) {
    writeln!(text, "{heading}").expect("a string takes all");
    keys.iter().for_each(|(key, value)| writeln!(text, "{key} = {value:?}").expect("a string takes all"));
}

/// What differs from the default: layers, the part of them as it follows the layer in a pattern, and its keys.
fn entries(recipe: &Recipe, projection: Projection, cache: Cache) -> Vec<(Range<usize>, String, Keys)> {
    let mut parts: Vec<(String, Keys, Vec<usize>)> = Vec::new();
    for (index, layer) in recipe.layers.iter().enumerate() {
        let mut add = |suffix: String, keys: Keys| {
            if keys.is_empty() {
                return;
            }
            match parts.iter_mut().find(|(s, k, _)| (s, k) == (&suffix, &keys)) {
                Some((.., layers)) => layers.push(index),
                None => parts.push((suffix, keys, vec![index])),
            }
        };
        add(String::new(), cache_keys(cache_of(recipe, layer), cache));
        for (suffix, p) in matrices(layer) {
            add(suffix, projection_keys(p, Some(projection)));
        }
    }
    let mut entries = Vec::new();
    for (suffix, keys, layers) in parts {
        for run in layers.chunk_by(|a, b| a + 1 == *b) {
            entries.push((run[0]..run[run.len() - 1] + 1, suffix.clone(), keys.clone()));
        }
    }
    entries.sort_by_key(|(range, ..)| range.start); // stable: within a layer, cache first and then in its order
    // What the cache and the matrices of the same whole layers have for themselves is one entry.
    let mut merged: Vec<(Range<usize>, String, Keys)> = Vec::new();
    for (range, suffix, keys) in entries {
        match merged.last_mut() {
            Some((last, known, all)) if *last == range && *known == suffix => all.extend(keys),
            _ => merged.push((range, suffix, keys)),
        }
    }
    merged
}

/// A layer's matrices as few patterns: the layer, its modules, or single matrices.
fn matrices(layer: &LayerRecipe) -> Vec<(String, Projection)> {
    let same = |of: &[Proj]| of.iter().all(|&p| layer[p] == layer[of[0]]).then(|| layer[of[0]]);
    if let Some(p) = same(&Proj::ALL) {
        return vec![(String::new(), p)];
    }
    let modules = Proj::ALL.chunk_by(|a, b| a.module() == b.module());
    modules
        .flat_map(|module| match same(module) {
            Some(p) => vec![(format!(".{}", module[0].module()), p)],
            None => module.iter().map(|&p| (format!(".{}.{}", p.module(), p.name()), layer[p])).collect(),
        })
        .collect()
}

/// Keys of a projection where it differs from `other`; all of them without one.
fn projection_keys(p: Projection, other: Option<Projection>) -> Keys {
    let mut keys = Keys::new();
    if other.is_none_or(|other| other.weights != p.weights) {
        keys.push(("weights", p.weights.dtype.name()));
        if p.weights.dtype == DType::E4m3 {
            let scale = match p.weights.scale {
                WeightScale::Tensor => "tensor",
                WeightScale::Channel => "channel",
                WeightScale::Block128 => "block128",
            };
            keys.push(("weights_scale", scale));
        }
    }
    if other.is_none_or(|other| other.activations != p.activations) {
        keys.push(("activations", p.activations.name()));
    }
    keys
}

/// Keys of a layer's cache where it differs from the default's.
fn cache_keys(cache: Cache, default: Cache) -> Keys {
    let mut keys = Keys::new();
    if cache.0 != default.0 {
        keys.push(("k", cache.0.name()));
    }
    if cache.1 != default.1 {
        keys.push(("v", cache.1.name()));
    }
    if cache.2 != "none" && cache.2 != default.2 {
        keys.push(("kv_scale", cache.2));
    }
    keys
}

fn cache_of(recipe: &Recipe, layer: &LayerRecipe) -> Cache {
    (layer.k, layer.v, recipe.kv_scale_name(layer))
}

/// The most frequent value; of equals the first.
fn commonest<T: Copy + PartialEq>(values: impl Iterator<Item = T>) -> T {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for value in values {
        match counts.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max().expect("a model has layers");
    counts.into_iter().find(|(_, count)| *count == most).expect("the maximum is one of them").0
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ptx::kv_tile::KvScale;
    use ptx::rng::{Purpose, Stream};

    use super::*;
    use crate::config::ModelConfig;
    use crate::recipe::{BUILT_IN, Calibration, Precision};

    fn config(layers: usize, tied: bool) -> ModelConfig {
        let tied = ("tie_word_embeddings", serde_json::json!(tied));
        super::super::tests::config(layers, &[tied])
    }

    fn recipe(layers: usize, dtype: DType, activations: Activations, cache: DType) -> Recipe {
        let mut recipe = Recipe::built_in("bf16", Precision::Bf16, &config(layers, false)).unwrap();
        for layer in &mut recipe.layers {
            layer.projections = [Projection { weights: WeightFormat::new(dtype), activations }; 7];
            (layer.k, layer.v) = (cache, cache);
        }
        recipe
    }

    #[test]
    fn the_commonest_formats_are_the_default() {
        let mut r = recipe(9, DType::Bf16, Activations::Bf16, DType::E4m3);
        r.layers[0].k = DType::Bf16;
        for layer in &mut r.layers[3..=7] {
            layer[Proj::Down].weights = WeightFormat::new(DType::E4m3);
        }
        for proj in [Proj::Gate, Proj::Up, Proj::Down] {
            r.layers[8][proj].weights = WeightFormat { dtype: DType::E4m3, scale: WeightScale::Tensor };
        }
        let want = r#"model = "llama"

[default]
weights = "bf16"
activations = "bf16"
k = "e4m3"
v = "e4m3"
kv_scale = "static"

[[layer]]
match = "layers.0"
k = "bf16"

[[layer]]
match = "layers.3-7.mlp.down_proj"
weights = "e4m3"
weights_scale = "channel"

[[layer]]
match = "layers.8.mlp"
weights = "e4m3"
weights_scale = "tensor"

[lm_head]
weights = "bf16"
activations = "bf16"
"#;
        assert_eq!(to_toml(&r, "llama"), want);
    }

    /// Without scaled values in the default an entry says how it is scaled; runs are parted where layers are skipped.
    #[test]
    fn entries_stand_for_themselves() {
        let mut r = recipe(6, DType::E4m3, Activations::Bf16, DType::Bf16);
        for at in [1, 2, 5] {
            r.layers[at].v = DType::E4m3;
        }
        r.layers[4].projections = recipe(1, DType::Bf16, Activations::Bf16, DType::Bf16).layers[0].projections;
        let text = to_toml(&r, "llama");
        let entries: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(
            entries[2..5],
            [
                "[[layer]]\nmatch = \"layers.1-2\"\nv = \"e4m3\"\nkv_scale = \"static\"",
                "[[layer]]\nmatch = \"layers.4\"\nweights = \"bf16\"",
                "[[layer]]\nmatch = \"layers.5\"\nv = \"e4m3\"\nkv_scale = \"static\"",
            ]
        );
        assert!(!entries[1].contains("kv_scale") && entries[1].contains("weights_scale = \"channel\""), "{text}");
    }

    /// A layer left out of everything is one entry, and a matrix that differs alone stays apart.
    #[test]
    fn cache_and_matrices_of_the_same_layers_are_one_entry() {
        let mut r = recipe(8, DType::E4m3, Activations::Bf16, DType::E4m3);
        for at in [0, 6, 7] {
            r.layers[at] = recipe(1, DType::Bf16, Activations::Bf16, DType::Bf16).layers[0];
        }
        r.layers[7][Proj::Down].weights = WeightFormat::new(DType::F32);
        let text = to_toml(&r, "qwen3");
        let entries: Vec<&str> = text.split("\n\n").filter(|entry| entry.starts_with("[[layer]]")).collect();
        assert_eq!(entries[0], "[[layer]]\nmatch = \"layers.0\"\nk = \"bf16\"\nv = \"bf16\"\nweights = \"bf16\"");
        assert_eq!(entries[1], "[[layer]]\nmatch = \"layers.6-7\"\nk = \"bf16\"\nv = \"bf16\"");
        assert_eq!(entries[2], "[[layer]]\nmatch = \"layers.6\"\nweights = \"bf16\"");
        assert!(entries[3].contains("layers.7.self_attn"), "{text}");
        let read = Recipe::parse(&text, Path::new("r.toml"), &config(8, false)).unwrap();
        assert_eq!(read.canonical_json(), r.canonical_json(), "{text}");
    }

    /// Any mixture that a file can say is read back to the same table.
    #[test]
    fn what_is_written_is_read_back() {
        let mut stream = Stream::new(3, Purpose::Test, 0);
        for case in 0..200 {
            let config = config(1 + stream.below(9) as usize, case % 2 == 0);
            let base = BUILT_IN[stream.below(5) as usize];
            let mut recipe = Recipe::built_in(base, Precision::Bf16, &config).unwrap();
            let changes = stream.below(30);
            for _ in 0..changes {
                let at = stream.below(u32::try_from(config.layers).unwrap()) as usize;
                let row = &mut recipe.layers[at];
                let scale =
                    [WeightScale::Tensor, WeightScale::Channel, WeightScale::Block128][stream.below(3) as usize];
                let weights = [
                    WeightFormat::new(DType::F32),
                    WeightFormat::new(DType::Bf16),
                    WeightFormat { dtype: DType::E4m3, scale },
                ];
                let weights = weights[stream.below(3) as usize];
                let cache = [DType::F32, DType::Bf16, DType::E4m3, DType::E5m2][stream.below(4) as usize];
                match stream.below(6) {
                    0 => row.projections[stream.below(7) as usize].weights = weights,
                    1 => row.projections[stream.below(7) as usize].activations = Activations::E4m3,
                    2 => row.k = cache,
                    3 => row.v = cache,
                    4 => row.projections.iter_mut().for_each(|p| p.weights = weights),
                    _ => row.kv_scale = [KvScale::Static, KvScale::Token][stream.below(2) as usize],
                }
            }
            if config.tied {
                recipe.head.weights = WeightFormat::new(DType::E4m3);
                recipe.embed = recipe.head.weights;
            }
            let text = to_toml(&recipe, config.arch.model_type());
            let read = Recipe::parse(&text, Path::new("r.toml"), &config).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(read.canonical_json(), recipe.canonical_json(), "{text}");
        }
    }

    #[test]
    fn where_static_scales_come_from_is_written() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CALIBRATION_FILE), "{\"ids\": [1, 2]}\n").unwrap();
        let config = config(2, true);
        let calibrated = StaticScales::Calibrated(Calibration::new(vec![vec![1, 2]], 1.5));
        for scales in [StaticScales::Checkpoint, calibrated] {
            let mut recipe = Recipe::built_in("kv8", Precision::Bf16, &config).unwrap();
            recipe.static_scales = scales;
            let text = to_toml(&recipe, config.arch.model_type());
            let read =
                Recipe::parse(&text, &dir.path().join("r.toml"), &config).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((read.hash(), &read.static_scales), (recipe.hash(), &recipe.static_scales), "{text}");
        }
    }
}
