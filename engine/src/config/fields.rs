//! Typed access to the keys of a JSON object, with errors that name file and key.

use serde_json::{Map, Value};

use super::ConfigError;

/// An object within a file, under a dotted prefix.
pub(super) struct Fields<'a> {
    file: &'a str,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

/// The text of `file` as a JSON object.
pub(super) fn object(text: &str, file: &str) -> Result<Value, ConfigError> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| ConfigError::Json { file: file.to_owned(), reason: e.to_string() })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(ConfigError::Json { file: file.to_owned(), reason: "the text is another kind of value".into() })
    }
}

/// ", did you mean `x`", where something near enough exists.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    known
        .into_iter()
        .map(|k| (strsim::jaro_winkler(name, k), k))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(String::new(), |(_, k)| format!(" (did you mean `{k}`?)"))
}

impl<'a> Fields<'a> {
    pub(super) fn new(file: &'a str, prefix: &'static str, value: &'a Value) -> Result<Fields<'a>, ConfigError> {
        let map = value.as_object().ok_or_else(|| ConfigError::Json {
            file: file.to_owned(),
            reason: format!("`{prefix}` is another kind of value"),
        })?;
        Ok(Fields { file, prefix, map })
    }

    pub(super) fn file(&self) -> &str {
        self.file
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &'a Value> {
        self.map.values()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(super) fn is_null(&self, key: &str) -> bool {
        self.get(key).is_some_and(Value::is_null)
    }

    /// The object under `key`; none when absent, null or empty.
    pub(super) fn table(&self, key: &'static str) -> Result<Option<Fields<'a>>, ConfigError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) if map.is_empty() => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { file: self.file, prefix: key, map })),
            Some(_) => Err(self.value(key, "an object or null")),
        }
    }

    /// An integer in `1..=max`.
    pub(super) fn size(&self, key: &str, max: usize) -> Result<usize, ConfigError> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=max).contains(n));
        size.ok_or_else(|| self.value(key, format!("an integer from 1 to {max}")))
    }

    /// An integer from 0.
    pub(super) fn index(&self, key: &str) -> Result<usize, ConfigError> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| self.value(key, "an integer from 0"))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.value(key, "a number")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.value(key, "a string")),
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.value(key, "true or false")),
        }
    }

    /// Token ids, sorted: a number, a list of them, or nothing.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |v: &Value| {
            let id = v.as_u64().and_then(|n| u32::try_from(n).ok());
            id.ok_or_else(|| self.value(key, "a token id, a list of token ids or null"))
        };
        let mut ids = match self.get(key) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => list.iter().map(id).collect::<Result<Vec<u32>, ConfigError>>()?,
            Some(value) => vec![id(value)?],
        };
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn dotted(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }

    fn shown(&self, key: &str) -> String {
        self.get(key).map_or_else(|| "absent".to_owned(), Value::to_string)
    }

    pub(super) fn missing(&self, key: &str) -> ConfigError {
        ConfigError::MissingKey {
            file: self.file.to_owned(),
            key: self.dotted(key),
            hint: nearest(key, self.map.keys().map(String::as_str)),
        }
    }

    pub(super) fn value(&self, key: &str, want: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            file: self.file.to_owned(),
            key: self.dotted(key),
            got: self.shown(key),
            want: want.into(),
        }
    }

    pub(super) fn unsupported(&self, key: &str, why: &str) -> ConfigError {
        ConfigError::Unsupported {
            file: self.file.to_owned(),
            key: self.dotted(key),
            got: self.shown(key),
            why: why.to_owned(),
        }
    }
}
