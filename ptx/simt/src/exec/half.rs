//! Arithmetic of f16 and bf16, alone and in pairs, each result rounded once.

use crate::exec::float::{add_odd, max_number, min_number};
use crate::exec::formats::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd};
use crate::exec::value::low_half;
use crate::exec::{Row, alu};

/// A 16-bit float format.
trait Format {
    fn widen(code: u16) -> f32;
    fn narrow(x: f32) -> u16;
}

struct F16;
struct Bf16;

impl Format for F16 {
    #[inline(always)]
    fn widen(code: u16) -> f32 {
        f16_to_f32(code)
    }
    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        f32_to_f16(x)
    }
}

impl Format for Bf16 {
    #[inline(always)]
    fn widen(code: u16) -> f32 {
        bf16_to_f32(code)
    }
    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        f32_to_bf16(x)
    }
}

#[inline(always)]
fn add<T: Format>(a: u16, b: u16) -> u16 {
    T::narrow(f64_to_f32_odd(add_odd(f64::from(T::widen(a)), f64::from(T::widen(b)))))
}

#[inline(always)]
fn sub<T: Format>(a: u16, b: u16) -> u16 {
    T::narrow(f64_to_f32_odd(add_odd(f64::from(T::widen(a)), -f64::from(T::widen(b)))))
}

#[inline(always)]
fn mul<T: Format>(a: u16, b: u16) -> u16 {
    T::narrow(f64_to_f32_odd(f64::from(T::widen(a)) * f64::from(T::widen(b))))
}

#[inline(always)]
fn fma<T: Format>(a: u16, b: u16, c: u16) -> u16 {
    let product = f64::from(T::widen(a)) * f64::from(T::widen(b));
    T::narrow(f64_to_f32_odd(add_odd(product, f64::from(T::widen(c)))))
}

#[inline(always)]
fn relu<T: Format>(x: u16) -> u16 {
    let wide = T::widen(x);
    if wide > 0.0 || wide.is_nan() { x } else { 0 }
}

/// f16 products are exact in f32, where their rounding to f16 vectorises.
#[inline(always)]
fn mul_f16(a: u16, b: u16) -> u16 {
    f32_to_f16(f16_to_f32(a) * f16_to_f32(b))
}

#[inline(always)]
fn flush_f16(a: u16) -> u16 {
    if a & 0x7c00 == 0 { a & 0x8000 } else { a }
}

#[inline(always)]
fn min<T: Format>(a: u16, b: u16) -> u16 {
    T::narrow(min_number(T::widen(a), T::widen(b)))
}

#[inline(always)]
fn max<T: Format>(a: u16, b: u16) -> u16 {
    T::narrow(max_number(T::widen(a), T::widen(b)))
}

#[inline(always)]
fn min_nan<T: Format>(a: u16, b: u16) -> u16 {
    if T::widen(a).is_nan() || T::widen(b).is_nan() { 0x7fff } else { min::<T>(a, b) }
}

#[inline(always)]
fn max_nan<T: Format>(a: u16, b: u16) -> u16 {
    if T::widen(a).is_nan() || T::widen(b).is_nan() { 0x7fff } else { max::<T>(a, b) }
}

#[inline(always)]
fn both1(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(low_half(a))) | u32::from(f(low_half(a >> 16))) << 16
}

#[inline(always)]
fn both2(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(low_half(a), low_half(b))) | u32::from(f(low_half(a >> 16), low_half(b >> 16))) << 16
}

#[inline(always)]
fn both3(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    u32::from(f(low_half(a), low_half(b), low_half(c)))
        | u32::from(f(low_half(a >> 16), low_half(b >> 16), low_half(c >> 16))) << 16
}

/// Rows of one format, alone and in pairs.
macro_rules! format_rows {
    ($out:ident, $t:ty, $one:literal, $two:literal) => {
        alu! { $out;
            Half [concat!("add.", $one), concat!("add.rn.", $one)] u16 = |a: u16, b: u16| add::<$t>(a, b);
            Half [concat!("sub.", $one), concat!("sub.rn.", $one)] u16 = |a: u16, b: u16| sub::<$t>(a, b);
            Half [concat!("fma.rn.", $one)] u16 = |a: u16, b: u16, c: u16| fma::<$t>(a, b, c);
            Half [concat!("fma.rn.relu.", $one)] u16 = |a: u16, b: u16, c: u16| relu::<$t>(fma::<$t>(a, b, c));
            Half [concat!("min.", $one)] u16 = |a: u16, b: u16| min::<$t>(a, b);
            Half [concat!("max.", $one)] u16 = |a: u16, b: u16| max::<$t>(a, b);
            Half [concat!("min.NaN.", $one)] u16 = |a: u16, b: u16| min_nan::<$t>(a, b);
            Half [concat!("max.NaN.", $one)] u16 = |a: u16, b: u16| max_nan::<$t>(a, b);
            Half [concat!("neg.", $one)] u16 = |a: u16| a ^ 0x8000;
            Half [concat!("abs.", $one)] u16 = |a: u16| a & 0x7fff;
            Half [concat!("add.", $two), concat!("add.rn.", $two)] u32 = |a: u32, b: u32| both2(a, b, add::<$t>);
            Half [concat!("sub.", $two), concat!("sub.rn.", $two)] u32 = |a: u32, b: u32| both2(a, b, sub::<$t>);
            Half [concat!("fma.rn.", $two)] u32 = |a: u32, b: u32, c: u32| both3(a, b, c, fma::<$t>);
            Half [concat!("fma.rn.relu.", $two)] u32 = |a: u32, b: u32, c: u32| both1(both3(a, b, c, fma::<$t>), relu::<$t>);
            Half [concat!("min.", $two)] u32 = |a: u32, b: u32| both2(a, b, min::<$t>);
            Half [concat!("max.", $two)] u32 = |a: u32, b: u32| both2(a, b, max::<$t>);
            Half [concat!("min.NaN.", $two)] u32 = |a: u32, b: u32| both2(a, b, min_nan::<$t>);
            Half [concat!("max.NaN.", $two)] u32 = |a: u32, b: u32| both2(a, b, max_nan::<$t>);
            Half [concat!("neg.", $two)] u32 = |a: u32| a ^ 0x8000_8000;
            Half [concat!("abs.", $two)] u32 = |a: u32| a & 0x7fff_7fff;
        }
    };
}

/// Comparisons of one format.
macro_rules! compare_rows {
    ($out:ident, $t:ty, $one:literal; $($cmp:literal |$a:ident, $b:ident| $f:expr;)+) => {
        alu! { $out;
            $(Logic [concat!("setp.", $cmp, ".", $one)] bool = |a: u16, b: u16| {
                let ($a, $b) = (<$t>::widen(a), <$t>::widen(b));
                $f
            };)+
        }
    };
}

/// The rows of this file.
#[allow(clippy::nonminimal_bool, clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    format_rows!(out, F16, "f16", "f16x2");
    format_rows!(out, Bf16, "bf16", "bf16x2");
    alu! { out;
        Half ["mul.f16", "mul.rn.f16"] u16 = |a: u16, b: u16| mul_f16(a, b);
        Half ["mul.f16x2", "mul.rn.f16x2"] u32 = |a: u32, b: u32| both2(a, b, mul_f16);
        Half ["mul.ftz.f16x2", "mul.rn.ftz.f16x2"] u32 = |a: u32, b: u32|
            both2(a, b, |x, y| flush_f16(mul_f16(flush_f16(x), flush_f16(y))));
        Half ["mul.bf16", "mul.rn.bf16"] u16 = |a: u16, b: u16| mul::<Bf16>(a, b);
        Half ["mul.bf16x2", "mul.rn.bf16x2"] u32 = |a: u32, b: u32| both2(a, b, mul::<Bf16>);
    }
    compare_rows! { out, F16, "f16";
        "eq" |a, b| a == b; "ne" |a, b| a < b || a > b; "lt" |a, b| a < b; "le" |a, b| a <= b;
        "gt" |a, b| a > b; "ge" |a, b| a >= b; "neu" |a, b| a != b; "equ" |a, b| !(a < b || a > b);
        "ltu" |a, b| !(a >= b); "leu" |a, b| !(a > b); "gtu" |a, b| !(a <= b); "geu" |a, b| !(a < b);
        "num" |a, b| !a.is_nan() && !b.is_nan(); "nan" |a, b| a.is_nan() || b.is_nan();
    }
    compare_rows! { out, Bf16, "bf16";
        "eq" |a, b| a == b; "ne" |a, b| a < b || a > b; "lt" |a, b| a < b; "le" |a, b| a <= b;
        "gt" |a, b| a > b; "ge" |a, b| a >= b; "neu" |a, b| a != b; "equ" |a, b| !(a < b || a > b);
        "ltu" |a, b| !(a >= b); "leu" |a, b| !(a > b); "gtu" |a, b| !(a <= b); "geu" |a, b| !(a < b);
        "num" |a, b| !a.is_nan() && !b.is_nan(); "nan" |a, b| a.is_nan() || b.is_nan();
    }
}
