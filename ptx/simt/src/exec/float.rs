//! Arithmetic of f32 and f64. A NaN result of f32 is the canonical one; `.ftz` flushes operands and results.

use crate::exec::formats::canonical;
use crate::exec::{Row, alu};

/// A subnormal to a zero of its sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

/// To [0, 1]; a NaN to +0.
#[inline(always)]
fn saturate(x: f32) -> f32 {
    if x >= 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
}

/// The larger number, +0 over -0; the other one where one is NaN.
#[inline(always)]
pub(crate) fn max_number(a: f32, b: f32) -> f32 {
    let same = f32::from_bits(a.to_bits() & b.to_bits());
    let ordered = if a > b { a } else { b };
    let equal = if a == b { same } else { ordered };
    canonical(if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        equal
    })
}

/// The smaller number, -0 under +0; the other one where one is NaN.
#[inline(always)]
pub(crate) fn min_number(a: f32, b: f32) -> f32 {
    let same = f32::from_bits(a.to_bits() | b.to_bits());
    let ordered = if a < b { a } else { b };
    let equal = if a == b { same } else { ordered };
    canonical(if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        equal
    })
}

#[inline(always)]
fn or_nan(a: f32, b: f32, result: f32) -> f32 {
    if a.is_nan() || b.is_nan() { canonical(f32::NAN) } else { result }
}

#[inline(always)]
fn max_double(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a > b {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else {
        b
    }
}

#[inline(always)]
fn min_double(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else {
        b
    }
}

/// A sum in f64, its last bit odd where it is not exact: enough for one more rounding to f32 or narrower in any mode.
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if error > 0.0 { sum.next_up() } else { sum.next_down() }
}

/// Directed roundings.
#[derive(Clone, Copy)]
pub(crate) enum Round {
    Zero,
    Down,
    Up,
}

/// f64 to f32 in a directed rounding.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn directed(x: f64, round: Round) -> f32 {
    let near = x as f32;
    let wide = f64::from(near);
    canonical(match round {
        Round::Zero if wide.abs() > x.abs() => f32::from_bits(near.to_bits() - 1),
        Round::Down if wide > x => near.next_down(),
        Round::Up if wide < x => near.next_up(),
        _ => near,
    })
}

/// A sum of exact f64 terms in a directed rounding; equal magnitudes of unlike sign cancel to -0 when rounding down.
#[inline(always)]
fn directed_sum(a: f64, b: f64, round: Round) -> f32 {
    let sum = add_odd(a, b);
    if sum == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
        return if matches!(round, Round::Down) { -0.0 } else { 0.0 };
    }
    directed(sum, round)
}

/// A quotient or root `near`, to nearest in f64, of which `x - near * by` has the sign of the error.
#[inline(always)]
fn directed_quotient(a: f32, b: f32, round: Round) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let near = a / b;
    if !near.is_finite() || near == 0.0 {
        return directed(near, round);
    }
    let error = (-near).mul_add(b, a) * b.signum();
    let odd = if error == 0.0 || near.to_bits() & 1 == 1 {
        near
    } else if error > 0.0 {
        near.next_up()
    } else {
        near.next_down()
    };
    directed(odd, round)
}

/// Rows of one f32 operation with every combination of `.ftz` and `.sat`.
macro_rules! f32_rows {
    ($out:ident; $($op:literal |$($x:ident),+| $f:expr;)+) => {$(
        alu! { $out;
            Float [concat!($op, ".f32"), concat!($op, ".rn.f32")] f32 = |$($x: f32),+| canonical($f);
            Float [concat!($op, ".sat.f32"), concat!($op, ".rn.sat.f32")] f32 = |$($x: f32),+| saturate($f);
            Float [concat!($op, ".ftz.f32"), concat!($op, ".rn.ftz.f32")] f32 = |$($x: f32),+| {
                $(let $x = flush($x);)+
                flush(canonical($f))
            };
            Float [concat!($op, ".ftz.sat.f32"), concat!($op, ".rn.ftz.sat.f32")] f32 = |$($x: f32),+| {
                $(let $x = flush($x);)+
                flush(saturate($f))
            };
        }
    )+};
}

/// Rows of one f32 operation in the three directed roundings.
macro_rules! directed_rows {
    ($out:ident; $($op:literal |$round:ident, $($x:ident),+| $f:expr;)+) => {$(
        directed_rows! { @ $out; $op, ".rz", Zero, $round, [$($x),+] $f }
        directed_rows! { @ $out; $op, ".rm", Down, $round, [$($x),+] $f }
        directed_rows! { @ $out; $op, ".rp", Up, $round, [$($x),+] $f }
    )+};
    (@ $out:ident; $op:literal, $mode:literal, $variant:ident, $round:ident, [$($x:ident),+] $f:expr) => {
        alu! { $out;
            Float [concat!($op, $mode, ".f32")] f32 = |$($x: f32),+| {
                let $round = Round::$variant;
                $f
            };
            Float [concat!($op, $mode, ".ftz.f32")] f32 = |$($x: f32),+| {
                let $round = Round::$variant;
                $(let $x = flush($x);)+
                flush($f)
            };
        }
    };
}

/// Rows with and without `.ftz`.
macro_rules! flushed_rows {
    ($out:ident; $($op:literal |$($x:ident),+| $f:expr;)+) => {$(
        alu! { $out;
            Float [concat!($op, ".f32")] f32 = |$($x: f32),+| $f;
            Float [concat!($op, ".ftz.f32")] f32 = |$($x: f32),+| {
                $(let $x = flush($x);)+
                flush($f)
            };
        }
    )+};
}

/// The rows of this file.
#[allow(clippy::too_many_lines)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    f32_rows! { out;
        "add" |a, b| a + b;
        "sub" |a, b| a - b;
        "mul" |a, b| a * b;
    }
    alu! { out;
        Float ["fma.rn.f32", "mad.rn.f32"] f32 = |a: f32, b: f32, c: f32| canonical(a.mul_add(b, c));
        Float ["fma.rn.sat.f32"] f32 = |a: f32, b: f32, c: f32| saturate(a.mul_add(b, c));
        Float ["fma.rn.ftz.f32"] f32 = |a: f32, b: f32, c: f32| flush(canonical(flush(a).mul_add(flush(b), flush(c))));
        Float ["fma.rn.ftz.sat.f32"] f32 = |a: f32, b: f32, c: f32| flush(saturate(flush(a).mul_add(flush(b), flush(c))));
    }
    directed_rows! { out;
        "add" |round, a, b| directed_sum(f64::from(a), f64::from(b), round);
        "sub" |round, a, b| directed_sum(f64::from(a), -f64::from(b), round);
        "mul" |round, a, b| directed(f64::from(a) * f64::from(b), round);
        "fma" |round, a, b, c| directed_sum(f64::from(a) * f64::from(b), f64::from(c), round);
        "div" |round, a, b| directed_quotient(a, b, round);
        "rcp" |round, a| directed_quotient(1.0, a, round);
    }
    flushed_rows! { out;
        "div.rn" |a, b| canonical(a / b);
        "rcp.rn" |a| canonical(1.0 / a);
        "sqrt.rn" |a| canonical(a.sqrt());
        "min" |a, b| min_number(a, b);
        "max" |a, b| max_number(a, b);
        "abs" |a| f32::from_bits(a.to_bits() & 0x7fff_ffff);
        "neg" |a| f32::from_bits(a.to_bits() ^ 0x8000_0000);
    }
    alu! { out;
        Float ["min.NaN.f32"] f32 = |a: f32, b: f32| or_nan(a, b, min_number(a, b));
        Float ["max.NaN.f32"] f32 = |a: f32, b: f32| or_nan(a, b, max_number(a, b));
        Float ["min.ftz.NaN.f32"] f32 = |a: f32, b: f32| or_nan(a, b, min_number(flush(a), flush(b)));
        Float ["max.ftz.NaN.f32"] f32 = |a: f32, b: f32| or_nan(a, b, max_number(flush(a), flush(b)));
        Float ["copysign.f32"] f32 = |a: f32, b: f32| f32::from_bits(a.to_bits() & 1 << 31 | b.to_bits() & 0x7fff_ffff);
        Logic ["testp.finite.f32"] bool = |a: f32| a.is_finite();
        Logic ["testp.infinite.f32"] bool = |a: f32| a.is_infinite();
        Logic ["testp.number.f32"] bool = |a: f32| !a.is_nan();
        Logic ["testp.notanumber.f32"] bool = |a: f32| a.is_nan();
        Logic ["testp.normal.f32"] bool = |a: f32| a.is_normal() || a == 0.0;
        Logic ["testp.subnormal.f32"] bool = |a: f32| a.is_subnormal();
        Double ["add.f64", "add.rn.f64"] f64 = |a: f64, b: f64| a + b;
        Double ["sub.f64", "sub.rn.f64"] f64 = |a: f64, b: f64| a - b;
        Double ["mul.f64", "mul.rn.f64"] f64 = |a: f64, b: f64| a * b;
        Double ["fma.rn.f64", "mad.rn.f64"] f64 = |a: f64, b: f64, c: f64| a.mul_add(b, c);
        Double ["div.rn.f64"] f64 = |a: f64, b: f64| a / b;
        Double ["rcp.rn.f64"] f64 = |a: f64| 1.0 / a;
        Double ["sqrt.rn.f64"] f64 = |a: f64| a.sqrt();
        Double ["min.f64"] f64 = |a: f64, b: f64| min_double(a, b);
        Double ["max.f64"] f64 = |a: f64, b: f64| max_double(a, b);
        Double ["abs.f64"] f64 = |a: f64| f64::from_bits(a.to_bits() & !(1 << 63));
        Double ["neg.f64"] f64 = |a: f64| f64::from_bits(a.to_bits() ^ 1 << 63);
        Double ["copysign.f64"] f64 = |a: f64, b: f64| f64::from_bits(a.to_bits() & 1 << 63 | b.to_bits() & !(1 << 63));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_roundings_bracket_the_exact_result() {
        for (a, b) in [(1.0_f32, 1e-20_f32), (0.1, 0.2), (-1.0, 1e-9), (3e38, 3e38), (1e-40, 1e-45)] {
            let (a, b) = (f64::from(a), f64::from(b));
            let (down, up) = (directed_sum(a, b, Round::Down), directed_sum(a, b, Round::Up));
            assert!(f64::from(down) <= a + b && a + b <= f64::from(up), "{a} + {b}");
            assert!(down == up || down.next_up() == up, "{a} + {b}");
        }
        assert_eq!(directed_sum(3e38, 3e38, Round::Zero), f32::MAX);
        assert_eq!(directed_sum(1.0, -1.0, Round::Down).to_bits(), 1 << 31);
        let (down, up) = (directed_quotient(1.0, 3.0, Round::Down), directed_quotient(1.0, 3.0, Round::Up));
        assert_eq!((down.next_up(), down * 3.0 <= 1.0), (up, true));
    }

    #[test]
    fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
        assert_eq!(max_number(-0.0, 0.0).to_bits(), 0);
        assert_eq!(min_number(0.0, -0.0).to_bits(), 1 << 31);
        assert_eq!(max_number(f32::NAN, -3.0), -3.0);
        assert_eq!(min_number(2.0, f32::NAN), 2.0);
        assert_eq!(min_number(f32::NAN, f32::NAN).to_bits(), 0x7fff_ffff);
    }
}
