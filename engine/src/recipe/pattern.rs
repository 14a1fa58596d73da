//! Patterns: which layers and matrices an entry of a recipe is for.
//!
//! ```text
//! [model.] layers . (3 | 3-7 | *) [. self_attn | mlp [. q_proj | qkv_proj | ...]]
//! ```
//!
//! Only whole dotted components count: `layers.1` is not `layers.10`, and `mlp.gate` is not `mlp.gate_proj`. A fused
//! name stands for its parts.

use std::ops::Range;

use super::Proj;
use super::error::nearest;

/// Names below `self_attn`, with the matrices they stand for.
const ATTENTION: [(&str, &[Proj]); 5] = [
    ("q_proj", &[Proj::Q]),
    ("k_proj", &[Proj::K]),
    ("v_proj", &[Proj::V]),
    ("o_proj", &[Proj::O]),
    ("qkv_proj", &[Proj::Q, Proj::K, Proj::V]),
];

/// Names below `mlp`.
const MLP: [(&str, &[Proj]); 4] = [
    ("gate_proj", &[Proj::Gate]),
    ("up_proj", &[Proj::Up]),
    ("down_proj", &[Proj::Down]),
    ("gate_up_proj", &[Proj::Gate, Proj::Up]),
];

/// What a pattern covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Layers.
    pub layers: Range<usize>,
    /// Matrices of each.
    pub projections: &'static [Proj],
    /// Whether it covers attention as a whole, the cache with it.
    pub cache: bool,
}

/// Why a pattern matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields say what the messages around them say
pub enum PatternError {
    /// A layer that the model does not have.
    #[error("the model has layers 0-{}, and no layer {layer}", .layers - 1)]
    LayerOutOfRange { layer: usize, layers: usize },
    /// A range that ends before it begins.
    #[error("the range {first}-{last} is empty; write {last}-{first}")]
    EmptyRange { first: usize, last: usize },
    /// Something else than a layer where one must stand.
    #[error("{found:?} is no layer; write a number such as 0, a range such as 0-3, or * for all")]
    NotALayer { found: String },
    /// A component that is no module's name.
    #[error("there is no {found:?}; did you mean {nearest:?}? known there: {known}")]
    NoModule { found: String, nearest: String, known: String },
    /// More components than names have.
    #[error("nothing lies below {parent:?}; end the pattern there")]
    TooDeep { parent: String },
    /// The head, which has a table of its own.
    #[error("the head has a table of its own, [lm_head]")]
    Head,
}

impl Pattern {
    /// Reads a pattern for a model of `layers` layers.
    pub fn parse(text: &str, layers: usize) -> Result<Pattern, PatternError> {
        let path = text.strip_prefix("model.").unwrap_or(text);
        let parts: Vec<&str> = path.split('.').collect();
        if parts[0] != "layers" {
            if parts[0] == "lm_head" {
                return Err(PatternError::Head);
            }
            let rest: String = parts[1..].iter().map(|part| format!(".{part}")).collect();
            let (found, rest) = (parts[0].to_owned(), if rest.is_empty() { ".*".to_owned() } else { rest });
            return Err(PatternError::NoModule { found, nearest: format!("layers{rest}"), known: "layers".into() });
        }
        let range = layer_range(parts.get(1).copied().unwrap_or_default(), layers)?;
        let of = |projections: &'static [Proj], cache: bool| Pattern { layers: range.clone(), projections, cache };
        let names: &[(&str, &[Proj])] = match parts.get(2) {
            None => return Ok(of(&Proj::ALL, true)),
            Some(&"self_attn") => &ATTENTION,
            Some(&"mlp") => &MLP,
            Some(found) => return Err(no_module(found)),
        };
        let Some(name) = parts.get(3) else {
            let attention = parts[2] == "self_attn";
            return Ok(of(if attention { &Proj::ALL[..4] } else { &Proj::ALL[4..] }, attention));
        };
        let Some((_, projections)) = names.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
            let near = nearest(name, known.iter().copied()).expect("every module has matrices");
            let nearest = format!("{}.{near}", parts[2]);
            return Err(PatternError::NoModule { found: (*name).to_owned(), nearest, known: known.join(", ") });
        };
        if parts.len() > 4 {
            return Err(PatternError::TooDeep { parent: parts[..4].join(".") });
        }
        Ok(of(projections, false))
    }
}

/// A component that is neither attention nor MLP; a matrix's name lacks the module before it.
fn no_module(found: &str) -> PatternError {
    let below =
        ATTENTION.iter().map(|(name, _)| ("self_attn.", *name)).chain(MLP.iter().map(|(name, _)| ("mlp.", *name)));
    let names: Vec<(&str, &str)> = [("", "self_attn"), ("", "mlp")].into_iter().chain(below).collect();
    let near = nearest(found, names.iter().map(|(_, name)| *name)).expect("there are names");
    let (parent, name) = names.into_iter().find(|(_, name)| *name == near).expect("it is one of them");
    let nearest = format!("{parent}{name}");
    PatternError::NoModule { found: found.to_owned(), nearest, known: "self_attn, mlp".into() }
}

fn layer_range(text: &str, layers: usize) -> Result<Range<usize>, PatternError> {
    let number = |digits: &str| {
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits.len() == 1 || !digits.starts_with('0'));
        let number = if plain { digits.parse().ok() } else { None };
        number.ok_or_else(|| PatternError::NotALayer { found: text.to_owned() })
    };
    let (first, last) = match text.split_once('-') {
        _ if text == "*" => (0, layers - 1),
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        return Err(PatternError::EmptyRange { first, last });
    }
    match [first, last].into_iter().find(|&layer| layer >= layers) {
        Some(layer) => Err(PatternError::LayerOutOfRange { layer, layers }),
        None => Ok(first..last + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_whole_components_and_nothing_else() {
        let qkv: &[Proj] = &[Proj::Q, Proj::K, Proj::V];
        let rows: [(&str, Range<usize>, &[Proj], bool); 12] = [
            ("layers.0", 0..1, &Proj::ALL, true),
            ("model.layers.0", 0..1, &Proj::ALL, true),
            ("layers.1", 1..2, &Proj::ALL, true),
            ("layers.27", 27..28, &Proj::ALL, true),
            ("layers.*", 0..28, &Proj::ALL, true),
            ("layers.3-7", 3..8, &Proj::ALL, true),
            ("layers.3-3.self_attn", 3..4, &Proj::ALL[..4], true),
            ("layers.3-7.mlp", 3..8, &Proj::ALL[4..], false),
            ("layers.*.self_attn.qkv_proj", 0..28, qkv, false),
            ("layers.2.mlp.gate_up_proj", 2..3, &Proj::ALL[4..6], false),
            ("layers.3.mlp.down_proj", 3..4, &Proj::ALL[6..], false),
            ("model.layers.0-27.self_attn.o_proj", 0..28, &Proj::ALL[3..4], false),
        ];
        for (text, layers, projections, cache) in rows {
            assert_eq!(Pattern::parse(text, 28), Ok(Pattern { layers, projections, cache }), "{text}");
        }
    }

    #[test]
    fn what_matches_nothing_says_what_would() {
        let rows = [
            ("layers.28", "the model has layers 0-27, and no layer 28"),
            ("layers.20-28.mlp", "the model has layers 0-27, and no layer 28"),
            ("layers.99999999999999999999999", "is no layer; write a number"),
            ("layers.7-3", "the range 7-3 is empty; write 3-7"),
            ("layers.01", "\"01\" is no layer"),
            ("layers.+1", "\"+1\" is no layer"),
            ("layers.-1", "\"-1\" is no layer"),
            ("layers.1-", "\"1-\" is no layer"),
            ("layers.1,2", "\"1,2\" is no layer"),
            ("layers. 1", "\" 1\" is no layer"),
            ("layers", "\"\" is no layer"),
            ("layers.", "\"\" is no layer"),
            ("", "there is no \"\"; did you mean \"layers.*\"?"),
            ("*", "there is no \"*\"; did you mean \"layers.*\"?"),
            ("layer.0", "there is no \"layer\"; did you mean \"layers.0\"?"),
            ("blocks.0.mlp", "did you mean \"layers.0.mlp\"?"),
            ("model.model.layers.0", "there is no \"model\""),
            ("lm_head", "[lm_head]"),
            ("layers.3.mlp.down_projj", "there is no \"down_projj\"; did you mean \"mlp.down_proj\"?"),
            ("layers.3.mlp.gate", "there is no \"gate\"; did you mean \"mlp.gate_proj\"?"),
            ("layers.3.mlp.gate_proj_", "did you mean \"mlp.gate_proj\"?"),
            ("layers.3.mlp.q_proj", "known there: gate_proj, up_proj, down_proj, gate_up_proj"),
            ("layers.3.down_proj", "did you mean \"mlp.down_proj\"? known there: self_attn, mlp"),
            ("layers.3.qkv", "did you mean \"self_attn.qkv_proj\"?"),
            ("layers.3.attn", "did you mean \"self_attn\"?"),
            ("layers.3.mlp.", "there is no \"\""),
            ("layers.3.*", "there is no \"*\""),
            ("layers.3.mlp.up_proj.weight", "nothing lies below \"layers.3.mlp.up_proj\""),
        ];
        for (text, want) in rows {
            let error = Pattern::parse(text, 28).expect_err(text).to_string();
            assert!(error.contains(want), "{text}: want {want:?}: {error}");
        }
    }
}
