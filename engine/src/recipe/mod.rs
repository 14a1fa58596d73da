//! Which format every tensor of a rollout is stored and read in, layer by layer, and the hash that names the choice.
//!
//! A built-in name or a file is resolved once, for one model, to a table of plain data; everything after looks at the
//! table alone. The file's keys stand in `docs/formats.md`.

use std::collections::BTreeMap;
use std::path::Path;

use ptx::DType;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::WeightScale;
use serde_json::{Value, json};

use crate::config::ModelConfig;

mod calibration;
mod error;
mod file;
mod pattern;
mod resolve;
mod table;
mod write;

pub use calibration::{Calibration, StaticScales};
pub use error::{RecipeError, did_you_mean};
pub use pattern::PatternError;
pub use table::{Activations, LayerRecipe, Proj, Projection, WeightFormat};
pub use write::{CALIBRATION_FILE, to_toml};

/// A resolved recipe: one row a layer, and the embedding and head.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// What the user called it. Not part of the hash: `identity` and `bf16` are one recipe when training is in bf16.
    pub name: String,
    /// Rows, by layer.
    pub layers: Vec<LayerRecipe>,
    /// The embedding; of a tied model the same as the head's weights.
    pub embed: WeightFormat,
    /// The head.
    pub head: Projection,
    /// Where the static scales of 8-bit keys and values come from.
    pub static_scales: StaticScales,
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
        let (name, layers, static_scales) = (name.to_owned(), vec![layer; config.layers], StaticScales::Bounds);
        Ok(Recipe { name, layers, embed: head.weights, head, static_scales })
    }

    /// The recipe called `arg`: a built-in name, or else the path of a recipe file. `identity` is the built-in of
    /// `precision`. A file's recipe is named by the file, without its ending.
    ///
    /// # Errors
    /// When it is neither, or the file is not a recipe for this model.
    pub fn open(arg: &str, precision: Precision, config: &ModelConfig) -> Result<Recipe, RecipeError> {
        let path = Path::new(arg);
        if BUILT_IN.contains(&arg) || !is_file(path) {
            return Recipe::built_in(arg, precision, config);
        }
        // A pipe would be waited for, and a folder holds no recipe.
        if !path.is_file() {
            let what = if path.exists() { "is no plain file" } else { "does not exist" };
            let reason = format!("{what}; give a recipe file, or one of {}", BUILT_IN.join(", "));
            return Err(RecipeError::Read { file: path.to_owned(), reason });
        }
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| RecipeError::Read { file: path.to_owned(), reason: e.to_string() })?;
        Recipe::parse(&text, path, config)
    }

    /// The recipe in `text`, as [`Recipe::open`] reads it from `file`. That is only named; the file of calibration ids
    /// that the text may name lies beside it.
    ///
    /// # Errors
    /// When it is not a recipe for this model.
    pub fn parse(text: &str, file: &Path, config: &ModelConfig) -> Result<Recipe, RecipeError> {
        let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy();
        file::read(text, file, &name, config)
    }

    /// The resolved table as JSON: sorted keys, one entry a layer.
    #[must_use]
    pub fn table(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(|layer| self.layer_json(layer)).collect();
        let mut table: BTreeMap<&str, Value> = [
            ("embed", json!(weights_name(self.embed))),
            ("head", projection_json(&self.head)),
            ("layers", json!(layers)),
        ]
        .into();
        if let StaticScales::Calibrated(calibration) = &self.static_scales {
            let rows: BTreeMap<&str, Value> =
                [("ids", json!(calibration.hash)), ("room", json!(f64::from(calibration.room)))].into();
            table.insert("calibration", json!(rows));
        }
        json!(table)
    }

    /// [`Recipe::table`] as canonical JSON: sorted keys, no whitespace.
    #[must_use]
    pub fn canonical_json(&self) -> String {
        self.table().to_string()
    }

    /// BLAKE3 of [`Recipe::canonical_json`].
    #[must_use]
    pub fn hash_bytes(&self) -> [u8; 32] {
        *blake3::hash(self.canonical_json().as_bytes()).as_bytes()
    }

    /// [`Recipe::hash_bytes`], hexadecimal.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::Hash::from(self.hash_bytes()).to_hex().to_string()
    }

    /// How a layer's keys and values are scaled: `none`, `static`, `checkpoint` or `token`.
    #[must_use]
    pub fn kv_scale_name(&self, layer: &LayerRecipe) -> &'static str {
        match (layer.kv_scale, &self.static_scales) {
            _ if !layer.has_8bit_cache() => "none",
            (KvScale::Token, _) => "token",
            (KvScale::Static, StaticScales::Checkpoint) => "checkpoint",
            (KvScale::Static, _) => "static",
        }
    }

    fn layer_json(&self, layer: &LayerRecipe) -> Value {
        let mut rows: BTreeMap<&str, Value> =
            Proj::ALL.iter().map(|&proj| (proj.name(), projection_json(&layer[proj]))).collect();
        let kv_scale = json!(self.kv_scale_name(layer));
        rows.extend([("k", json!(layer.k.name())), ("kv_scale", kv_scale), ("v", json!(layer.v.name()))]);
        json!(rows)
    }
}

/// Whether an argument that is no built-in name is meant as a file.
#[must_use]
pub fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "toml") || path.exists()
}

fn projection_json(projection: &Projection) -> Value {
    let rows: BTreeMap<&str, String> =
        [("activations", projection.activations.name().to_owned()), ("weights", weights_name(projection.weights))]
            .into();
    json!(rows)
}

/// `bf16`, or `e4m3/channel`.
#[must_use]
pub fn weights_name(format: WeightFormat) -> String {
    let scale = match format.scale {
        _ if format.dtype != DType::E4m3 => return format.dtype.name().to_owned(),
        WeightScale::Tensor => "tensor",
        WeightScale::Channel => "channel",
        WeightScale::Block128 => "block128",
    };
    format!("{}/{scale}", format.dtype.name())
}

#[cfg(test)]
mod tests;
