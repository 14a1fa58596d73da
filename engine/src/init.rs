//! Folders with random weights: a fresh model to train, and models for tests and benches.

use std::path::Path;

use ptx::DType;
use ptx::rng::{Purpose, Stream};
use serde_json::{Map, Value, json};

use crate::checkpoint::{self, CheckpointError};
use crate::config::{Arch, ConfigError, ModelConfig};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A model to make.
#[derive(Clone, Debug, PartialEq)]
pub struct InitSpec {
    /// Family.
    pub arch: Arch,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Key of all draws.
    pub seed: u64,
    /// F32 or BF16.
    pub dtype: DType,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Base of the rope.
    pub rope_theta: f64,
    /// Standard deviation of the matrices' elements.
    pub std: f32,
}

/// Why no model was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The specification is no configuration, or the auxiliary folder's is none.
    #[error("the model to be made: {0}")]
    Config(#[from] ConfigError),
    /// Writing.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer to go with it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer's ids exceed the model's.
    #[error("the tokenizer of {dir} has ids up to {last}, and the model {vocab} rows; set vocab to {} or more", .last + 1)]
    Vocab {
        /// Where the tokenizer is.
        dir: String,
        /// Its largest id.
        last: usize,
        /// Rows asked for.
        vocab: usize,
    },
    /// The deviation is no positive number.
    #[error("std is {0}; it must be positive and finite")]
    Std(f32),
}

/// Writes a folder with random weights to `dir` and returns its configuration: matrices normal with deviation `std`,
/// norms 1, biases 0. Each parameter has its own stream of draws, by its place in the inventory, so a weight depends
/// on the seed and the shape of its own parameter alone.
///
/// Tokenizer files come from `aux_from`. The ids that begin and end a text come from its `generation_config.json`, or
/// else from its tokenizer; without either the model has none.
pub fn random(dir: &Path, spec: &InitSpec, aux_from: Option<&Path>) -> Result<ModelConfig, InitError> {
    if !(spec.std > 0.0 && spec.std.is_finite()) {
        return Err(InitError::Std(spec.std));
    }
    let mut raw = config_json(spec);
    if let Some(from) = aux_from {
        let map = raw.as_object_mut().expect("made as an object");
        for (key, ids) in text_ids(from, spec)? {
            map.insert(key.into(), ids);
        }
    }
    let config = ModelConfig::parse(&raw.to_string())?;
    let mut index = 0;
    checkpoint::write(dir, &config, spec.dtype, aux_from, |param, values| {
        let n = param.elements();
        if param.shape.len() == 2 {
            let mut stream = Stream::new(spec.seed, Purpose::Init, index);
            values.extend((0..n).map(|_| stream.normal() * spec.std));
        } else {
            let value = if param.name.ends_with(".bias") { 0.0 } else { 1.0 };
            values.resize(n, value);
        }
        index += 1;
    })?;
    Ok(config)
}

/// A `config.json` that transformers 4 and 5 read alike.
fn config_json(spec: &InitSpec) -> Value {
    let InitSpec { arch, hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied, .. } = spec;
    let mut config = json!({
        "architectures": [arch.class()],
        "model_type": arch.model_type(),
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "initializer_range": decimal(spec.std),
        "max_position_embeddings": spec.max_positions,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": spec.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "tie_word_embeddings": tied,
        "vocab_size": vocab,
        "use_cache": true,
        "bos_token_id": null,
        "eos_token_id": null,
        "dtype": null, // set on writing, as is torch_dtype
    });
    let map = config.as_object_mut().expect("made as an object");
    match arch {
        Arch::Llama => {
            map.insert("attention_bias".into(), json!(false));
            map.insert("mlp_bias".into(), json!(false));
        }
        Arch::Qwen3 => {
            map.insert("attention_bias".into(), json!(false));
            map.insert("use_sliding_window".into(), json!(false));
            map.insert("sliding_window".into(), Value::Null);
        }
        Arch::Qwen2 => {
            map.insert("use_sliding_window".into(), json!(false));
            map.insert("sliding_window".into(), Value::Null);
        }
        Arch::Mistral => drop(map.insert("sliding_window".into(), Value::Null)),
    }
    config
}

/// The shortest decimal that is `x`, rather than the digits of its widened bits.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().expect("a number's own digits")
}

/// `bos_token_id` and `eos_token_id` as the folder `from` has them.
fn text_ids(from: &Path, spec: &InitSpec) -> Result<Vec<(&'static str, Value)>, InitError> {
    let tokenizer = Tokenizer::open(from)?;
    if let Some(tokenizer) = &tokenizer
        && tokenizer.size() > spec.vocab
    {
        let (dir, last) = (from.display().to_string(), tokenizer.size() - 1);
        return Err(InitError::Vocab { dir, last, vocab: spec.vocab });
    }
    let read = |file: &str| -> Result<Map<String, Value>, InitError> {
        let path = from.join(file);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
            Err(source) => return Err(ConfigError::Read { path, source }.into()),
        };
        serde_json::from_str(&text)
            .map_err(|e| ConfigError::Json { file: path.display().to_string(), reason: e.to_string() }.into())
    };
    let (generation, words) = (read("generation_config.json")?, read("tokenizer_config.json")?);
    let mut ids = Vec::new();
    for (key, word) in [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token")] {
        let stated = generation.get(key).filter(|v| !v.is_null()).cloned();
        // A word stands as such or as an object with its content.
        let word = words.get(word).and_then(|w| w.as_str().or_else(|| w.get("content")?.as_str()));
        let named = || word.and_then(|w| tokenizer.as_ref()?.id(w)).map(|id| json!(id));
        ids.extend(stated.or_else(named).map(|id| (key, id)));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;

    fn spec(arch: Arch) -> InitSpec {
        InitSpec {
            arch,
            hidden: 24,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 40,
            vocab: 50,
            tied: false,
            seed: 7,
            dtype: DType::Bf16,
            max_positions: 128,
            rope_theta: 10_000.0,
            std: 0.02,
        }
    }

    #[test]
    fn every_family_loads_back() {
        for arch in Arch::ALL {
            for (tied, dtype) in [(true, DType::F32), (false, DType::Bf16)] {
                let dir = tempfile::tempdir().unwrap();
                let spec = InitSpec { tied, dtype, ..spec(arch) };
                let config = random(dir.path(), &spec, None).unwrap();
                let checkpoint = Checkpoint::open(dir.path()).unwrap();
                assert_eq!(checkpoint.config().arch, arch);
                assert_eq!((config.max_positions, config.tied, config.head_dim), (128, tied, 8));
                assert_eq!(config.qkv_bias, arch == Arch::Qwen2);
                assert_eq!(config.raw["initializer_range"], 0.02);
                for tensor in checkpoint.tensors() {
                    assert_eq!(tensor.dtype, dtype, "{}", tensor.name);
                    let mut values = vec![f32::NAN; tensor.shape.iter().product()];
                    checkpoint.read_rows(&tensor.name, 0, tensor.shape[0], &mut values).unwrap();
                    match (tensor.shape.len(), tensor.name.ends_with(".bias")) {
                        (2, _) => {
                            #[allow(clippy::cast_precision_loss)]
                            let n = values.len() as f32;
                            let deviation = (values.iter().map(|x| x * x).sum::<f32>() / n).sqrt();
                            // Four standard errors of a deviation: 4 / sqrt(2 n).
                            let share = deviation / 0.02 - 1.0;
                            assert!(share.abs() < 4.0 / (2.0 * n).sqrt(), "{}: {deviation}", tensor.name);
                        }
                        (_, true) => assert!(values.iter().all(|&x| x == 0.0)),
                        (_, false) => assert!(values.iter().all(|&x| x == 1.0)),
                    }
                }
            }
        }
    }

    #[test]
    fn the_seed_is_all_that_weights_depend_on() {
        let hash = |spec: &InitSpec| {
            let dir = tempfile::tempdir().unwrap();
            random(dir.path(), spec, None).unwrap();
            Checkpoint::open(dir.path()).unwrap().model_hash()
        };
        let one = spec(Arch::Qwen3);
        assert_eq!(hash(&one), hash(&one));
        assert_ne!(hash(&one), hash(&InitSpec { seed: 8, ..one.clone() }));
        // The first layers of a deeper model are those of the shallower one.
        let rows = |layers: usize| {
            let dir = tempfile::tempdir().unwrap();
            random(dir.path(), &InitSpec { layers, ..one.clone() }, None).unwrap();
            let mut values = vec![0.0; 40 * 24];
            let name = "model.layers.1.mlp.up_proj.weight";
            Checkpoint::open(dir.path()).unwrap().read_rows(name, 0, 40, &mut values).unwrap();
            values
        };
        assert_eq!(rows(2), rows(3));
    }

    #[test]
    fn a_bad_specification_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        let good = spec(Arch::Llama);
        for (bad, want) in [
            (InitSpec { kv_heads: 3, ..good.clone() }, "num_key_value_heads"),
            (InitSpec { head_dim: 7, ..good.clone() }, "head_dim"),
            (InitSpec { std: f32::NAN, ..good.clone() }, "std is NaN"),
            (InitSpec { std: 0.0, ..good.clone() }, "std is 0"),
            (InitSpec { rope_theta: 0.5, ..good.clone() }, "rope_theta"),
            (InitSpec { dtype: DType::E4m3, ..good.clone() }, "f32 or bf16, not e4m3"),
        ] {
            let error = random(&target, &bad, None).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn ids_come_from_the_auxiliary_folder() {
        let aux = tempfile::tempdir().unwrap();
        crate::tokenizer::tests::write_byte_level(aux.path());
        std::fs::write(aux.path().join("tokenizer_config.json"), r#"{"eos_token": {"content": "<|end|>"}}"#).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let wide = InitSpec { vocab: 300, ..spec(Arch::Qwen3) };
        let tokenizer = Tokenizer::open(aux.path()).unwrap().unwrap();
        let end = tokenizer.id("<|end|>").unwrap();
        assert_eq!(random(dir.path(), &wide, Some(aux.path())).unwrap().stop_ids, [end]);
        assert_eq!(ModelConfig::open(dir.path()).unwrap().stop_ids, [end]);
        assert_eq!(Tokenizer::open(dir.path()).unwrap().unwrap().hash(), tokenizer.hash());

        std::fs::write(aux.path().join("generation_config.json"), r#"{"bos_token_id": 1, "eos_token_id": [3, 2]}"#)
            .unwrap();
        let config = random(dir.path(), &wide, Some(aux.path())).unwrap();
        assert_eq!((config.bos, &config.stop_ids[..]), (Some(1), &[2, 3][..]));

        let error = random(dir.path(), &spec(Arch::Qwen3), Some(aux.path())).unwrap_err().to_string();
        assert!(error.contains("set vocab to"), "{error}");
    }
}
