//! Completions that a run sampled, kept to be looked at: `samples.jsonl`, and `samples.html` drawn from it.

mod page;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::tokenizer::Tokenizer;
use ptx::rng::{Purpose, Stream};
use serde_json::Value;

/// Completions kept of an update.
pub const KEPT: usize = 8;
/// Updates that the page shows: the first and the newest of those kept.
const UPDATES_SHOWN: usize = 12;
/// Tokens that the page shows of a prompt or a completion.
const TOKENS_SHOWN: usize = 1024;

/// Which of `count` completions of an update are kept: up to [`KEPT`], by seed alone, in order.
///
/// # Panics
/// When `count` is above 2^32.
#[must_use]
pub fn chosen(seed: u64, update: u64, count: usize) -> Vec<usize> {
    // The order of prompts counts passes from zero; these are far from those.
    let mut draws = Stream::new(seed, Purpose::Data, (1 << 62) + update);
    let mut all: Vec<usize> = (0..count).collect();
    for at in 0..KEPT.min(count) {
        let rest = u32::try_from(count - at).expect("completions of an update");
        all.swap(at, at + draws.below(rest) as usize);
    }
    all.truncate(KEPT);
    all.sort_unstable();
    all
}

/// Draws `samples.html` from `samples.jsonl` in the run's folder; `made_by` are lines of name and value for its head.
/// The page gets its name when it is whole.
pub fn write(out: &Path, tokenizer: Option<&Tokenizer>, made_by: &[(&str, String)]) -> io::Result<PathBuf> {
    let text = fs::read_to_string(out.join("samples.jsonl"))?;
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let (path, part) = (out.join("samples.html"), out.join("samples.html.part"));
    fs::write(&part, page::page(&lines, &|id| piece(tokenizer, id), made_by))?;
    fs::rename(&part, &path)?;
    Ok(path)
}

/// Text of one token. A token that is no text alone, as part of a character is, is written in the tokenizer's alphabet.
fn piece(tokenizer: Option<&Tokenizer>, id: u32) -> String {
    let Some(tokenizer) = tokenizer else { return format!("{id} ") };
    let text = tokenizer.decode_with_special(&[id]);
    if text.is_empty() || text.contains('\u{fffd}') {
        return tokenizer.token(id).unwrap_or_else(|| format!("[{id}]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_the_seeds() {
        let first = chosen(1, 5, 64);
        assert_eq!((first.len(), &first), (KEPT, &chosen(1, 5, 64)));
        assert!(first.windows(2).all(|pair| pair[0] < pair[1]) && first[7] < 64, "{first:?}");
        assert!(first != chosen(2, 5, 64) && first != chosen(1, 6, 64));
        assert_eq!(chosen(1, 5, 3), [0, 1, 2]);
    }
}
