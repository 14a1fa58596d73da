//! A model made of some layers of another: a cheap student that a full model can bring back.

use std::path::Path;

use ptx::DType;

use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::config::{ConfigError, ModelConfig};

/// Why no model was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// A layer that the model does not have.
    #[error("layer {layer} cannot be kept: the model has layers 0..{layers}")]
    NoLayer {
        /// What was asked for.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// The configuration with fewer layers.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Reading or writing weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Writes `out` with the layers `keep` of `from`, in that order, and everything else unchanged.
pub fn keep_layers(from: &Checkpoint, keep: &[usize], out: &Path) -> Result<ModelConfig, PruneError> {
    let layers = from.config().layers;
    if let Some(&layer) = keep.iter().find(|&&layer| layer >= layers) {
        return Err(PruneError::NoLayer { layer, layers });
    }
    let mut raw = from.config().raw.clone();
    raw["num_hidden_layers"] = keep.len().into();
    if let Some(types) = raw.get_mut("layer_types").and_then(|t| t.as_array_mut()) {
        *types = keep.iter().filter_map(|&layer| types.get(layer).cloned()).collect();
    }
    let config = ModelConfig::parse(&raw.to_string())?;
    let all_f32 = from.tensors().all(|t| t.dtype == DType::F32);
    let mut failed = None;
    checkpoint::write(
        out,
        &config,
        if all_f32 { DType::F32 } else { DType::Bf16 },
        Some(from.dir()),
        |param, values| {
            values.resize(param.elements(), 0.0);
            if let Err(error) = from.read_rows(&source_name(&param.name, keep), 0, param.shape[0], values) {
                failed.get_or_insert(error);
            }
        },
    )?;
    match failed {
        // Every value was read and checked before; what fails here is the disk, and the folder must not stay.
        Some(error) => {
            std::fs::remove_dir_all(out).ok();
            Err(error.into())
        }
        None => Ok(config),
    }
}

/// The name in the full model of a parameter of the pruned one.
fn source_name(name: &str, keep: &[usize]) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else { return name.to_owned() };
    let (layer, rest) = rest.split_once('.').expect("layer parameters are model.layers.N.rest");
    let layer: usize = layer.parse().expect("N is a number");
    format!("model.layers.{}.{rest}", keep[layer])
}
