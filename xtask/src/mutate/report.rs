//! What became of mutants, as text.

use super::choice::{Chosen, Text};
use super::sites::KINDS;
use std::fmt::Write;

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A case failed.
    Wrong,
    /// The simulated device met a fault, or a check of a launcher did.
    Fault,
    /// It ran past the limit.
    Hang,
    /// It is no PTX that the device takes; it says nothing about the tests.
    Refused,
    /// Every case passed.
    Survived,
}

/// A mutant, what became of it, and the first line of what was said.
pub struct Tried {
    pub chosen: Chosen,
    pub verdict: Verdict,
    pub said: String,
    /// Why it computes the same, if it is known to.
    pub equivalent: Option<String>,
}

impl Tried {
    /// Survived, and known to compute the same.
    fn is_argued(&self) -> bool {
        self.verdict == Verdict::Survived && self.equivalent.is_some()
    }
}

#[derive(Default)]
struct Tally {
    wrong: usize,
    fault: usize,
    hang: usize,
    refused: usize,
    survived: usize,
    equivalent: usize,
}

impl Tally {
    fn of<'a>(tried: impl Iterator<Item = &'a Tried>) -> Tally {
        let mut tally = Tally::default();
        for one in tried {
            *match one.verdict {
                _ if one.is_argued() => &mut tally.equivalent,
                Verdict::Wrong => &mut tally.wrong,
                Verdict::Fault => &mut tally.fault,
                Verdict::Hang => &mut tally.hang,
                Verdict::Refused => &mut tally.refused,
                Verdict::Survived => &mut tally.survived,
            } += 1;
        }
        tally
    }

    fn row(&self, name: &str) -> String {
        let killed = self.wrong + self.fault + self.hang;
        let valid = killed + self.survived;
        let share = if valid == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * killed as f64 / valid as f64) };
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {share} | {} |\n",
            valid + self.equivalent,
            self.wrong,
            self.fault,
            self.hang,
            self.equivalent,
            self.survived,
            self.refused
        )
    }
}

/// Killed mutants as a share of those that ran and are not known to compute the same.
pub fn killed_share(tried: &[Tried]) -> f64 {
    let tally = Tally::of(tried.iter());
    let killed = tally.wrong + tally.fault + tally.hang;
    killed as f64 / (killed + tally.survived).max(1) as f64
}

/// Tables by op and by kind, and the survivors.
pub fn markdown(texts: &[Text], tried: &[Tried], seed: u64) -> String {
    let head = |name| {
        format!(
            "| {name} | mutants | wrong result | fault | hang | equivalent | survived | killed | refused |\n\
             |---|---|---|---|---|---|---|---|---|\n"
        )
    };
    let mut out = format!("Seed {seed}, {} mutants.\n\n{}", tried.len(), head("op"));
    let mut ops: Vec<&str> = texts.iter().map(|text| text.op.as_str()).collect();
    ops.dedup();
    for op in ops {
        out += &Tally::of(tried.iter().filter(|one| texts[one.chosen.text].op == op)).row(op);
    }
    out += &Tally::of(tried.iter()).row("all");
    out += "\n";
    out += &head("kind");
    for kind in KINDS {
        out += &Tally::of(tried.iter().filter(|one| one.chosen.mutant.kind == kind))
            .row(&format!("{kind:?}").to_lowercase());
    }
    let survivors: Vec<&Tried> = tried.iter().filter(|one| one.verdict == Verdict::Survived).collect();
    if !survivors.is_empty() {
        out += "\n| survivor | kernel | kind | line | became | equivalent, since |\n|---|---|---|---|---|---|\n";
        for one in survivors {
            let (text, mutant) = (&texts[one.chosen.text], &one.chosen.mutant);
            let after =
                if mutant.after.is_empty() { "(gone)".to_owned() } else { format!("`{}`", flat(&mutant.after)) };
            writeln!(
                out,
                "| {}.{}.ptx:{} | `{}` | {} | `{}` | {after} | {} |",
                text.op,
                text.target,
                mutant.line,
                mutant.entry,
                format!("{:?}", mutant.kind).to_lowercase(),
                flat(&mutant.before),
                one.equivalent.as_deref().unwrap_or_default()
            )
            .expect("writing to a string");
        }
    }
    out
}

/// Without tabs, and without what would end a cell of a table.
pub fn flat(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::choice::choose;

    #[test]
    fn shares_leave_out_what_did_not_run_and_survivors_are_named() {
        let ptx = ".visible .entry f(\n)\n{\n\tsub.s32 \t%r1, %r2, %r3;\n\tbar.sync \t0;\n\tret;\n}\n";
        let texts = [Text { op: "a".into(), target: "sm80", ptx: ptx.into() }];
        let verdicts = [Verdict::Wrong, Verdict::Survived, Verdict::Refused];
        let chosen = choose(&texts, 3, 0);
        let tried: Vec<Tried> = chosen
            .into_iter()
            .zip(verdicts)
            .map(|(chosen, verdict)| Tried { chosen, verdict, said: String::new(), equivalent: None })
            .collect();
        assert_eq!(tried.len(), 3);
        assert_eq!(killed_share(&tried), 0.5);
        let text = markdown(&texts, &tried, 7);
        assert!(text.contains("| a | 2 | 1 | 0 | 0 | 0 | 1 | 50.0% | 1 |\n"), "{text}");
        let survivor = tried.iter().position(|one| one.verdict == Verdict::Survived).expect("one survived");
        assert!(text.contains(&format!("| a.sm80.ptx:{} | `f` |", tried[survivor].chosen.mutant.line)), "{text}");
        let mut tried = tried;
        tried[survivor].equivalent = Some("nobody reads it".into());
        assert_eq!(killed_share(&tried), 1.0);
        let text = markdown(&texts, &tried, 7);
        assert!(
            text.contains("| a | 2 | 1 | 0 | 0 | 1 | 0 | 100.0% | 1 |\n") && text.contains("nobody reads it"),
            "{text}"
        );
    }
}
