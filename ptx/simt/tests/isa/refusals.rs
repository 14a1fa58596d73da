//! What the executor does not know it must refuse when the module is loaded, by name and line: an instruction passed over
//! in silence would be a wrong result.

use crate::harness::Body;
use simt::Module;

/// The message for a body with `line` in it, which must name `what` and the line.
fn refused(line: &str, what: &str) {
    let text = format!("\tmov.u32 %r10, 1;\n\t{line}\n\tst.global.u32 [%out], %r10;\n");
    let body = Body::new(&text, &[0], 1);
    let error = Module::load(&body.source()).err().unwrap_or_else(|| panic!("{line} was loaded")).to_string();
    assert!(error.contains(what), "{what} is not named: {error}");
    let number = body.line_of(line).to_string();
    assert!(error.contains(&number), "line {number} is not named: {error}");
}

#[test]
fn unknown_instructions() {
    refused("frobnicate.u32 %r10, %r10;", "frobnicate.u32");
    refused("add.weird.s32 %r10, %r10, %r10;", "add.weird.s32");
    refused("@%p1 mul.sideways.s32 %r10, %r10, %r10;", "mul.sideways.s32");
    // Instructions of PTX that no kernel may use here.
    refused("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned");
    refused("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [tex_a, {%r10}];", "tex.1d.v4.f32.s32");
    refused("add.e8m0.s32 %r10, %r10, %r10;", "add.e8m0.s32");
}

#[test]
fn calls() {
    refused("call.uni helper, (%r10);", "call");
    let source = "//\n.version 8.4\n.target sm_89\n.address_size 64\n.func (.param .b32 result) helper(.param .b32 x)\n{\n\tret;\n}\n";
    let Err(error) = Module::load(source) else { panic!("a function was loaded") };
    let error = error.to_string();
    assert!(error.contains('5') && error.contains("func"), "the function's line is not named: {error}");
}

#[test]
fn names_that_nothing_declares() {
    refused("add.s32 %r10, %r10, %nowhere;", "%nowhere");
    refused("bra NOWHERE;", "NOWHERE");
    refused("mov.u32 %r10, nothing;", "nothing");
    refused("ld.param.u32 %r10, [no_parameter];", "no_parameter");
    // Numbered registers end where their declaration says.
    refused("mov.u32 %r10, %r96;", "%r96");
}

#[test]
fn operands_of_another_kind() {
    // 9.4.1: but for loads, stores and conversions, an operand is as wide as the instruction's type.
    refused("add.s32 %r10, %r10, %q1;", "add.s32");
    refused("add.s64 %q1, %q1, %r10;", "add.s64");
    refused("add.s32 %r10, %r10;", "add.s32");
    refused("add.s32 %p1, %r10, %r10;", "add.s32");
    refused("setp.lt.s32 %r10, %r10, %r10;", "setp.lt.s32");
    refused("selp.b32 %r10, %r10, %r10, %r10;", "selp.b32");
}

#[test]
fn text_that_ends_too_early() {
    let text = "\tmov.u32 %r10, 1;\n\tst.global.u32 [%out], %r10;\n";
    let source = Body::new(text, &[0], 1).source();
    assert!(Module::load(&source).is_ok());
    let cut = source.trim_end().trim_end_matches('}');
    assert!(Module::load(cut).is_err(), "a body without its end was loaded");
    assert!(Module::load(&source.replace("[%out], %r10;", "[%out, %r10;")).is_err());
    assert!(Module::load("").is_err() || Module::load("").is_ok_and(|module| module.entries().next().is_none()));
}

#[test]
fn all_entries_are_listed() {
    let one = ".visible .entry one()\n{\n\tret;\n}\n.visible .entry two(.param .u32 two_x)\n{\n\tret;\n}\n";
    let module = Module::load(&format!(".version 8.4\n.target sm_89\n.address_size 64\n{one}")).expect("two entries");
    let names: Vec<_> = module.entries().map(|entry| entry.name().to_string()).collect();
    assert_eq!(names, ["one", "two"]);
    assert!(module.entry("three").is_none());
    assert_eq!(module.entry("two").expect("an entry").param_bytes(), 4);
}
