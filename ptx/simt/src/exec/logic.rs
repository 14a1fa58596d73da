//! Bits, shifts, predicates, comparisons, selections and moves.

use crate::exec::{Row, alu};

#[inline(always)]
fn table(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let mut out = 0;
    for i in 0..8 {
        let term =
            (if i & 4 != 0 { a } else { !a }) & (if i & 2 != 0 { b } else { !b }) & (if i & 1 != 0 { c } else { !c });
        out |= if lut >> i & 1 != 0 { term } else { 0 };
    }
    out
}

/// Comparisons of one integer type.
macro_rules! compare {
    ($out:ident, $t:ty, $names:tt: $($cmp:literal => |$a:ident, $b:ident| $f:expr;)+) => {
        $(compare! { @ $out, $t, $names, $cmp, |$a, $b| $f })+
    };
    (@ $out:ident, $t:ty, [$($ty:literal),+], $cmp:literal, |$a:ident, $b:ident| $f:expr) => {
        alu! { $out; Logic [$(concat!("setp.", $cmp, ".", $ty)),+] bool = |$a: $t, $b: $t| $f; }
    };
}

/// Comparisons of one float type, ordered and not.
macro_rules! float_compare {
    ($out:ident, $t:ty, [$($ty:literal),+], |$x:ident| $flush:expr) => {
        float_compare! { @ $out, $t, [$($ty),+], |$x| $flush;
            "eq" => |a, b| a == b;
            "ne" => |a, b| a < b || a > b;
            "lt" => |a, b| a < b;
            "le" => |a, b| a <= b;
            "gt" => |a, b| a > b;
            "ge" => |a, b| a >= b;
            "equ" => |a, b| !(a < b || a > b);
            "neu" => |a, b| a != b;
            "ltu" => |a, b| !(a >= b);
            "leu" => |a, b| !(a > b);
            "gtu" => |a, b| !(a <= b);
            "geu" => |a, b| !(a < b);
            "num" => |a, b| a == a && b == b;
            "nan" => |a, b| a != a || b != b;
        }
    };
    (@ $out:ident, $t:ty, $names:tt, |$x:ident| $flush:expr; $($cmp:literal => |$a:ident, $b:ident| $f:expr;)+) => {
        $(float_compare! { @@ $out, $t, $names, |$x| $flush; $cmp => |$a, $b| $f; })+
    };
    (@@ $out:ident, $t:ty, [$($ty:literal),+], |$x:ident| $flush:expr; $cmp:literal => |$a:ident, $b:ident| $f:expr;) => {
        alu! { $out; Logic [$(concat!("setp.", $cmp, ".", $ty)),+] bool = |a0: $t, b0: $t| {
            let $x = a0;
            let $a = $flush;
            let $x = b0;
            let $b = $flush;
            $f
        }; }
    };
}

/// The rows of this file.
#[allow(clippy::too_many_lines, clippy::eq_op, clippy::nonminimal_bool, clippy::neg_cmp_op_on_partial_ord)]
#[allow(clippy::double_comparisons)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    alu! { out;
        Logic ["and.b16"] u16 = |a: u16, b: u16| a & b;
        Logic ["or.b16"] u16 = |a: u16, b: u16| a | b;
        Logic ["xor.b16"] u16 = |a: u16, b: u16| a ^ b;
        Logic ["not.b16"] u16 = |a: u16| !a;
        Logic ["and.b32"] u32 = |a: u32, b: u32| a & b;
        Logic ["or.b32"] u32 = |a: u32, b: u32| a | b;
        Logic ["xor.b32"] u32 = |a: u32, b: u32| a ^ b;
        Logic ["not.b32"] u32 = |a: u32| !a;
        Logic ["cnot.b32"] u32 = |a: u32| u32::from(a == 0);
        Logic ["and.b64"] u64 = |a: u64, b: u64| a & b;
        Logic ["or.b64"] u64 = |a: u64, b: u64| a | b;
        Logic ["xor.b64"] u64 = |a: u64, b: u64| a ^ b;
        Logic ["not.b64"] u64 = |a: u64| !a;
        Logic ["lop3.b32"] u32 = |a: u32, b: u32, c: u32, lut: u32| table(a, b, c, lut);
        Logic ["shl.b16"] u16 = |a: u16, b: u32| if b > 15 { 0 } else { a << b };
        Logic ["shr.u16", "shr.b16"] u16 = |a: u16, b: u32| if b > 15 { 0 } else { a >> b };
        Logic ["shr.s16"] i16 = |a: i16, b: u32| a >> b.min(15);
        Logic ["shl.b32"] u32 = |a: u32, b: u32| if b > 31 { 0 } else { a << (b & 31) };
        Logic ["shr.u32", "shr.b32"] u32 = |a: u32, b: u32| if b > 31 { 0 } else { a >> (b & 31) };
        Logic ["shr.s32"] i32 = |a: i32, b: u32| a >> b.min(31);
        Logic ["shl.b64"] u64 = |a: u64, b: u32| if b > 63 { 0 } else { a << (b & 63) };
        Logic ["shr.u64", "shr.b64"] u64 = |a: u64, b: u32| if b > 63 { 0 } else { a >> (b & 63) };
        Logic ["shr.s64"] i64 = |a: i64, b: u32| a >> b.min(63);
        Logic ["selp.b16", "selp.u16", "selp.s16"] u16 = |a: u16, b: u16, p: bool| if p { a } else { b };
        Logic ["selp.b32", "selp.u32", "selp.s32"] u32 = |a: u32, b: u32, p: bool| if p { a } else { b };
        Logic ["selp.f32"] f32 = |a: f32, b: f32, p: bool| if p { a } else { b };
        Logic ["selp.b64", "selp.u64", "selp.s64"] u64 = |a: u64, b: u64, p: bool| if p { a } else { b };
        Logic ["selp.f64"] f64 = |a: f64, b: f64, p: bool| if p { a } else { b };
        Logic ["slct.b32.s32", "slct.u32.s32", "slct.s32.s32"] u32 = |a: u32, b: u32, c: i32| if c >= 0 { a } else { b };
        Logic ["slct.f32.s32"] f32 = |a: f32, b: f32, c: i32| if c >= 0 { a } else { b };
        Logic ["slct.b64.s32", "slct.u64.s32", "slct.s64.s32"] u64 = |a: u64, b: u64, c: i32| if c >= 0 { a } else { b };
        Logic ["slct.b32.f32", "slct.u32.f32", "slct.s32.f32"] u32 = |a: u32, b: u32, c: f32| if c >= 0.0 { a } else { b };
        Logic ["slct.f32.f32"] f32 = |a: f32, b: f32, c: f32| if c >= 0.0 { a } else { b };
        Move ["mov.b16", "mov.u16", "mov.s16"] u16 = |a: u16| a;
        Move ["mov.b32", "mov.u32", "mov.s32"] u32 = |a: u32| a;
        Move ["mov.f32"] f32 = |a: f32| a;
        Move ["mov.b64", "mov.u64", "mov.s64"] u64 = |a: u64| a;
        Move ["mov.f64"] f64 = |a: f64| a;
        Convert ["cvta.shared.u64"] u64 = |a: u64| a + crate::types::SHARED_WINDOW;
        Convert ["cvta.to.shared.u64"] u64 = |a: u64| a.wrapping_sub(crate::types::SHARED_WINDOW);
        Convert ["cvta.local.u64"] u64 = |a: u64| a + crate::types::LOCAL_WINDOW;
        Convert ["cvta.to.local.u64"] u64 = |a: u64| a.wrapping_sub(crate::types::LOCAL_WINDOW);
        Convert ["cvta.global.u64", "cvta.to.global.u64", "cvta.const.u64", "cvta.to.const.u64"] u64 = |a: u64| a;
        Convert ["isspacep.shared", "isspacep.shared::cta"] bool = |a: u64| a >> 32 == 1;
        Convert ["isspacep.local"] bool = |a: u64| a >> 32 == 2;
        Convert ["isspacep.global"] bool = |a: u64| a >= crate::types::GLOBAL_BASE;
        // The parts of a vector move; the decoder chooses them by the operands.
        Move ["mov.pack.2.16"] u32 = |a: u16, b: u16| u32::from(a) | u32::from(b) << 16;
        Move ["mov.pack.2.32"] u64 = |a: u32, b: u32| u64::from(a) | u64::from(b) << 32;
        Move ["mov.pack.4.8"] u32 = |a: u8, b: u8, c: u8, d: u8| u32::from_le_bytes([a, b, c, d]);
        Move ["mov.pack.2.8"] u16 = |a: u8, b: u8| u16::from_le_bytes([a, b]);
        Move ["mov.pack.4.16"] u64 = |a: u16, b: u16, c: u16, d: u16|
            u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48;
        Move ["mov.part.16.of.32"] u32 = |a: u32, at: u32| a >> at & 0xffff;
        Move ["mov.part.8.of.32"] u32 = |a: u32, at: u32| a >> at & 0xff;
        Move ["mov.part.16.of.64"] u32 = |a: u64, at: u32| crate::exec::value::low_word(a >> at) & 0xffff;
        Move ["mov.part.32.of.64"] u32 = |a: u64, at: u32| crate::exec::value::low_word(a >> at);
        // Registers wider than what a conversion or load gives them.
        Convert ["widen.u"] u64 = |a: u32| u64::from(a);
        Convert ["widen.s"] i64 = |a: i32| i64::from(a);
        Convert ["narrow"] u32 = |a: u64| crate::exec::value::low_word(a);
    }
    masks(out);
    compare! { out, u16, ["u16", "b16"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b; "lo" => |a, b| a < b; "ls" => |a, b| a <= b;
        "hi" => |a, b| a > b; "hs" => |a, b| a >= b;
    }
    compare! { out, i16, ["s16"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b;
    }
    compare! { out, u32, ["u32", "b32"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b; "lo" => |a, b| a < b; "ls" => |a, b| a <= b;
        "hi" => |a, b| a > b; "hs" => |a, b| a >= b;
    }
    compare! { out, i32, ["s32"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b;
    }
    compare! { out, u64, ["u64", "b64"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b; "lo" => |a, b| a < b; "ls" => |a, b| a <= b;
        "hi" => |a, b| a > b; "hs" => |a, b| a >= b;
    }
    compare! { out, i64, ["s64"]:
        "eq" => |a, b| a == b; "ne" => |a, b| a != b; "lt" => |a, b| a < b; "le" => |a, b| a <= b;
        "gt" => |a, b| a > b; "ge" => |a, b| a >= b;
    }
    float_compare! { out, f32, ["f32"], |x| x }
    float_compare! { out, f32, ["ftz.f32"], |x| crate::exec::float::flush(x) }
    float_compare! { out, f64, ["f64"], |x| x }
}

/// Predicates as masks of all lanes at once.
fn masks(out: &mut Vec<Row>) {
    use crate::counters::Class;
    use crate::exec::exec;
    use crate::exec::value::put_pred;
    use crate::types::Kind::Pred;

    macro_rules! mask_row {
        ([$($name:literal),+], $($src:ident),+ => $f:expr) => {
            out.push(Row {
                names: vec![$($name.to_string()),+],
                dst: vec![Pred],
                src: vec![$(mask_row!(@ $src)),+],
                count: Class::Logic,
                exec: mask_row!(@exec $f; $($src),+),
                together: false,
            });
        };
        (@ $x:ident) => { Pred };
        (@exec $f:expr; $a:ident) => {
            exec!(|w, _, op| {
                let f: fn(u32) -> u32 = $f;
                let bits = f(w.regs.preds[usize::from(op.r[1])]);
                put_pred(&mut w.regs, op.r[0], w.mask, bits);
                Step::Next
            })
        };
        (@exec $f:expr; $a:ident, $b:ident) => {
            exec!(|w, _, op| {
                let f: fn(u32, u32) -> u32 = $f;
                let bits = f(w.regs.preds[usize::from(op.r[1])], w.regs.preds[usize::from(op.r[2])]);
                put_pred(&mut w.regs, op.r[0], w.mask, bits);
                Step::Next
            })
        };
    }
    mask_row!(["and.pred"], a, b => |a, b| a & b);
    mask_row!(["or.pred"], a, b => |a, b| a | b);
    mask_row!(["xor.pred"], a, b => |a, b| a ^ b);
    mask_row!(["not.pred"], a => |a| !a);
    mask_row!(["mov.pred"], a => |a| a);
}
