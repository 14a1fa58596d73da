//! What no tracked file may hold: traces of one machine or of how it came to be written, and unfinished work.

use crate::{Outcome, output};
use std::path::Path;

/// Larger files do not belong into a repository that people clone to read.
const BYTES_MAX: usize = 2_000_000;

/// Text that no tracked file may hold, in lower case, with the reason. Each is written in two halves, so that this
/// file passes its own check.
const ANYWHERE: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/fa", "rm/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/us", "ers/"), "a path of one machine"),
    (concat!("://", "10."), "a host of one network"),
    (concat!("://", "192.168."), "a host of one network"),
    (concat!(".inter", "nal/"), "a host of one network"),
    (concat!(".inter", "nal:"), "a host of one network"),
    (concat!("sub", "agent"), "the project speaks of itself alone"),
    (concat!("helper ", "agent"), "the project speaks of itself alone"),
    (concat!("<<<<", "<<< "), "a merge conflict"),
    (concat!(">>>>", ">>> "), "a merge conflict"),
];

/// The same, for Rust sources only.
const IN_RUST: &[(&str, &str)] = &[
    (concat!("todo", "!("), "unfinished"),
    (concat!("unimple", "mented!("), "unfinished"),
    (concat!("dbg", "!("), "a left-over"),
    (concat!("#[ig", "nore"), "a test that does not run proves nothing"),
];

/// Reads every tracked file as it is in the work tree.
pub fn check(root: &Path) -> Outcome {
    let names = output(root, "git", &["ls-files", "-z"])?;
    let mut findings = Vec::new();
    let mut count = 0;
    for name in names.split_terminator('\0') {
        // A tracked file that is gone from the work tree is about to be removed: nothing to read.
        let Ok(bytes) = std::fs::read(root.join(name)) else { continue };
        count += 1;
        findings.extend(problems(name, &bytes));
    }
    if findings.is_empty() { Ok(format!("{count} files")) } else { Err(findings.join("\n")) }
}

fn problems(name: &str, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if bytes.len() > BYTES_MAX {
        found.push(format!("  {name}: {} bytes; the limit is {BYTES_MAX}", bytes.len()));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return found };
    let rust: &[_] = if name.ends_with(".rs") { IN_RUST } else { &[] };
    for (line, text) in std::iter::once(name).chain(text.lines()).enumerate() {
        let text = text.to_lowercase();
        for (word, why) in ANYWHERE.iter().chain(rust) {
            if text.contains(word) {
                found.push(format!("  {name}:{line}: {word:?} ({why})"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_in_any_case_with_its_line() {
        for (word, _) in ANYWHERE.iter().chain(IN_RUST) {
            let text = format!("fine\nbefore {} after\n", word.to_uppercase());
            let found = problems("a.rs", text.as_bytes());
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].starts_with("  a.rs:2: "), "{found:?}");
        }
    }

    #[test]
    fn rust_words_are_fine_elsewhere() {
        for (word, _) in IN_RUST {
            assert!(problems("notes.md", word.as_bytes()).is_empty(), "{word}");
        }
    }

    #[test]
    fn names_and_sizes_count_too() {
        let name = concat!("docs/sub", "agent.md");
        assert_eq!(problems(name, b"fine\n").len(), 1);
        assert_eq!(problems("weights.bin", &vec![0xff; BYTES_MAX + 1]).len(), 1);
        assert!(problems("weights.bin", &vec![0xff; BYTES_MAX]).is_empty());
    }
}
