//! Text to token ids and back.
//!
//! Ids are what everything else works with; text is made from them once, and never tokenised again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::{Decoder as _, Model as _, Tokenizer as Inner};

use crate::detokenizer::{Detokenizer, Growth};

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", .file.display())]
    Read {
        /// `tokenizer.json`.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no tokenizer.
    #[error("{}: not a tokenizer: {reason}", .file.display())]
    Parse {
        /// `tokenizer.json`.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An added token that the library gives another id than the file states.
    #[error(
        "{}: added token `{token}` has id {stated} in the file and would get {given}; \
         list it in the vocabulary under its id", .file.display()
    )]
    AddedToken {
        /// `tokenizer.json`.
        file: PathBuf,
        /// The token.
        token: String,
        /// Its id in the file.
        stated: u64,
        /// The id it gets.
        given: u32,
    },
    /// A text that the tokenizer cannot encode.
    #[error("a text of {bytes} bytes cannot be encoded: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer says.
        reason: String,
    },
}

/// A folder's tokenizer. Clones share it.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    size: usize,
    hash: Arc<str>,
    growth: Growth,
}

impl Tokenizer {
    /// Opens `tokenizer.json` of the folder `dir`; none when it has no such file.
    ///
    /// Truncation and padding that the file may ask for are left out: ids are all of the text's and only them.
    pub fn open(dir: &Path) -> Result<Option<Tokenizer>, TokenizerError> {
        let file = dir.join("tokenizer.json");
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(TokenizerError::Read { file, source }),
        };
        let bad = |reason: String| TokenizerError::Parse { file: file.clone(), reason };
        let mut inner = Inner::from_bytes(&bytes).map_err(|e| bad(e.to_string()))?;
        inner.with_truncation(None).map_err(|e| bad(e.to_string()))?;
        inner.with_padding(None);
        let added: Added = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        for AddedToken { id, content } in added.added_tokens {
            let given = inner.token_to_id(&content).unwrap_or_default();
            if u64::from(given) != id {
                return Err(TokenizerError::AddedToken { file, token: content, stated: id, given });
            }
        }
        let mut tokens: Vec<(String, u32)> = inner.get_vocab(true).into_iter().collect();
        tokens.sort_unstable();
        let Some(last) = tokens.iter().map(|(_, id)| *id).max() else { return Err(bad("it has no tokens".into())) };
        let mut hasher = blake3::Hasher::new();
        for (token, id) in &tokens {
            hasher.update(&u64::try_from(token.len()).expect("a length has 64 bits").to_le_bytes());
            hasher.update(token.as_bytes());
            hasher.update(&id.to_le_bytes());
        }
        let growth = Growth::of(&serde_json::to_value(inner.get_decoder()).map_err(|e| bad(e.to_string()))?);
        let (size, hash) = (last as usize + 1, hasher.finalize().to_hex().as_str().into());
        Ok(Some(Tokenizer { inner: Arc::new(inner), size, hash, growth }))
    }

    /// Ids of `text`. Special tokens written out in it become their ids; `add_special` adds those that the tokenizer
    /// puts around a text (a chat template writes its own).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        match self.inner.encode_fast(text, add_special) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => Err(TokenizerError::Encode { bytes: text.len(), reason: e.to_string() }),
        }
    }

    /// Text of `ids`, special tokens left out. Ids that are no token's (the padded rows of an embedding) are nothing,
    /// and bytes that are no UTF-8 are U+FFFD: decoding never fails.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        self.text(ids, true)
    }

    /// As [`Tokenizer::decode`], special tokens written out.
    #[must_use]
    pub fn decode_with_special(&self, ids: &[u32]) -> String {
        self.text(ids, false)
    }

    /// Decodes ids one by one: the texts together are [`Tokenizer::decode`] of all.
    #[must_use]
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.clone())
    }

    /// Ids are below this: the real vocabulary, added tokens included, which a model's embedding may exceed.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// BLAKE3 of the tokens sorted bytewise, each as length (64 bits, little endian), bytes and id (32 bits): equal for
    /// tokenizers whose ids mean the same.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Id of a token by its exact content.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Content of a token by its id, in the tokenizer's own alphabet.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// How the text grows when ids come one by one.
    pub(crate) fn growth(&self) -> Growth {
        self.growth
    }

    /// What a token brings to a text; none for an id that is no token's, and for a special token unless those are
    /// written out.
    pub(crate) fn content(&self, id: u32, skip_special: bool) -> Option<String> {
        let added = self.inner.get_added_vocabulary();
        let token = added.simple_id_to_token(id).or_else(|| self.inner.get_model().id_to_token(id))?;
        if skip_special && added.is_special_token(&token) { None } else { Some(token) }
    }

    fn text(&self, ids: &[u32], skip_special: bool) -> String {
        let tokens: Vec<String> = ids.iter().filter_map(|&id| self.content(id, skip_special)).collect();
        match self.inner.get_decoder() {
            None => tokens.join(" "),
            // Some decoders count on a last token.
            Some(_) if tokens.is_empty() => String::new(),
            // A decoder that refuses must not end a request: the tokens' own content stands in.
            Some(decoder) => decoder.decode(tokens.clone()).unwrap_or_else(|_| tokens.concat()),
        }
    }
}

#[derive(serde::Deserialize)]
struct Added {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(serde::Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A byte-level tokenizer: 256 bytes, three merges, two special tokens; ids 0..261.
    pub(crate) fn write_byte_level(dir: &Path) {
        let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
        let mut next = 256;
        let mut vocab = Map::new();
        for byte in 0..256 {
            let code = if printable(byte) { byte } else { next };
            next += u32::from(code >= 256);
            vocab.insert(char::from_u32(code).unwrap().to_string(), json!(byte));
        }
        for (i, token) in ["he", "ll", "Ġhe"].iter().enumerate() {
            vocab.insert((*token).into(), json!(256 + i));
        }
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
        let file = json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": null,
            "added_tokens": [special(259, "<|start|>"), special(260, "<|end|>")],
            "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                      "merges": ["h e", "l l", "Ġ he"]},
        });
        std::fs::write(dir.join("tokenizer.json"), file.to_string()).unwrap();
    }

    /// In the manner of Llama 2: `▁` for spaces, bytes by `<0xXX>`, one special token; ids 0..262.
    pub(crate) fn write_byte_fallback(dir: &Path) {
        let mut vocab = Map::new();
        for byte in 0..256 {
            vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
        }
        for (i, token) in ["▁", "a", "é", "▁a", "�"].iter().enumerate() {
            vocab.insert((*token).into(), json!(256 + i));
        }
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": 261, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                      "merges": ["▁ a"]},
        });
        std::fs::write(dir.join("tokenizer.json"), file.to_string()).unwrap();
    }

    pub(crate) fn open(write: impl Fn(&Path)) -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        Tokenizer::open(dir.path()).unwrap().unwrap()
    }

    #[test]
    fn text_goes_there_and_back() {
        let tokenizer = open(write_byte_level);
        assert_eq!(tokenizer.size(), 261);
        // Longer than the two tokens that the file's truncation would leave.
        assert_eq!(tokenizer.encode("he hell", false).unwrap(), [256, 258, 257]);
        assert_eq!(tokenizer.encode("<|start|>he<|end|>", false).unwrap(), [259, 256, 260]);
        assert_eq!(tokenizer.encode("", false).unwrap(), Vec::<u32>::new());
        for tokenizer in [&tokenizer, &open(write_byte_fallback)] {
            for text in ["he hell", "a é a", "日本\u{1f468}\u{200d}\u{1f469}", "\n\t  x", ""] {
                assert_eq!(tokenizer.decode(&tokenizer.encode(text, false).unwrap()), text);
            }
        }
    }

    #[test]
    fn special_and_foreign_ids_are_no_text() {
        let tokenizer = open(write_byte_level);
        let ids = [259, 256, 261, 151_935, u32::MAX, 257, 260];
        assert_eq!(tokenizer.decode(&ids), "hell");
        assert_eq!(tokenizer.decode_with_special(&ids), "<|start|>hell<|end|>");
    }

    #[test]
    fn hashes_are_of_tokens_and_ids() {
        let tokenizer = open(write_byte_level);
        assert_eq!(tokenizer.hash(), open(write_byte_level).hash());
        assert_ne!(tokenizer.hash(), open(write_byte_fallback).hash());
        let moved = open(|dir| {
            write_byte_level(dir);
            let file = dir.join("tokenizer.json");
            let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            json["model"]["vocab"]["a"] = json!(98);
            json["model"]["vocab"]["b"] = json!(97);
            std::fs::write(file, json.to_string()).unwrap();
        });
        assert_ne!(tokenizer.hash(), moved.hash());
    }

    #[test]
    fn faults_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tokenizer::open(dir.path()).unwrap().is_none());
        let file = dir.path().join("tokenizer.json");
        std::fs::write(&file, "{}").unwrap();
        let error = Tokenizer::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: not a tokenizer"), "{error}");
        // A token that the vocabulary does not have lands behind it, whatever id the file states.
        write_byte_level(dir.path());
        let text = std::fs::read_to_string(&file).unwrap().replace("\"id\":260", "\"id\":7");
        std::fs::write(&file, text).unwrap();
        let error = Tokenizer::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("`<|end|>` has id 7 in the file and would get 260"), "{error}");
    }
}
