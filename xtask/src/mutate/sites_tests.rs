//! Every kind of mutant from one line each, and what is left alone.

use super::*;

fn mutants(line: &str) -> Vec<(Kind, String)> {
    let ptx = format!(".visible .entry f(\n)\n{{\n\t{line}\n\tret;\n}}\n");
    let found = all(&ptx);
    assert!(found.iter().all(|m| m.entry == "f" && m.line == 4 && m.before == line), "{found:?}");
    for mutant in &found {
        let changed = mutant.apply(&ptx);
        let differing: Vec<_> = ptx.lines().zip(changed.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!((changed.lines().count(), differing.len()), (ptx.lines().count(), 1), "{mutant:?}");
    }
    found.into_iter().map(|mutant| (mutant.kind, mutant.after)).collect()
}

#[test]
fn each_line_gives_its_mutants() {
    use Kind::{Barrier, Bound, Compare, Fragment, Guard, Index, Operation, Order, Rounding};
    let cases: &[(&str, &[(Kind, &str)])] = &[
        ("bar.sync 0;", &[(Barrier, "")]),
        ("bar.warp.sync 0xffffffff;", &[(Barrier, "")]),
        ("cp.async.wait_group 1;", &[(Barrier, ""), (Barrier, "cp.async.wait_group 2;")]),
        (
            "ld.shared.f32 %f1, [%rd1+8];",
            &[(Index, "ld.shared.f32 %f1, [%rd1+12];"), (Index, "ld.shared.f32 %f1, [%rd1+4];")],
        ),
        (
            "st.global.v2.u32 [%rd1], {%r1, %r2};",
            &[
                (Index, "st.global.v2.u32 [%rd1+8], {%r1, %r2};"),
                (Index, "st.global.v2.u32 [%rd1+-8], {%r1, %r2};"),
                (Fragment, "st.global.v2.u32 [%rd1], {%r2, %r1};"),
            ],
        ),
        (
            "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
            &[
                (Index, "cp.async.cg.shared.global [%r1+16], [%rd1], 16, %r2;"),
                (Index, "cp.async.cg.shared.global [%r1+-16], [%rd1], 16, %r2;"),
                (Index, "cp.async.cg.shared.global [%r1], [%rd1+16], 16, %r2;"),
                (Index, "cp.async.cg.shared.global [%r1], [%rd1+-16], 16, %r2;"),
            ],
        ),
        ("shl.b32 %r1, %r2, 8;", &[(Index, "shl.b32 %r1, %r2, 9;"), (Index, "shl.b32 %r1, %r2, 7;")]),
        ("mov.b32 %r1, 16;", &[(Index, "mov.b32 %r1, 17;")]),
        ("mul.wide.u32 %rd1, %r1, 4;", &[(Index, "mul.wide.u32 %rd1, %r1, 8;")]),
        (
            "setp.lt.u32 %p1, %r1, 64;",
            &[
                (Bound, "setp.lt.u32 %p1, %r1, 128;"),
                (Bound, "setp.lt.u32 %p1, %r1, 0;"),
                (Compare, "setp.le.u32 %p1, %r1, 64;"),
            ],
        ),
        (
            "setp.eq.s32 %p1, %r1, 3;",
            &[
                (Bound, "setp.eq.s32 %p1, %r1, 4;"),
                (Bound, "setp.eq.s32 %p1, %r1, 2;"),
                (Compare, "setp.ne.s32 %p1, %r1, 3;"),
            ],
        ),
        ("cvt.rn.bf16x2.f32 %r1, %f1, %f2;", &[(Rounding, "cvt.rz.bf16x2.f32 %r1, %f1, %f2;")]),
        ("setp.gt.f32 %p1, %f1, %f2;", &[(Compare, "setp.lt.f32 %p1, %f1, %f2;")]),
        ("setp.nan.f32 %p1, %f1, %f2;", &[(Compare, "setp.num.f32 %p1, %f1, %f2;")]),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2}, {%r1,%r1}, {%r3,%r4}, {%f1,%f2};",
            &[
                (
                    Fragment,
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2, %f1}, {%r1,%r1}, {%r3,%r4}, {%f1,%f2};",
                ),
                (
                    Fragment,
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2}, {%r1,%r1}, {%r4, %r3}, {%f1,%f2};",
                ),
                (
                    Fragment,
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2}, {%r1,%r1}, {%r3,%r4}, {%f2, %f1};",
                ),
            ],
        ),
        ("sub.s32 %r1, %r2, %r3;", &[(Order, "sub.s32 %r1, %r3, %r2;"), (Operation, "add.s32 %r1, %r2, %r3;")]),
        ("selp.b32 %r1, %r2, %r3, %p1;", &[(Order, "selp.b32 %r1, %r3, %r2, %p1;")]),
        ("shl.b32 %r1, %r2, %r3;", &[(Order, "shl.b32 %r1, %r3, %r2;")]),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", &[(Rounding, "fma.rz.f32 %f1, %f2, %f3, %f4;")]),
        ("cvt.rni.s32.f32 %r1, %f1;", &[(Rounding, "cvt.rzi.s32.f32 %r1, %f1;")]),
        (
            "add.rn.f32 %f1, %f2, %f3;",
            &[(Rounding, "add.rz.f32 %f1, %f2, %f3;"), (Operation, "sub.rn.f32 %f1, %f2, %f3;")],
        ),
        ("max.f32 %f1, %f2, %f3;", &[(Operation, "min.f32 %f1, %f2, %f3;")]),
        ("@%p1 bra $L__BB0_2;", &[(Guard, "bra $L__BB0_2;"), (Guard, "@!%p1 bra $L__BB0_2;")]),
        ("@!%p1 bra $L__BB0_2;", &[(Guard, "bra $L__BB0_2;"), (Guard, "@%p1 bra $L__BB0_2;")]),
    ];
    for (line, want) in cases {
        let want: Vec<(Kind, String)> = want.iter().map(|(kind, after)| (*kind, (*after).to_owned())).collect();
        assert_eq!(mutants(line), want, "{line}");
    }
    let kinds: std::collections::BTreeSet<Kind> =
        cases.iter().flat_map(|(_, want)| want.iter().map(|(kind, _)| *kind)).collect();
    assert_eq!(kinds.len(), KINDS.len(), "every kind has a line: {kinds:?}");
}

#[test]
fn what_means_the_same_either_way_is_left_alone() {
    for line in [
        "ld.param.u64 %rd1, [f_param_0];",
        "cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;",
        "cvt.rn.f32.u32 %f1, %r1;",
        "fma.rn.bf16x2 %r1, %r2, %r3, %r4;",
        "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;",
        "selp.b32 %r1, %r2, %r2, %p1;",
        "mov.b32 %r1, 1065353216;",
        "ret;",
    ] {
        assert_eq!(mutants(line), [], "{line}");
    }
}
