//! Which mutants to try: seeded, and spread evenly over ops and kinds, since unrolled code and templates repeat one place
//! many times.

use super::sites::{self, Kind, Mutant};
use crate::ptx::text;
use std::collections::{BTreeMap, HashSet};

/// The committed PTX of one op for one target.
#[derive(Clone, Debug)]
pub struct Text {
    pub op: String,
    /// `sm80` or `sm89`.
    pub target: &'static str,
    pub ptx: String,
}

/// A mutant and the text it is of, by index.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub text: usize,
    pub mutant: Mutant,
}

/// `count` mutants of these texts, or all there are. The same seed gives the same ones.
pub fn choose(texts: &[Text], count: usize, seed: u64) -> Vec<Chosen> {
    let mut random = Random(seed);
    let mut groups: BTreeMap<(String, Kind), Vec<Chosen>> = BTreeMap::new();
    for (i, own) in texts.iter().enumerate() {
        let repeated = repeated(&texts[..i], own);
        for mutant in sites::all(&own.ptx) {
            if !repeated.contains(&mutant.entry) {
                let group = (own.op.clone(), mutant.kind);
                groups.entry(group).or_default().push(Chosen { text: i, mutant });
            }
        }
    }
    let mut groups: Vec<Vec<Chosen>> = groups.into_values().collect();
    random.shuffle(&mut groups);
    for group in &mut groups {
        random.shuffle(group);
    }
    let mut chosen = Vec::new();
    while chosen.len() < count && !groups.is_empty() {
        groups.retain_mut(|group| {
            if chosen.len() < count {
                chosen.extend(group.pop());
            }
            !group.is_empty()
        });
    }
    chosen.sort_by(|a, b| (a.text, a.mutant.line, &a.mutant.after).cmp(&(b.text, b.mutant.line, &b.mutant.after)));
    chosen
}

/// The entries of a text whose code an earlier text of its op has too: for most kernels both targets are the same.
fn repeated(earlier: &[Text], own: &Text) -> HashSet<String> {
    let names = text::entries(&own.ptx).into_iter().map(|entry| entry.name);
    let earlier = || earlier.iter().filter(|other| other.op == own.op);
    names
        .filter(|name| {
            let body = text::body(&own.ptx, name);
            earlier().any(|other| text::body(&other.ptx, name) == body)
        })
        .collect()
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).expect("below a usize")
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, lines: &str) -> String {
        format!(".visible .entry {name}(\n)\n{{\n{lines}\tret;\n}}\n")
    }

    fn texts() -> Vec<Text> {
        let adds = "\tadd.rn.f32 %f1, %f2, %f3;\n".repeat(50);
        let shared = entry("f", &format!("{adds}\tbar.sync 0;\n"));
        let only = entry("g", "\tsub.s32 %r1, %r2, %r3;\n");
        let text = |op: &str, target, ptx| Text { op: op.to_owned(), target, ptx };
        vec![text("a", "sm80", shared.clone()), text("a", "sm89", format!("{shared}{only}")), text("b", "sm80", only)]
    }

    #[test]
    fn the_seed_decides_and_rare_kinds_are_not_lost() {
        let key = |chosen: &Chosen| (chosen.text, chosen.mutant.line, chosen.mutant.after.clone());
        let keys = |count, seed| choose(&texts(), count, seed).iter().map(key).collect::<Vec<_>>();
        assert_eq!(keys(9, 1), keys(9, 1));
        assert_ne!(keys(9, 1), keys(9, 2));
        for seed in 0..5 {
            let chosen = choose(&texts(), 9, seed);
            assert_eq!(chosen.len(), 9);
            assert!(
                chosen.iter().any(|c| c.mutant.kind == Kind::Barrier),
                "one barrier among a hundred sums: {chosen:?}"
            );
            assert!(chosen.iter().any(|c| texts()[c.text].op == "b"), "{chosen:?}");
        }
    }

    #[test]
    fn code_that_both_targets_share_counts_once() {
        let all = choose(&texts(), usize::MAX, 0);
        let of = |text, entry: &str| all.iter().filter(|c| c.text == text && c.mutant.entry == entry).count();
        // A rounding and an operation for each sum, the barrier; an order and an operation for the difference.
        assert_eq!((of(0, "f"), of(1, "f"), of(1, "g"), of(2, "g")), (101, 0, 2, 2));
    }
}
