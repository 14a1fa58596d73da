//! Text of ids that come one by one.
//!
//! The pieces together are [`Tokenizer::decode`] of all ids, exactly. So a piece is given out only once nothing that
//! follows can change it, which depends on the tokenizer's decoder: a character whose last bytes are missing is held
//! back, and so is a run of `<0xXX>` tokens, because a decoder with byte fallback turns the whole run into U+FFFD if any
//! part of it is no UTF-8. Ids that are no text (special tokens, padded rows of an embedding) give nothing and never
//! fail.

use serde_json::Value;

use crate::tokenizer::Tokenizer;

/// How a decoder's text grows with its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Each token is some bytes, and the text is all of them, read as UTF-8.
    Bytes,
    /// A token's text depends on whether it is the first, and on the run of byte tokens that it stands in; nothing
    /// else. So the text of a few tokens back is enough to know what one more adds.
    Tokens {
        /// Whether `<0xXX>` tokens are bytes.
        byte_fallback: bool,
    },
    /// Any token may change the text before it.
    Whole,
}

impl Growth {
    /// Of a decoder as it stands in `tokenizer.json`.
    pub(crate) fn of(decoder: &Value) -> Growth {
        let mut stages = Vec::new();
        flatten(decoder, &mut stages);
        if let [stage] = stages[..]
            && stage["type"] == "ByteLevel"
        {
            return Growth::Bytes;
        }
        // Once tokens are fused into one string, a stage no longer sees them one by one.
        let (mut fused, mut stripped, mut byte_fallback) = (false, 0, false);
        for stage in stages {
            match stage["type"].as_str() {
                Some("Fuse") => fused = true,
                Some("Metaspace" | "WordPiece") if !fused => {}
                Some("ByteFallback") if !fused => byte_fallback = true,
                // A pattern that is no plain string may fail on some texts.
                Some("Replace") if !fused && stage["pattern"]["String"].is_string() => {}
                Some("Strip") if !fused => {}
                Some("Strip") if stage["stop"] == 0 => stripped += stage["start"].as_u64().unwrap_or(u64::MAX),
                _ => return Growth::Whole,
            }
            // With two, a space given out and a space to come could be stripped together.
            if stripped > 1 {
                return Growth::Whole;
            }
        }
        Growth::Tokens { byte_fallback }
    }
}

fn flatten<'a>(decoder: &'a Value, into: &mut Vec<&'a Value>) {
    match decoder["decoders"].as_array() {
        Some(stages) => stages.iter().for_each(|stage| flatten(stage, into)),
        None if decoder.is_null() => {}
        None => into.push(decoder),
    }
}

/// Text of ids that come one by one; never half a character.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    piece: String,
    bytes: Vec<u8>,  // of an incomplete character, for `Growth::Bytes`
    ids: Vec<u32>,   // for the rest: the ids from the last piece on
    shown: usize,    // how many of them made that piece
    text_len: usize, // bytes of their text
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer) -> Detokenizer {
        Detokenizer { tokenizer, piece: String::new(), bytes: Vec::new(), ids: Vec::new(), shown: 0, text_len: 0 }
    }

    /// The text that `id` settles, often none.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        // A token that is no text must not part the run of bytes that it stands in.
        if let Some(token) = self.tokenizer.content(id, true) {
            match self.tokenizer.growth() {
                Growth::Bytes => self.push_bytes(&token),
                Growth::Tokens { byte_fallback } => {
                    self.ids.push(id);
                    if !(byte_fallback && is_byte(&token)) {
                        self.push_text();
                    }
                }
                Growth::Whole => self.ids.push(id),
            }
        }
        &self.piece
    }

    /// The text that is held back, as it stands if nothing follows; without an incomplete character at its end. With
    /// what has been given out it is what [`Tokenizer::decode`] makes of the ids so far, up to that.
    #[must_use]
    pub fn held(&self) -> String {
        if self.ids.len() == self.shown {
            return String::new(); // a byte-level decoder holds nothing but an incomplete character
        }
        let text = self.tokenizer.decode(&self.ids);
        text[self.text_len..].trim_end_matches('\u{fffd}').to_owned()
    }

    /// All the text that is held back, an incomplete character as U+FFFD.
    #[must_use]
    pub fn finish(self) -> String {
        if self.tokenizer.growth() == Growth::Bytes {
            return String::from_utf8_lossy(&self.bytes).into_owned();
        }
        self.tokenizer.decode(&self.ids)[self.text_len..].to_owned()
    }

    fn push_bytes(&mut self, token: &str) {
        let before = self.bytes.len();
        for char in token.chars() {
            match byte_of(char) {
                Some(byte) => self.bytes.push(byte),
                None => {
                    // Outside the alphabet, an added token for example: it stands for itself.
                    self.bytes.truncate(before);
                    self.bytes.extend_from_slice(token.as_bytes());
                    break;
                }
            }
        }
        let mut done = 0;
        for chunk in self.bytes.utf8_chunks() {
            self.piece.push_str(chunk.valid());
            done += chunk.valid().len();
            let rest = &self.bytes[done..];
            if rest.len() == chunk.invalid().len() && incomplete(rest) {
                break;
            }
            if !chunk.invalid().is_empty() {
                self.piece.push('\u{fffd}');
                done += chunk.invalid().len();
            }
        }
        self.bytes.drain(..done);
    }

    fn push_text(&mut self) {
        let text = self.tokenizer.decode(&self.ids);
        if text.len() <= self.text_len {
            return;
        }
        self.piece.push_str(&text[self.text_len..]);
        // The ids of this piece stay: the next one's text differs if it is taken for the first of all.
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        self.text_len = self.tokenizer.decode(&self.ids).len();
    }
}

/// Whether more bytes could still make a character of these, the last of a text.
fn incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Whether a token is a byte to a decoder with byte fallback.
fn is_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
}

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 for itself, the 68 others in
/// ascending order from U+0100.
fn byte_of(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 0x00..=0x20
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(), // 0x7f..=0xa0
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::tokenizer::tests::{open, write_byte_fallback, write_byte_level};

    /// The byte-fallback tokenizer with another decoder.
    fn with_decoder(decoder: &Value) -> Tokenizer {
        open(|dir: &Path| {
            write_byte_fallback(dir);
            let file = dir.join("tokenizer.json");
            let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            json["decoder"] = decoder.clone();
            std::fs::write(file, json.to_string()).unwrap();
        })
    }

    fn decoders() -> Vec<(Value, Growth)> {
        let space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let (fallback, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
        let strip = |start: usize, stop: usize| json!({"type": "Strip", "content": " ", "start": start, "stop": stop});
        let metaspace =
            |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
        let sequence = |stages: &[&Value]| json!({"type": "Sequence", "decoders": stages});
        let (bytes, plain) = (Growth::Tokens { byte_fallback: true }, Growth::Tokens { byte_fallback: false });
        vec![
            (Value::Null, plain),
            (sequence(&[&space, &fallback, &fuse, &strip(1, 0)]), bytes),
            (sequence(&[&space, &fallback, &fuse]), bytes),
            (sequence(&[&fallback, &metaspace("always")]), bytes),
            (sequence(&[&space, &strip(2, 0), &fuse]), plain),
            (metaspace("first"), plain),
            (metaspace("never"), plain),
            (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), plain),
            (fuse.clone(), plain),
            (json!({"type": "BPEDecoder", "suffix": "▁"}), Growth::Whole),
            (json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "▁", "cleanup": true}), Growth::Whole),
            (sequence(&[&fallback, &fuse, &space]), Growth::Whole),
            (sequence(&[&space, &fallback, &fuse, &strip(2, 0)]), Growth::Whole),
            (sequence(&[&space, &fallback, &fuse, &strip(0, 1)]), Growth::Whole),
            (sequence(&[&space, &fallback, &fuse, &strip(1, 0), &strip(1, 0)]), Growth::Whole),
        ]
    }

    static ALL: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
        let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/student");
        let mut all = vec![open(write_byte_level), Tokenizer::open(&quickstart).unwrap().unwrap()];
        all.extend(decoders().iter().map(|(decoder, _)| with_decoder(decoder)));
        all
    });

    #[test]
    fn decoders_are_known_by_how_they_grow() {
        for ((decoder, growth), tokenizer) in decoders().iter().zip(&ALL[2..]) {
            assert_eq!(tokenizer.growth(), *growth, "{decoder}");
        }
        assert_eq!(ALL[0].growth(), Growth::Bytes);
        assert_eq!(Growth::of(&json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})), Growth::Bytes);
        let pattern = json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"});
        assert_eq!(Growth::of(&pattern), Growth::Whole);
    }

    #[test]
    fn a_character_comes_whole() {
        let mut detokenizer = ALL[0].detokenizer();
        let pieces: Vec<String> = "é日".bytes().map(|b| detokenizer.push(u32::from(b)).to_owned()).collect();
        assert_eq!(pieces, ["", "é", "", "", "日"]);
        assert_eq!(detokenizer.finish(), "");
        let mut detokenizer = ALL[0].detokenizer();
        assert_eq!(detokenizer.push(0xe6), "");
        assert_eq!(detokenizer.held(), "");
        assert_eq!(detokenizer.finish(), "\u{fffd}");
    }

    #[test]
    fn every_byte_of_the_alphabet() {
        for first in 0..=255 {
            for second in [0x41, 0x80, 0xbf] {
                let mut detokenizer = ALL[0].detokenizer();
                let text = detokenizer.push(first).to_owned() + detokenizer.push(second);
                assert_eq!(text + &detokenizer.finish(), ALL[0].decode(&[first, second]), "{first} {second}");
            }
        }
    }

    #[test]
    fn a_special_token_does_not_part_a_run_of_bytes() {
        // It is no text, so the bytes around it are decoded together, and together they are no UTF-8.
        let tokenizer = &ALL[3];
        let ids = [0xc3, 0xa9, 261, 0xff, 259];
        assert_eq!(tokenizer.decode(&ids), "\u{fffd}\u{fffd}\u{fffd} a");
        let mut detokenizer = tokenizer.detokenizer();
        let (mut pieces, mut held) = (vec![], vec![]);
        for id in ids {
            pieces.push(detokenizer.push(id).to_owned());
            held.push(detokenizer.held());
        }
        assert_eq!(pieces, ["", "", "", "", "\u{fffd}\u{fffd}\u{fffd} a"]);
        assert_eq!(held, ["", "é", "é", "", ""]);
    }

    #[test]
    fn special_and_foreign_ids_are_no_text() {
        let mut detokenizer = ALL[0].detokenizer();
        let pieces: Vec<String> =
            [259, 256, 261, 151_935, u32::MAX, 257, 260].map(|id| detokenizer.push(id).to_owned()).into();
        assert_eq!(pieces, ["", "he", "", "", "", "ll", ""]);
    }

    #[test]
    fn endless_broken_bytes_hold_nothing_back() {
        let mut detokenizer = ALL[0].detokenizer();
        for _ in 0..1000 {
            assert!(detokenizer.push(0xe6).len() <= 3);
            assert_eq!(detokenizer.bytes, [0xe6]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_make_up_the_whole(
            any in proptest::collection::vec(prop_oneof![0_u32..266, Just(u32::MAX)], 0..30),
            // Few tokens, so that runs of bytes that are and are no characters come often, spaces too.
            few in proptest::collection::vec(
                prop_oneof![Just(0xc3_u32), Just(0xa9), Just(0x41), Just(0xef), Just(0xbf), Just(0xbd), 256_u32..263],
                0..30),
            spaces in proptest::collection::vec(prop_oneof![Just(256_u32), Just(257), Just(259), Just(0x20)], 0..12),
        ) {
            for (at, tokenizer) in ALL.iter().enumerate() {
                for ids in [&any, &few, &spaces] {
                    let mut detokenizer = tokenizer.detokenizer();
                    let mut text = String::new();
                    for (i, &id) in ids.iter().enumerate() {
                        text += detokenizer.push(id);
                        let (now, want) = (text.clone() + &detokenizer.held(), tokenizer.decode(&ids[..=i]));
                        let open = |text: &str| text.trim_end_matches('\u{fffd}').to_owned();
                        prop_assert_eq!(open(&now), open(&want), "tokenizer {}, {:?}", at, &ids[..=i]);
                    }
                    prop_assert_eq!(text + &detokenizer.finish(), tokenizer.decode(ids), "tokenizer {}, {:?}", at, ids);
                }
            }
        }

        #[test]
        fn text_comes_back_in_whole_characters(text in proptest::collection::vec(
            prop_oneof![prop::sample::select(vec!['\u{1f468}', '\u{200d}', '日', '\u{301}', 'h', 'e', ' ']), any::<char>()],
            0..20,
        )) {
            let text: String = text.into_iter().filter(|&c| c != '\u{fffd}').collect();
            let mut detokenizer = ALL[0].detokenizer();
            let mut got = String::new();
            for id in ALL[0].encode(&text, false).unwrap() {
                let piece = detokenizer.push(id);
                prop_assert!(!piece.contains('\u{fffd}'), "{}", piece);
                got += piece;
            }
            prop_assert_eq!(&got, &text);
            prop_assert_eq!(detokenizer.finish(), "");
        }
    }
}
