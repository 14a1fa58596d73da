//! Every instruction that a committed kernel uses has a test in this directory.
//!
//! A spelling (an instruction with all its qualifiers) counts as covered where it stands in the text of a test file, or
//! where a file builds it and lists it. So a kernel that uses a new one fails here until someone writes its test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files whose tables and texts count. The harness itself is no test, and refused instructions are none either.
const TESTS: &[&str] = &[
    include_str!("approx.rs"),
    include_str!("atomics.rs"),
    include_str!("barriers.rs"),
    include_str!("bits.rs"),
    include_str!("control.rs"),
    include_str!("convert.rs"),
    include_str!("cp_async.rs"),
    include_str!("floats.rs"),
    include_str!("halves.rs"),
    include_str!("integers.rs"),
    include_str!("ldmatrix.rs"),
    include_str!("memory.rs"),
    include_str!("mma.rs"),
    include_str!("params.rs"),
    include_str!("predicates.rs"),
    include_str!("shuffle.rs"),
    include_str!("small_floats.rs"),
    include_str!("special.rs"),
    include_str!("vote.rs"),
];

fn in_spelling(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == ':'
}

/// All words of a test's text that look like an instruction. Comments do not count.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    // The text of a kernel stands in string literals, where a tab is written as two characters.
    code.flat_map(|line| line.split("\\t"))
        .flat_map(|part| part.split("\\n"))
        .flat_map(|part| part.split(|c| !in_spelling(c)))
}

/// The instructions of a PTX text, each with the first line it stands on.
fn instructions(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default();
        for statement in line.split(';') {
            // A brace at the start of a statement opens or closes a scope; one within it is a vector's.
            let mut statement = statement.trim_start_matches(|c: char| c.is_whitespace() || c == '{' || c == '}');
            if statement.starts_with('@') {
                statement = statement.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
            }
            let spelling: String = statement.chars().take_while(|&c| in_spelling(c)).collect();
            if spelling.starts_with(|c: char| c.is_ascii_lowercase()) && !spelling.ends_with(':') {
                found.entry(spelling).or_insert(number + 1);
            }
        }
    }
    found
}

fn committed_ptx() -> Vec<(String, String)> {
    let ops = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/ops");
    let mut texts = Vec::new();
    for op in fs::read_dir(&ops).expect("the folder of ops") {
        let op = op.expect("an entry of it").path();
        for file in fs::read_dir(&op).into_iter().flatten() {
            let file = file.expect("a file of an op").path();
            if file.extension().is_some_and(|extension| extension == "ptx") {
                let name = file.file_name().expect("a name").to_string_lossy().into_owned();
                texts.push((name, fs::read_to_string(&file).expect("a text")));
            }
        }
    }
    assert!(!texts.is_empty(), "no PTX was found in {}", ops.display());
    texts.sort();
    texts
}

#[test]
fn every_instruction_of_the_kernels_has_a_test() {
    let generated: Vec<String> = [crate::convert::generated(), crate::memory::generated()].concat();
    let mut missing = BTreeMap::new();
    let covered: BTreeSet<&str> =
        TESTS.iter().flat_map(|text| words(text)).chain(generated.iter().map(String::as_str)).collect();
    for (file, text) in committed_ptx() {
        for (spelling, line) in instructions(&text) {
            if !covered.contains(spelling.as_str()) {
                missing.entry(spelling).or_insert(format!("{file}:{line}"));
            }
        }
    }
    let list: Vec<String> = missing.iter().map(|(spelling, place)| format!("{spelling} ({place})")).collect();
    assert!(list.is_empty(), "instructions of kernels without a test:\n{}", list.join("\n"));
}

#[test]
fn every_kernel_is_loaded() {
    for (file, text) in committed_ptx() {
        let module = simt::Module::load(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(module.entries().next().is_some(), "{file} has no kernel");
    }
}

#[test]
fn spellings_are_found() {
    let text = "$L__BB0_1:                              // loop\n\t@%p1 bra \t$L__BB0_2;\n\t// begin inline asm\n\
                \t{ .reg .pred p; setp.ne.u32 p, %r1, 0; vote.sync.ballot.b32 %r2, p, 0xffffffff; }\n\
                \tcp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;\n\t.reg .b32 %r<3>;\n\t{ .reg .b16 tmp; mov.b32 {tmp, %h1}, %r2; }\n\tmov.b64 {%r1, %r2}, %rd1;\n\tret;\n";
    let found: Vec<String> = instructions(text).into_keys().collect();
    let want = [
        "bra",
        "cp.async.cg.shared.global.L2::128B",
        "mov.b32",
        "mov.b64",
        "ret",
        "setp.ne.u32",
        "vote.sync.ballot.b32",
    ];
    assert_eq!(found, want);
    assert!(words("\"\\tadd.s32 %r1\\n\\tsub.s32\"").any(|word| word == "sub.s32"));
}
