//! Stop strings: text that ends a completion.
//!
//! Tokens and characters have different borders: a stop string may begin inside one token and end inside a later one.
//! So what is looked at is the text, as [`crate::tokenizer::Tokenizer::decode`] makes it of the completion's own ids:
//! special tokens are not in it (stop at those by id), and neither is the prompt.
//!
//! **Rule.** A completion ends with the first token at which the text of its ids contains a stop string. Of several
//! matches the one that ends first counts; of those that end at one place, the one that begins first. Where a text is
//! cut into tokens makes no difference to which match that is. The text ends where the match begins. Ids and logprobs
//! are never cut: they keep every token up to the one that completed the match, so they always have equal length.

use crate::detokenizer::Detokenizer;
use crate::tokenizer::Tokenizer;

/// Why stop strings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// Every text contains it.
    #[error("stop string {index} is empty; every completion would end before its first token: leave it out")]
    Empty {
        /// Which one, from 0.
        index: usize,
    },
    /// More than are looked for.
    #[error("{count} stop strings; at most {} can be given", StopMatcher::STRINGS_MAX)]
    TooMany {
        /// How many were given.
        count: usize,
    },
    /// Longer than what is looked for.
    #[error("stop string {index} has {bytes} bytes; at most {} are taken", StopMatcher::BYTES_MAX)]
    TooLong {
        /// Which one, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
}

/// Stop strings, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopMatcher {
    strings: Vec<String>,
    longest: usize, // bytes
}

/// Where a stop string stands in a completion's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Which of the strings, from 0.
    pub string: usize,
    /// The byte that it begins at: the length of the text that is left.
    pub start: usize,
    /// The byte after it.
    pub end: usize,
}

impl StopMatcher {
    /// Most stop strings of a request.
    pub const STRINGS_MAX: usize = 64;
    /// Most bytes of a stop string.
    pub const BYTES_MAX: usize = 1024;

    /// Checks stop strings; none at all is fine.
    pub fn new(strings: &[String]) -> Result<StopMatcher, StopError> {
        if strings.len() > StopMatcher::STRINGS_MAX {
            return Err(StopError::TooMany { count: strings.len() });
        }
        for (index, string) in strings.iter().enumerate() {
            match string.len() {
                0 => return Err(StopError::Empty { index }),
                bytes if bytes > StopMatcher::BYTES_MAX => return Err(StopError::TooLong { index, bytes }),
                _ => {}
            }
        }
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        Ok(StopMatcher { strings: strings.to_vec(), longest })
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// The strings, as given.
    #[must_use]
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The match in `text` that counts.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Stop> {
        let first = |(string, pattern): (usize, &String)| {
            let start = text.find(pattern.as_str())?;
            Some(Stop { string, start, end: start + pattern.len() })
        };
        self.strings.iter().enumerate().filter_map(first).min_by_key(|stop| (stop.end, stop.start))
    }
}

/// One completion's text so far, as much of it as a match could still begin in.
#[derive(Clone, Debug, Default)]
pub struct StopState {
    tail: String,
    before: usize, // bytes of text before the tail
}

impl StopState {
    /// At the start of a completion.
    #[must_use]
    pub fn new() -> StopState {
        StopState::default()
    }

    /// Takes the next piece of text; the match that it completes, if any. After a match nothing more is fed.
    pub fn push(&mut self, matcher: &StopMatcher, piece: &str) -> Option<Stop> {
        let found = self.find_with(matcher, piece);
        self.tail.push_str(piece);
        if found.is_none() {
            let mut cut = self.tail.len().saturating_sub(matcher.longest.saturating_sub(1));
            while !self.tail.is_char_boundary(cut) {
                cut -= 1;
            }
            self.tail.drain(..cut);
            self.before += cut;
        }
        found
    }

    /// The match that `held` would complete if it were the next piece; it is not taken.
    pub fn look_at(&mut self, matcher: &StopMatcher, held: &str) -> Option<Stop> {
        self.find_with(matcher, held)
    }

    fn find_with(&mut self, matcher: &StopMatcher, piece: &str) -> Option<Stop> {
        if piece.is_empty() || matcher.is_empty() {
            return None;
        }
        let len = self.tail.len();
        self.tail.push_str(piece);
        let found = matcher.find(&self.tail);
        self.tail.truncate(len);
        found.map(|stop| Stop { start: stop.start + self.before, end: stop.end + self.before, ..stop })
    }
}

/// Watches one completion's ids for a stop string.
#[derive(Clone, Debug)]
pub struct StopWatcher {
    detokenizer: Detokenizer,
    state: StopState,
}

impl StopWatcher {
    /// At the start of a completion.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> StopWatcher {
        StopWatcher { detokenizer: tokenizer.detokenizer(), state: StopState::new() }
    }

    /// Takes the next id; the match that ends the completion with it, if any. `start` of the match is the length that
    /// [`Tokenizer::decode`] of the completion's ids is to be cut to.
    pub fn push(&mut self, matcher: &StopMatcher, id: u32) -> Option<Stop> {
        if matcher.is_empty() {
            return None;
        }
        let found = self.state.push(matcher, self.detokenizer.push(id));
        // Text that later ids could still change is the text all the same if the completion ends here.
        found.or_else(|| self.state.look_at(matcher, &self.detokenizer.held()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::{open, write_byte_fallback, write_byte_level};

    fn matcher(strings: &[&str]) -> StopMatcher {
        StopMatcher::new(&strings.iter().map(|&s| s.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn run(matcher: &StopMatcher, pieces: &[&str]) -> Option<(usize, Stop)> {
        let mut state = StopState::new();
        pieces.iter().enumerate().find_map(|(i, piece)| Some((i, state.push(matcher, piece)?)))
    }

    fn stop(string: usize, start: usize, end: usize) -> Stop {
        Stop { string, start, end }
    }

    #[test]
    fn across_pieces_and_inside_one() {
        let two = matcher(&["\n\n", "END"]);
        assert_eq!(run(&two, &["ab\n", "", "\ncd"]), Some((2, stop(0, 2, 4))));
        assert_eq!(run(&two, &["abEND"]), Some((0, stop(1, 2, 5))));
        assert_eq!(run(&two, &["E", "N", "D"]), Some((2, stop(1, 0, 3))));
        assert_eq!(run(&two, &["EN", "EN", "\n", "D\n"]), None);
        // The piece that completes it may begin it too, and more text may follow in it.
        assert_eq!(run(&two, &["xENxEND!END"]), Some((0, stop(1, 4, 7))));
        // Characters of several bytes on both sides of the border, and one that the tail begins within.
        assert_eq!(run(&matcher(&["日本"]), &["é日", "本"]), Some((1, stop(0, 2, 8))));
        assert_eq!(run(&matcher(&["ab"]), &["\u{1f468}", "\u{1f468}a", "b"]), Some((2, stop(0, 8, 10))));
        // What was cut off from the tail still counts.
        assert_eq!(run(&matcher(&["b"]), &["aaaa", "aaaa", "ab"]), Some((2, stop(0, 9, 10))));
        assert_eq!(run(&matcher(&[]), &["anything"]), None);
    }

    #[test]
    fn the_first_end_counts_then_the_first_begin() {
        for pieces in [&["abcd"][..], &["ab", "cd"], &["a", "b", "c", "d"]] {
            assert_eq!(run(&matcher(&["abcd", "bc"]), pieces).unwrap().1, stop(1, 1, 3));
            assert_eq!(run(&matcher(&["bc", "abc", "abc"]), pieces).unwrap().1, stop(1, 0, 3));
        }
    }

    #[test]
    fn unusable_strings_are_refused() {
        let of = |strings: Vec<String>| StopMatcher::new(&strings).unwrap_err();
        assert_eq!(of(vec!["a".into(), String::new()]), StopError::Empty { index: 1 });
        assert_eq!(of(vec!["a".into(); 65]), StopError::TooMany { count: 65 });
        assert_eq!(of(vec!["a".repeat(1025)]), StopError::TooLong { index: 0, bytes: 1025 });
        assert!(StopMatcher::new(&vec!["a".repeat(1024); 64]).is_ok());
        assert!(StopMatcher::new(&[]).unwrap().is_empty());
    }

    #[test]
    fn the_tail_does_not_grow() {
        let matcher = matcher(&["0123456789"]);
        let mut state = StopState::new();
        for _ in 0..2 {
            state.push(&matcher, "\u{1f468}\u{1f468}\u{1f468}");
        }
        let capacity = state.tail.capacity();
        for _ in 0..1000 {
            state.push(&matcher, "\u{1f468}abcd");
            assert!(state.tail.len() <= 12, "{}", state.tail.len());
        }
        assert_eq!(state.tail.capacity(), capacity);
        assert_eq!(state.before + state.tail.len(), 24 + 8 * 1000);
    }

    #[test]
    fn a_run_of_bytes_stops_at_once() {
        // The newline is a byte token, and what follows could still make the run no UTF-8.
        let tokenizer = open(write_byte_fallback);
        let newline = matcher(&["a\n"]);
        let mut watcher = StopWatcher::new(&tokenizer);
        assert_eq!([259, 0x0a].map(|id| watcher.push(&newline, id)), [None, Some(stop(0, 0, 2))]);
        assert_eq!(tokenizer.decode(&[259, 0x0a]), "a\n");
        let mut watcher = StopWatcher::new(&tokenizer);
        assert_eq!([259, 0xff, 0x0a].map(|id| watcher.push(&newline, id)), [None; 3]);
        assert_eq!(tokenizer.decode(&[259, 0xff, 0x0a]), "a\u{fffd}\u{fffd}");
    }

    fn letters(len: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        let letter = prop_oneof![Just('a'), Just('b'), Just('日')];
        proptest::collection::vec(letter, len).prop_map(|letters| letters.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_make_no_difference(
            text in letters(0..24),
            cuts in proptest::collection::vec(any::<bool>(), 24),
            strings in proptest::collection::vec(letters(1..5), 1..4),
        ) {
            let matcher = StopMatcher::new(&strings).unwrap();
            let (mut state, mut piece, mut got) = (StopState::new(), String::new(), None);
            for (char, cut) in text.chars().zip(cuts).chain([('!', true)]) {
                piece.push(char);
                if cut {
                    got = state.push(&matcher, &piece);
                    piece.clear();
                }
                if got.is_some() {
                    break;
                }
            }
            // Byte by byte over the whole text: the first end, and there the first begin.
            let want = (0..=text.len()).find_map(|end| {
                let ends = |s: &&String| text.as_bytes()[..end].ends_with(s.as_bytes());
                let longest = strings.iter().filter(ends).map(String::len).max()?;
                Some((end - longest, end))
            });
            prop_assert_eq!(got.map(|stop| (stop.start, stop.end)), want, "{:?} in {}", strings, text);
            if let Some(stop) = got {
                prop_assert_eq!(&text[stop.start..stop.end], &strings[stop.string]);
            }
        }

        #[test]
        fn a_completion_ends_with_the_first_token_whose_text_has_a_match(
            ids in proptest::collection::vec(
                prop_oneof![Just(0x61_u32), Just(0x20), Just(0xc3), Just(0xa9), Just(0x0a), Just(0xff), 256_u32..263],
                0..24),
            strings in proptest::collection::vec(
                proptest::collection::vec(prop::sample::select(vec!['a', ' ', 'é', '\n', 'h', 'l']), 1..4), 1..4),
        ) {
            static BOTH: LazyLock<[Tokenizer; 2]> =
                LazyLock::new(|| [open(write_byte_level), open(write_byte_fallback)]);
            let strings: Vec<String> = strings.iter().map(|s| s.iter().collect()).collect();
            let matcher = StopMatcher::new(&strings).unwrap();
            for tokenizer in BOTH.iter() {
                let mut watcher = StopWatcher::new(tokenizer);
                let got = ids.iter().enumerate().find_map(|(i, &id)| Some((i, watcher.push(&matcher, id)?)));
                let want = (0..ids.len()).find_map(|i| Some((i, matcher.find(&tokenizer.decode(&ids[..=i]))?)));
                prop_assert_eq!(got, want, "{:?} in {:?}", &strings, &ids);
            }
        }
    }
}
