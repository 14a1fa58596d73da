//! Floating-point arithmetic: 9.7.3 "Floating-Point Instructions" (add, sub, mul, fma, div, rcp, sqrt, min, max, neg, abs,
//! copysign, testp).
//!
//! `.rn` is IEEE 754, and what add, sub and mul do without a rounding; `.rz`, `.rm` and `.rp` round towards zero, down and
//! up. Subnormals are kept; `.ftz` takes them for zeros of their sign, as inputs and as results. `.sat` clamps to [0, 1]
//! and makes NaN +0. min and max return the number where the other operand is NaN, the canonical NaN for two, and order
//! -0 below +0; with `.NaN` a NaN wins. Which NaN single precision makes is open in the PTX ISA; by the CUDA programming
//! guide ("Floating-Point Standard") it is 0x7fffffff on every device, and that is expected here. In double precision
//! any NaN will do.

use crate::harness::{W, check, check_with, known};
use crate::values::{canonical, f32_of, floats32, floats64, flush, pairs, triples};
use W::{B32, B64, P};

fn two(op: &str, f: impl Fn(f32, f32) -> f32) {
    let values = floats32();
    let rows: Vec<_> =
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], canonical(f(f32_of(a), f32_of(b))))).collect();
    check(op, B32, [B32, B32], &rows);
}

fn one(op: &str, f: impl Fn(f32) -> f32) {
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], canonical(f(f32_of(a))))).collect();
    check(op, B32, [B32], &rows);
}

/// A result is flushed after rounding; whether one that rounds up to the least normal number counts as subnormal depends
/// on when an implementation looks, so those rows are left out.
fn two_flushed(op: &str, f: impl Fn(f32, f32) -> f32, exact: impl Fn(f64, f64) -> f64) {
    let values = floats32();
    let least = f64::from(f32::MIN_POSITIVE);
    let rows: Vec<_> = pairs(&values, &values)
        .into_iter()
        .filter_map(|[a, b]| {
            let (x, y) = (flush(f32_of(a)), flush(f32_of(b)));
            let exact = exact(f64::from(x), f64::from(y)).abs();
            let at_the_edge = exact < least && exact > least * (1.0 - 2.0_f64.powi(-23));
            (!at_the_edge).then(|| ([a, b], canonical(flush(f(x, y)))))
        })
        .collect();
    check(op, B32, [B32, B32], &rows);
}

#[test]
fn sums_and_products_round_to_nearest_even() {
    two("add.rn.f32", |a, b| a + b);
    two("add.f32", |a, b| a + b);
    two("sub.rn.f32", |a, b| a - b);
    two("sub.f32", |a, b| a - b);
    two("mul.rn.f32", |a, b| a * b);
    two("mul.f32", |a, b| a * b);
    two_flushed("add.rn.ftz.f32", |a, b| a + b, |a, b| a + b);
    two_flushed("sub.rn.ftz.f32", |a, b| a - b, |a, b| a - b);
    two_flushed("mul.rn.ftz.f32", |a, b| a * b, |a, b| a * b);
    two_flushed("add.ftz.f32", |a, b| a + b, |a, b| a + b);
    two_flushed("sub.ftz.f32", |a, b| a - b, |a, b| a - b);
    two_flushed("mul.ftz.f32", |a, b| a * b, |a, b| a * b);
}

#[test]
fn products_with_a_sum_round_once() {
    let rows: Vec<_> = triples(&floats32(), 20)
        .into_iter()
        .map(|[a, b, c]| ([a, b, c], canonical(f32_of(a).mul_add(f32_of(b), f32_of(c)))))
        .collect();
    check("fma.rn.f32", B32, [B32; 3], &rows);
    // 1 - (1 + e)(1 - e) is e^2, which two roundings would lose.
    let (up, down, minus_one) = (0x3f80_0001, 0x3f7f_fffe, 0xbf80_0000);
    check("fma.rn.f32", B32, [B32; 3], &[([up, down, minus_one], u64::from((-(2.0_f32.powi(-46))).to_bits()))]);
    let rows: Vec<_> = triples(&floats32(), 21)
        .into_iter()
        .filter_map(|[a, b, c]| {
            let (x, y, z) = (flush(f32_of(a)), flush(f32_of(b)), flush(f32_of(c)));
            let result = x.mul_add(y, z);
            let at_the_edge = result.abs() == f32::MIN_POSITIVE;
            (!at_the_edge).then(|| ([a, b, c], canonical(flush(result))))
        })
        .collect();
    check("fma.rn.ftz.f32", B32, [B32; 3], &rows);
}

#[test]
fn saturation_clamps_to_the_unit_interval() {
    let saturate = |x: f32| if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
    // The sign of a zero is left out: the text says only that results are clamped.
    let judge = |want: f32, got: u64| {
        let same = got == u64::from(want.to_bits()) || (want == 0.0 && f32_of(got) == 0.0);
        if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
    };
    let values = floats32();
    for (op, f) in [
        ("add.sat.f32", (|a, b| a + b) as fn(f32, f32) -> f32),
        ("sub.sat.f32", |a, b| a - b),
        ("mul.sat.f32", |a, b| a * b),
    ] {
        if known(op, B32, [B32, B32]) {
            check_with(op, B32, [B32, B32], &pairs(&values, &values), |&[a, b], got| {
                judge(saturate(f(f32_of(a), f32_of(b))), got)
            });
        }
    }
    if known("fma.rn.sat.f32", B32, [B32; 3]) {
        check_with("fma.rn.sat.f32", B32, [B32; 3], &triples(&values, 22), |&[a, b, c], got| {
            judge(saturate(f32_of(a).mul_add(f32_of(b), f32_of(c))), got)
        });
    }
    if known("cvt.sat.f32.f32", B32, [B32]) {
        let rows: Vec<_> = values.iter().map(|&a| [a]).collect();
        check_with("cvt.sat.f32.f32", B32, [B32], &rows, |&[a], got| judge(saturate(f32_of(a)), got));
    }
}

/// `high + low`, exactly, rounded to f32 in a direction: `rz`, `rm` or `rp`.
fn directed(high: f64, low: f64, direction: &str, zero: f32) -> f32 {
    if high.is_nan() || high.is_infinite() {
        return high as f32;
    }
    if high == 0.0 && low == 0.0 {
        return zero;
    }
    let near = high as f32;
    // The difference of neighbours is exact; an infinite `near` lies beyond any finite value.
    let beyond = (high - f64::from(near)) + low;
    let (up, down) = (beyond > 0.0, beyond < 0.0);
    let negative = if high != 0.0 { high < 0.0 } else { low < 0.0 };
    let towards_zero = |x: f32| if x.is_sign_negative() { x.next_up() } else { x.next_down() };
    match direction {
        "rp" if up => near.next_up(),
        "rm" if down => near.next_down(),
        "rz" if (up && negative) || (down && !negative) => towards_zero(near),
        _ if near == 0.0 => 0.0_f32.copysign(if negative { -1.0 } else { 1.0 }),
        _ => near,
    }
}

/// What a sum that is exactly zero gives: -0 when rounding down or from two -0, else +0.
fn zero_sum(a: f32, b: f32, direction: &str) -> f32 {
    if a == 0.0 && b == 0.0 && a.is_sign_negative() == b.is_sign_negative() {
        return a;
    }
    if direction == "rm" { -0.0 } else { 0.0 }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if sum.is_infinite() || sum.is_nan() {
        return (sum, 0.0);
    }
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

#[test]
fn directed_roundings() {
    let values = floats32();
    for direction in ["rz", "rm", "rp"] {
        let op = format!("add.{direction}.f32");
        if known(&op, B32, [B32, B32]) {
            two(&op, |a, b| {
                let (high, low) = two_sum(f64::from(a), f64::from(b));
                directed(high, low, direction, zero_sum(a, b, direction))
            });
        }
        let op = format!("sub.{direction}.f32");
        if known(&op, B32, [B32, B32]) {
            two(&op, |a, b| {
                let (high, low) = two_sum(f64::from(a), -f64::from(b));
                directed(high, low, direction, zero_sum(a, -b, direction))
            });
        }
        let op = format!("mul.{direction}.f32");
        if known(&op, B32, [B32, B32]) {
            two(&op, |a, b| directed(f64::from(a) * f64::from(b), 0.0, direction, a * b));
        }
        let op = format!("fma.{direction}.f32");
        if known(&op, B32, [B32; 3]) {
            let rows: Vec<_> = triples(&values, 23)
                .into_iter()
                .map(|[a, b, c]| {
                    let product = f64::from(f32_of(a)) * f64::from(f32_of(b));
                    let (high, low) = two_sum(product, f64::from(f32_of(c)));
                    let product_sign = f32_of(a) * f32_of(b);
                    let zero = if product == 0.0 {
                        zero_sum(product_sign, f32_of(c), direction)
                    } else {
                        zero_sum(1.0, -1.0, direction)
                    };
                    ([a, b, c], canonical(directed(high, low, direction, zero)))
                })
                .collect();
            check(&op, B32, [B32; 3], &rows);
        }
    }
}

#[test]
fn quotients_and_roots_are_correctly_rounded() {
    two("div.rn.f32", |a, b| a / b);
    one("sqrt.rn.f32", f32::sqrt);
    one("rcp.rn.f32", |a| 1.0 / a);
    // Every mantissa's neighbourhood in one binade of squares, where a root computed roughly would slip.
    let mut rows = Vec::new();
    for i in 0..6000_u32 {
        let root = f32::from_bits(0x3f80_0000 + i * 1397);
        for x in [root * root, (root * root).next_up(), (root * root).next_down()] {
            rows.push(([u64::from(x.to_bits())], u64::from(x.sqrt().to_bits())));
        }
    }
    check("sqrt.rn.f32", B32, [B32], &rows);
    if known("div.rn.ftz.f32", B32, [B32, B32]) {
        two_flushed("div.rn.ftz.f32", |a, b| a / b, |a, b| a / b);
    }
    if known("sqrt.rn.ftz.f32", B32, [B32]) {
        one("sqrt.rn.ftz.f32", |a| flush(a).sqrt());
    }
}

#[test]
fn doubles_are_ieee() {
    let values = floats64();
    let judge = |want: f64, got: u64| {
        let same = got == want.to_bits() || (want.is_nan() && f64::from_bits(got).is_nan());
        if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
    };
    for (op, f) in [
        ("add.f64", (|a, b| a + b) as fn(f64, f64) -> f64),
        ("add.rn.f64", |a, b| a + b),
        ("sub.f64", |a, b| a - b),
        ("sub.rn.f64", |a, b| a - b),
        ("mul.f64", |a, b| a * b),
        ("mul.rn.f64", |a, b| a * b),
        ("div.rn.f64", |a, b| a / b),
    ] {
        check_with(op, B64, [B64, B64], &pairs(&values, &values), |&[a, b], got| {
            judge(f(f64::from_bits(a), f64::from_bits(b)), got)
        });
    }
    check_with("fma.rn.f64", B64, [B64; 3], &triples(&values, 24), |&[a, b, c], got| {
        judge(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)), got)
    });
    let rows: Vec<_> = values.iter().map(|&a| [a]).collect();
    for (op, f) in [
        ("sqrt.rn.f64", f64::sqrt as fn(f64) -> f64),
        ("rcp.rn.f64", |a| 1.0 / a),
        ("neg.f64", |a| -a),
        ("abs.f64", f64::abs),
    ] {
        check_with(op, B64, [B64], &rows, |&[a], got| judge(f(f64::from_bits(a)), got));
    }
}

/// The lesser or greater by the ISA's table.
fn extreme(a: f64, b: f64, greater: bool, nan_wins: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) | (false, true) if nan_wins => f64::NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) if (a.total_cmp(&b) == std::cmp::Ordering::Greater) == greater => a,
        (false, false) => b,
    }
}

#[test]
fn the_lesser_and_the_greater() {
    fn of32(a: f32, b: f32, greater: bool, nan_wins: bool) -> f32 {
        extreme(f64::from(a), f64::from(b), greater, nan_wins) as f32
    }
    two("min.f32", |a, b| of32(a, b, false, false));
    two("max.f32", |a, b| of32(a, b, true, false));
    for (op, greater) in [("min.NaN.f32", false), ("max.NaN.f32", true)] {
        if known(op, B32, [B32, B32]) {
            two(op, |a, b| of32(a, b, greater, true));
        }
    }
    for (op, greater) in [("min.ftz.f32", false), ("max.ftz.f32", true)] {
        if known(op, B32, [B32, B32]) {
            two(op, |a, b| of32(flush(a), flush(b), greater, false));
        }
    }
    let values = floats64();
    for (op, greater) in [("min.f64", false), ("max.f64", true)] {
        if known(op, B64, [B64, B64]) {
            check_with(op, B64, [B64, B64], &pairs(&values, &values), |&[a, b], got| {
                let want = extreme(f64::from_bits(a), f64::from_bits(b), greater, false);
                let same = got == want.to_bits() || (want.is_nan() && f64::from_bits(got).is_nan());
                if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
            });
        }
    }
}

#[test]
fn signs() {
    let rows: Vec<_> = floats32().into_iter().map(|a| [a]).collect();
    let judge = |want: f32, got: u64| {
        let same = got == u64::from(want.to_bits()) || (want.is_nan() && f32_of(got).is_nan());
        if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
    };
    check_with("neg.f32", B32, [B32], &rows, |&[a], got| judge(-f32_of(a), got));
    check_with("abs.f32", B32, [B32], &rows, |&[a], got| judge(f32_of(a).abs(), got));
    for (op, f) in [("neg.ftz.f32", (|x| -flush(x)) as fn(f32) -> f32), ("abs.ftz.f32", |x| flush(x).abs())] {
        if known(op, B32, [B32]) {
            check_with(op, B32, [B32], &rows, |&[a], got| judge(f(f32_of(a)), got));
        }
    }
    // The sign of the first operand on the value of the second.
    if known("copysign.f32", B32, [B32, B32]) {
        let values = floats32();
        check_with("copysign.f32", B32, [B32, B32], &pairs(&values, &values), |&[a, b], got| {
            judge(f32_of(b).copysign(f32_of(a)), got)
        });
    }
}

#[test]
fn kinds_of_floats() {
    // Zeros count as normal.
    for (op, f) in [
        ("testp.finite.f32", f32::is_finite as fn(f32) -> bool),
        ("testp.infinite.f32", f32::is_infinite),
        ("testp.number.f32", |x| !x.is_nan()),
        ("testp.notanumber.f32", f32::is_nan),
        ("testp.normal.f32", |x| x.is_normal() || x == 0.0),
        ("testp.subnormal.f32", f32::is_subnormal),
    ] {
        if known(op, P, [B32]) {
            let rows: Vec<_> = floats32().into_iter().map(|a| ([a], u64::from(f(f32_of(a))))).collect();
            check(op, P, [B32], &rows);
        }
    }
}

#[test]
fn constants_as_operands() {
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], canonical(f32_of(a) + 1.0))).collect();
    check("add.rn.f32 %d, %a, 0f3F800000", B32, [B32], &rows);
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], canonical(f32_of(a) * -2.5))).collect();
    check("mul.rn.f32 %d, %a, 0fC0200000", B32, [B32], &rows);
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], canonical(1.0 / f32_of(a)))).collect();
    check("div.rn.f32 %d, 0f3F800000, %a", B32, [B32], &rows);
    let rows: Vec<_> = floats32().into_iter().map(|a| ([a], canonical(f32_of(a).mul_add(0.5, -1.0)))).collect();
    check("fma.rn.f32 %d, %a, 0f3F000000, 0fBF800000", B32, [B32], &rows);
}
