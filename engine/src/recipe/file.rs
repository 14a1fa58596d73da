//! The recipe file: read strictly, with the place of every key. `resolve.rs` makes the table of it.
//!
//! Every key either has an effect on the model or is an error: a pattern that matches nothing, a scale for weights that
//! have none, a cache format in an entry that does not cover the cache.

use std::path::Path;

use ptx::DType;
use ptx::ops::linear::WeightScale;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::nearest;
use super::pattern::Pattern;
use super::{Activations, Calibration, Recipe, RecipeError};
use crate::config::{Arch, ModelConfig};

/// What `kv_scale` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Static,
    Token,
    Checkpoint,
}

/// The words of a key, with what they mean.
type Words<T> = &'static [(&'static str, T)];

const WEIGHTS: Words<DType> = &[("f32", DType::F32), ("bf16", DType::Bf16), ("e4m3", DType::E4m3)];
const WEIGHTS_SCALE: Words<WeightScale> =
    &[("tensor", WeightScale::Tensor), ("channel", WeightScale::Channel), ("block128", WeightScale::Block128)];
const ACTIVATIONS: Words<Activations> =
    &[("f32", Activations::F32), ("bf16", Activations::Bf16), ("e4m3", Activations::E4m3)];
const CACHE: Words<DType> = &[("f32", DType::F32), ("bf16", DType::Bf16), ("e4m3", DType::E4m3), ("e5m2", DType::E5m2)];
const KV_SCALE: Words<Origin> =
    &[("static", Origin::Static), ("token", Origin::Token), ("checkpoint", Origin::Checkpoint)];
/// Element formats that there are: those that a key does not take lack a kernel.
const DTYPES: [&str; 5] = ["f32", "bf16", "f16", "e4m3", "e5m2"];

const TOP: [&str; 5] = ["model", "default", "layer", "lm_head", "calibration"];
const DEFAULT: [&str; 6] = ["weights", "weights_scale", "activations", "k", "v", "kv_scale"];
const LAYER: [&str; 7] = ["match", "weights", "weights_scale", "activations", "k", "v", "kv_scale"];
const LM_HEAD: [&str; 3] = ["weights", "weights_scale", "activations"];
const CALIBRATION: [&str; 2] = ["ids", "room"];

/// A value, and the byte at which its key stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<T> {
    pub value: T,
    pub byte: usize,
}

/// The keys of `[default]`, an entry or `[lm_head]`.
#[derive(Debug, Default)]
pub(super) struct Formats {
    pub weights: Option<Given<DType>>,
    pub weights_scale: Option<Given<WeightScale>>,
    pub activations: Option<Given<Activations>>,
    pub k: Option<Given<DType>>,
    pub v: Option<Given<DType>>,
    pub kv_scale: Option<Given<Origin>>,
}

/// An entry `[[layer]]`.
#[derive(Debug)]
pub(super) struct Entry {
    pub pattern: Pattern,
    pub formats: Formats,
}

/// The file as written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub default: Formats,
    pub entries: Vec<Entry>,
    pub lm_head: Formats,
    pub calibration: Option<Given<Calibration>>,
}

/// A recipe file's text for a model, under a name; `file` is where it came from: named in errors, and where paths in it
/// start from.
pub(super) fn read(text: &str, file: &Path, name: &str, config: &ModelConfig) -> Result<Recipe, RecipeError> {
    let reader = Reader { text, file, config };
    let table = DeTable::parse(text).map_err(|error| RecipeError::Syntax {
        at: error.span().map_or_else(|| file.display().to_string(), |span| reader.at(span.start)),
        reason: error.message().to_owned(),
    })?;
    let written = reader.top(table.get_ref())?;
    reader.resolve(&written, name)
}

pub(super) struct Reader<'a> {
    pub text: &'a str,
    pub file: &'a Path,
    pub config: &'a ModelConfig,
}

/// A table's keys and values as they stand in the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a str, usize, &'a DeValue<'i>)> {
    let mut all: Vec<_> =
        table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span().start, value.get_ref())).collect();
    all.sort_by_key(|(_, byte, _)| *byte);
    all
}

impl Reader<'_> {
    /// File and line of a byte of the text.
    fn at(&self, byte: usize) -> String {
        let line = self.text.bytes().take(byte).filter(|&b| b == b'\n').count() + 1;
        format!("{}:{line}", self.file.display())
    }

    fn top(&self, table: &DeTable<'_>) -> Result<Written, RecipeError> {
        let mut written = Written::default();
        for (key, byte, value) in in_order(table) {
            match key {
                "model" => self.check_model(byte, self.text_of(key, byte, value)?)?,
                "default" => written.default = self.formats(key, byte, value, &DEFAULT)?,
                "layer" => written.entries = self.entries(byte, value)?,
                "lm_head" => written.lm_head = self.formats(key, byte, value, &LM_HEAD)?,
                "calibration" => {
                    let value = self.calibration(byte, value)?;
                    written.calibration = Some(Given { value, byte });
                }
                _ => {
                    let near = nearest(key, TOP.into_iter().chain(DEFAULT)).expect("there are keys");
                    let table = if TOP.contains(&near) { "" } else { "default." };
                    return Err(self.unknown(key, byte, format!("{table}{near}"), &TOP));
                }
            }
        }
        Ok(written)
    }

    fn unknown(&self, key: &str, byte: usize, nearest: String, known: &[&str]) -> RecipeError {
        let known = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        RecipeError::UnknownKey { at: self.at(byte), key: key.to_owned(), nearest, known }
    }

    pub(super) fn misplaced(&self, key: &str, byte: usize, reason: &str) -> RecipeError {
        RecipeError::Misplaced { at: self.at(byte), key: key.to_owned(), reason: reason.to_owned() }
    }

    fn kind(&self, key: &str, byte: usize, value: &DeValue<'_>, must: &str) -> RecipeError {
        let found = match value {
            DeValue::String(_) => "text in quotes",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        RecipeError::Kind { at: self.at(byte), key: key.to_owned(), found, must: must.to_owned() }
    }

    fn text_of<'v>(&self, key: &str, byte: usize, value: &'v DeValue<'_>) -> Result<&'v str, RecipeError> {
        value.as_str().ok_or_else(|| self.kind(key, byte, value, "text in quotes"))
    }

    fn table_of<'v, 'i>(&self, key: &str, byte: usize, value: &'v DeValue<'i>) -> Result<&'v DeTable<'i>, RecipeError> {
        value.as_table().ok_or_else(|| self.kind(key, byte, value, &format!("a table, [{key}]")))
    }

    fn check_model(&self, byte: usize, recipe: &str) -> Result<(), RecipeError> {
        let model = self.config.arch.model_type();
        if recipe == model {
            return Ok(());
        }
        let known = Arch::ALL.map(Arch::model_type);
        let hint = match nearest(recipe, known) {
            Some(near) if near == model && !known.contains(&recipe) => format!("; did you mean {near:?}?"),
            _ => "; take a recipe made for this model, or remove the key if its formats suit any".to_owned(),
        };
        Err(RecipeError::Model { at: self.at(byte), recipe: recipe.to_owned(), model, hint })
    }

    /// One of the words that a key takes.
    fn word<T: Copy>(
        &self,
        key: &str,
        byte: usize,
        value: &DeValue<'_>,
        words: Words<T>,
    ) -> Result<Option<Given<T>>, RecipeError> {
        let must = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let text = value.as_str().ok_or_else(|| self.kind(key, byte, value, &format!("one of {must}")))?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(Given { value: *value, byte }));
        }
        let (at, key, value) = (self.at(byte), key.to_owned(), text.to_owned());
        if DTYPES.contains(&text) && words.iter().any(|(word, _)| DTYPES.contains(word)) {
            return Err(RecipeError::NoKernel { at, key, value, must });
        }
        let nearest = nearest(text, words.iter().map(|(word, _)| *word)).expect("every key has words");
        Err(RecipeError::Word { at, key, value, must, nearest })
    }

    /// The formats in a table called `name`, which may have the keys `known`.
    fn formats(&self, name: &str, byte: usize, value: &DeValue<'_>, known: &[&str]) -> Result<Formats, RecipeError> {
        let table = self.table_of(name, byte, value)?;
        let mut formats = Formats::default();
        for (key, byte, value) in in_order(table) {
            let path = format!("{name}.{key}");
            if !known.contains(&key) {
                return Err(match key {
                    "match" => self.misplaced(&path, byte, "patterns are for the entries [[layer]]"),
                    _ if LAYER.contains(&key) => self.misplaced(&path, byte, "the head has no keys and values"),
                    _ => {
                        let near = nearest(key, known.iter().copied()).expect("there are keys");
                        self.unknown(&path, byte, format!("{name}.{near}"), known)
                    }
                });
            }
            match key {
                "weights" => formats.weights = self.word(&path, byte, value, WEIGHTS)?,
                "weights_scale" => formats.weights_scale = self.word(&path, byte, value, WEIGHTS_SCALE)?,
                "activations" => formats.activations = self.word(&path, byte, value, ACTIVATIONS)?,
                "k" => formats.k = self.word(&path, byte, value, CACHE)?,
                "v" => formats.v = self.word(&path, byte, value, CACHE)?,
                "kv_scale" => formats.kv_scale = self.word(&path, byte, value, KV_SCALE)?,
                _ => {} // `match`, which the caller reads
            }
        }
        if let (Some(weights), Some(scale)) = (formats.weights, formats.weights_scale)
            && weights.value != DType::E4m3
            && name != "default"
        {
            let reason = format!("{} weights have no scale", weights.value);
            return Err(self.misplaced(&format!("{name}.weights_scale"), scale.byte, &reason));
        }
        Ok(formats)
    }

    fn entries(&self, byte: usize, value: &DeValue<'_>) -> Result<Vec<Entry>, RecipeError> {
        let list = value.as_array().ok_or_else(|| self.kind("layer", byte, value, "a list of tables, [[layer]]"))?;
        list.iter().map(|entry| self.entry(entry)).collect()
    }

    fn entry(&self, entry: &Spanned<DeValue<'_>>) -> Result<Entry, RecipeError> {
        let byte = entry.span().start;
        let formats = self.formats("layer", byte, entry.get_ref(), &LAYER)?;
        let table = self.table_of("layer", byte, entry.get_ref())?;
        let found = in_order(table).into_iter().find(|(key, ..)| *key == "match");
        let Some((_, place, value)) = found else {
            let what = "the part of the model it is for, such as \"layers.0\"";
            return Err(RecipeError::Missing { at: self.at(byte), key: "layer.match", what });
        };
        let text = self.text_of("layer.match", place, value)?;
        let pattern = Pattern::parse(text, self.config.layers).map_err(|fault| {
            let pattern = text.to_owned();
            RecipeError::Pattern { at: self.at(place), pattern, fault: Box::new(fault) }
        })?;
        if table.len() == 1 {
            return Err(self.misplaced("layer.match", place, "the entry gives no format"));
        }
        if !pattern.cache {
            let of_cache = [
                ("layer.k", formats.k.map(|k| k.byte)),
                ("layer.v", formats.v.map(|v| v.byte)),
                ("layer.kv_scale", formats.kv_scale.map(|s| s.byte)),
            ];
            if let Some((key, Some(byte))) = of_cache.into_iter().find(|(_, byte)| byte.is_some()) {
                let reason =
                    "keys and values belong to a layer's attention as a whole; match the layer or its self_attn";
                return Err(self.misplaced(key, byte, reason));
            }
        }
        Ok(Entry { pattern, formats })
    }

    fn calibration(&self, byte: usize, value: &DeValue<'_>) -> Result<Calibration, RecipeError> {
        let (mut ids, mut room) = (None, 2.0);
        for (key, byte, value) in in_order(self.table_of("calibration", byte, value)?) {
            let path = format!("calibration.{key}");
            match key {
                "ids" => ids = Some(self.text_of(&path, byte, value)?),
                "room" => {
                    let number = match value {
                        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                            .ok()
                            .and_then(|number| number.to_string().parse().ok()),
                        DeValue::Float(number) => number.as_str().parse().ok(),
                        _ => return Err(self.kind(&path, byte, value, "a number")),
                    };
                    room = number.filter(|room: &f32| *room >= 1.0 && room.is_finite()).ok_or_else(|| {
                        let value = match value {
                            DeValue::Integer(number) => number.to_string(),
                            DeValue::Float(number) => number.to_string(),
                            _ => unreachable!("another kind was refused above"),
                        };
                        let must = "at least 1 and finite: how many times the largest value seen a scale covers";
                        RecipeError::Range { at: self.at(byte), key: path.clone(), value, must }
                    })?;
                }
                _ => {
                    let near = nearest(key, CALIBRATION).expect("there are keys");
                    return Err(self.unknown(&path, byte, format!("calibration.{near}"), &CALIBRATION));
                }
            }
        }
        let what = "a JSONL file of lines {\"ids\": [...]}, relative to this file";
        let ids = ids.ok_or_else(|| RecipeError::Missing { at: self.at(byte), key: "calibration.ids", what })?;
        let file = self.file.parent().unwrap_or(Path::new("")).join(ids);
        if !file.is_file() {
            let reason = format!("`calibration.ids` names {}, which is no file; it takes {what}", file.display());
            return Err(RecipeError::Calibration { at: self.at(byte), reason });
        }
        Calibration::read(&file, room, self.config)
    }
}
