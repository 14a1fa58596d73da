//! The `.approx` functions: one deterministic result well within the permitted error, the same on every host.
//!
//! Hardware may differ from it by the error that PTX permits. In pessimistic mode that error is added, with a sign that
//! alternates from lane to lane and from one such instruction to the next.

use crate::counters::Class;
use crate::exec::float::{Round, directed, flush};
use crate::exec::formats::canonical;
use crate::exec::{Exec, Row, Step, Value, exec};
use crate::program::Op;
use crate::state::{Ctx, Warp};
use crate::types::Kind;

/// The error that PTX permits.
#[derive(Clone, Copy)]
enum Error {
    /// Units in the last place of the result.
    Ulps(u32),
    /// A part of the result.
    Relative(f64),
    /// The same everywhere.
    Absolute(f64),
}

/// The value `exact`, of which `near` is the rounded one, with the whole permitted error; then rounded back towards the
/// exact value so as not to exceed it.
fn worsen(exact: f64, near: f32, error: Error, up: bool) -> f32 {
    let size = match error {
        // The smaller of the two steps at a power of two.
        Error::Ulps(n) => f64::from(n) * f64::from(near.abs() - near.abs().next_down()),
        Error::Relative(r) => r * exact.abs(),
        Error::Absolute(a) => a,
    };
    let worse = if up { directed(exact + size, Round::Down) } else { directed(exact - size, Round::Up) };
    match error {
        // Across a power of two the larger step would count double below.
        Error::Ulps(n) => {
            let (bits, sign) = (near.to_bits(), near.to_bits() & 1 << 31);
            f32::from_bits((worse.to_bits() & !(1 << 31)).clamp((bits ^ sign) - n, (bits ^ sign) + n) | sign)
        }
        _ => worse,
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn apply(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, error: Error, ftz: bool, f: impl Fn(usize, &Warp) -> f64) -> Step {
    let mut exact = [0.0; 32];
    for (lane, exact) in exact.iter_mut().enumerate() {
        *exact = f(lane, w);
    }
    let mut out = exact.map(|x| canonical(x as f32));
    if cx.pessimistic {
        cx.parity = !cx.parity;
        for (lane, out) in out.iter_mut().enumerate() {
            // Zero, one and infinity are results of special operands, for which PTX permits no error.
            if out.is_normal() && out.abs() != 1.0 {
                *out = worsen(exact[lane], *out, error, (lane & 1 == 1) != cx.parity);
            }
        }
    }
    if ftz {
        out = out.map(flush);
    }
    f32::put(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

/// 2^r for |r| <= 1/2 by its series, to about 2e-13, scaled by 2^n.
#[inline(always)]
fn exp2_wide(x: f64) -> f64 {
    let x = x.clamp(-200.0, 200.0);
    let n = x.round_ties_even();
    let t = (x - n) * std::f64::consts::LN_2;
    let mut sum = 1.0 / 3_628_800.0;
    for c in [362_880.0, 40_320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        sum = t.mul_add(sum, 1.0 / c);
    }
    #[allow(clippy::cast_possible_truncation)]
    let exponent = (n as i64 + 1023).cast_unsigned();
    sum * f64::from_bits(exponent << 52)
}

#[inline(always)]
fn exp2(x: f32) -> f64 {
    let x = f64::from(x);
    if x.is_nan() { x } else { exp2_wide(x) }
}

#[inline(always)]
fn log2(x: f32) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return f64::INFINITY;
    }
    let bits = f64::from(x).to_bits();
    // The mantissa between 1 / sqrt(2) and sqrt(2), so that its logarithm is small and does not cancel the exponent.
    let shift = u64::from(bits & 0x000f_ffff_ffff_ffff > 0x0006_a09e_667f_3bcd);
    let exponent = (bits >> 52).cast_signed() - 1023 + shift.cast_signed();
    let m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | (1023 - shift) << 52);
    let s = (m - 1.0) / (m + 1.0);
    let (square, mut sum) = (s * s, 1.0 / 19.0);
    for c in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = square.mul_add(sum, 1.0 / c);
    }
    #[allow(clippy::cast_precision_loss)]
    let whole = exponent as f64;
    (s * sum).mul_add(2.0 * std::f64::consts::LOG2_E, whole)
}

/// sin(x + quarter * pi / 2).
#[inline(always)]
fn sine(x: f32, quarter: i64) -> f64 {
    if !x.is_finite() {
        return f64::NAN;
    }
    let x = f64::from(x);
    let turns = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let rest = (-turns).mul_add(6.123_233_995_736_766e-17, (-turns).mul_add(std::f64::consts::FRAC_PI_2, x));
    let square = rest * rest;
    #[allow(clippy::cast_possible_truncation)]
    let quadrant = (turns as i64).wrapping_add(quarter);
    let mut sum = 1.0;
    let start = if quadrant & 1 == 0 { 15.0 } else { 14.0 };
    for i in 0..7 {
        let k = start - 2.0 * f64::from(i);
        sum = 1.0 - square * sum / (k * (k - 1.0));
    }
    let value = if quadrant & 1 == 0 { rest * sum } else { sum };
    if quadrant & 2 == 0 { value } else { -value }
}

#[inline(always)]
fn tanh(x: f32) -> f64 {
    let wide = f64::from(x);
    if x.is_nan() {
        return wide;
    }
    if wide.abs() < 1e-3 {
        return wide * (1.0 - wide * wide / 3.0);
    }
    let e = exp2_wide((wide.abs() * 2.0 * std::f64::consts::LOG2_E).min(100.0));
    (1.0 - 2.0 / (e + 1.0)).copysign(wide)
}

#[inline(always)]
fn rsqrt(x: f32) -> f64 {
    1.0 / f64::from(x).sqrt()
}

#[inline(always)]
fn quotient(a: f32, b: f32) -> f64 {
    f64::from(a) / f64::from(b)
}

/// Quotients by what is above 2^126 are zero, or NaN of an infinity.
#[inline(always)]
fn divide_approx(a: f32, b: f32) -> f64 {
    if b.abs() > f32::from_bits(253 << 23) && b.is_finite() {
        return if a.is_finite() { 0.0_f64.copysign(quotient(a, b)) } else { f64::NAN };
    }
    quotient(a, b)
}

fn row(names: &[&str], sources: usize, exec: Exec) -> Row {
    Row {
        names: names.iter().map(ToString::to_string).collect(),
        dst: vec![Kind::Float],
        src: vec![Kind::Float; sources],
        count: Class::Special,
        exec,
        together: false,
    }
}

/// Functions of one operand, with and without `.ftz`.
macro_rules! unary {
    ($out:ident; $($op:literal, $error:expr, |$x:ident| $f:expr;)+) => {$(
        $out.push(row(&[concat!($op, ".f32")], 1, exec!(|w, cx, op| apply(w, cx, op, $error, false, |lane, w| {
            let $x = f32::get(f32::row(&w.regs, op.r[1]), lane);
            $f
        }))));
        $out.push(row(&[concat!($op, ".ftz.f32")], 1, exec!(|w, cx, op| apply(w, cx, op, $error, true, |lane, w| {
            let $x = flush(f32::get(f32::row(&w.regs, op.r[1]), lane));
            $f
        }))));
    )+};
}

/// The same of two operands.
macro_rules! binary {
    ($out:ident; $($op:literal, $error:expr, |$x:ident, $y:ident| $f:expr;)+) => {$(
        $out.push(row(&[concat!($op, ".f32")], 2, exec!(|w, cx, op| apply(w, cx, op, $error, false, |lane, w| {
            let $x = f32::get(f32::row(&w.regs, op.r[1]), lane);
            let $y = f32::get(f32::row(&w.regs, op.r[2]), lane);
            $f
        }))));
        $out.push(row(&[concat!($op, ".ftz.f32")], 2, exec!(|w, cx, op| apply(w, cx, op, $error, true, |lane, w| {
            let $x = flush(f32::get(f32::row(&w.regs, op.r[1]), lane));
            let $y = flush(f32::get(f32::row(&w.regs, op.r[2]), lane));
            $f
        }))));
    )+};
}

/// 2 to the power `e`.
const fn power(e: i32) -> f64 {
    f64::from_bits(((1023 + e) as u64) << 52)
}

/// The rows of this file.
pub(crate) fn rows(out: &mut Vec<Row>) {
    unary! { out;
        "ex2.approx", Error::Ulps(2), |x| exp2(x);
        "lg2.approx", Error::Absolute(power(-22)), |x| log2(x);
        "rcp.approx", Error::Ulps(1), |x| quotient(1.0, x);
        "rsqrt.approx", Error::Relative(power(-23)), |x| rsqrt(x);
        "sqrt.approx", Error::Relative(power(-23)), |x| f64::from(x).sqrt();
        "sin.approx", Error::Absolute(power(-21)), |x| sine(x, 0);
        "cos.approx", Error::Absolute(power(-21)), |x| sine(x, 1);
    }
    out.push(row(
        &["tanh.approx.f32"],
        1,
        exec!(|w, cx, op| apply(w, cx, op, Error::Relative(power(-11)), false, |lane, w| {
            tanh(f32::get(f32::row(&w.regs, op.r[1]), lane))
        })),
    ));
    binary! { out;
        "div.approx", Error::Ulps(2), |a, b| divide_approx(a, b);
        "div.full", Error::Ulps(2), |a, b| quotient(a, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_right_far_beyond_f32() {
        for i in -4000..4000_i16 {
            let x = f32::from(i) * 0.031_1;
            // A millionth of the last place of f32.
            let close = |got: f64, want: f64| {
                assert!((got - want).abs() <= want.abs() * 1e-12 + 1e-14, "{x}: {got} for {want}");
            };
            close(exp2(x), f64::from(x).exp2());
            close(tanh(x), f64::from(x).tanh());
            close(sine(x, 0), f64::from(x).sin());
            close(sine(x, 1), f64::from(x).cos());
            if x > 0.0 {
                close(log2(x), f64::from(x).log2());
            }
        }
        assert_eq!([log2(0.0), log2(8.0), exp2(-3.0)], [f64::NEG_INFINITY, 3.0, 0.125]);
        assert!(exp2(200.0) > 1e50 && exp2(f32::INFINITY) > 1e50 && exp2(f32::NEG_INFINITY) < 1e-50);
    }
}
