//! Approximations: 9.7.3 (ex2, lg2, rcp, sqrt, rsqrt, tanh, div.approx, div.full), their maximum errors and their tables
//! of special inputs. They must hold in every mode, the one included that adds the permitted error with either sign.

use crate::harness::{W, check_approximate, known};
use crate::values::{Random, canonical, f32_of, floats32};
use W::B32;

fn rounded(x: f64) -> f32 {
    x as f32
}

/// The distance to the next f32 away from zero, which is what errors are counted in.
fn ulp(x: f32) -> f64 {
    let exponent = i32::try_from((x.to_bits() >> 23) & 255).expect("8 bits").max(1);
    2.0_f64.powi(exponent - 150)
}

/// f32 as a number, with infinity where the next number would be.
fn number(x: f32) -> f64 {
    if x.is_infinite() { 2.0_f64.powi(128).copysign(f64::from(x)) } else { f64::from(x) }
}

/// Within `ulps` of the correctly rounded value; an exact one with its sign, zeros too.
fn near(want: f32, got: f32, ulps: u32) -> bool {
    if want.is_nan() || got.is_nan() || ulps == 0 {
        return canonical(want) == canonical(got);
    }
    let largest = if want.is_infinite() { f32::MAX } else { want };
    (number(want) - number(got)).abs() <= f64::from(ulps) * ulp(largest)
}

/// Inputs of both signs over the whole range, densely, and all special ones.
fn inputs() -> Vec<[u64; 1]> {
    let mut rows: Vec<[u64; 1]> = floats32().into_iter().map(|a| [a]).collect();
    let mut random = Random::new(40);
    for exponent in 0..255_u64 {
        for _ in 0..12 {
            let bits = exponent << 23 | random.next() >> 41;
            rows.push([bits]);
            rows.push([bits | 0x8000_0000]);
        }
    }
    rows
}

/// Inputs evenly spaced over an interval.
fn grid(from: f32, to: f32, steps: u16) -> Vec<[u64; 1]> {
    let at = |i: u16| from + (to - from) * (f32::from(i) / f32::from(steps));
    (0..=steps).map(|i| [u64::from(at(i).to_bits())]).collect()
}

fn flushed(bits: u64) -> f32 {
    crate::values::flush(f32_of(bits))
}

/// A flushed result is zero where it would be subnormal; at the border of that, within the error, either will do.
fn near_flushed(want: f32, got: f32, ulps: u32) -> bool {
    let slack = f64::from(ulps) * ulp(0.0);
    let least = f64::from(f32::MIN_POSITIVE);
    let size = f64::from(want).abs();
    if size + slack < least {
        return got == 0.0 && (got.is_sign_negative() == want.is_sign_negative());
    }
    near(want, got, ulps) || (size <= least + slack && got == 0.0)
}

fn verdict(right: bool, want: f32) -> Result<(), String> {
    if right { Ok(()) } else { Err(format!("about {:#x} ({want:e})", want.to_bits())) }
}

#[test]
fn powers_of_two() {
    // 9.7.3.21: at most 2 ulp from the correctly rounded result over the full range; -inf gives 0, both zeros give 1.
    let mut rows = inputs();
    rows.extend(grid(-150.0, 129.0, 8000));
    rows.extend(grid(-1.0, 1.0, 4000));
    check_approximate("ex2.approx.f32", [B32], &rows, |&[a], got| {
        let want = rounded(f64::from(f32_of(a)).exp2());
        let exact = f32_of(a) == 0.0 || f32_of(a).is_infinite();
        verdict(near(want, f32_of(got), if exact { 0 } else { 2 }), want)
    });
    check_approximate("ex2.approx.ftz.f32", [B32], &rows, |&[a], got| {
        let want = rounded(f64::from(flushed(a)).exp2());
        let exact = flushed(a) == 0.0 || f32_of(a).is_infinite();
        verdict(near_flushed(want, f32_of(got), if exact { 0 } else { 2 }), want)
    });
}

#[test]
fn logarithms() {
    // 9.7.3.20: at most 2^-22 absolute in (0.5, 2), and relative elsewhere; zeros give -inf, negative numbers NaN.
    let mut rows = inputs();
    rows.extend(grid(0.5, 2.0, 8000));
    rows.extend(grid(0.99, 1.01, 2000));
    let judge = |x: f32, got: f32| {
        let exact = f64::from(x).log2();
        let want = rounded(if x == 0.0 { f64::NEG_INFINITY } else { exact });
        let bound = 2.0_f64.powi(-22) * if x > 0.5 && x < 2.0 { 1.0 } else { exact.abs() };
        let right = match want.is_finite() {
            true => (f64::from(got) - exact).abs() <= bound,
            false => near(want, got, 0),
        };
        verdict(right, want)
    };
    check_approximate("lg2.approx.f32", [B32], &rows, |&[a], got| judge(f32_of(a), f32_of(got)));
    check_approximate("lg2.approx.ftz.f32", [B32], &rows, |&[a], got| judge(flushed(a), f32_of(got)));
}

#[test]
fn reciprocals() {
    // 9.7.3.13: at most 1 ulp over the full range; zeros give infinities of their sign and back.
    let mut rows = inputs();
    rows.extend(grid(1.0, 4.0, 6000));
    check_approximate("rcp.approx.f32", [B32], &rows, |&[a], got| {
        let want = rounded(1.0 / f64::from(f32_of(a)));
        let exact = f32_of(a) == 0.0 || f32_of(a).is_infinite();
        verdict(near(want, f32_of(got), if exact { 0 } else { 1 }), want)
    });
    check_approximate("rcp.approx.ftz.f32", [B32], &rows, |&[a], got| {
        let want = rounded(1.0 / f64::from(flushed(a)));
        let exact = flushed(a) == 0.0 || f32_of(a).is_infinite();
        verdict(near_flushed(want, f32_of(got), if exact { 0 } else { 1 }), want)
    });
}

#[test]
fn roots() {
    // 9.7.3.15 and 9.7.3.16: relative errors of at most 2^-23 and 2^-22.9; sqrt keeps -0, rsqrt makes zeros infinities of
    // their sign, and negative numbers give NaN.
    let mut rows = inputs();
    rows.extend(grid(1.0, 4.0, 6000));
    let judge = |exact: f64, got: f32, bound: f64| {
        let want = rounded(exact);
        let right = match want.is_finite() && want != 0.0 {
            true => (f64::from(got) - exact).abs() <= bound * exact.abs(),
            false => near(want, got, 0),
        };
        verdict(right, want)
    };
    // Between neighbouring f32 the nearest one may be off by up to 2^-24, and a bound of 2^-23 has room for it; results
    // of these functions are never subnormal.
    let (sqrt, rsqrt) = (2.0_f64.powi(-23), 2.0_f64.powf(-22.9));
    check_approximate("sqrt.approx.f32", [B32], &rows, |&[a], got| {
        judge(f64::from(f32_of(a)).sqrt(), f32_of(got), sqrt)
    });
    check_approximate("sqrt.approx.ftz.f32", [B32], &rows, |&[a], got| {
        judge(f64::from(flushed(a)).sqrt(), f32_of(got), sqrt)
    });
    let inverse = |x: f32| 1.0 / f64::from(x).sqrt();
    check_approximate("rsqrt.approx.f32", [B32], &rows, |&[a], got| judge(inverse(f32_of(a)), f32_of(got), rsqrt));
    check_approximate("rsqrt.approx.ftz.f32", [B32], &rows, |&[a], got| judge(inverse(flushed(a)), f32_of(got), rsqrt));
}

#[test]
fn hyperbolic_tangents() {
    // 9.7.3.22: a relative error of at most 2^-11; zeros and subnormals pass through, infinities give +-1.
    if !known("tanh.approx.f32", B32, [B32]) {
        return;
    }
    let bound = 2.0_f64.powi(-11);
    let mut rows = inputs();
    rows.extend(grid(-6.0, 6.0, 6000));
    check_approximate("tanh.approx.f32", [B32], &rows, |&[a], got| {
        let exact = f64::from(f32_of(a)).tanh();
        let (want, got) = (rounded(exact), f32_of(got));
        let exactly = !f32_of(a).is_normal();
        let right = if exactly { near(want, got, 0) } else { (f64::from(got) - exact).abs() <= bound * exact.abs() };
        verdict(right, want)
    });
}

#[test]
fn quotients() {
    // 9.7.3.8: div.full errs by at most 2 ulp over the full range. div.approx too for divisors of 2^-126 to 2^126; for
    // greater ones, finite, the result is a zero of the quotient's sign, or NaN where the dividend is infinite.
    let values = floats32();
    let mut rows = crate::values::pairs(&values, &values);
    let mut random = Random::new(41);
    rows.extend((0..6000).map(|_| [u64::from(random.word()), u64::from(random.word())]));
    if known("div.full.f32", B32, [B32, B32]) {
        check_approximate("div.full.f32", [B32, B32], &rows, |&[a, b], got| {
            let want = f32_of(a) / f32_of(b);
            verdict(near(want, f32_of(got), 2), want)
        });
    }
    if known("div.approx.f32", B32, [B32, B32]) {
        rows.retain(|&[_, b]| f32_of(b).abs() >= f32::MIN_POSITIVE && f32_of(b).is_finite());
        check_approximate("div.approx.f32", [B32, B32], &rows, |&[a, b], got| {
            let (x, y, got) = (f32_of(a), f32_of(b), f32_of(got));
            let mut want = x / y;
            if y.abs() <= 2.0_f32.powi(126) {
                return verdict(near(want, got, 2), want);
            }
            if x.is_infinite() {
                want = f32::NAN;
            } else if !x.is_nan() {
                want = 0.0_f32.copysign(want);
            }
            verdict(near(want, got, 0), want)
        });
    }
}
