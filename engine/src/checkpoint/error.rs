//! What can be wrong with a checkpoint, each fault with its file, tensor and offset, and what to do about it.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// Why a checkpoint cannot be read or written. Offsets count bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields say what the messages around them say
pub enum CheckpointError {
    /// The folder's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refuses.
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io { path: PathBuf, doing: &'static str, source: std::io::Error },
    /// No weights in the folder.
    #[error("{}: no model.safetensors, model.safetensors.index.json or model-*.safetensors; {hint}", .dir.display())]
    NoWeights { dir: PathBuf, hint: &'static str },
    /// Two sets of weights.
    #[error("{}: holds {one} and {other}, which is two sets of weights; remove one of them", .dir.display())]
    Ambiguous { dir: PathBuf, one: String, other: String },
    /// A file that the index, or the numbering of its siblings, calls for is absent.
    #[error("{}: no such file, though {wanted_by} calls for it; fetch the folder again", .file.display())]
    MissingFile { file: PathBuf, wanted_by: String },
    /// The index is not one.
    #[error("{}: not an index of weights: {reason}", .file.display())]
    Index { file: PathBuf, reason: String },
    /// The index places a tensor in a file that does not have it.
    #[error("{}: tensor {tensor} is to be in {file}, which does not have it; index and files do not belong together", .index.display())]
    NotInFile { index: PathBuf, file: String, tensor: String },
    /// A file has a tensor that the index does not place there.
    #[error("{}: tensor {tensor} is not listed for this file in the index; index and files do not belong together", .file.display())]
    NotInIndex { file: PathBuf, tensor: String },

    /// The file ends before its header does.
    #[error("{}: truncated: the file has {len} bytes and its header needs {need}; fetch it again", .file.display())]
    Truncated { file: PathBuf, len: usize, need: u64 },
    /// The header's length is beyond what the format allows.
    #[error("{}: the first 8 bytes give a header of {header} bytes, above the limit of {limit}; this is no safetensors file", .file.display())]
    HeaderSize { file: PathBuf, header: u64, limit: u64 },
    /// The header is not what the format asks for.
    #[error("{}: bad header at byte {offset}: {reason}", .file.display())]
    Header { file: PathBuf, offset: usize, reason: String },
    /// A tensor's entry in the header is not what the format asks for.
    #[error("{}: tensor {tensor}: {reason}", .file.display())]
    Entry { file: PathBuf, tensor: String, reason: String },
    /// An element type the format does not have.
    #[error("{}: tensor {tensor} has the unknown dtype {dtype}", .file.display())]
    UnknownDType { file: PathBuf, tensor: String, dtype: String },
    /// A shape whose size in bytes does not fit a machine word.
    #[error("{}: tensor {tensor} has shape {shape:?}, whose size overflows", .file.display())]
    Overflow { file: PathBuf, tensor: String, shape: Vec<u64> },
    /// Shape and byte range disagree.
    #[error("{}: tensor {tensor} at byte {offset}: {dtype} of shape {shape:?} takes {want} bytes, its range has {got}", .file.display())]
    Length {
        file: PathBuf,
        tensor: String,
        offset: usize,
        dtype: &'static str,
        shape: Vec<usize>,
        want: usize,
        got: usize,
    },
    /// A byte range that leaves the file.
    #[error("{}: truncated: tensor {tensor} ends at byte {end}, the file at {len}; fetch it again", .file.display())]
    OutOfFile { file: PathBuf, tensor: String, end: u64, len: usize },
    /// Two tensors share bytes.
    #[error("{}: tensor {tensor} at byte {offset} overlaps {other}, which ends at byte {end}", .file.display())]
    Overlap { file: PathBuf, tensor: String, other: String, offset: usize, end: usize },
    /// Bytes between tensors that belong to none.
    #[error("{}: {bytes} bytes at byte {offset}, before tensor {tensor}, belong to no tensor", .file.display())]
    Gap { file: PathBuf, tensor: String, offset: usize, bytes: usize },
    /// Bytes after the last tensor.
    #[error("{}: {bytes} bytes at byte {offset}, after the last tensor, belong to no tensor", .file.display())]
    Trailing { file: PathBuf, offset: usize, bytes: usize },
    /// One name in two files.
    #[error("{}: tensor {tensor} is also in {}; remove one of the files", .file.display(), .other.display())]
    Duplicate { file: PathBuf, other: PathBuf, tensor: String },

    /// A parameter of the configuration is in no file.
    #[error("{}: tensor {tensor} of shape {shape:?} is missing{more}; config.json calls for it", .dir.display())]
    Missing { dir: PathBuf, tensor: String, shape: Vec<usize>, more: String },
    /// A tensor in a file is no parameter of the configuration.
    #[error("{}: tensor {tensor} at byte {offset} is not one that config.json calls for{hint}", .file.display())]
    Unknown { file: PathBuf, tensor: String, offset: usize, hint: String },
    /// A parameter has another shape.
    #[error("{}: tensor {tensor} at byte {offset} has shape {got:?}; config.json calls for {want:?}", .file.display())]
    Shape { file: PathBuf, tensor: String, offset: usize, got: Vec<usize>, want: Vec<usize> },
    /// An element type that weights are not read from.
    #[error("{}: tensor {tensor} at byte {offset} is {dtype}; weights are read from F32, BF16, F16 and F8_E4M3, so convert it", .file.display())]
    DType { file: PathBuf, tensor: String, offset: usize, dtype: &'static str },
    /// A tied configuration beside a head of its own.
    #[error("{}: tensor {tensor} at byte {offset} differs from {embedding}, though config.json ties them; set tie_word_embeddings to false or remove it", .file.display())]
    TiedHead { file: PathBuf, tensor: String, embedding: &'static str, offset: usize },

    /// A quantised weight without its scale.
    #[error("{}: tensor {tensor} at byte {offset} is F8_E4M3 and has no scale; {tensor}_scale or {tensor}_scale_inv must be there", .file.display())]
    NoScale { file: PathBuf, tensor: String, offset: usize },
    /// A scale whose tensor takes none.
    #[error("{}: scale {tensor} at byte {offset}: {reason}", .file.display())]
    StrayScale { file: PathBuf, tensor: String, offset: usize, reason: String },
    /// A scale of a shape that fits no granularity.
    #[error("{}: scale {tensor} at byte {offset} has shape {got:?}; it must be {want}", .file.display())]
    ScaleShape { file: PathBuf, tensor: String, offset: usize, got: Vec<usize>, want: String },
    /// A scale that no weight could have.
    #[error("{}: scale {tensor}, element {index} at byte {offset}, is {value}; a scale is positive and finite", .file.display())]
    ScaleValue { file: PathBuf, tensor: String, index: usize, offset: usize, value: f32 },
    /// Scales for K without V, or the other way.
    #[error("{}: layer {layer} has a scale for its {has} ({tensor}) and none for its {lacks}", .file.display())]
    HalfKvScale { file: PathBuf, tensor: String, layer: usize, has: char, lacks: char },
    /// The configuration declares a scaled KV cache and a layer has no scales.
    #[error("{}: config.json declares a KV cache with scales ({key}), and layer {layer} has none; fetch the folder again or remove the key", .dir.display())]
    NoKvScale { dir: PathBuf, key: &'static str, layer: usize },

    /// A weight that is no number.
    #[error("{}: tensor {tensor}, element {index} at byte {offset}, is {value}; weights are finite", .file.display())]
    NonFinite { file: PathBuf, tensor: String, index: usize, offset: usize, value: f32 },
    /// Weights so large that no scale of an 8-bit cache holds what they project to.
    #[error(
        "layer {layer}, weights version {version}: keys or values could exceed f32, so the 8-bit KV cache has no scale; \
         the weights have diverged: lower the learning rate, or take a recipe with a bf16 cache"
    )]
    KvBound { layer: usize, version: u64 },
    /// The recipe takes the cache's scales from the checkpoint, and the weights come without.
    #[error(
        "layer {layer}, weights version {version}: the recipe has kv_scale = \"checkpoint\", and these weights come without \
         scales of the KV cache; only a folder that carries them (self_attn.k_scale and v_scale) has them, and only for \
         its own weights: take kv_scale = \"static\" or \"token\""
    )]
    NoKvScales { layer: usize, version: u64 },
    /// Calibration saw keys or values that are no numbers.
    #[error(
        "layer {layer}, weights version {version}: keys or values are not finite on the recipe's calibration ids, so the \
         8-bit KV cache has no scale; check the weights with `leeway doctor --model`"
    )]
    KvCalibration { layer: usize, version: u64 },
    /// A name that is no parameter.
    #[error("{}: there is no tensor {tensor}{hint}", .dir.display())]
    NoSuchTensor { dir: PathBuf, tensor: String, hint: String },

    /// A format that checkpoints are not written in.
    #[error("{}: weights are written as f32 or bf16, not {dtype}", .dir.display())]
    WriteDType { dir: PathBuf, dtype: ptx::DType },
    /// The target holds something else than a model.
    #[error("{}: is there and holds no config.json, so it is not replaced; name an empty or new folder", .dir.display())]
    NotAModel { dir: PathBuf },
    /// A weight to be written is no number in the target's format.
    #[error("{}: tensor {tensor}, element {index}, is {value} as {dtype}; nothing was written", .dir.display())]
    WriteNonFinite { dir: PathBuf, tensor: String, index: usize, value: f32, dtype: ptx::DType },
}

impl CheckpointError {
    pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> CheckpointError {
        move |source| CheckpointError::Io { path: path.to_owned(), doing, source }
    }
}
