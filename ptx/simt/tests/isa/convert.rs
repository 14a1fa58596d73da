//! Conversions among integers, f32 and f64: 9.7.9.21 "cvt", 6.5 "Type Conversion" and 9.4.1 "Operand Size Exceeding
//! Instruction-Type Size".
//!
//! An integer source is read in the low bits of its register by its type, chopped or extended to the destination's type,
//! and that is extended to the destination register by the destination's signedness. Floats go to integers by `.rni`
//! (nearest, ties to even), `.rzi`, `.rmi`, `.rpi`, clamped to the destination's range; NaN gives 0 unless the source is
//! f64 or the destination 64 bits, when it gives the top bit of the destination alone. Integers go to floats by `.rn`,
//! `.rz`, `.rm`, `.rp`.

use crate::harness::{W, check, check_with, known};
use crate::values::{Random, canonical, edges64, f32_of, floats32, floats64};
use W::{B16, B32, B64};

#[derive(Clone, Copy)]
struct Int {
    name: &'static str,
    bits: u32,
    signed: bool,
}

const fn int(name: &'static str, bits: u32, signed: bool) -> Int {
    Int { name, bits, signed }
}

const INTS: [Int; 8] = [
    int("u8", 8, false),
    int("s8", 8, true),
    int("u16", 16, false),
    int("s16", 16, true),
    int("u32", 32, false),
    int("s32", 32, true),
    int("u64", 64, false),
    int("s64", 64, true),
];

impl Int {
    /// The value of the low bits of a register.
    fn read(self, register: u64) -> i128 {
        let shift = 64 - self.bits;
        if self.signed {
            i128::from(((register << shift) as i64) >> shift)
        } else {
            i128::from((register << shift) >> shift)
        }
    }

    fn range(self) -> (i128, i128) {
        let top = 1_i128 << (self.bits - u32::from(self.signed));
        (if self.signed { -top } else { 0 }, top - 1)
    }

    /// The registers that may hold it.
    fn registers(self) -> &'static [W] {
        match self.bits {
            8 | 16 => &[B16, B32, B64],
            32 => &[B32, B64],
            _ => &[B64],
        }
    }
}

fn mask(class: W) -> u64 {
    match class {
        W::P => 1,
        B16 => 0xffff,
        B32 => 0xffff_ffff,
        B64 => u64::MAX,
    }
}

/// Spellings that this file builds, for the coverage list.
pub fn generated() -> Vec<String> {
    let mut all = Vec::new();
    for d in INTS {
        all.extend(INTS.iter().filter(|a| a.name != d.name).map(|a| format!("cvt.{}.{}", d.name, a.name)));
        for float in ["f32", "f64"] {
            all.extend(["rni", "rzi", "rmi", "rpi"].map(|r| format!("cvt.{r}.{}.{float}", d.name)));
            all.extend(["rn"].map(|r| format!("cvt.{r}.{float}.{}", d.name)));
        }
    }
    all
}

#[test]
fn integers_among_themselves() {
    let mut values = edges64();
    values.extend([0x80, 0x7f, 0xff80, 0x8000, 0x7fff, 0xffff_8000, 0x1234_5678_9abc_def0, 0xfedc_ba98_7654_3210]);
    for d in INTS {
        for a in INTS.into_iter().filter(|a| a.name != d.name) {
            for &to in d.registers() {
                for &from in a.registers() {
                    let rows: Vec<_> = values
                        .iter()
                        .map(|&x| {
                            let x = x & mask(from);
                            let chopped = a.read(x) as u64;
                            ([x], d.read(chopped) as u64 & mask(to))
                        })
                        .collect();
                    check(&format!("cvt.{}.{}", d.name, a.name), to, [from], &rows);
                }
            }
        }
    }
}

#[test]
fn integers_clamped() {
    for (op, d, a) in [
        ("cvt.sat.u8.s32", INTS[0], INTS[5]),
        ("cvt.sat.s8.s32", INTS[1], INTS[5]),
        ("cvt.sat.u16.s32", INTS[2], INTS[5]),
        ("cvt.sat.s16.s32", INTS[3], INTS[5]),
        ("cvt.sat.u32.s32", INTS[4], INTS[5]),
        ("cvt.sat.s32.u32", INTS[5], INTS[4]),
        ("cvt.sat.s32.s64", INTS[5], INTS[7]),
        ("cvt.sat.u32.u64", INTS[4], INTS[6]),
    ] {
        let from = a.registers()[0];
        if known(op, B32, [from]) {
            let (least, most) = d.range();
            let rows: Vec<_> = edges64()
                .into_iter()
                .map(|x| ([x & mask(from)], a.read(x).clamp(least, most) as u64 & 0xffff_ffff))
                .collect();
            check(op, B32, [from], &rows);
        }
    }
}

fn rounded_to_integer(x: f64, rounding: &str) -> f64 {
    match rounding {
        "rni" => x.round_ties_even(),
        "rzi" => x.trunc(),
        "rmi" => x.floor(),
        _ => x.ceil(),
    }
}

/// What a float-to-integer conversion gives, in a register of `to`.
fn to_integer(x: f64, rounding: &str, d: Int, from_double: bool, to: W) -> u64 {
    let (least, most) = d.range();
    let value = if x.is_nan() {
        let zero = !from_double && d.bits < 64;
        if zero { 0 } else { d.read(1 << (d.bits - 1)) }
    } else {
        // Rust's cast clamps, and i128 holds every range here.
        (rounded_to_integer(x, rounding) as i128).clamp(least, most)
    };
    value as u64 & mask(to)
}

/// Floats about every power of two and half between small integers.
fn near_integers() -> Vec<f64> {
    let mut values = Vec::new();
    for i in 0..140 {
        values.extend([f64::from(i) / 4.0, f64::from(i) * 0.5 + 125.0]);
    }
    for exponent in 0..66 {
        let power = 2.0_f64.powi(exponent);
        values.extend([power, power - 1.0, power + 1.0, power - 0.5, power + 0.5, power.next_down(), power.next_up()]);
        values.push(f64::from((power as f32).next_down()));
    }
    values.extend([1e10, 1e20, 1e30, f64::INFINITY, f64::NAN, 1e-40, 0.499_999_97, 0.5, 0.500_000_1]);
    let negative: Vec<f64> = values.iter().map(|x| -x).collect();
    values.extend(negative);
    values
}

#[test]
fn floats_to_integers() {
    let singles: Vec<u64> =
        near_integers().into_iter().map(|x| u64::from((x as f32).to_bits())).chain(floats32()).collect();
    let doubles: Vec<u64> = near_integers().into_iter().map(f64::to_bits).chain(floats64()).collect();
    for d in INTS {
        let to = if d.bits == 64 { B64 } else { B32 };
        for rounding in ["rni", "rzi", "rmi", "rpi"] {
            let rows: Vec<_> =
                singles.iter().map(|&a| ([a], to_integer(f64::from(f32_of(a)), rounding, d, false, to))).collect();
            check(&format!("cvt.{rounding}.{}.f32", d.name), to, [B32], &rows);
            let rows: Vec<_> =
                doubles.iter().map(|&a| ([a], to_integer(f64::from_bits(a), rounding, d, true, to))).collect();
            check(&format!("cvt.{rounding}.{}.f64", d.name), to, [B64], &rows);
        }
    }
    // Subnormals taken for zeros: only rounding up or down can tell.
    for op in ["cvt.rpi.ftz.s32.f32", "cvt.rmi.ftz.s32.f32", "cvt.rzi.ftz.s32.f32"] {
        if known(op, B32, [B32]) {
            let rounding = op.split('.').nth(1).expect("a rounding");
            let rows: Vec<_> = singles
                .iter()
                .map(|&a| {
                    let x = f64::from(crate::values::flush(f32_of(a)));
                    ([a], to_integer(x, rounding, INTS[5], false, B32))
                })
                .collect();
            check(op, B32, [B32], &rows);
        }
    }
}

#[test]
fn floats_to_whole_floats() {
    let singles: Vec<u64> =
        near_integers().into_iter().map(|x| u64::from((x as f32).to_bits())).chain(floats32()).collect();
    for op in ["cvt.rni.f32.f32", "cvt.rzi.f32.f32", "cvt.rmi.f32.f32", "cvt.rpi.f32.f32"] {
        let rounding = op.split('.').nth(1).expect("a rounding");
        let rows: Vec<_> = singles
            .iter()
            .map(|&a| ([a], canonical(rounded_to_integer(f64::from(f32_of(a)), rounding) as f32)))
            .collect();
        check(op, B32, [B32], &rows);
    }
    let doubles: Vec<[u64; 1]> = near_integers().into_iter().map(f64::to_bits).chain(floats64()).map(|a| [a]).collect();
    for op in ["cvt.rni.f64.f64", "cvt.rzi.f64.f64", "cvt.rmi.f64.f64", "cvt.rpi.f64.f64"] {
        let rounding = op.split('.').nth(1).expect("a rounding");
        if known(op, B64, [B64]) {
            check_with(op, B64, [B64], &doubles, |&[a], got| {
                let want = rounded_to_integer(f64::from_bits(a), rounding);
                let same = got == want.to_bits() || (want.is_nan() && f64::from_bits(got).is_nan());
                if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
            });
        }
    }
}

/// `x` to f32 by a rounding, exactly.
fn integer_to_single(x: i128, rounding: &str) -> f32 {
    let near = x as f32;
    let error = x - near as i128;
    match rounding {
        "rp" if error > 0 => near.next_up(),
        "rm" if error < 0 => near.next_down(),
        "rz" if error > 0 && x < 0 => near.next_up(),
        "rz" if error < 0 && x > 0 => near.next_down(),
        _ => near,
    }
}

/// `x` to f64 likewise.
fn integer_to_double(x: i128, rounding: &str) -> f64 {
    let near = x as f64;
    let error = x - near as i128;
    match rounding {
        "rp" if error > 0 => near.next_up(),
        "rm" if error < 0 => near.next_down(),
        "rz" if error > 0 && x < 0 => near.next_up(),
        "rz" if error < 0 && x > 0 => near.next_down(),
        _ => near,
    }
}

#[test]
fn integers_to_floats() {
    let mut random = Random::new(50);
    let mut values = edges64();
    for bits in 1..64 {
        values.extend([1 << bits, (1 << bits) - 1, (1 << bits) + 1, random.next() >> (64 - bits)]);
    }
    // Ties: 25 and 54 bits, with the last one set.
    for _ in 0..200 {
        values.push((random.next() >> 39 | 1 << 24) | 1);
        values.push(((random.next() >> 39 | 1 << 24) | 1) << (random.next() % 38));
        values.push((random.next() >> 10 | 1 << 53) | 1);
        values.push(((random.next() >> 10 | 1 << 53) | 1) << (random.next() % 10));
    }
    for a in INTS {
        let from = a.registers()[0];
        for rounding in ["rn", "rz", "rm", "rp"] {
            let op = format!("cvt.{rounding}.f32.{}", a.name);
            if rounding == "rn" || known(&op, B32, [from]) {
                let rows: Vec<_> = values
                    .iter()
                    .map(|&x| ([x & mask(from)], u64::from(integer_to_single(a.read(x), rounding).to_bits())))
                    .collect();
                check(&op, B32, [from], &rows);
            }
            let op = format!("cvt.{rounding}.f64.{}", a.name);
            if rounding == "rn" || known(&op, B64, [from]) {
                let rows: Vec<_> = values
                    .iter()
                    .map(|&x| ([x & mask(from)], integer_to_double(a.read(x), rounding).to_bits()))
                    .collect();
                check(&op, B64, [from], &rows);
            }
        }
    }
}

#[test]
fn singles_and_doubles() {
    let rows: Vec<[u64; 1]> = floats32().into_iter().map(|a| [a]).collect();
    check_with("cvt.f64.f32", B64, [B32], &rows, |&[a], got| {
        let want = f64::from(f32_of(a));
        let same = got == want.to_bits() || (want.is_nan() && f64::from_bits(got).is_nan());
        if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
    });
    let mut values = floats64();
    let mut random = Random::new(51);
    for _ in 0..2000 {
        // f32 values, the middles between them, and a little beside; subnormal results too.
        let bits = (random.next() >> 35 & 0x1fff_ffff) << 29 | 0x3690_0000_0000_0000;
        values.extend([bits, bits | 1 << 28, bits | 1 << 28 | 1, bits | ((1 << 28) - 1)]);
        values.push(random.next());
    }
    let rows: Vec<_> = values.iter().map(|&a| ([a], canonical(f64::from_bits(a) as f32))).collect();
    check("cvt.rn.f32.f64", B32, [B64], &rows);
    for (op, rounding) in [("cvt.rz.f32.f64", "rz"), ("cvt.rm.f32.f64", "rm"), ("cvt.rp.f32.f64", "rp")] {
        if known(op, B32, [B64]) {
            let directed = |x: f64| {
                let near = x as f32;
                let error = x - f64::from(near);
                if x.is_infinite() || x.is_nan() {
                    return near;
                }
                match rounding {
                    "rp" if error > 0.0 => near.next_up(),
                    "rm" if error < 0.0 => near.next_down(),
                    "rz" if error > 0.0 && x < 0.0 => near.next_up(),
                    "rz" if error < 0.0 && x > 0.0 => near.next_down(),
                    _ => near,
                }
            };
            let rows: Vec<_> = values.iter().map(|&a| ([a], canonical(directed(f64::from_bits(a))))).collect();
            check(op, B32, [B64], &rows);
        }
    }
}
