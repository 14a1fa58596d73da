//! Integer arithmetic: 9.7.1 "Integer Arithmetic Instructions" (add, sub, mul, mad, div, rem, abs, neg, min, max).
//!
//! Results wrap to the width of the type; `.hi` takes the upper half of the product at twice the width, `.wide` all of
//! it. Division truncates towards zero, as every device does, and `rem` goes with it. Divisors of zero, the one quotient
//! that does not fit, and the absolute value of the least integer are left open by the ISA, so no row has them.

use crate::harness::{W, check};
use crate::values::{Random, edges16, edges32, edges64, pairs, triples};
use W::{B16, B32, B64};

fn two32(op: &str, result: impl Fn(u32, u32) -> u32) {
    let values = edges32();
    let rows: Vec<_> =
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], u64::from(result(a as u32, b as u32)))).collect();
    check(op, B32, [B32, B32], &rows);
}

fn two64(op: &str, result: impl Fn(u64, u64) -> u64) {
    let values = edges64();
    let rows: Vec<_> = pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], result(a, b))).collect();
    check(op, B64, [B64, B64], &rows);
}

fn two16(op: &str, result: impl Fn(u16, u16) -> u16) {
    let values = edges16();
    let rows: Vec<_> =
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], u64::from(result(a as u16, b as u16)))).collect();
    check(op, B16, [B16, B16], &rows);
}

fn signed32(x: u32) -> i64 {
    i64::from(x as i32)
}

fn signed64(x: u64) -> i128 {
    i128::from(x as i64)
}

#[test]
fn sums_and_differences_wrap() {
    two32("add.s32", u32::wrapping_add);
    two32("add.u32", u32::wrapping_add);
    two32("sub.s32", u32::wrapping_sub);
    two32("sub.u32", u32::wrapping_sub);
    two64("add.s64", u64::wrapping_add);
    two64("add.u64", u64::wrapping_add);
    two64("sub.s64", u64::wrapping_sub);
    two64("sub.u64", u64::wrapping_sub);
    two16("add.s16", u16::wrapping_add);
    two16("add.u16", u16::wrapping_add);
    two16("sub.s16", u16::wrapping_sub);
    two16("sub.u16", u16::wrapping_sub);
}

#[test]
fn products_low_high_and_wide() {
    two32("mul.lo.s32", u32::wrapping_mul);
    two32("mul.lo.u32", u32::wrapping_mul);
    two32("mul.hi.u32", |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    two32("mul.hi.s32", |a, b| ((signed32(a) * signed32(b)) >> 32) as u32);
    two64("mul.lo.s64", u64::wrapping_mul);
    two64("mul.lo.u64", u64::wrapping_mul);
    two64("mul.hi.u64", |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    two64("mul.hi.s64", |a, b| ((signed64(a) * signed64(b)) >> 64) as u64);
    two16("mul.lo.s16", u16::wrapping_mul);
    two16("mul.lo.u16", u16::wrapping_mul);
    two16("mul.hi.u16", |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16);
    two16("mul.hi.s16", |a, b| ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16);

    let values = edges32();
    let wide = |product: fn(u64, u64) -> u64| -> Vec<_> {
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], product(a, b))).collect()
    };
    check("mul.wide.u32", B64, [B32, B32], &wide(|a, b| a * b));
    check("mul.wide.s32", B64, [B32, B32], &wide(|a, b| (signed32(a as u32) * signed32(b as u32)) as u64));
    let values = edges16();
    let wide = |product: fn(u32, u32) -> u32| -> Vec<_> {
        pairs(&values, &values).into_iter().map(|[a, b]| ([a, b], u64::from(product(a as u32, b as u32)))).collect()
    };
    check("mul.wide.u16", B32, [B16, B16], &wide(|a, b| a * b));
    check("mul.wide.s16", B32, [B16, B16], &wide(|a, b| (i32::from(a as i16) * i32::from(b as i16)) as u32));
}

#[test]
fn products_with_a_sum() {
    let rows = |result: fn(u32, u32, u32) -> u32| -> Vec<_> {
        let triples = triples(&edges32(), 1);
        triples.into_iter().map(|[a, b, c]| ([a, b, c], u64::from(result(a as u32, b as u32, c as u32)))).collect()
    };
    check("mad.lo.s32", B32, [B32; 3], &rows(|a, b, c| a.wrapping_mul(b).wrapping_add(c)));
    check("mad.lo.u32", B32, [B32; 3], &rows(|a, b, c| a.wrapping_mul(b).wrapping_add(c)));
    check("mad.hi.u32", B32, [B32; 3], &rows(|a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)));
    check("mad.hi.s32", B32, [B32; 3], &rows(|a, b, c| (((signed32(a) * signed32(b)) >> 32) as u32).wrapping_add(c)));

    let rows = |result: fn(u64, u64, u64) -> u64| -> Vec<_> {
        triples(&edges64(), 2).into_iter().map(|[a, b, c]| ([a, b, c], result(a, b, c))).collect()
    };
    check("mad.lo.s64", B64, [B64; 3], &rows(|a, b, c| a.wrapping_mul(b).wrapping_add(c)));
    check("mad.lo.u64", B64, [B64; 3], &rows(|a, b, c| a.wrapping_mul(b).wrapping_add(c)));

    // The sum of a wide product has the product's width.
    let mut random = Random::new(3);
    let values = edges32();
    let wide: Vec<[u64; 3]> = pairs(&values, &values).into_iter().map(|[a, b]| [a, b, random.next()]).collect();
    let unsigned: Vec<_> = wide.iter().map(|&[a, b, c]| ([a, b, c], (a * b).wrapping_add(c))).collect();
    check("mad.wide.u32", B64, [B32, B32, B64], &unsigned);
    let signed = |a: u64, b: u64| (signed32(a as u32) * signed32(b as u32)) as u64;
    let signed: Vec<_> = wide.iter().map(|&[a, b, c]| ([a, b, c], signed(a, b).wrapping_add(c))).collect();
    check("mad.wide.s32", B64, [B32, B32, B64], &signed);

    let rows: Vec<_> = triples(&edges16(), 4)
        .into_iter()
        .map(|[a, b, c]| ([a, b, c], u64::from((a as u16).wrapping_mul(b as u16).wrapping_add(c as u16))))
        .collect();
    check("mad.lo.s16", B16, [B16; 3], &rows);
    check("mad.lo.u16", B16, [B16; 3], &rows);
}

#[test]
fn quotients_and_remainders_truncate() {
    let values = edges32();
    let mut all = pairs(&values, &values);
    let mut random = Random::new(5);
    // Quotients of every size, by way of divisors of every length.
    all.extend((0..600).map(|i| [u64::from(random.word()), u64::from(random.word() >> (i % 32))]));
    all.retain(|[_, b]| *b != 0);
    let rows = |all: &[[u64; 2]], result: fn(u32, u32) -> u32| -> Vec<_> {
        all.iter().map(|&[a, b]| ([a, b], u64::from(result(a as u32, b as u32)))).collect()
    };
    check("div.u32", B32, [B32, B32], &rows(&all, |a, b| a / b));
    check("rem.u32", B32, [B32, B32], &rows(&all, |a, b| a % b));
    all.retain(|&[a, b]| !(a == 0x8000_0000 && b == 0xffff_ffff));
    check("div.s32", B32, [B32, B32], &rows(&all, |a, b| (a as i32 / b as i32) as u32));
    check("rem.s32", B32, [B32, B32], &rows(&all, |a, b| (a as i32 % b as i32) as u32));

    let values = edges64();
    let mut all = pairs(&values, &values);
    all.extend((0..600).map(|i| [random.next(), random.next() >> (i % 64)]));
    all.retain(|[_, b]| *b != 0);
    let rows = |all: &[[u64; 2]], result: fn(u64, u64) -> u64| -> Vec<_> {
        all.iter().map(|&[a, b]| ([a, b], result(a, b))).collect()
    };
    check("div.u64", B64, [B64, B64], &rows(&all, |a, b| a / b));
    check("rem.u64", B64, [B64, B64], &rows(&all, |a, b| a % b));
    all.retain(|&[a, b]| !(a == 1 << 63 && b == u64::MAX));
    check("div.s64", B64, [B64, B64], &rows(&all, |a, b| (a as i64 / b as i64) as u64));
    check("rem.s64", B64, [B64, B64], &rows(&all, |a, b| (a as i64 % b as i64) as u64));
}

#[test]
fn the_type_says_which_is_less() {
    two32("min.u32", u32::min);
    two32("max.u32", u32::max);
    two32("min.s32", |a, b| (a as i32).min(b as i32) as u32);
    two32("max.s32", |a, b| (a as i32).max(b as i32) as u32);
    two64("min.u64", u64::min);
    two64("max.u64", u64::max);
    two64("min.s64", |a, b| (a as i64).min(b as i64) as u64);
    two64("max.s64", |a, b| (a as i64).max(b as i64) as u64);
    two16("min.u16", u16::min);
    two16("max.u16", u16::max);
    two16("min.s16", |a, b| (a as i16).min(b as i16) as u16);
    two16("max.s16", |a, b| (a as i16).max(b as i16) as u16);
}

#[test]
fn negation_and_absolute_value() {
    let one = |values: Vec<u64>, result: fn(u64) -> u64| -> Vec<_> {
        values.into_iter().map(|a| ([a], result(a))).collect::<Vec<_>>()
    };
    check("neg.s32", B32, [B32], &one(edges32(), |a| u64::from((a as u32).wrapping_neg())));
    check("neg.s64", B64, [B64], &one(edges64(), u64::wrapping_neg));
    check("neg.s16", B16, [B16], &one(edges16(), |a| u64::from((a as u16).wrapping_neg())));
    let but = |mut values: Vec<u64>, least: u64| {
        values.retain(|&a| a != least);
        values
    };
    check("abs.s32", B32, [B32], &one(but(edges32(), 1 << 31), |a| u64::from((a as i32).unsigned_abs())));
    check("abs.s64", B64, [B64], &one(but(edges64(), 1 << 63), |a| (a as i64).unsigned_abs()));
    check("abs.s16", B16, [B16], &one(but(edges16(), 1 << 15), |a| u64::from((a as i16).unsigned_abs())));
}

#[test]
fn constants_as_operands() {
    // 4.5.1 "Integer Constants": decimal, hexadecimal, octal and binary; a negative one is as wide as the instruction.
    for (text, value) in
        [("-1", u32::MAX), ("0x80000000", 1 << 31), ("017", 15), ("0b101", 5), ("4294967295", u32::MAX), ("42U", 42)]
    {
        let rows: Vec<_> = edges32().into_iter().map(|a| ([a], u64::from((a as u32).wrapping_add(value)))).collect();
        check(&format!("add.s32 %d, %a, {text}"), B32, [B32], &rows);
        let rows: Vec<_> = edges32().into_iter().map(|a| ([a], u64::from(value.wrapping_sub(a as u32)))).collect();
        check(&format!("sub.s32 %d, {text}, %a"), B32, [B32], &rows);
    }
    let rows: Vec<_> = edges64().into_iter().map(|a| ([a], a.wrapping_sub(8))).collect();
    check("add.s64 %d, %a, -8", B64, [B64], &rows);
    let rows: Vec<_> = edges64().into_iter().map(|a| ([a], a.wrapping_add(0xffff_ffff))).collect();
    check("add.s64 %d, %a, 0xffffffff", B64, [B64], &rows);
    let rows: Vec<_> = edges16().into_iter().map(|a| ([a], u64::from((a as u16).wrapping_sub(3)))).collect();
    check("add.s16 %d, %a, -3", B16, [B16], &rows);
    let rows: Vec<_> = edges32().into_iter().map(|a| ([a], a * 12)).collect();
    check("mul.wide.u32 %d, %a, 12", B64, [B32], &rows);
    let rows: Vec<_> = edges32().into_iter().map(|a| ([a], (signed32(a as u32) * -12) as u64)).collect();
    check("mul.wide.s32 %d, %a, -12", B64, [B32], &rows);
    let rows: Vec<_> =
        edges32().into_iter().map(|a| ([a], u64::from((a as u32).wrapping_mul(7).wrapping_add(9)))).collect();
    check("mad.lo.s32 %d, %a, 7, 9", B32, [B32], &rows);
}
