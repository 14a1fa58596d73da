//! Which format every tensor of a rollout is stored and read in, layer by layer, and the hash that names the choice.

use std::collections::BTreeMap;

use ptx::DType;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::WeightScale;
use serde_json::{Value, json};

use crate::config::ModelConfig;

mod table;

pub use table::{Activations, LayerRecipe, Proj, Projection, WeightFormat};

/// A resolved recipe: one row a layer, and the embedding and head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What the user called it. Not part of the hash: `identity` and `bf16` are one recipe when training is in bf16.
    pub name: String,
    /// Rows, by layer.
    pub layers: Vec<LayerRecipe>,
    /// The embedding; of a tied model the same as the head's weights.
    pub embed: WeightFormat,
    /// The head.
    pub head: Projection,
}

/// The precision that weights are trained in: what a weights version is rounded to, and what `identity` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// bf16 weights, matmul inputs, keys and values; f32 sums, norms and residual stream.
    Bf16,
}

impl Precision {
    /// Its name in `run.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    /// The storage format of a weights version.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
        }
    }
}

/// Why a recipe cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The name is no built-in's.
    #[error("unknown recipe {name:?}; built-in recipes: identity, f32, bf16, kv8, fp8{hint}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest known name, when one is near.
        hint: String,
    },
}

/// Names of the built-in recipes.
pub const BUILT_IN: [&str; 5] = ["identity", "f32", "bf16", "kv8", "fp8"];

impl Recipe {
    /// The built-in recipe `name` for a model; `identity` is the one of the training precision.
    pub fn built_in(name: &str, precision: Precision, config: &ModelConfig) -> Result<Recipe, RecipeError> {
        let (weights, activations, cache, head) = match (name, precision) {
            ("f32", _) | ("identity", Precision::F32) => (DType::F32, Activations::F32, DType::F32, DType::F32),
            ("bf16", _) | ("identity", Precision::Bf16) => (DType::Bf16, Activations::Bf16, DType::Bf16, DType::Bf16),
            ("kv8", _) => (DType::Bf16, Activations::Bf16, DType::E4m3, DType::Bf16),
            ("fp8", _) => (DType::E4m3, Activations::Bf16, DType::E4m3, DType::Bf16),
            _ => {
                let hint = did_you_mean(name);
                return Err(RecipeError::Unknown { name: name.to_owned(), hint });
            }
        };
        let projection = Projection { weights: WeightFormat::new(weights), activations };
        let layer = LayerRecipe { projections: [projection; 7], k: cache, v: cache, kv_scale: KvScale::Static };
        let head = Projection { weights: WeightFormat::new(head), activations };
        Ok(Recipe { name: name.to_owned(), layers: vec![layer; config.layers], embed: head.weights, head })
    }

    /// The resolved table as canonical JSON: sorted keys, no whitespace, one entry a layer.
    #[must_use]
    pub fn canonical_json(&self) -> String {
        let layers: Vec<Value> = self.layers.iter().map(layer_json).collect();
        let table: BTreeMap<&str, Value> = [
            ("embed", json!(weights_name(self.embed))),
            ("head", projection_json(&self.head)),
            ("layers", json!(layers)),
        ]
        .into();
        json!(table).to_string()
    }

    /// BLAKE3 of [`Recipe::canonical_json`], hexadecimal.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(self.canonical_json().as_bytes()).to_hex().to_string()
    }
}

fn layer_json(layer: &LayerRecipe) -> Value {
    let mut rows: BTreeMap<&str, Value> =
        Proj::ALL.iter().map(|&proj| (proj.name(), projection_json(&layer[proj]))).collect();
    let scaled = [layer.k, layer.v].iter().any(|d| d.bytes() == 1);
    let kv_scale = match layer.kv_scale {
        _ if !scaled => "none",
        KvScale::Static => "static",
        KvScale::Token => "token",
    };
    rows.extend([("k", json!(layer.k.name())), ("kv_scale", json!(kv_scale)), ("v", json!(layer.v.name()))]);
    json!(rows)
}

fn projection_json(projection: &Projection) -> Value {
    let rows: BTreeMap<&str, String> =
        [("activations", projection.activations.name().to_owned()), ("weights", weights_name(projection.weights))]
            .into();
    json!(rows)
}

/// `bf16`, or `e4m3/channel`.
fn weights_name(format: WeightFormat) -> String {
    let scale = match format.scale {
        _ if format.dtype != DType::E4m3 => return format.dtype.name().to_owned(),
        WeightScale::Tensor => "tensor",
        WeightScale::Channel => "channel",
        WeightScale::Block128 => "block128",
    };
    format!("{}/{scale}", format.dtype.name())
}

/// `; did you mean "fp8"?` when a built-in name is near `name`, else nothing.
#[must_use]
pub fn did_you_mean(name: &str) -> String {
    let near = BUILT_IN.iter().map(|known| (strsim::jaro_winkler(known, name), known));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, known)) if likeness > 0.6 => format!("; did you mean {known:?}?"),
        _ => String::new(),
    }
}
