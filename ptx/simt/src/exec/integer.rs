//! Integer arithmetic.

use crate::exec::value::{low_byte, low_half, low_word};
use crate::exec::{Row, alu};

/// `prmt.b32`: each nibble of the selector names a byte of b:a, its top bit replicates that byte's sign.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i);
        let byte = low_word(bytes >> (8 * (nibble & 7))) & 0xff;
        let sign = if byte & 0x80 != 0 { 0xff } else { 0 };
        out |= (if nibble & 8 != 0 { sign } else { byte }) << (8 * i);
    }
    out
}

/// `prmt` in one of its special modes, by the low two bits of c.
#[inline(always)]
fn permute_mode(a: u32, b: u32, c: u32, selectors: [u32; 4]) -> u32 {
    permute(a, b, selectors[(c & 3) as usize])
}

#[inline(always)]
fn extract<const SIGNED: bool>(a: u64, b: u32, c: u32, bits: u32) -> u64 {
    let (pos, len) = (b & 0xff, c & 0xff);
    let msb = bits - 1;
    let sign_at = if SIGNED && len > 0 { (pos + len - 1).min(msb) } else { 0 };
    let sign = SIGNED && len > 0 && a >> sign_at & 1 == 1;
    let field = if pos > msb { 0 } else { a >> pos };
    let taken = len.min(bits.saturating_sub(pos));
    let ones = if taken >= 64 { u64::MAX } else { (1 << taken) - 1 };
    let filled = if sign { !ones } else { 0 };
    if len == 0 { 0 } else { field & ones | filled }
}

#[inline(always)]
fn insert(a: u64, b: u64, c: u32, d: u32, bits: u32) -> u64 {
    let (pos, len) = (c & 0xff, d & 0xff);
    if pos >= bits || len == 0 {
        return b;
    }
    let taken = len.min(bits - pos);
    let ones = (if taken >= 64 { u64::MAX } else { (1 << taken) - 1 }) << pos;
    b & !ones | a << pos & ones
}

#[inline(always)]
fn funnel(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}

/// The rows of this file.
#[allow(clippy::too_many_lines)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    alu! { out;
        Integer ["add.s32", "add.u32"] u32 = |a: u32, b: u32| a.wrapping_add(b);
        Integer ["sub.s32", "sub.u32"] u32 = |a: u32, b: u32| a.wrapping_sub(b);
        Integer ["add.s64", "add.u64"] u64 = |a: u64, b: u64| a.wrapping_add(b);
        Integer ["sub.s64", "sub.u64"] u64 = |a: u64, b: u64| a.wrapping_sub(b);
        Integer ["add.s16", "add.u16"] u16 = |a: u16, b: u16| a.wrapping_add(b);
        Integer ["sub.s16", "sub.u16"] u16 = |a: u16, b: u16| a.wrapping_sub(b);
        Integer ["add.sat.s32"] i32 = |a: i32, b: i32| a.saturating_add(b);
        Integer ["sub.sat.s32"] i32 = |a: i32, b: i32| a.saturating_sub(b);
        Integer ["mul.lo.s16", "mul.lo.u16"] u16 = |a: u16, b: u16| a.wrapping_mul(b);
        Integer ["mul.lo.s32", "mul.lo.u32"] u32 = |a: u32, b: u32| a.wrapping_mul(b);
        Integer ["mul.lo.s64", "mul.lo.u64"] u64 = |a: u64, b: u64| a.wrapping_mul(b);
        Integer ["mul.hi.u16"] u16 = |a: u16, b: u16| low_half((u32::from(a) * u32::from(b)) >> 16);
        Integer ["mul.hi.s16"] u16 = |a: i16, b: i16| low_half(((i32::from(a) * i32::from(b)) >> 16).cast_unsigned());
        Integer ["mul.hi.u32"] u32 = |a: u32, b: u32| low_word((u64::from(a) * u64::from(b)) >> 32);
        Integer ["mul.hi.s32"] u32 = |a: i32, b: i32| low_word(((i64::from(a) * i64::from(b)) >> 32).cast_unsigned());
        Integer ["mul.hi.u64"] u64 = |a: u64, b: u64| a.widening(b).1;
        Integer ["mul.hi.s64"] u64 = |a: i64, b: i64| high_signed(a, b);
        Integer ["mul.wide.u16"] u32 = |a: u16, b: u16| u32::from(a) * u32::from(b);
        Integer ["mul.wide.s16"] i32 = |a: i16, b: i16| i32::from(a) * i32::from(b);
        Integer ["mul.wide.u32"] u64 = |a: u32, b: u32| u64::from(a) * u64::from(b);
        Integer ["mul.wide.s32"] i64 = |a: i32, b: i32| i64::from(a) * i64::from(b);
        Integer ["mul24.lo.u32"] u32 = |a: u32, b: u32| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff);
        Integer ["mad.lo.s16", "mad.lo.u16"] u16 = |a: u16, b: u16, c: u16| a.wrapping_mul(b).wrapping_add(c);
        Integer ["mad.lo.s32", "mad.lo.u32"] u32 = |a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c);
        Integer ["mad.lo.s64", "mad.lo.u64"] u64 = |a: u64, b: u64, c: u64| a.wrapping_mul(b).wrapping_add(c);
        Integer ["mad.hi.u32"] u32 = |a: u32, b: u32, c: u32| low_word((u64::from(a) * u64::from(b)) >> 32).wrapping_add(c);
        Integer ["mad.hi.s32"] u32 = |a: i32, b: i32, c: u32| low_word(((i64::from(a) * i64::from(b)) >> 32).cast_unsigned()).wrapping_add(c);
        Integer ["mad.hi.u64"] u64 = |a: u64, b: u64, c: u64| a.widening(b).1.wrapping_add(c);
        Integer ["mad.hi.s64"] u64 = |a: i64, b: i64, c: u64| high_signed(a, b).wrapping_add(c);
        Integer ["mad.wide.u16"] u32 = |a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c);
        Integer ["mad.wide.s16"] i32 = |a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c);
        Integer ["mad.wide.u32"] u64 = |a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c);
        Integer ["mad.wide.s32"] i64 = |a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c);
        // A quotient by zero is all ones and its remainder the dividend, as NVIDIA's code computes it; PTX leaves it open.
        Integer ["div.u16"] u16 = |a: u16, b: u16| a.checked_div(b).unwrap_or(u16::MAX);
        Integer ["div.s16"] i16 = |a: i16, b: i16| if b == 0 { -1 } else { a.wrapping_div(b) };
        Integer ["rem.u16"] u16 = |a: u16, b: u16| a.checked_rem(b).unwrap_or(a);
        Integer ["rem.s16"] i16 = |a: i16, b: i16| if b == 0 { a } else { a.wrapping_rem(b) };
        Integer ["div.u32"] u32 = |a: u32, b: u32| a.checked_div(b).unwrap_or(u32::MAX);
        Integer ["div.s32"] i32 = |a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_div(b) };
        Integer ["rem.u32"] u32 = |a: u32, b: u32| a.checked_rem(b).unwrap_or(a);
        Integer ["rem.s32"] i32 = |a: i32, b: i32| if b == 0 { a } else { a.wrapping_rem(b) };
        Integer ["div.u64"] u64 = |a: u64, b: u64| a.checked_div(b).unwrap_or(u64::MAX);
        Integer ["div.s64"] i64 = |a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_div(b) };
        Integer ["rem.u64"] u64 = |a: u64, b: u64| a.checked_rem(b).unwrap_or(a);
        Integer ["rem.s64"] i64 = |a: i64, b: i64| if b == 0 { a } else { a.wrapping_rem(b) };
        Integer ["abs.s16"] u16 = |a: i16| a.unsigned_abs();
        Integer ["abs.s32"] u32 = |a: i32| a.unsigned_abs();
        Integer ["abs.s64"] u64 = |a: i64| a.unsigned_abs();
        Integer ["neg.s16"] i16 = |a: i16| a.wrapping_neg();
        Integer ["neg.s32"] i32 = |a: i32| a.wrapping_neg();
        Integer ["neg.s64"] i64 = |a: i64| a.wrapping_neg();
        Integer ["min.u16"] u16 = |a: u16, b: u16| a.min(b);
        Integer ["max.u16"] u16 = |a: u16, b: u16| a.max(b);
        Integer ["min.s16"] i16 = |a: i16, b: i16| a.min(b);
        Integer ["max.s16"] i16 = |a: i16, b: i16| a.max(b);
        Integer ["min.u32"] u32 = |a: u32, b: u32| a.min(b);
        Integer ["max.u32"] u32 = |a: u32, b: u32| a.max(b);
        Integer ["min.s32"] i32 = |a: i32, b: i32| a.min(b);
        Integer ["max.s32"] i32 = |a: i32, b: i32| a.max(b);
        Integer ["min.u64"] u64 = |a: u64, b: u64| a.min(b);
        Integer ["max.u64"] u64 = |a: u64, b: u64| a.max(b);
        Integer ["min.s64"] i64 = |a: i64, b: i64| a.min(b);
        Integer ["max.s64"] i64 = |a: i64, b: i64| a.max(b);
        Integer ["sad.u32"] u32 = |a: u32, b: u32, c: u32| a.abs_diff(b).wrapping_add(c);
        Integer ["sad.s32"] u32 = |a: i32, b: i32, c: u32| a.abs_diff(b).wrapping_add(c);
        Integer ["popc.b32"] u32 = |a: u32| a.count_ones();
        Integer ["popc.b64"] u32 = |a: u64| a.count_ones();
        Integer ["clz.b32"] u32 = |a: u32| a.leading_zeros();
        Integer ["clz.b64"] u32 = |a: u64| a.leading_zeros();
        Integer ["brev.b32"] u32 = |a: u32| a.reverse_bits();
        Integer ["brev.b64"] u64 = |a: u64| a.reverse_bits();
        Integer ["bfind.u32"] u32 = |a: u32| 31_u32.wrapping_sub(a.leading_zeros());
        Integer ["bfind.s32"] u32 = |a: i32| 31_u32.wrapping_sub((a ^ a >> 31).leading_zeros());
        Integer ["bfind.u64"] u32 = |a: u64| 63_u32.wrapping_sub(a.leading_zeros());
        Integer ["bfind.s64"] u32 = |a: i64| 63_u32.wrapping_sub((a ^ a >> 63).leading_zeros());
        Integer ["bfe.u32"] u32 = |a: u32, b: u32, c: u32| low_word(extract::<false>(u64::from(a), b, c, 32));
        Integer ["bfe.s32"] u32 = |a: u32, b: u32, c: u32| low_word(extract::<true>(u64::from(a), b, c, 32));
        Integer ["bfe.u64"] u64 = |a: u64, b: u32, c: u32| extract::<false>(a, b, c, 64);
        Integer ["bfe.s64"] u64 = |a: u64, b: u32, c: u32| extract::<true>(a, b, c, 64);
        Integer ["bfi.b32"] u32 = |a: u32, b: u32, c: u32, d: u32| low_word(insert(u64::from(a), u64::from(b), c, d, 32));
        Integer ["bfi.b64"] u64 = |a: u64, b: u64, c: u32, d: u32| insert(a, b, c, d, 64);
        Integer ["prmt.b32"] u32 = |a: u32, b: u32, c: u32| permute(a, b, c);
        Integer ["prmt.b32.f4e"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x3210, 0x4321, 0x5432, 0x6543]);
        Integer ["prmt.b32.b4e"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x5670, 0x6701, 0x7012, 0x0123]);
        Integer ["prmt.b32.rc8"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x0000, 0x1111, 0x2222, 0x3333]);
        Integer ["prmt.b32.ecl"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x3210, 0x3211, 0x3222, 0x3333]);
        Integer ["prmt.b32.ecr"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x0000, 0x1110, 0x2210, 0x3210]);
        Integer ["prmt.b32.rc16"] u32 = |a: u32, b: u32, c: u32| permute_mode(a, b, c, [0x1010, 0x3232, 0x1010, 0x3232]);
        Integer ["shf.l.wrap.b32"] u32 = |a: u32, b: u32, c: u32| low_word(funnel(a, b) << (c & 31) >> 32);
        Integer ["shf.r.wrap.b32"] u32 = |a: u32, b: u32, c: u32| low_word(funnel(a, b) >> (c & 31));
        Integer ["shf.l.clamp.b32"] u32 = |a: u32, b: u32, c: u32| low_word(funnel(a, b) << c.min(32) >> 32);
        Integer ["shf.r.clamp.b32"] u32 = |a: u32, b: u32, c: u32| low_word(funnel(a, b) >> c.min(32));
        Integer ["dp4a.u32.u32"] u32 = |a: u32, b: u32, c: u32| dot(a, b, u32::from, c);
        Integer ["dp4a.s32.s32"] u32 = |a: u32, b: u32, c: u32| dot(a, b, signed_byte, c);
        Integer ["fns.b32"] u32 = |mask: u32, base: u32, offset: i32| find_nth_set(mask, base, offset);
    }
}

/// Full products of 64-bit numbers, low and high halves.
trait Widening {
    fn widening(self, other: u64) -> (u64, u64);
}

impl Widening for u64 {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    fn widening(self, other: u64) -> (u64, u64) {
        let product = u128::from(self) * u128::from(other);
        (product as u64, (product >> 64) as u64)
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn high_signed(a: i64, b: i64) -> u64 {
    ((i128::from(a) * i128::from(b)) >> 64) as u64
}

fn signed_byte(b: u8) -> u32 {
    i32::from(b.cast_signed()).cast_unsigned()
}

#[inline(always)]
fn dot(a: u32, b: u32, widen: fn(u8) -> u32, c: u32) -> u32 {
    (0..4).fold(c, |sum, i| {
        let (x, y) = (low_byte(a >> (8 * i)), low_byte(b >> (8 * i)));
        sum.wrapping_add(widen(x).wrapping_mul(widen(y)))
    })
}

/// The position of the nth set bit of `mask` from `base`, upwards for positive n, downwards for negative.
fn find_nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let mut left = offset.unsigned_abs();
    let mut at = i64::from(base);
    let step = i64::from(offset.signum());
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return u32::try_from(at).expect("a bit of 32");
            }
        }
        at += step;
    }
    u32::MAX
}
