//! PTX as text: its entries, and whether two texts are the same instructions under other names of registers.

use std::collections::HashMap;

/// A line without its comment and outer spaces.
pub fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim()
}

/// What an entry states about itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Threads of a block at most, if bounded.
    pub threads: Option<u32>,
    /// Whether it uses shared memory whose size the launch gives.
    pub dynamic_shared: bool,
}

/// The entries in their order.
pub fn entries(ptx: &str) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    for line in ptx.lines().map(code) {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            let name = rest.trim_end_matches('(').to_owned();
            found.push(Entry { name, threads: None, dynamic_shared: false });
        } else if let Some(entry) = found.last_mut() {
            if let Some(rest) = line.strip_prefix(".maxntid ") {
                // x, y, z; leeway's blocks are one-dimensional, so the product is x.
                entry.threads = rest.split(',').map(|n| n.trim().parse::<u32>().ok()).product();
            }
            entry.dynamic_shared |= words(line).any(|(word, is_name)| is_name && word == "smem");
        }
    }
    found
}

/// The instructions of one entry, under names of registers and labels that do not depend on its surroundings.
pub fn body(ptx: &str, name: &str) -> Option<Vec<String>> {
    let start = ptx.find(&format!(".visible .entry {name}("))?;
    let end = ptx[start + 1..].find(".visible .entry ").map_or(ptx.len(), |at| start + 1 + at);
    Some(canonical(&ptx[start..end]))
}

/// Splits a line into names (`%r12`, `$L__BB0_3`, `smem`, opcodes) and what stands between them.
fn words(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut rest = line;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_name = in_name(first);
        let end = rest.find(|c| in_name(c) != is_name).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        Some((word, is_name))
    })
}

/// The instructions, one a line, with registers and labels numbered by first appearance in their entry. Declarations of
/// registers go, since they only count names.
fn canonical(ptx: &str) -> Vec<String> {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut lines = Vec::new();
    for line in ptx.lines().map(code).filter(|line| !line.is_empty() && !line.starts_with(".reg ")) {
        if line.starts_with(".visible .entry ") {
            names.clear();
        }
        let mut out = String::new();
        for (word, is_name) in words(line) {
            let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
            let numbered = stem.len() < word.len();
            if is_name && (word.starts_with("$L") || numbered && word.starts_with('%')) {
                let kind = if word.starts_with("$L") { "$L" } else { stem };
                let fresh = format!("{kind}#{}", names.len());
                out.push_str(names.entry(word.to_owned()).or_insert(fresh));
            } else {
                out.push_str(word);
            }
        }
        // Spaces and tabs are layout.
        lines.push(out.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    lines
}

/// The first instruction in which two texts differ other than by names of registers and labels, if there is one.
pub fn first_difference(a: &str, b: &str) -> Option<(String, String)> {
    let (a, b) = (canonical(a), canonical(b));
    let end = || "the end".to_owned();
    let first = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i))?;
    Some((a.get(first).cloned().unwrap_or_else(end), b.get(first).cloned().unwrap_or_else(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "
.version 8.0
.extern .shared .align 128 .b8 smem[];
.visible .entry f(
	.param .u64 f_param_0
)
.maxntid 256, 1, 1
{
	.reg .b32 	%r<4>;
	ld.param.u64 	%rd1, [f_param_0]; // a comment
	add.s32 	%r1, %r2, %r3;
$L__BB0_1:
	@%p1 bra 	$L__BB0_1;
	mov.u64 	%rd2, smem;
	ret;
}
.visible .entry g()
{
	ret;
}
";

    #[test]
    fn entries_say_threads_and_shared_memory() {
        let want = |name: &str, threads, dynamic_shared| Entry { name: name.to_owned(), threads, dynamic_shared };
        assert_eq!(entries(&ONE.replace("g()", "g(")), [want("f", Some(256), true), want("g", None, false)]);
    }

    #[test]
    fn an_entry_is_compared_by_itself() {
        let moved = ONE.replace(".version 8.0", ".version 8.4").replace("%r1,", "%r8,");
        assert_eq!(body(ONE, "f"), body(&moved, "f"));
        assert_ne!(body(ONE, "f"), body(&ONE.replace("add.s32", "sub.s32"), "f"));
        assert_eq!(body(ONE, "h"), None);
    }

    #[test]
    fn other_names_are_no_difference_and_other_operands_are() {
        let renamed = ONE.replace("%r1,", "%r9,").replace("$L__BB0_1", "$L__BB4_7").replace("%r<4>", "%r<10>");
        assert_eq!(first_difference(ONE, &renamed.replace('\t', "  ")), None);
        for (from, to) in
            [("%r2, %r3", "%r2, %r2"), ("add.s32", "sub.s32"), ("@%p1", "@!%p1"), ("	ret;\n}\n.v", "}\n.v")]
        {
            let other = ONE.replacen(from, to, 1);
            assert_ne!(ONE, other, "{from}");
            assert!(first_difference(ONE, &other).is_some(), "{from} became {to}");
        }
    }
}
