//! Scales in a checkpoint: of its FP8 weights, and of the KV cache. A value is code x scale.

use super::header::Entry;
use super::{Checkpoint, CheckpointError, TensorInfo, weights_dtype};
use ptx::DType;

/// Edge of a block that shares a scale.
const BLOCK: usize = 128;

/// The scales of one weight.
#[derive(Clone, Debug)]
pub(super) enum Scale {
    Tensor(f32),
    /// One per row.
    Channel(Vec<f32>),
    /// One per block of 128 x 128, row-major, `columns` blocks to a row of blocks.
    Block {
        scales: Vec<f32>,
        columns: usize,
    },
}

impl Scale {
    /// Multiplies the elements of row `row` with their scales.
    pub fn apply(&self, row: usize, values: &mut [f32]) {
        match self {
            Scale::Tensor(scale) => values.iter_mut().for_each(|x| *x *= scale),
            Scale::Channel(scales) => values.iter_mut().for_each(|x| *x *= scales[row]),
            Scale::Block { scales, columns } => {
                let scales = &scales[row / BLOCK * columns..][..*columns];
                for (values, scale) in values.chunks_mut(BLOCK).zip(scales) {
                    values.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }
}

/// What a scale in a file is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Of the weight of this name.
    Weight(String),
    /// Of a layer's cached K, V or both.
    Kv { layer: usize, k: bool, v: bool },
    /// Of the inputs of the weight of this name; checked and not used.
    Input(String),
}

impl Role {
    pub fn is_scale(name: &str) -> bool {
        name.ends_with("_scale") || name.ends_with("_scale_inv")
    }
}

/// The use of a tensor called `name`, if it is called like a scale. The ways of writing cache scales are those in use:
/// beside the projection, under it as `k_scale` or `output_scale`, under the attention or fused module; of K and V apart,
/// or one for both.
pub(super) fn role(name: &str, layers: usize) -> Option<Role> {
    for suffix in ["_scale_inv", "_scale"] {
        if let Some(weight) = name.strip_suffix(suffix)
            && weight.ends_with(".weight")
        {
            return Some(Role::Weight(weight.to_owned()));
        }
    }
    if let Some(module) = name.strip_suffix(".input_scale") {
        return Some(Role::Input(format!("{module}.weight")));
    }
    let (layer, tail) = name.strip_prefix("model.layers.")?.split_once(".self_attn.")?;
    let layer = layer.parse().ok().filter(|&layer| layer < layers)?;
    let (k, v) = match tail {
        "kv_scale" | "attn.kv_scale" | "qkv_proj.kv_scale" => (true, true),
        "k_scale" | "k_proj.k_scale" | "k_proj.output_scale" | "attn.k_scale" | "qkv_proj.k_scale" => (true, false),
        "v_scale" | "v_proj.v_scale" | "v_proj.output_scale" | "attn.v_scale" | "qkv_proj.v_scale" => (false, true),
        _ => return None,
    };
    Some(Role::Kv { layer, k, v })
}

impl Checkpoint {
    /// Reads every scale, gives the weights theirs and fills the table of the KV cache.
    pub(super) fn take_scales(&mut self, scales: Vec<(Role, Entry, usize)>) -> Result<(), CheckpointError> {
        let mut cache = vec![[None, None]; self.config.layers]; // per layer: K and V, with the index into `scales`
        for (i, (role, entry, file)) in scales.iter().enumerate() {
            let values = self.scale_values(entry, *file)?;
            let stray = |reason: String| CheckpointError::StrayScale {
                file: self.files[*file].0.clone(),
                tensor: entry.name.clone(),
                offset: entry.start,
                reason,
            };
            let known = |weight: &String| match self.by_name.get(weight) {
                Some(&index) => Ok(index),
                None => Err(stray(format!("config.json calls for no {weight}"))),
            };
            match role {
                Role::Weight(weight) => {
                    let index = known(weight)?;
                    let tensor = &self.tensors[index];
                    if tensor.dtype != DType::E4m3 {
                        let stored = super::stored_name(tensor.dtype);
                        return Err(stray(format!("{weight} is {stored}, which takes no scale")));
                    }
                    if tensor.scale.is_some() {
                        return Err(stray(format!("{weight} has another scale already")));
                    }
                    let scale =
                        granularity(tensor, entry, values).map_err(|want| self.scale_shape(entry, *file, want))?;
                    self.tensors[index].scale = Some(scale);
                }
                Role::Input(weight) => {
                    known(weight)?;
                }
                Role::Kv { layer, k, v } => {
                    let [value] = values[..] else {
                        return Err(self.scale_shape(entry, *file, "[] or [1], one for the layer".into()));
                    };
                    for which in [*k, *v].iter().enumerate().filter(|(_, has)| **has).map(|(which, _)| which) {
                        if cache[*layer][which].replace((value, i)).is_some() {
                            return Err(stray(format!("layer {layer} has another scale for it already")));
                        }
                    }
                }
            }
        }
        if let Some(tensor) = self.tensors.iter().find(|t| t.dtype == DType::E4m3 && t.scale.is_none()) {
            let (file, tensor, offset) = (self.path(tensor.at), tensor.name.clone(), tensor.at.start);
            return Err(CheckpointError::NoScale { file, tensor, offset });
        }
        let declared = declared_kv_scales(&self.config.raw);
        for (layer, pair) in cache.into_iter().enumerate() {
            let (has, lacks, i) = match pair {
                [Some((k, _)), Some((v, _))] => {
                    self.kv_scales[layer] = Some((k, v));
                    continue;
                }
                [None, None] => match declared {
                    Some(key) => return Err(CheckpointError::NoKvScale { dir: self.dir.clone(), key, layer }),
                    None => continue,
                },
                [Some((_, i)), None] => ('K', 'V', i),
                [None, Some((_, i))] => ('V', 'K', i),
            };
            let (_, entry, file) = &scales[i];
            let (file, tensor) = (self.files[*file].0.clone(), entry.name.clone());
            return Err(CheckpointError::HalfKvScale { file, tensor, layer, has, lacks });
        }
        self.scale_entries = scales.into_iter().map(|(_, entry, file)| (entry, file)).collect();
        Ok(())
    }

    /// The values of a scale, all positive and finite.
    fn scale_values(&self, entry: &Entry, file: usize) -> Result<Vec<f32>, CheckpointError> {
        let (path, map) = &self.files[file];
        let Some(dtype) = weights_dtype(entry.dtype).filter(|d| *d != DType::E4m3) else {
            let (file, tensor, offset) = (path.clone(), entry.name.clone(), entry.start);
            return Err(CheckpointError::DType { file, tensor, offset, dtype: entry.dtype });
        };
        let bytes = &map.bytes()[entry.start..entry.end];
        let mut values = vec![0.0; bytes.len() / dtype.bytes()];
        super::read::decode(dtype, bytes, &mut values);
        match values.iter().position(|x| !(x.is_finite() && *x > 0.0)) {
            None => Ok(values),
            Some(index) => Err(CheckpointError::ScaleValue {
                file: path.clone(),
                tensor: entry.name.clone(),
                index,
                offset: entry.start + index * dtype.bytes(),
                value: values[index],
            }),
        }
    }

    fn scale_shape(&self, entry: &Entry, file: usize, want: String) -> CheckpointError {
        let (file, tensor) = (self.files[file].0.clone(), entry.name.clone());
        CheckpointError::ScaleShape { file, tensor, offset: entry.start, got: entry.shape.clone(), want }
    }
}

/// The granularity that a scale's shape means, or the shapes it could have.
fn granularity(tensor: &TensorInfo, entry: &Entry, values: Vec<f32>) -> Result<Scale, String> {
    let (rows, columns) = (tensor.shape[0], tensor.row_len());
    let blocks = (rows.div_ceil(BLOCK), columns.div_ceil(BLOCK));
    let inverse = entry.name.ends_with("_inv"); // by convention the name of block scales
    match (&entry.shape[..], &values[..]) {
        ([] | [1], [scale]) if !inverse => Ok(Scale::Tensor(*scale)),
        (&[n] | &[n, 1], _) if n == rows && !inverse => Ok(Scale::Channel(values)),
        (&[n, m], _) if (n, m) == blocks => Ok(Scale::Block { scales: values, columns: m }),
        _ if inverse => Err(format!("[{}, {}], by blocks of {BLOCK} x {BLOCK}", blocks.0, blocks.1)),
        _ => Err(format!(
            "[] or [1] for the tensor, [{rows}] or [{rows}, 1] by channel, [{}, {}] by blocks of {BLOCK} x {BLOCK}",
            blocks.0, blocks.1
        )),
    }
}

/// The key by which `config.json` says that the KV cache has static scales.
fn declared_kv_scales(raw: &serde_json::Value) -> Option<&'static str> {
    let quantization = raw.get("quantization_config")?;
    let scheme = &quantization["kv_cache_scheme"];
    if !scheme.is_null() && scheme["dynamic"] != true {
        return Some("quantization_config.kv_cache_scheme");
    }
    (!quantization["kv_cache_quant_algo"].is_null()).then_some("quantization_config.kv_cache_quant_algo")
}
