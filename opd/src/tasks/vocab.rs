//! The one vocabulary of all tasks: 64 symbols, one token each, so that one model shape fits every task.

use std::collections::HashMap;
use std::sync::OnceLock;

/// How many symbols there are.
pub const VOCAB_LEN: usize = 64;
/// Padding; no task writes it.
pub const PAD: u32 = 0;
/// The first token of every prompt.
pub const BOS: u32 = 1;
/// The last token of every solution.
pub const EOS: u32 = 2;

/// The symbols by id. Names in angle brackets are single tokens too. Those after the space are spare: no task writes
/// them yet, and taking one for a new task changes no id.
const SYMBOLS: [&str; VOCAB_LEN] = [
    "<pad>", "<bos>", "<eos>", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f", "g",
    "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z", "+", "-", "*", "/",
    "(", ")", "=", ";", ",", ":", ">", " ", ".", "?", "!", "#", "%", "^", "&", "|", "<sep>", "<spare0>", "<spare1>",
    "<spare2>", "<spare3>",
];

/// The id of value 0; the 36 values `0`..`9`, `a`..`z` have consecutive ids.
const VALUE_FIRST: u32 = 3;
/// How many values one symbol can write.
pub const VALUE_LEN: u32 = 36;

/// Text that is not made of the vocabulary's symbols.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {found:?} begins no symbol of the task vocabulary")]
pub struct ParseError {
    /// Where in the text, in bytes.
    pub at: usize,
    /// The character found there.
    pub found: char,
}

/// Symbols and their ids.
#[derive(Debug)]
pub struct Vocab {
    ids: HashMap<&'static str, u32>,
}

/// The vocabulary.
#[must_use]
pub fn vocab() -> &'static Vocab {
    static VOCAB: OnceLock<Vocab> = OnceLock::new();
    VOCAB.get_or_init(|| Vocab { ids: (0_u32..).zip(SYMBOLS).map(|(id, symbol)| (symbol, id)).collect() })
}

impl Vocab {
    /// The symbol of `id`, or nothing for an id outside the vocabulary (a model's padded rows).
    #[must_use]
    pub fn symbol(&self, id: u32) -> Option<&'static str> {
        SYMBOLS.get(usize::try_from(id).ok()?).copied()
    }

    /// The id of `symbol`.
    #[must_use]
    pub fn id(&self, symbol: &str) -> Option<u32> {
        self.ids.get(symbol).copied()
    }

    /// The text of `ids`, symbol after symbol. An id outside the vocabulary is written `<?id>`, which does not parse:
    /// text for people must show it and text for models must not take it.
    #[must_use]
    pub fn render(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            match self.symbol(id) {
                Some(symbol) => text.push_str(symbol),
                None => text.push_str(&format!("<?{id}>")),
            }
        }
        text
    }

    /// The ids of `text`; the inverse of [`Vocab::render`].
    ///
    /// # Errors
    /// When some part of `text` begins no symbol.
    pub fn parse(&self, text: &str) -> Result<Vec<u32>, ParseError> {
        let mut ids = Vec::new();
        let mut at = 0;
        while let Some(found) = text[at..].chars().next() {
            // No symbol is a prefix of another: `<` alone is not a symbol.
            let len = if found == '<' { text[at..].find('>').map_or(1, |i| i + 1) } else { found.len_utf8() };
            ids.push(self.id(&text[at..at + len]).ok_or(ParseError { at, found })?);
            at += len;
        }
        Ok(ids)
    }
}

/// The id that writes `value`.
///
/// # Panics
/// When `value` is 36 or more: one symbol cannot write it.
#[must_use]
pub fn value_id(value: u32) -> u32 {
    assert!(value < VALUE_LEN, "value {value} has no symbol; there are {VALUE_LEN}");
    VALUE_FIRST + value
}

/// The value that `id` writes, if it writes one.
#[must_use]
pub fn id_value(id: u32) -> Option<u32> {
    id.checked_sub(VALUE_FIRST).filter(|&value| value < VALUE_LEN)
}

/// The id of a one-character symbol that the vocabulary is known to have.
///
/// # Panics
/// When it has not.
pub(crate) fn sym(symbol: char) -> u32 {
    let mut buffer = [0; 4];
    vocab().id(symbol.encode_utf8(&mut buffer)).unwrap_or_else(|| panic!("{symbol:?} is not in the task vocabulary"))
}

/// The vocabulary as a Hugging Face `tokenizer.json`: it encodes [`Vocab::render`]'s text to the same ids and decodes
/// them back. No token is added at either end, since a prompt writes its own `<bos>`; a character outside the
/// vocabulary is an error and not an unknown token.
///
/// # Panics
/// Never: the value is plain data.
#[must_use]
pub fn tokenizer_json() -> String {
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0_u32..).zip(SYMBOLS).map(|(id, symbol)| (symbol.to_string(), id.into())).collect();
    let named: Vec<serde_json::Value> = (0_u32..)
        .zip(SYMBOLS)
        .filter(|(_, symbol)| symbol.len() > 1)
        .map(|(id, symbol)| {
            serde_json::json!({
                "id": id, "content": symbol, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": (id <= EOS),
            })
        })
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": named,
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s:.)"}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        // The name stands nowhere in the vocabulary, which is what makes an unknown character an error.
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    serde_json::to_string_pretty(&tokenizer).expect("plain data")
}

/// The `tokenizer_config.json` that goes beside [`tokenizer_json`] in a model folder.
///
/// # Panics
/// Never: the value is plain data.
#[must_use]
pub fn tokenizer_config_json() -> String {
    let config = serde_json::json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SYMBOLS[BOS as usize],
        "eos_token": SYMBOLS[EOS as usize],
        "pad_token": SYMBOLS[PAD as usize],
        "clean_up_tokenization_spaces": false,
        "add_bos_token": false,
        "add_eos_token": false,
    });
    serde_json::to_string_pretty(&config).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_symbols_are_inverse() {
        let vocab = vocab();
        assert_eq!(vocab.ids.len(), VOCAB_LEN, "a symbol stands twice");
        for (id, symbol) in (0_u32..).zip(SYMBOLS) {
            assert_eq!((vocab.id(symbol), vocab.symbol(id)), (Some(id), Some(symbol)));
        }
        assert_eq!((vocab.symbol(64), vocab.id("<unk>")), (None, None));
        assert_eq!((vocab.id("<pad>"), vocab.id("<bos>"), vocab.id("<eos>")), (Some(PAD), Some(BOS), Some(EOS)));
        for value in 0..VALUE_LEN {
            let digit = char::from_digit(value, 36).expect("base 36");
            assert_eq!((sym(digit), id_value(sym(digit))), (value_id(value), Some(value)));
        }
        assert_eq!((id_value(EOS), id_value(sym('+'))), (None, None));
    }

    #[test]
    fn text_round_trips_and_strangers_are_refused() {
        let all: Vec<u32> = (0..64).collect();
        assert_eq!(vocab().parse(&vocab().render(&all)), Ok(all));
        assert_eq!(vocab().parse("12A"), Err(ParseError { at: 2, found: 'A' }));
        assert_eq!(vocab().parse("1<2"), Err(ParseError { at: 1, found: '<' }));
        assert_eq!(vocab().parse("é"), Err(ParseError { at: 0, found: 'é' }));
        assert_eq!(vocab().parse(&vocab().render(&[3, 99])), Err(ParseError { at: 1, found: '<' }));
    }
}
