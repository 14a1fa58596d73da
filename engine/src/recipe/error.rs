//! What can be wrong with a recipe: each fault with its file, line and key, and what to write in its place.

use std::path::PathBuf;

use super::pattern::PatternError;

/// Why a recipe cannot be had. `at` is file and line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields say what the messages around them say
pub enum RecipeError {
    /// The name is no built-in's, and no file's.
    #[error(
        "unknown recipe {name:?}; built-in recipes: {built_in}; or give the path of a recipe file, such as \
         fp8.toml{hint}", built_in = super::BUILT_IN.join(", ")
    )]
    Unknown {
        name: String,
        /// The nearest known name, when one is near.
        hint: String,
    },
    /// The file cannot be read.
    #[error("{}: {reason}", .file.display())]
    Read { file: PathBuf, reason: String },
    /// The file is not TOML.
    #[error("{at}: not TOML: {reason}")]
    Syntax { at: String, reason: String },
    /// A key that no recipe has.
    #[error("{at}: unknown key `{key}`; did you mean `{nearest}`? known there: {known}")]
    UnknownKey { at: String, key: String, nearest: String, known: String },
    /// A key that recipes have, in a place where it means nothing.
    #[error("{at}: `{key}` means nothing there: {reason}")]
    Misplaced { at: String, key: String, reason: String },
    /// A key that must be there.
    #[error("{at}: `{key}` is missing: {what}")]
    Missing { at: String, key: &'static str, what: &'static str },
    /// A value of another kind than the key takes.
    #[error("{at}: `{key}` is {found}; it must be {must}")]
    Kind { at: String, key: String, found: &'static str, must: String },
    /// A word that the key does not take.
    #[error("{at}: `{key}` is {value:?}; it must be one of {must}; did you mean {nearest:?}?")]
    Word { at: String, key: String, value: String, must: String, nearest: &'static str },
    /// A format that there is, and that no kernel reads in this place.
    #[error("{at}: `{key}` is {value:?}, for which there is no kernel; it must be one of {must}")]
    NoKernel { at: String, key: String, value: String, must: String },
    /// A number out of its range.
    #[error("{at}: `{key}` is {value}; it must be {must}")]
    Range { at: String, key: String, value: String, must: &'static str },
    /// The recipe is for another family of models.
    #[error("{at}: the recipe is for `model` = {recipe:?}, and config.json has model_type {model:?}{hint}")]
    Model { at: String, recipe: String, model: &'static str, hint: String },
    /// A pattern that matches no part of the model.
    #[error("{at}: `match` = {pattern:?} matches nothing: {fault}")]
    Pattern { at: String, pattern: String, fault: Box<PatternError> },
    /// Static scales from two places in one recipe.
    #[error(
        "{at}: layer {checkpoint} takes static scales from the checkpoint and layer {computed} computes them; a recipe \
         has them from one place, so give both the same `kv_scale`, or one of them \"token\""
    )]
    TwoOrigins { at: String, checkpoint: usize, computed: usize },
    /// Ids to calibrate with that are none.
    #[error("{at}: {reason}")]
    Calibration { at: String, reason: String },
}

/// The nearest of `words`. One slip of the finger makes a short word quite unlike itself, and half a name is unlike the
/// whole, so such words come first.
pub(super) fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let alike = |known: &str| {
        let slip = strsim::osa_distance(&word, known) <= 1;
        let part = word.len() > 2 && (known.contains(&word) || word.contains(known));
        strsim::jaro_winkler(&word, known) + f64::from(u8::from(slip)) + f64::from(u8::from(part))
    };
    words.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b)))
}

/// `; did you mean "fp8"?` when a built-in name is near `name`, else nothing.
#[must_use]
pub fn did_you_mean(name: &str) -> String {
    let near = super::BUILT_IN.iter().map(|known| (strsim::jaro_winkler(known, name), known));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, known)) if likeness > 0.6 => format!("; did you mean {known:?}?"),
        _ => String::new(),
    }
}
