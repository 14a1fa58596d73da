//! Predicates: 9.7.6 and 9.7.7 "Comparison and Selection Instructions" (setp, selp, slct), 9.3 "Predicated Execution",
//! and the predicate forms of 9.7.8 (and, or, xor, not) and of mov.
//!
//! Unsigned types compare by lt, le, gt, ge (or lo, ls, hi, hs), bit types by eq and ne alone. For floats each of eq, ne,
//! lt, le, gt, ge is false where an operand is NaN; with `u` each is true there. num is true for two numbers, nan where
//! an operand is NaN. A second destination gets the complement, before the Boolean with a third operand in both.

use crate::harness::{W, check, known};
use crate::values::{edges16, edges32, edges64, f32_of, floats32, floats64, flush, pairs};
use W::{B16, B32, B64, P};

fn compared(name: &str, order: Option<std::cmp::Ordering>) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match (name, order) {
        ("num", order) => order.is_some(),
        ("nan", order) => order.is_none(),
        (name, None) => name.len() == 3,
        (name, Some(order)) => match &name[..2] {
            "eq" => order == Equal,
            "ne" => order != Equal,
            "lt" | "lo" => order == Less,
            "le" | "ls" => order != Greater,
            "gt" | "hi" => order == Greater,
            "ge" | "hs" => order != Less,
            other => panic!("no comparison {other}"),
        },
    }
}

/// The comparison in `op`: `setp.<this>.<type>`.
fn comparison(op: &str) -> &str {
    op.split('.').nth(1).expect("setp has a comparison")
}

fn compare_integers(ops: &[&str], class: W, values: &[u64], key: fn(u64) -> i128) {
    for op in ops {
        let rows: Vec<_> = pairs(values, values)
            .into_iter()
            .map(|[a, b]| ([a, b], u64::from(compared(comparison(op), Some(key(a).cmp(&key(b)))))))
            .collect();
        check(op, P, [class, class], &rows);
    }
}

#[test]
fn integers_compare_by_type() {
    let (v16, v32, v64) = (edges16(), edges32(), edges64());
    let plain = |x: u64| i128::from(x);
    compare_integers(
        &[
            "setp.eq.u32",
            "setp.ne.u32",
            "setp.lt.u32",
            "setp.le.u32",
            "setp.gt.u32",
            "setp.ge.u32",
            "setp.eq.b32",
            "setp.ne.b32",
        ],
        B32,
        &v32,
        plain,
    );
    compare_integers(
        &["setp.eq.s32", "setp.ne.s32", "setp.lt.s32", "setp.le.s32", "setp.gt.s32", "setp.ge.s32"],
        B32,
        &v32,
        |x| i128::from(x as i32),
    );
    compare_integers(
        &[
            "setp.eq.u64",
            "setp.ne.u64",
            "setp.lt.u64",
            "setp.le.u64",
            "setp.gt.u64",
            "setp.ge.u64",
            "setp.eq.b64",
            "setp.ne.b64",
        ],
        B64,
        &v64,
        plain,
    );
    compare_integers(
        &["setp.eq.s64", "setp.ne.s64", "setp.lt.s64", "setp.le.s64", "setp.gt.s64", "setp.ge.s64"],
        B64,
        &v64,
        |x| i128::from(x as i64),
    );
    compare_integers(
        &[
            "setp.eq.u16",
            "setp.ne.u16",
            "setp.lt.u16",
            "setp.le.u16",
            "setp.gt.u16",
            "setp.ge.u16",
            "setp.eq.b16",
            "setp.ne.b16",
        ],
        B16,
        &v16,
        plain,
    );
    compare_integers(
        &["setp.eq.s16", "setp.ne.s16", "setp.lt.s16", "setp.le.s16", "setp.gt.s16", "setp.ge.s16"],
        B16,
        &v16,
        |x| i128::from(x as i16),
    );
    for op in ["setp.lo.u32", "setp.ls.u32", "setp.hi.u32", "setp.hs.u32"] {
        if known(op, P, [B32, B32]) {
            compare_integers(&[op], B32, &v32, plain);
        }
    }
}

#[test]
fn floats_compare_ordered_and_unordered() {
    let values = floats32();
    let rows = |op: &str, flushed: bool| -> Vec<_> {
        let key = |x: u64| if flushed { flush(f32_of(x)) } else { f32_of(x) };
        let result = |a, b| compared(comparison(op), key(a).partial_cmp(&key(b)));
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], u64::from(result(a, b)))).collect()
    };
    for op in [
        "setp.eq.f32",
        "setp.ne.f32",
        "setp.lt.f32",
        "setp.le.f32",
        "setp.gt.f32",
        "setp.ge.f32",
        "setp.equ.f32",
        "setp.neu.f32",
        "setp.ltu.f32",
        "setp.leu.f32",
        "setp.gtu.f32",
        "setp.geu.f32",
        "setp.num.f32",
        "setp.nan.f32",
    ] {
        check(op, P, [B32, B32], &rows(op, false));
    }
    for op in ["setp.eq.ftz.f32", "setp.lt.ftz.f32", "setp.gt.ftz.f32", "setp.neu.ftz.f32"] {
        if known(op, P, [B32, B32]) {
            check(op, P, [B32, B32], &rows(op, true));
        }
    }
    let values = floats64();
    for op in [
        "setp.eq.f64",
        "setp.ne.f64",
        "setp.lt.f64",
        "setp.le.f64",
        "setp.gt.f64",
        "setp.ge.f64",
        "setp.equ.f64",
        "setp.neu.f64",
        "setp.ltu.f64",
        "setp.leu.f64",
        "setp.gtu.f64",
        "setp.geu.f64",
        "setp.num.f64",
        "setp.nan.f64",
    ] {
        let result = |a, b| compared(comparison(op), f64::from_bits(a).partial_cmp(&f64::from_bits(b)));
        let rows: Vec<_> =
            pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], u64::from(result(a, b)))).collect();
        check(op, P, [B64, B64], &rows);
    }
}

#[test]
fn comparisons_with_constants() {
    // 4.5.2 "Floating-Point Constants": 0f and 0d followed by the bits in hexadecimal.
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], u64::from(f32_of(a) > 1.0))).collect();
    check("setp.gt.f32 %d, %a, 0f3F800000", P, [B32], &rows);
    let rows: Vec<_> = floats64().into_iter().map(|a| ([a], u64::from(f64::from_bits(a) < -0.5))).collect();
    check("setp.lt.f64 %d, %a, 0dBFE0000000000000", P, [B64], &rows);
    let rows: Vec<_> = edges32().into_iter().map(|a| ([a], u64::from(a as i32 > -1))).collect();
    check("setp.gt.s32 %d, %a, -1", P, [B32], &rows);
    let rows: Vec<_> = edges64().into_iter().map(|a| ([a], u64::from(a as i64 > -1))).collect();
    check("setp.gt.s64 %d, %a, -1", P, [B64], &rows);
    let rows: Vec<_> = edges16().into_iter().map(|a| ([a], u64::from(a as i16 == -128))).collect();
    check("setp.eq.s16 %d, %a, -128", P, [B16], &rows);
}

#[test]
fn comparisons_joined_with_a_predicate() {
    let values = edges32();
    let rows = |f: fn(bool, bool) -> bool| -> Vec<_> {
        pairs(&values, &values)
            .into_iter()
            .flat_map(|[a, b]| [0, 1].map(|c| ([a, b, c], u64::from(f((a as i32) < b as i32, c == 1)))))
            .collect()
    };
    for (op, f) in [
        ("setp.lt.and.s32", (|t, c| t && c) as fn(bool, bool) -> bool),
        ("setp.lt.or.s32", |t, c| t || c),
        ("setp.lt.xor.s32", |t, c| t != c),
    ] {
        if known(op, P, [B32, B32, P]) {
            check(op, P, [B32, B32, P], &rows(f));
        }
    }
    let op = "setp.lt.and.s32 _|%d, %a, %b, %c";
    if known(op, P, [B32, B32, P]) {
        check(op, P, [B32, B32, P], &rows(|t, c| !t && c));
    }
}

#[test]
fn selection() {
    let both = |values: &[u64]| -> Vec<_> {
        pairs(values, values).into_iter().flat_map(|[a, b]| [([a, b, 0], b), ([a, b, 1], a)]).collect()
    };
    for op in ["selp.b32", "selp.u32", "selp.s32", "selp.f32"] {
        check(op, B32, [B32, B32, P], &both(&edges32()));
    }
    for op in ["selp.b64", "selp.u64", "selp.s64", "selp.f64"] {
        check(op, B64, [B64, B64, P], &both(&edges64()));
    }
    for op in ["selp.b16", "selp.u16", "selp.s16"] {
        check(op, B16, [B16, B16, P], &both(&edges16()));
    }
    check("selp.b32 %d, 1, 0, %a", B32, [P], &[([0], 0), ([1], 1)]);
    check("selp.u32 %d, 1, 0, %a", B32, [P], &[([0], 0), ([1], 1)]);
    check("selp.s32 %d, -1, 0, %a", B32, [P], &[([0], 0), ([1], 0xffff_ffff)]);
    check("selp.f32 %d, 0fFF800000, 0f3F800000, %a", B32, [P], &[([0], 0x3f80_0000), ([1], 0xff80_0000)]);
    check("selp.b64 %d, -1, 0, %a", B64, [P], &[([0], 0), ([1], u64::MAX)]);
    check("selp.b16 %d, -1, 7, %a", B16, [P], &[([0], 7), ([1], 0xffff)]);
    // By the sign of a third operand: zero counts as not negative; -0 likewise, NaN picks the second.
    if known("slct.b32.s32", B32, [B32; 3]) {
        let rows: Vec<_> = edges32().into_iter().map(|c| ([5, 6, c], if c as i32 >= 0 { 5 } else { 6 })).collect();
        check("slct.b32.s32", B32, [B32; 3], &rows);
    }
    if known("slct.f32.f32", B32, [B32; 3]) {
        let rows: Vec<_> = floats32().into_iter().map(|c| ([5, 6, c], if f32_of(c) >= 0.0 { 5 } else { 6 })).collect();
        check("slct.f32.f32", B32, [B32; 3], &rows);
    }
}

#[test]
fn logic_of_predicates() {
    let rows = |f: fn(u64, u64) -> u64| -> Vec<_> {
        [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter().map(|[a, b]| ([a, b], f(a, b))).collect()
    };
    check("and.pred", P, [P, P], &rows(|a, b| a & b));
    check("or.pred", P, [P, P], &rows(|a, b| a | b));
    check("xor.pred", P, [P, P], &rows(|a, b| a ^ b));
    check("not.pred", P, [P], &[([0], 1), ([1], 0)]);
    check("mov.pred", P, [P], &[([0], 0), ([1], 1)]);
    check("mov.pred %d, 0", P, [P], &[([0], 0), ([1], 0)]);
    check("mov.pred %d, -1", P, [P], &[([0], 1), ([1], 1)]);
}
