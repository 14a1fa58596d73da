//! Mutants that compute the same as the kernel, each with the reason: they say nothing about the cases.

use super::choice::{Chosen, Text};
use super::report::flat;
use super::sites;
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
        texts[chosen.text].op == self.op && self.is_mutant(&chosen.mutant)
    }

    fn is_mutant(&self, mutant: &sites::Mutant) -> bool {
        mutant.entry == self.kernel && flat(&mutant.before) == self.line && flat(&mutant.after) == self.became
    }

    /// Whether these texts, all of its op, have no such mutant any more: the kernel was compiled anew.
    pub fn is_stale(&self, texts: &[Text]) -> bool {
        let own = || texts.iter().filter(|text| text.op == self.op);
        own().next().is_some() && !own().any(|text| sites::all(&text.ptx).iter().any(|mutant| self.is_mutant(mutant)))
    }
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
                (&other.kernel, &other.line, &other.became) == (&one.kernel, &one.line, &one.became)
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
            why: String::new(),
        };
        assert!(!one.is_stale(&[text("sub.s32 \t%r1, %r2, %r3;")]));
        assert!(one.is_stale(&[text("sub.s32 \t%r1, %r2, %r4;")]));
        assert!(!one.is_stale(&[]), "another op is tried");
    }
}
