//! Mutants that compute the same as the kernel, each with the reason: they say nothing about the cases.

use super::choice::{Chosen, Text};
use super::report::flat;
use super::sites;
use crate::ptx::text::code;
use serde::Deserialize;

const LIST: &str = include_str!("equivalent.toml");

/// A mutant that somebody has read and understood.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    pub op: String,
    pub kernel: String,
    /// The line as it is and as the mutant has it, with single spaces; empty where it is gone.
    pub line: String,
    pub became: String,
    /// The instruction above it, where the kernel has the line more than once.
    #[serde(default)]
    pub below: Option<String>,
    /// Why no result depends on it.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Equivalent>,
}

/// All of them.
pub fn all() -> Result<Vec<Equivalent>, String> {
    toml::from_str::<List>(LIST).map(|list| list.mutant).map_err(|error| format!("  equivalent.toml: {error}"))
}

impl Equivalent {
    pub fn is(&self, texts: &[Text], chosen: &Chosen) -> bool {
        let text = &texts[chosen.text];
        text.op == self.op && self.is_mutant(text, &chosen.mutant)
    }

    fn is_mutant(&self, text: &Text, mutant: &sites::Mutant) -> bool {
        let same =
            mutant.entry == self.kernel && flat(&mutant.before) == self.line && flat(&mutant.after) == self.became;
        same && self.below.as_deref().is_none_or(|below| instruction_above(&text.ptx, mutant.line) == below)
    }

    /// Whether these texts, all of its op, have no such mutant any more: the kernel was compiled anew.
    pub fn is_stale(&self, texts: &[Text]) -> bool {
        let own = || texts.iter().filter(|text| text.op == self.op);
        own().next().is_some()
            && !own().any(|text| sites::all(&text.ptx).iter().any(|mutant| self.is_mutant(text, mutant)))
    }
}

/// The instruction above a line, numbered from 1.
fn instruction_above(ptx: &str, line: usize) -> String {
    let above: Vec<&str> = ptx.lines().take(line - 1).map(code).collect();
    flat(above.into_iter().rev().find(|text| !text.is_empty()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_reason_and_is_there_once() {
        let all = all().expect("it parses");
        for (i, one) in all.iter().enumerate() {
            assert!(one.why.len() > 20 && one.line != one.became, "{one:?}");
            let same = |other: &&Equivalent| {
                (&other.kernel, &other.line, &other.became, &other.below)
                    == (&one.kernel, &one.line, &one.became, &one.below)
            };
            assert_eq!(all[i + 1..].iter().find(same).map(|other| &other.line), None);
        }
    }

    #[test]
    fn a_line_that_is_gone_is_stale() {
        let text = |line: &str| Text {
            op: "a".into(),
            target: "sm80",
            ptx: format!(".visible .entry f(\n)\n{{\n\t{line}\n\tret;\n}}\n"),
        };
        let one = Equivalent {
            op: "a".into(),
            kernel: "f".into(),
            line: "sub.s32 %r1, %r2, %r3;".into(),
            became: "sub.s32 %r1, %r3, %r2;".into(),
            below: None,
            why: String::new(),
        };
        assert!(!one.is_stale(&[text("sub.s32 \t%r1, %r2, %r3;")]));
        assert!(one.is_stale(&[text("sub.s32 \t%r1, %r2, %r4;")]));
        let below = |above: &str| Equivalent { below: Some(above.into()), ..one.clone() };
        let two = [text("mov.u32 \t%r2, 7;\n\n\t// a comment\n\tsub.s32 \t%r1, %r2, %r3;")];
        assert!(!below("mov.u32 %r2, 7;").is_stale(&two) && below("mov.u32 %r2, 8;").is_stale(&two));
        assert!(!one.is_stale(&[]), "another op is tried");
    }
}
