//! Arithmetic of f16 and bf16, alone and in pairs: 9.7.4 "Half Precision Floating-Point Instructions" (add, sub, mul,
//! fma, neg, abs, min, max). Halves work independently; results round to nearest even, subnormals are kept, and NaN
//! results are the canonical 0x7fff.

use crate::harness::{W, check_with, known};
use crate::values::{BF16, F16, Format, Random};
use W::{B16, B32};

/// Codes at the edges and random ones.
fn codes(format: &Format, seed: u64) -> Vec<u64> {
    let top = u64::from(format.largest());
    let least_normal = 1 << format.mantissa_bits;
    let mut codes = vec![0, 1, least_normal - 1, least_normal, top - 1, top, top + 1, top + 2];
    codes.extend([1.0, 1.5, 2.0, 256.0, 0.003].map(|x| u64::from(format.nearest(x, true))));
    let negative: Vec<u64> = codes.iter().map(|code| code | 0x8000).collect();
    codes.extend(negative);
    let mut random = Random::new(seed);
    codes.extend((0..20).map(|_| random.next() & 0xffff));
    codes
}

/// `exact` rounded, or None where f64 did not hold it exactly.
fn judge(format: &Format, exact: Option<f64>, got: u64) -> Result<(), String> {
    let Some(exact) = exact else { return Ok(()) };
    let got = u32::try_from(got).expect("16 bits");
    let want = if exact.is_nan() { 0x7fff } else { format.nearest(exact, false) };
    // The sign of an exact zero from a sum follows IEEE, as f64's does.
    if got == want { Ok(()) } else { Err(format!("{want:#06x}")) }
}

fn sum(a: f64, b: f64) -> Option<f64> {
    let sum = a + b;
    let exact = !sum.is_finite() || (sum - a == b && sum - b == a);
    exact.then_some(sum)
}

type Exact = fn(f64, f64, f64) -> Option<f64>;

const TWO: [(&str, Exact); 6] = [
    ("add.rn.f16x2", |a, b, _| sum(a, b)),
    ("add.f16x2", |a, b, _| sum(a, b)),
    ("sub.rn.f16x2", |a, b, _| sum(a, -b)),
    ("sub.f16x2", |a, b, _| sum(a, -b)),
    ("mul.rn.f16x2", |a, b, _| Some(a * b)),
    ("mul.f16x2", |a, b, _| Some(a * b)),
];

fn format_of(op: &str) -> Format {
    if op.contains("bf16") { BF16 } else { F16 }
}

fn value(format: &Format, code: u64) -> f64 {
    format.value(u32::try_from(code).expect("16 bits"))
}

#[test]
fn pairs_of_two_operands() {
    // The executor needs at least the product that widens e4m3 on devices without a conversion.
    assert!(known("mul.rn.f16x2", B32, [B32, B32]), "mul.rn.f16x2 is used to widen e4m3");
    for (op, exact) in TWO {
        if !known(op, B32, [B32, B32]) {
            continue;
        }
        let format = format_of(op);
        let codes = codes(&format, 70);
        let mut rows = Vec::new();
        for (i, &a) in codes.iter().enumerate() {
            for (j, &b) in codes.iter().enumerate() {
                let (high_a, high_b) = (codes[(i * 3 + j) % codes.len()], codes[(j * 5 + i + 1) % codes.len()]);
                rows.push([high_a << 16 | a, high_b << 16 | b]);
            }
        }
        check_with(op, B32, [B32, B32], &rows, |&[a, b], got| {
            let half = |a: u64, b: u64, got: u64| judge(&format, exact(value(&format, a), value(&format, b), 0.0), got);
            half(a & 0xffff, b & 0xffff, got & 0xffff).and_then(|()| half(a >> 16, b >> 16, got >> 16))
        });
    }
}

#[test]
fn products_with_a_sum() {
    for op in ["fma.rn.f16x2", "fma.rn.bf16x2", "fma.rn.f16", "fma.rn.bf16"] {
        let class = if op.ends_with("x2") { B32 } else { B16 };
        if !known(op, class, [class; 3]) {
            continue;
        }
        let format = format_of(op);
        let codes = codes(&format, 71);
        let mut random = Random::new(72);
        let mut pick = || {
            let pick = |random: &mut Random| codes[(random.next() % codes.len() as u64) as usize];
            let low = pick(&mut random);
            if class == B32 { pick(&mut random) << 16 | low } else { low }
        };
        let rows: Vec<[u64; 3]> = (0..4000).map(|_| [pick(), pick(), pick()]).collect();
        check_with(op, class, [class; 3], &rows, |&[a, b, c], got| {
            let half = |shift: u32| {
                let part = |x: u64| value(&format, x >> shift & 0xffff);
                judge(&format, sum(part(a) * part(b), part(c)), got >> shift & 0xffff)
            };
            half(0).and_then(|()| if class == B32 { half(16) } else { Ok(()) })
        });
    }
}

#[test]
fn single_halves() {
    let one: [(&str, Exact); 5] = [
        ("add.rn.f16", |a, b, _| sum(a, b)),
        ("add.f16", |a, b, _| sum(a, b)),
        ("sub.rn.f16", |a, b, _| sum(a, -b)),
        ("mul.rn.f16", |a, b, _| Some(a * b)),
        ("mul.f16", |a, b, _| Some(a * b)),
    ];
    for (op, exact) in one {
        if known(op, B16, [B16, B16]) {
            let format = format_of(op);
            let codes = codes(&format, 73);
            check_with(op, B16, [B16, B16], &crate::values::pairs(&codes, &codes), |&[a, b], got| {
                judge(&format, exact(value(&format, a), value(&format, b), 0.0), got)
            });
        }
    }
}

#[test]
fn the_lesser_and_the_greater() {
    for (op, greater) in [("min.f16x2", false), ("max.f16x2", true), ("min.bf16x2", false), ("max.bf16x2", true)] {
        if !known(op, B32, [B32, B32]) {
            continue;
        }
        let format = format_of(op);
        let codes = codes(&format, 74);
        let rows: Vec<[u64; 2]> =
            crate::values::pairs(&codes, &codes).into_iter().map(|[a, b]| [b << 16 | a, a << 16 | b]).collect();
        check_with(op, B32, [B32, B32], &rows, |&[a, b], got| {
            let half = |shift: u32| {
                let (x, y) = (a >> shift & 0xffff, b >> shift & 0xffff);
                let (p, q) = (value(&format, x), value(&format, y));
                let want = match (p.is_nan(), q.is_nan()) {
                    (true, true) => 0x7fff,
                    (true, false) => y,
                    (false, true) => x,
                    _ if (p.total_cmp(&q) == std::cmp::Ordering::Greater) == greater => x,
                    _ => y,
                };
                if got >> shift & 0xffff == want { Ok(()) } else { Err(format!("{want:#06x} at bit {shift}")) }
            };
            half(0).and_then(|()| half(16))
        });
    }
}
