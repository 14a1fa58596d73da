//! What a model is: `config.json` and `generation_config.json` of a Hugging Face folder, checked.
//!
//! Both dialects are read: `rope_theta` with `rope_scaling` at the top level, and `rope_parameters`. Whatever would
//! change the function that the model computes is either honoured or an error; nothing of that kind is passed over.
//!
//! Two features are exact here within a shorter length, and [`ModelConfig::max_positions`] is cut to it: a sliding
//! window (up to the window's length every token sees every earlier one) and a dynamic rope
//! ([`RopeKind::Dynamic`]).

mod fields;
mod rope;

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use fields::Fields;
pub(crate) use fields::nearest;
pub use rope::{Rope, RopeKind};

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// QK-norm, no biases unless `attention_bias`.
    Qwen3,
    /// Biases on q, k and v (Qwen2 and Qwen2.5).
    Qwen2,
    /// Llama and what shares its architecture (SmolLM, ...).
    Llama,
    /// Llama with a sliding window.
    Mistral,
}

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 4] = [Arch::Qwen3, Arch::Qwen2, Arch::Llama, Arch::Mistral];

    /// `model_type` in `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Arch::Qwen3 => "qwen3",
            Arch::Qwen2 => "qwen2",
            Arch::Llama => "llama",
            Arch::Mistral => "mistral",
        }
    }

    /// The entry of `architectures` in `config.json`.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Arch::Qwen3 => "Qwen3ForCausalLM",
            Arch::Qwen2 => "Qwen2ForCausalLM",
            Arch::Llama => "LlamaForCausalLM",
            Arch::Mistral => "MistralForCausalLM",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}

/// A model's shape and settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub arch: Arch,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even. Not always `hidden / heads`.
    pub head_dim: usize,
    /// Width of the gated MLP.
    pub ffn: usize,
    /// Rows of the embedding and of the head, which may exceed the tokenizer's size.
    pub vocab: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Epsilon of every RMSNorm.
    pub eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Longest sequence for which this engine computes what the model defines, in tokens.
    pub max_positions: usize,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the o projection.
    pub o_bias: bool,
    /// Biases on the MLP's projections.
    pub mlp_bias: bool,
    /// RMSNorm on each head's q and k.
    pub qk_norm: bool,
    /// Window of the layers that have one, in tokens, itself included. `max_positions` does not exceed it.
    pub sliding_window: Option<usize>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text: those of both files, sorted.
    pub stop_ids: Vec<u32>,
    /// `config.json` as read; written back unchanged but for the dtype.
    pub raw: Value,
}

/// Why a folder's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The path is no folder.
    #[error("{}: not a folder; name the folder that holds config.json and the .safetensors files", .path.display())]
    NotAFolder {
        /// The path given.
        path: PathBuf,
    },
    /// The folder lacks `config.json`.
    #[error("{}: no such file; a model's folder needs its config.json", .path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is there and cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is not JSON, or not an object.
    #[error("{file}: not a JSON object: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A key that has no default is absent.
    #[error("{file}: `{key}` is missing{hint}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key, dotted.
        key: String,
        /// The nearest key that is there, as a clause, or empty.
        hint: String,
    },
    /// A value has the wrong type or lies outside its range.
    #[error("{file}: `{key}` is {got}; it must be {want}")]
    Value {
        /// The file.
        file: String,
        /// The key, dotted.
        key: String,
        /// The value.
        got: String,
        /// What it must be.
        want: String,
    },
    /// `model_type` names a family this engine does not have.
    #[error("{file}: model type `{got}` is not supported{hint}; supported are qwen3, qwen2, llama and mistral, dense")]
    Arch {
        /// The file.
        file: String,
        /// The type.
        got: String,
        /// The nearest family, as a clause, or empty.
        hint: String,
    },
    /// The rope variant is not one this engine has.
    #[error("{file}: rope type `{got}` is not supported; supported are default, linear, dynamic, yarn and llama3")]
    RopeType {
        /// The file.
        file: String,
        /// The type.
        got: String,
    },
    /// A setting that would change the function computed, and that this engine does not have.
    #[error("{file}: `{key}` = {got} is not supported: {why}")]
    Unsupported {
        /// The file.
        file: String,
        /// The key, dotted.
        key: String,
        /// The value.
        got: String,
        /// What is supported, or what to do.
        why: String,
    },
}

/// Largest size of any axis: products of three sizes stay far inside 64 bits.
const SIZE_MAX: usize = 1 << 24;
/// Largest layer count.
const LAYERS_MAX: usize = 1 << 12;
/// Longest context of any config.
const POSITIONS_MAX: usize = 1 << 32;

impl ModelConfig {
    /// Reads `config.json` of the folder `dir`, and the stop ids of its `generation_config.json` where there is one.
    pub fn open(dir: &Path) -> Result<ModelConfig, ConfigError> {
        if !dir.is_dir() {
            return Err(ConfigError::NotAFolder { path: dir.to_owned() });
        }
        let path = dir.join("config.json");
        let text = read(&path)?.ok_or_else(|| ConfigError::Missing { path: path.clone() })?;
        let mut config = Self::parse_named(&text, &path.display().to_string())?;
        let path = dir.join("generation_config.json");
        if let Some(text) = read(&path)? {
            let file = path.display().to_string();
            let raw = fields::object(&text, &file)?;
            config.stop_ids.extend(Fields::new(&file, "", &raw)?.ids("eos_token_id")?);
            config.stop_ids.sort_unstable();
            config.stop_ids.dedup();
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`.
    pub fn parse(json: &str) -> Result<ModelConfig, ConfigError> {
        Self::parse_named(json, "config.json")
    }

    fn parse_named(json: &str, file: &str) -> Result<ModelConfig, ConfigError> {
        let raw = fields::object(json, file)?;
        let f = Fields::new(file, "", &raw)?;
        let arch = arch(&f)?;
        refuse_unsupported(&f, arch)?;

        let hidden = f.size("hidden_size", SIZE_MAX)?;
        let heads = f.size("num_attention_heads", SIZE_MAX)?;
        let kv_heads = match (f.has("num_key_value_heads"), f.is_null("num_key_value_heads"), arch) {
            (true, false, _) => f.size("num_key_value_heads", SIZE_MAX)?,
            // Before grouped queries there was no such key; null says the same.
            (true, true, _) | (false, _, Arch::Llama) => heads,
            (false, ..) => return Err(f.missing("num_key_value_heads")),
        };
        if heads % kv_heads != 0 {
            return Err(f.value("num_key_value_heads", format!("a divisor of num_attention_heads = {heads}")));
        }
        let head_dim = if f.has("head_dim") && !f.is_null("head_dim") {
            f.size("head_dim", SIZE_MAX)?
        } else if hidden.is_multiple_of(heads) {
            hidden / heads
        } else {
            return Err(f.value(
                "num_attention_heads",
                format!("a divisor of hidden_size = {hidden}, because head_dim is not given"),
            ));
        };
        if !head_dim.is_multiple_of(2) {
            return Err(f.value("head_dim", format!("even, for rotary pairs; here it is {head_dim}")));
        }
        let layers = f.size("num_hidden_layers", LAYERS_MAX)?;
        let trained = f.size("max_position_embeddings", POSITIONS_MAX)?;
        let (rope, stretched) = rope_of(&f, trained)?;
        let sliding_window = sliding_window(&f, arch, layers)?;
        let attention_bias = f.flag("attention_bias", false)?;
        Ok(ModelConfig {
            arch,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn: f.size("intermediate_size", SIZE_MAX)?,
            vocab: f.size("vocab_size", SIZE_MAX)?,
            tied: f.flag("tie_word_embeddings", false)?,
            eps: eps(&f)?,
            rope,
            max_positions: sliding_window.map_or(stretched, |window| stretched.min(window)),
            qkv_bias: arch == Arch::Qwen2 || (matches!(arch, Arch::Llama | Arch::Qwen3) && attention_bias),
            o_bias: matches!(arch, Arch::Llama | Arch::Qwen3) && attention_bias,
            mlp_bias: f.flag("mlp_bias", false)?,
            qk_norm: arch == Arch::Qwen3,
            sliding_window,
            bos: f.ids("bos_token_id")?.first().copied(),
            stop_ids: f.ids("eos_token_id")?,
            raw: raw.clone(),
        })
    }

    /// Parameters, a tied head counted once.
    #[must_use]
    pub fn parameters(&self) -> usize {
        crate::checkpoint::inventory(self).iter().map(crate::checkpoint::Param::elements).sum()
    }

    /// Elements of the matrices that a token's forward pass multiplies with: all of the layers and the head. The embedding
    /// is looked up, and counts as the head where that is tied to it.
    #[must_use]
    pub fn matmul_parameters(&self) -> usize {
        let multiplied = |param: &&crate::checkpoint::Param| {
            param.shape.len() == 2 && (self.tied || param.name != crate::checkpoint::EMBEDDING)
        };
        crate::checkpoint::inventory(self).iter().filter(multiplied).map(crate::checkpoint::Param::elements).sum()
    }
}

fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

fn arch(f: &Fields) -> Result<Arch, ConfigError> {
    let name = f.text("model_type")?.ok_or_else(|| f.missing("model_type"))?;
    Arch::ALL.into_iter().find(|arch| arch.model_type() == name).ok_or_else(|| ConfigError::Arch {
        file: f.file().to_owned(),
        got: name.to_owned(),
        hint: fields::nearest(name, Arch::ALL.map(Arch::model_type)),
    })
}

/// Settings of these families that change the function and that no kernel here computes.
fn refuse_unsupported(f: &Fields, arch: Arch) -> Result<(), ConfigError> {
    if let Some(act) = f.text("hidden_act")?
        && act != "silu"
    {
        return Err(f.unsupported("hidden_act", "the MLP of these families is gated by silu"));
    }
    if f.flag("mlp_bias", false)? && arch != Arch::Llama {
        return Err(f.unsupported("mlp_bias", "only the llama family has biases in its MLP"));
    }
    if f.flag("attention_bias", false)? && arch == Arch::Mistral {
        return Err(f.unsupported("attention_bias", "the mistral family has no biases"));
    }
    if f.number("partial_rotary_factor")?.is_some_and(|share| share != 1.0) {
        return Err(f.unsupported("partial_rotary_factor", "these families rotate the whole head"));
    }
    let Some(q) = f.table("quantization_config")? else { return Ok(()) };
    let method = q.text("quant_method")?.unwrap_or("unnamed");
    if !["fp8", "compressed-tensors", "modelopt"].contains(&method) {
        return Err(q.unsupported(
            "quant_method",
            "quantised weights are read from fp8, compressed-tensors and modelopt folders with F8_E4M3 weights; \
             convert others to BF16",
        ));
    }
    if let Some(size) = q.get("weight_block_size")
        && *size != serde_json::json!([128, 128])
    {
        return Err(q.unsupported("weight_block_size", "blocks of scales are [128, 128]"));
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation)] // the model's epsilon is an f32
fn eps(f: &Fields) -> Result<f32, ConfigError> {
    let eps = f.number("rms_norm_eps")?.ok_or_else(|| f.missing("rms_norm_eps"))?;
    if eps > 0.0 && eps < 1.0 { Ok(eps as f32) } else { Err(f.value("rms_norm_eps", "between 0 and 1")) }
}

/// The window of those layers that have one; none when no layer does.
fn sliding_window(f: &Fields, arch: Arch, layers: usize) -> Result<Option<usize>, ConfigError> {
    let window = if f.is_null("sliding_window") { None } else { Some(()) };
    let window = match (arch, f.has("sliding_window"), window) {
        (Arch::Llama, ..) | (_, true, None) => None,
        (_, true, Some(())) => Some(f.size("sliding_window", POSITIONS_MAX)?),
        // What transformers takes when the key is absent.
        (_, false, _) => Some(4096),
    };
    let mut any = match arch {
        Arch::Llama => false,
        Arch::Mistral => true,
        Arch::Qwen2 | Arch::Qwen3 => {
            let full = if f.has("max_window_layers") { f.index("max_window_layers")? } else { 28 };
            f.flag("use_sliding_window", false)? && full < layers
        }
    };
    if let Some(types) = f.get("layer_types").filter(|types| !types.is_null()) {
        let types = types.as_array().ok_or_else(|| f.value("layer_types", "a list of layer types"))?;
        if let Some(other) = types.iter().find(|t| **t != "full_attention" && **t != "sliding_attention") {
            return Err(ConfigError::Unsupported {
                file: f.file().to_owned(),
                key: "layer_types".into(),
                got: other.to_string(),
                why: "layers have full_attention or sliding_attention".into(),
            });
        }
        any = types.iter().any(|t| t == "sliding_attention");
        if any && window.is_none() {
            return Err(f.value("sliding_window", "a length, because layer_types has sliding_attention"));
        }
    }
    Ok(window.filter(|_| any))
}

/// The rope and the length it serves, for a model whose config speaks of `trained` positions.
fn rope_of(f: &Fields, trained: usize) -> Result<(Rope, usize), ConfigError> {
    let (modern, legacy) = (f.table("rope_parameters")?, f.table("rope_scaling")?);
    let top = f.number("rope_theta")?;
    let mut theta = None;
    for table in [&modern, &legacy].into_iter().flatten() {
        if table.get("rope_theta").is_none() && table.values().any(Value::is_object) {
            return Err(f.unsupported("rope_parameters", "one rope serves all layers of these families"));
        }
        theta = theta.or(table.number("rope_theta")?);
    }
    if let (Some(top), Some(inner)) = (top, theta)
        && top != inner
    {
        return Err(f.value("rope_theta", format!("the same as rope_parameters.rope_theta = {inner}")));
    }
    let theta = match (theta.or(top), &modern) {
        (Some(theta), _) => theta,
        // The dialect that writes this table always writes the base; without it the file is damaged.
        (None, Some(table)) => return Err(table.missing("rope_theta")),
        // The documented default of the dialect without the table.
        (None, None) => 10_000.0,
    };
    if !(theta > 1.0 && theta < 1e15) {
        return Err(f.value("rope_theta", format!("between 1 and 1e15; here it is {theta}")));
    }
    let Some(table) = modern.or(legacy) else { return Ok((Rope { theta, kind: RopeKind::Default }, trained)) };
    let (kind, positions) = rope_kind(&table, f, trained)?;
    Ok((Rope { theta, kind }, positions))
}

fn rope_kind(t: &Fields, f: &Fields, trained: usize) -> Result<(RopeKind, usize), ConfigError> {
    let name = match (t.text("rope_type")?, t.text("type")?) {
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => return Err(t.missing("rope_type")),
    };
    if t.number("partial_rotary_factor")?.is_some_and(|share| share != 1.0) {
        return Err(t.unsupported("partial_rotary_factor", "these families rotate the whole head"));
    }
    let positive = |key: &str| match t.number(key)? {
        Some(x) if x > 0.0 && x < 1e9 => Ok(Some(x)),
        Some(_) => Err(t.value(key, "between 0 and 1e9")),
        None => Ok(None),
    };
    let required = |key: &str| positive(key)?.ok_or_else(|| t.missing(key));
    let original = || {
        let place = if t.has("original_max_position_embeddings") { t } else { f };
        let given = place.has("original_max_position_embeddings");
        Ok(if given { Some(place.size("original_max_position_embeddings", POSITIONS_MAX)?) } else { None })
    };
    Ok(match name {
        "default" => (RopeKind::Default, trained),
        "linear" => (RopeKind::Linear { factor: required("factor")? }, trained),
        "dynamic" => {
            let original = original()?.unwrap_or(trained);
            (RopeKind::Dynamic { factor: required("factor")?, original }, original.min(trained))
        }
        "llama3" => {
            let kind = RopeKind::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original: original()?.ok_or_else(|| t.missing("original_max_position_embeddings"))?,
            };
            if let RopeKind::Llama3 { low_freq_factor, high_freq_factor, .. } = kind
                && low_freq_factor >= high_freq_factor
            {
                return Err(t.value("low_freq_factor", "below high_freq_factor"));
            }
            (kind, trained)
        }
        "yarn" => {
            let given = original()?;
            let original = given.unwrap_or(trained);
            #[allow(clippy::cast_precision_loss)] // lengths are below 2^53
            let factor = positive("factor")?.unwrap_or(trained as f64 / original as f64);
            let scale = |mscale| rope::yarn_scale(factor, mscale);
            let attention_factor =
                match (positive("attention_factor")?, t.number("mscale")?, t.number("mscale_all_dim")?) {
                    (Some(attention), ..) => attention,
                    (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
                    _ => scale(1.0),
                };
            let kind = RopeKind::Yarn {
                factor,
                original,
                beta_fast: positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("beta_slow")?.unwrap_or(1.0),
                attention_factor,
                truncate: t.flag("truncate", true)?,
            };
            if let RopeKind::Yarn { beta_fast, beta_slow, .. } = kind
                && beta_slow >= beta_fast
            {
                return Err(t.value("beta_slow", "below beta_fast"));
            }
            // Folders that switch YaRN on by hand keep the old length beside an explicit original one.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let reach = given.map_or(trained, |original| (original as f64 * factor).min(POSITIONS_MAX as f64) as usize);
            (kind, trained.max(reach))
        }
        other => return Err(ConfigError::RopeType { file: f.file().to_owned(), got: other.to_owned() }),
    })
}

#[cfg(test)]
mod tests;
