//! Weights in Hugging Face folders: checked as a whole when opened, mapped, read row by row, written atomically.
//!
//! Opening reads every header and places every tensor: each parameter of the configuration must be there with its
//! shape, and every tensor of the files must have a use. Three kinds are known and not used: `*.rotary_emb.inv_freq`
//! (a buffer that old folders saved; the rope comes from the configuration), a copy of the embedding under the name
//! of a tied head (which must equal it bit by bit), and `*.input_scale` (another engine's activation scale, checked
//! like every scale; this one scales activations by its recipe).

mod background;
mod error;
mod files;
mod hash;
mod header;
mod inventory;
mod read;
mod scales;
mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ptx::DType;
use ptx::mapped::MappedFile;

use crate::config::{ModelConfig, nearest};
pub use background::HashInBackground;
pub use error::CheckpointError;
pub use hash::ModelHasher;
use header::Entry;
pub use inventory::{EMBEDDING, HEAD, Param, inventory};
use scales::{Role, Scale};
pub use write::{SHARD_BYTES, WriteOptions, write, write_with};

/// A parameter as stored.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Shape, as in the inventory.
    pub shape: Vec<usize>,
    /// Stored format; `E4m3` has its scales beside it, and reading applies them.
    pub dtype: DType,
    at: Place,
    scale: Option<Scale>,
}

impl TensorInfo {
    /// Elements of one row: those of the second axis, or 1.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }
}

/// Bytes in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    start: usize,
    end: usize,
}

/// An open folder.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
    files: Vec<(PathBuf, MappedFile)>,
    tensors: Vec<TensorInfo>, // in inventory order
    by_name: HashMap<String, usize>,
    kv_scales: Vec<Option<(f32, f32)>>, // by layer
    scale_entries: Vec<(Entry, usize)>, // for the hash: scales, with their files
}

/// The format's name of a dtype.
pub(crate) fn stored_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
        DType::E4m3 => "F8_E4M3",
        DType::E5m2 => "F8_E5M2",
    }
}

/// The dtype of weights stored as `name`, where this engine reads them.
fn weights_dtype(name: &str) -> Option<DType> {
    [DType::F32, DType::Bf16, DType::F16, DType::E4m3].into_iter().find(|d| stored_name(*d) == name)
}

impl Checkpoint {
    /// Opens the folder `dir`: configuration, files, headers and inventory. Weights are not read, but for a head that
    /// should equal the embedding, and scales.
    pub fn open(dir: &Path) -> Result<Checkpoint, CheckpointError> {
        let config = ModelConfig::open(dir)?;
        let (files, mut entries) = files::open(dir)?;
        let params = inventory(&config);
        let found: Vec<Option<(Entry, usize)>> = params.iter().map(|p| entries.remove(&p.name)).collect();
        let mut checkpoint = Checkpoint {
            dir: dir.to_owned(),
            files,
            tensors: Vec::with_capacity(params.len()),
            by_name: HashMap::with_capacity(params.len()),
            kv_scales: vec![None; config.layers],
            scale_entries: Vec::new(),
            config,
        };
        let mut rest: Vec<(Entry, usize)> = entries.into_values().collect();
        rest.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let mut head = None;
        let mut scales = Vec::new();
        for (entry, file) in rest {
            match scales::role(&entry.name, checkpoint.config.layers) {
                _ if entry.name.ends_with(".rotary_emb.inv_freq") => {}
                _ if entry.name == HEAD && checkpoint.config.tied => head = Some((entry, file)),
                Some(role) => scales.push((role, entry, file)),
                None => return Err(checkpoint.unknown(&entry, file, &params)),
            }
        }
        let missing: Vec<&Param> = params.iter().zip(&found).filter(|(_, f)| f.is_none()).map(|(p, _)| p).collect();
        if let Some(first) = missing.first() {
            return Err(CheckpointError::Missing {
                dir: dir.to_owned(),
                tensor: first.name.clone(),
                shape: first.shape.clone(),
                more: if missing.len() > 1 { format!(" and {} more are", missing.len() - 1) } else { String::new() },
            });
        }
        for (param, (entry, file)) in params.into_iter().zip(found.into_iter().flatten()) {
            let path = || checkpoint.files[file].0.clone();
            if entry.shape != param.shape {
                let (tensor, offset) = (entry.name, entry.start);
                return Err(CheckpointError::Shape {
                    file: path(),
                    tensor,
                    offset,
                    got: entry.shape,
                    want: param.shape,
                });
            }
            let Some(dtype) = weights_dtype(entry.dtype) else {
                let (tensor, offset) = (entry.name, entry.start);
                return Err(CheckpointError::DType { file: path(), tensor, offset, dtype: entry.dtype });
            };
            let at = Place { file, start: entry.start, end: entry.end };
            checkpoint.by_name.insert(param.name.clone(), checkpoint.tensors.len());
            checkpoint.tensors.push(TensorInfo { name: param.name, shape: param.shape, dtype, at, scale: None });
        }
        checkpoint.take_scales(scales)?;
        if let Some((entry, file)) = head {
            checkpoint.check_tied_head(&entry, file)?;
        }
        Ok(checkpoint)
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its parameters, in inventory order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// One parameter.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        match self.by_name.get(name) {
            Some(&index) => Ok(&self.tensors[index]),
            None => Err(CheckpointError::NoSuchTensor {
                dir: self.dir.clone(),
                tensor: name.to_owned(),
                hint: nearest(name, self.tensors.iter().map(|t| t.name.as_str())),
            }),
        }
    }

    /// Scales of the KV cache that the folder carries, by layer: (K, V), each a positive factor with
    /// value = code x scale.
    #[must_use]
    pub fn kv_scales(&self) -> &[Option<(f32, f32)>] {
        &self.kv_scales
    }

    fn unknown(&self, entry: &Entry, file: usize, params: &[Param]) -> CheckpointError {
        let fused = ["qkv_proj", "query_key_value", "gate_up_proj"].iter().any(|part| entry.name.contains(part));
        let hint = if fused {
            "; fused projections are not read, so split it into its parts".to_owned()
        } else if Role::is_scale(&entry.name) {
            "; no weight or cache of this model takes that scale".to_owned()
        } else {
            nearest(&entry.name, params.iter().map(|p| p.name.as_str()))
        };
        let (file, tensor, offset) = (self.files[file].0.clone(), entry.name.clone(), entry.start);
        CheckpointError::Unknown { file, tensor, offset, hint }
    }

    /// A head beside a tied embedding is accepted when it is the same bytes.
    fn check_tied_head(&self, entry: &Entry, file: usize) -> Result<(), CheckpointError> {
        let embedding = self.tensor(EMBEDDING)?;
        let (path, map) = &self.files[file];
        let same = entry.shape == embedding.shape
            && entry.dtype == stored_name(embedding.dtype)
            && map.bytes()[entry.start..entry.end] == *self.bytes(embedding.at);
        map.release(entry.start, entry.end - entry.start);
        self.release(EMBEDDING);
        if same {
            return Ok(());
        }
        let (file, tensor, offset) = (path.clone(), entry.name.clone(), entry.start);
        Err(CheckpointError::TiedHead { file, tensor, embedding: EMBEDDING, offset })
    }

    fn bytes(&self, at: Place) -> &[u8] {
        &self.files[at.file].1.bytes()[at.start..at.end]
    }

    fn path(&self, at: Place) -> PathBuf {
        self.files[at.file].0.clone()
    }
}

#[cfg(test)]
mod tests;
