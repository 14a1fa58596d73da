//! 9.7.13.7 "atom" and 9.7.13.8 "red", on integers: the old value comes back and the combined one stays. `inc` and `dec`
//! wrap at the operand: old >= b ? 0 : old + 1, and old == 0 or old > b ? b : old - 1. `cas` stores its third operand
//! where the old value equals the second. Float additions depend on their order, and the executor must refuse them.

use crate::harness::Body;
use simt::Module;

/// One thread applies `op` to a word, so that old and new values are known exactly.
fn single(op: &str, class: &str, old: u64, operands: &str, want: u64) {
    let (registers, size) = if class == "b64" { ("%q", 64) } else { ("%r", 32) };
    for space in ["global", "shared", "generic"] {
        let op = match space {
            "generic" => op.replace(".global", ""),
            other => op.replace("global", other),
        };
        let place = match space {
            "shared" => "\tmov.u64 %q30, smem;\n",
            _ => "\tadd.s64 %q30, %out, 16;\n",
        };
        let plain = if space == "shared" { "shared" } else { "global" };
        let text = format!(
            "{place}\tmov.u{size} {registers}10, {old};\n\tst.{plain}.u{size} [%q30], {registers}10;\n\
             \t{op} {registers}11, [%q30], {operands};\n\tld.{plain}.u{size} {registers}12, [%q30];\n\
             \tst.global.u{size} [%out], {registers}11;\n\tst.global.u{size} [%out+8], {registers}12;\n"
        );
        let body = Body::new(&text, &[0], 6).threads(1).shared(16);
        if !body.known(&op) {
            assert!(!REQUIRED.contains(&op.as_str()), "{op} must be known");
            continue;
        }
        let got = body.run();
        let value =
            |at: usize| if size == 64 { u64::from(got[at + 1]) << 32 | u64::from(got[at]) } else { u64::from(got[at]) };
        assert_eq!((value(0), value(2)), (old, want), "{op}, {old:#x}, {operands}: the old value, then the new one");
    }
}

/// What kernels use or may use at any time.
const REQUIRED: [&str; 6] = [
    "atom.global.add.u32",
    "atom.global.add.u64",
    "atom.global.max.u32",
    "atom.global.cas.b32",
    "atom.global.exch.b32",
    "atom.shared.add.u32",
];

#[test]
fn one_thread() {
    let top = u64::from(u32::MAX);
    single("atom.global.add.u32", "b32", 5, "7", 12);
    single("atom.global.add.u32", "b32", top, "3", 2);
    single("atom.global.add.s32", "b32", 5, "-7", 0xffff_fffe);
    single("atom.global.min.u32", "b32", 5, "0xffffffff", 5);
    single("atom.global.max.u32", "b32", 5, "0xffffffff", top);
    single("atom.global.min.s32", "b32", 5, "-1", top);
    single("atom.global.max.s32", "b32", 5, "-1", 5);
    single("atom.global.and.b32", "b32", 0xff0f, "0x0ff0", 0x0f00);
    single("atom.global.or.b32", "b32", 0xf000, "0x000f", 0xf00f);
    single("atom.global.xor.b32", "b32", 0xff00, "0x0ff0", 0xf0f0);
    single("atom.global.exch.b32", "b32", 5, "9", 9);
    single("atom.global.cas.b32", "b32", 5, "5, 9", 9);
    single("atom.global.cas.b32", "b32", 5, "6, 9", 5);
    single("atom.global.inc.u32", "b32", 5, "7", 6);
    single("atom.global.inc.u32", "b32", 7, "7", 0);
    single("atom.global.dec.u32", "b32", 5, "7", 4);
    single("atom.global.dec.u32", "b32", 0, "7", 7);
    single("atom.global.dec.u32", "b32", 9, "7", 7);
    let big = 0x1_0000_0000;
    single("atom.global.add.u64", "b64", big - 1, "1", big);
    single("atom.global.add.u64", "b64", u64::MAX, "2", 1);
    single("atom.global.min.u64", "b64", big, "7", 7);
    single("atom.global.max.u64", "b64", big, "7", big);
    single("atom.global.max.s64", "b64", big, "-1", big);
    single("atom.global.and.b64", "b64", 0xff << 32 | 1, "0x0f00000001", 0x0f << 32 | 1);
    single("atom.global.or.b64", "b64", big, "1", big + 1);
    single("atom.global.xor.b64", "b64", big + 1, "1", big);
    single("atom.global.exch.b64", "b64", big, "9", 9);
    single("atom.global.cas.b64", "b64", big, "0x100000000, 5", 5);
    single("atom.global.cas.b64", "b64", big, "0, 5", big);
}

#[test]
fn reductions_return_nothing() {
    for (op, class, want) in [
        ("red.global.add.u32", "u32", 96 * 3),
        ("red.global.add.u64", "u64", 96 * 3),
        ("red.global.max.u32", "u32", 3),
        ("red.global.or.b32", "u32", 3),
        ("red.global.max.s32", "u32", 3),
        ("red.global.add.s32", "u32", 96 * 3),
    ] {
        let register = if class == "u64" { "%q10" } else { "%r10" };
        let text = format!(
            "\tld.param.u64 %q20, [kernel_out];\n\tmov.{class} {register}, 0;\n\tsetp.ne.s32 %p1, %t, 0;\n\
             \t@!%p1 st.global.{class} [%q20], {register};\n\tbar.sync 0;\n\tmov.{class} {register}, 3;\n\t{op} [%q20], {register};\n"
        );
        let body = Body::new(&text, &[0], 2).threads(96);
        if body.known(op) {
            assert_eq!(body.run()[0], want, "{op}");
        }
    }
}

#[test]
fn reductions_in_shared_memory() {
    for (op, want) in [
        ("red.shared.or.b32", u32::MAX),
        ("red.shared.and.b32", 0),
        ("red.shared.xor.b32", u32::MAX),
        ("red.shared.add.u32", u32::MAX),
        ("red.shared.max.u32", 1 << 31),
        ("red.shared.min.u32", 0),
    ] {
        // Lane i brings bit i.
        let text = format!(
            "\tmov.u64 %q1, smem;\n\tmov.u32 %r10, 0;\n\tsetp.ne.s32 %p1, %t, 0;\n\t@!%p1 st.shared.u32 [%q1+4], %r10;\n\tbar.sync 0;\n\
             \tmov.u32 %r11, 1;\n\tshl.b32 %r12, %r11, %l;\n\t{op} [%q1+4], %r12;\n\tbar.sync 0;\n\tld.shared.u32 %r13, [%q1+4];\n\
             \tst.global.u32 [%out], %r13;\n"
        );
        let body = Body::new(&text, &[0], 1).shared(16);
        if op == "red.shared.or.b32" || body.known(op) {
            body.expect(|_| vec![want]);
        }
    }
}

#[test]
fn all_threads_at_one_word() {
    // Each thread gets another old value, whatever the order.
    let text = "\tsetp.ne.s32 %p1, %r2, 0;\n\tmov.u32 %r10, 0;\n\tmov.u64 %q1, smem;\n\t@!%p1 st.shared.u32 [%q1], %r10;\n\tbar.sync 0;\n\
                \tatom.shared.add.u32 %r11, [%q1], 2;\n\tst.global.u32 [%out], %r11;\n";
    let body = Body::new(text, &[0], 1).threads(128).shared(16);
    let sorted = |mut values: Vec<u32>| {
        values.sort_unstable();
        values
    };
    // The order may differ by schedule, so each mode is looked at alone.
    for got in body.run_each() {
        assert_eq!(sorted(got), (0..128).map(|i| 2 * i).collect::<Vec<_>>());
    }
    // A lock by compare and swap would spin; a maximum needs no order.
    let text = "\tld.param.u64 %q20, [kernel_in];\n\tmul.lo.s32 %r10, %t, 77;\n\trem.u32 %r11, %r10, 101;\n\
                \tatom.global.max.u32 %r12, [%q20], %r11;\n\tbar.sync 0;\n\tld.global.u32 %r13, [%q20];\n\tst.global.u32 [%out], %r13;\n";
    Body::new(text, &[0], 1).threads(128).expect(|_| vec![100]);
    // Under a guard only those lanes count.
    let text = "\tld.param.u64 %q20, [kernel_in];\n\tand.b32 %r10, %t, 3;\n\tsetp.eq.s32 %p1, %r10, 1;\n\
                \t@%p1 atom.global.add.u32 %r11, [%q20], 1;\n\tbar.sync 0;\n\tld.global.u32 %r12, [%q20];\n\tst.global.u32 [%out], %r12;\n";
    Body::new(text, &[0], 1).threads(64).expect(|_| vec![16]);
}

#[test]
fn float_atomics_are_refused_by_name() {
    for op in [
        "atom.global.add.f32 %f1, [%in], %f0",
        "red.global.add.f32 [%in], %f0",
        "atom.shared.add.f32 %f1, [smem], %f0",
        "atom.add.f32 %f1, [%in], %f0",
        "atom.global.add.f64 %g1, [%in], %g0",
        "red.global.add.f64 [%in], %g0",
        "red.global.add.noftz.f16x2 [%in], %r10",
        "atom.global.add.noftz.bf16x2 %r11, [%in], %r10",
    ] {
        let text = format!("\t{op};\n");
        let body = Body::new(&text, &[0], 1);
        let error = Module::load(&body.source()).err().unwrap_or_else(|| panic!("{op} was loaded")).to_string();
        let spelling = op.split(' ').next().expect("a spelling");
        assert!(error.contains(spelling), "{spelling} is not named: {error}");
        assert!(error.contains(&body.line_of(op).to_string()), "{spelling}'s line is not named: {error}");
    }
}
