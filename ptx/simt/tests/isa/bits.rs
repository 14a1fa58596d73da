//! Bits: 9.7.8 "Logic and Shift Instructions" (and, or, xor, not, lop3, shf, shl, shr), 9.7.1 (popc, clz, brev, bfe, bfi,
//! bfind is not used) and 9.7.9 "Data Movement" (prmt).
//!
//! Shift amounts are unsigned 32 bits and clamp at the width of the type, so a shift by the width or more leaves zeros,
//! or the sign where a signed type is shifted right. `shf` shifts the pair b:a by an amount that clamps at 32 or wraps
//! modulo 32. `lop3` looks the result up in its table: bit 4a + 2b + c. `prmt` takes for byte i the byte of b:a that
//! nibble i names by its low three bits, or, with the nibble's high bit, that byte's sign eight times.

use crate::harness::{W, check};
use crate::values::{Random, edges16, edges32, edges64, pairs, triples};
use W::{B16, B32, B64};

#[test]
fn logic() {
    let rows32 = |f: fn(u64, u64) -> u64| -> Vec<_> {
        pairs(&edges32(), &edges32()).into_iter().map(|[a, b]| ([a, b], f(a, b))).collect()
    };
    check("and.b32", B32, [B32, B32], &rows32(|a, b| a & b));
    check("or.b32", B32, [B32, B32], &rows32(|a, b| a | b));
    check("xor.b32", B32, [B32, B32], &rows32(|a, b| a ^ b));
    let rows64 = |f: fn(u64, u64) -> u64| -> Vec<_> {
        pairs(&edges64(), &edges64()).into_iter().map(|[a, b]| ([a, b], f(a, b))).collect()
    };
    check("and.b64", B64, [B64, B64], &rows64(|a, b| a & b));
    check("or.b64", B64, [B64, B64], &rows64(|a, b| a | b));
    check("xor.b64", B64, [B64, B64], &rows64(|a, b| a ^ b));
    let rows16 = |f: fn(u64, u64) -> u64| -> Vec<_> {
        pairs(&edges16(), &edges16()).into_iter().map(|[a, b]| ([a, b], f(a, b))).collect()
    };
    check("and.b16", B16, [B16, B16], &rows16(|a, b| a & b));
    check("or.b16", B16, [B16, B16], &rows16(|a, b| a | b));
    check("xor.b16", B16, [B16, B16], &rows16(|a, b| a ^ b));
    let not = |values: Vec<u64>, mask: u64| -> Vec<_> { values.into_iter().map(|a| ([a], !a & mask)).collect() };
    check("not.b16", B16, [B16], &not(edges16(), 0xffff));
    check("not.b32", B32, [B32], &not(edges32(), 0xffff_ffff));
    check("not.b64", B64, [B64], &not(edges64(), u64::MAX));
}

#[test]
fn shifts_clamp_at_the_width() {
    let amounts =
        [0, 1, 2, 5, 8, 15, 16, 17, 30, 31, 32, 33, 47, 62, 63, 64, 65, 127, 128, 256, 0x8000_0000, 0xffff_ffff];
    let rows = |values: &[u64], f: &dyn Fn(u64, u32) -> u64| -> Vec<_> {
        pairs(values, &amounts).into_iter().map(|[a, b]| ([a, b], f(a, b as u32))).collect()
    };
    let (v16, v32, v64) = (edges16(), edges32(), edges64());
    check("shl.b32", B32, [B32, B32], &rows(&v32, &|a, n| u64::from((a as u32).checked_shl(n).unwrap_or(0))));
    let right = |a: u64, n: u32| u64::from((a as u32).checked_shr(n).unwrap_or(0));
    check("shr.u32", B32, [B32, B32], &rows(&v32, &right));
    check("shr.b32", B32, [B32, B32], &rows(&v32, &right));
    check("shr.s32", B32, [B32, B32], &rows(&v32, &|a, n| u64::from(((a as i32) >> n.min(31)) as u32)));
    check("shl.b64", B64, [B64, B32], &rows(&v64, &|a, n| a.checked_shl(n).unwrap_or(0)));
    check("shr.u64", B64, [B64, B32], &rows(&v64, &|a, n| a.checked_shr(n).unwrap_or(0)));
    check("shr.b64", B64, [B64, B32], &rows(&v64, &|a, n| a.checked_shr(n).unwrap_or(0)));
    check("shr.s64", B64, [B64, B32], &rows(&v64, &|a, n| ((a as i64) >> n.min(63)) as u64));
    check("shl.b16", B16, [B16, B32], &rows(&v16, &|a, n| u64::from((a as u16).checked_shl(n).unwrap_or(0))));
    check("shr.u16", B16, [B16, B32], &rows(&v16, &|a, n| u64::from((a as u16).checked_shr(n).unwrap_or(0))));
    check("shr.b16", B16, [B16, B32], &rows(&v16, &|a, n| u64::from((a as u16).checked_shr(n).unwrap_or(0))));
    check("shr.s16", B16, [B16, B32], &rows(&v16, &|a, n| u64::from(((a as i16) >> n.min(15)) as u16)));
    // By constants, as compilers write them.
    let constant = |f: fn(u64) -> u64| -> Vec<_> { edges32().into_iter().map(|a| ([a], f(a))).collect() };
    check("shl.b32 %d, %a, 4", B32, [B32], &constant(|a| (a << 4) & 0xffff_ffff));
    check("shr.u32 %d, %a, 5", B32, [B32], &constant(|a| a >> 5));
    check("shr.s32 %d, %a, 31", B32, [B32], &constant(|a| u64::from(((a as i32) >> 31) as u32)));
    let constant = |f: fn(u64) -> u64| -> Vec<_> { edges64().into_iter().map(|a| ([a], f(a))).collect() };
    check("shl.b64 %d, %a, 2", B64, [B64], &constant(|a| a << 2));
    check("shr.u64 %d, %a, 32", B64, [B64], &constant(|a| a >> 32));
    check("shr.s64 %d, %a, 60", B64, [B64], &constant(|a| ((a as i64) >> 60) as u64));
}

#[test]
fn funnel_shifts_clamp_or_wrap() {
    let mut random = Random::new(7);
    let mut rows = Vec::new();
    for amount in (0..70).chain([128, 0x8000_0001, 0xffff_ffff]) {
        for _ in 0..6 {
            rows.push([u64::from(random.word()), u64::from(random.word()), amount]);
        }
    }
    let with = |f: fn(u64, u32) -> u32, amount: fn(u64) -> u32| -> Vec<_> {
        rows.iter().map(|&[a, b, c]| ([a, b, c], u64::from(f(b << 32 | a, amount(c))))).collect()
    };
    // The upper word of the pair shifted left, the lower word of the pair shifted right.
    let left = |pair: u64, n: u32| ((pair << n) >> 32) as u32;
    let right = |pair: u64, n: u32| (pair >> n) as u32;
    let wrap = |c: u64| (c & 31) as u32;
    let clamp = |c: u64| c.min(32) as u32;
    check("shf.l.wrap.b32", B32, [B32; 3], &with(left, wrap));
    check("shf.r.wrap.b32", B32, [B32; 3], &with(right, wrap));
    check("shf.l.clamp.b32", B32, [B32; 3], &with(left, clamp));
    check("shf.r.clamp.b32", B32, [B32; 3], &with(right, clamp));
    let rows: Vec<_> = edges32().into_iter().map(|a| ([a], u64::from((a as u32).rotate_left(7)))).collect();
    check("shf.l.wrap.b32 %d, %a, %a, 7", B32, [B32], &rows);
}

#[test]
fn counts_and_reversal() {
    let rows =
        |values: &[u64], f: fn(u64) -> u64| -> Vec<_> { values.iter().map(|&a| ([a], f(a))).collect::<Vec<_>>() };
    let mut words = edges32();
    words.extend((0..32).map(|i| 1 << i));
    check("popc.b32", B32, [B32], &rows(&words, |a| u64::from(a.count_ones())));
    check("clz.b32", B32, [B32], &rows(&words, |a| u64::from((a as u32).leading_zeros())));
    check("brev.b32", B32, [B32], &rows(&words, |a| u64::from((a as u32).reverse_bits())));
    let mut words = edges64();
    words.extend((0..64).map(|i| 1 << i));
    check("popc.b64", B32, [B64], &rows(&words, |a| u64::from(a.count_ones())));
    check("clz.b64", B32, [B64], &rows(&words, |a| u64::from(a.leading_zeros())));
    check("brev.b64", B64, [B64], &rows(&words, u64::reverse_bits));
}

#[test]
fn bit_fields() {
    // Positions and lengths count modulo 256; what lies beyond the top reads as zeros, or as the sign of the field.
    let places = [0, 1, 5, 8, 16, 24, 31, 32, 33, 63, 64, 100, 255, 256, 257];
    let mut random = Random::new(8);
    let mut rows32 = Vec::new();
    let mut rows64 = Vec::new();
    for position in places {
        for length in places {
            for _ in 0..3 {
                rows32.push([u64::from(random.word()), position, length]);
                rows64.push([random.next(), position, length]);
            }
        }
    }
    let field = |a: u64, position: u64, length: u64, top: u64, signed: bool| {
        let (position, length) = (position & 255, length & 255);
        let bit = |i: u64| a >> i & 1;
        let sign = if signed && length > 0 { bit((position + length - 1).min(top)) } else { 0 };
        (0..=top).fold(0, |d, i| {
            let value = if i < length && position + i <= top { bit(position + i) } else { sign };
            d | value << i
        })
    };
    let all = |rows: &[[u64; 3]], top: u64, signed: bool| -> Vec<_> {
        rows.iter().map(|&[a, b, c]| ([a, b, c], field(a, b, c, top, signed))).collect()
    };
    check("bfe.u32", B32, [B32; 3], &all(&rows32, 31, false));
    check("bfe.s32", B32, [B32; 3], &all(&rows32, 31, true));
    check("bfe.u64", B64, [B64, B32, B32], &all(&rows64, 63, false));
    check("bfe.s64", B64, [B64, B32, B32], &all(&rows64, 63, true));

    let insert = |a: u64, b: u64, position: u64, length: u64, top: u64| {
        let (position, length) = (position & 255, length & 255);
        (0..length).filter(|i| position + i <= top).fold(b, |f, i| {
            let place = position + i;
            f & !(1 << place) | (a >> i & 1) << place
        })
    };
    let with_base = |rows: &[[u64; 3]], top: u64, seed: u64| -> Vec<_> {
        let mut random = Random::new(seed);
        let base = move || random.next() & (u64::MAX >> (63 - top));
        let mut base = base;
        rows.iter()
            .map(|&[a, position, length]| {
                let b = base();
                ([a, b, position, length], insert(a, b, position, length, top))
            })
            .collect()
    };
    check("bfi.b32", B32, [B32; 4], &with_base(&rows32, 31, 9));
    check("bfi.b64", B64, [B64, B64, B32, B32], &with_base(&rows64, 63, 10));
}

#[test]
fn every_table_of_three_inputs() {
    let inputs = triples(&[0xf0f0_cc33, 0x1234_5678, 0xffff_ffff, 0, 0xaaaa_5555, 0x8000_0001], 11);
    for table in 0..=255_u32 {
        // All 256 tables on a few rows each; the first row holds every combination of three bits.
        let mut rows = vec![[0xf0f0_f0f0_u64, 0xcccc_cccc, 0xaaaa_aaaa]];
        rows.extend(inputs.iter().skip(table as usize % 7).step_by(31));
        let look_up = |[a, b, c]: [u64; 3]| {
            (0..32).fold(0, |d, i| {
                let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
                d | u64::from(table >> index & 1) << i
            })
        };
        let rows: Vec<_> = rows.into_iter().map(|row| (row, look_up(row))).collect();
        assert_eq!(rows[0].1 & 255, u64::from(table), "0xf0, 0xcc, 0xaa give the table itself");
        check(&format!("lop3.b32 %d, %a, %b, %c, {table}"), B32, [B32; 3], &rows);
    }
    // The examples of the ISA's text.
    let (a, b, c) = (0x1234_5678_u64, 0x0ff0_f00f, 0xffff_0000);
    for (table, want) in [("0x80", a & b & c), ("0xFE", a | b | c), ("0x40", a & b & !c), ("0x1A", (a & b | c) ^ a)] {
        check(&format!("lop3.b32 %d, %a, %b, %c, {table}"), B32, [B32; 3], &[([a, b, c], want)]);
    }
}

/// prmt's bytes 0..8 of b:a by selector, in the generic form.
fn permuted(a: u64, b: u64, selector: u64) -> u64 {
    let pair = b << 32 | a;
    (0..4).fold(0, |d, i| {
        let control = selector >> (4 * i) & 15;
        let byte = pair >> (8 * (control & 7)) & 255;
        let byte = if control & 8 == 0 { byte } else { 255 * (byte >> 7) };
        d | byte << (8 * i)
    })
}

#[test]
fn bytes_permuted() {
    let (a, b) = (0x83_92_21_70, 0xf7_06_d5_44);
    let mut random = Random::new(12);
    let mut rows: Vec<[u64; 3]> = Vec::new();
    // Every nibble at every place, over random others; then the selectors that kernels use.
    for place in 0..4 {
        for control in 0..16 {
            let others = random.next() & 0xffff & !(15 << (4 * place));
            rows.push([a, b, others | control << (4 * place)]);
        }
    }
    for selector in
        [0x3210, 0x7654, 0x5410, 0x7632, 0x5140, 0x7362, 0x4321, 0x0123, 0x0000, 0x8888, 0xfedc, 0x4040, 0x1054]
    {
        rows.extend((0..4).map(|_| [u64::from(random.word()), u64::from(random.word()), selector]));
    }
    // Only 16 bits of the selector count.
    rows.push([a, b, 0xffff_3210]);
    let rows: Vec<_> = rows.into_iter().map(|[a, b, c]| ([a, b, c], permuted(a, b, c))).collect();
    check("prmt.b32", B32, [B32; 3], &rows);
    let rows: Vec<_> = edges32().into_iter().map(|a| ([a], permuted(a, 0, 0x4140))).collect();
    check("prmt.b32 %d, %a, 0, 0x4140", B32, [B32], &rows);
    let rows: Vec<_> =
        pairs(&edges32(), &edges32()).into_iter().map(|[a, b]| ([a, b], permuted(a, b, 0x5410))).collect();
    check("prmt.b32 %d, %a, %b, 0x5410U", B32, [B32, B32], &rows);
}
