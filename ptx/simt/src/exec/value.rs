//! Lane values in the register files, and the lane-wise application of a function to them.

use crate::exec::Step;
use crate::program::Op;
use crate::state::{Regs, Warp};
use crate::types::Kind;

/// A type that a lane of a register can hold.
pub(crate) trait Value: Copy {
    /// What 32 lanes of it are in the register file.
    type Row: Copy;
    const KIND: Kind;
    const ZERO: Self;
    fn row(regs: &Regs, slot: u16) -> &Self::Row;
    fn get(row: &Self::Row, lane: usize) -> Self;
    /// Writes the lanes of `mask`.
    fn put(regs: &mut Regs, slot: u16, mask: u32, values: [Self; 32]);
}

macro_rules! word_value {
    ($($t:ty, $kind:ident, $zero:expr, |$bits:ident| $from:expr, |$value:ident| $to:expr;)+) => {$(
        impl Value for $t {
            type Row = [u32; 32];
            const KIND: Kind = Kind::$kind;
            const ZERO: $t = $zero;
            #[inline(always)]
            fn row(regs: &Regs, slot: u16) -> &[u32; 32] {
                &regs.words[usize::from(slot)].0
            }
            #[inline(always)]
            fn get(row: &[u32; 32], lane: usize) -> $t {
                let $bits = row[lane];
                $from
            }
            #[inline(always)]
            fn put(regs: &mut Regs, slot: u16, mask: u32, values: [$t; 32]) {
                put_words(regs, slot, mask, values.map(|$value| $to));
            }
        }
    )+};
}

macro_rules! wide_value {
    ($($t:ty, $kind:ident, $zero:expr, |$bits:ident| $from:expr, |$value:ident| $to:expr;)+) => {$(
        impl Value for $t {
            type Row = [u64; 32];
            const KIND: Kind = Kind::$kind;
            const ZERO: $t = $zero;
            #[inline(always)]
            fn row(regs: &Regs, slot: u16) -> &[u64; 32] {
                &regs.wides[usize::from(slot)].0
            }
            #[inline(always)]
            fn get(row: &[u64; 32], lane: usize) -> $t {
                let $bits = row[lane];
                $from
            }
            #[inline(always)]
            fn put(regs: &mut Regs, slot: u16, mask: u32, values: [$t; 32]) {
                put_wides(regs, slot, mask, values.map(|$value| $to));
            }
        }
    )+};
}

// Signed narrow values fill the word, as a conversion into a wider register must; readers of 16 bits drop the rest.
word_value! {
    u32, Word, 0, |b| b, |v| v;
    i32, Word, 0, |b| b.cast_signed(), |v| v.cast_unsigned();
    f32, Float, 0.0, |b| f32::from_bits(b), |v| v.to_bits();
    u16, Half, 0, |b| low_half(b), |v| u32::from(v);
    i16, Half, 0, |b| low_half(b).cast_signed(), |v| i32::from(v).cast_unsigned();
    u8, Half, 0, |b| low_byte(b), |v| u32::from(v);
    i8, Half, 0, |b| low_byte(b).cast_signed(), |v| i32::from(v).cast_unsigned();
}

wide_value! {
    u64, Wide, 0, |b| b, |v| v;
    i64, Wide, 0, |b| b.cast_signed(), |v| v.cast_unsigned();
    f64, Double, 0.0, |b| f64::from_bits(b), |v| v.to_bits();
}

/// The low 16 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn low_half(bits: u32) -> u16 {
    bits as u16
}

/// The low 8 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn low_byte(bits: u32) -> u8 {
    bits as u8
}

/// The low 32 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn low_word(bits: u64) -> u32 {
    bits as u32
}

impl Value for bool {
    type Row = u32;
    const KIND: Kind = Kind::Pred;
    const ZERO: bool = false;
    #[inline(always)]
    fn row(regs: &Regs, slot: u16) -> &u32 {
        &regs.preds[usize::from(slot)]
    }
    #[inline(always)]
    fn get(row: &u32, lane: usize) -> bool {
        row >> lane & 1 != 0
    }
    #[inline(always)]
    fn put(regs: &mut Regs, slot: u16, mask: u32, values: [bool; 32]) {
        let mut bits = 0;
        for (lane, value) in values.into_iter().enumerate() {
            bits |= if value { 1 << lane } else { 0 };
        }
        put_pred(regs, slot, mask, bits);
    }
}

/// Writes the lanes of `mask` of a 32-bit register.
#[inline(always)]
pub(crate) fn put_words(regs: &mut Regs, slot: u16, mask: u32, values: [u32; 32]) {
    let to = &mut regs.words[usize::from(slot)].0;
    if mask == u32::MAX {
        *to = values;
    } else {
        for lane in 0..32 {
            to[lane] = if mask & 1 << lane != 0 { values[lane] } else { to[lane] };
        }
    }
}

/// Writes the lanes of `mask` of a 64-bit register.
#[inline(always)]
pub(crate) fn put_wides(regs: &mut Regs, slot: u16, mask: u32, values: [u64; 32]) {
    let to = &mut regs.wides[usize::from(slot)].0;
    if mask == u32::MAX {
        *to = values;
    } else {
        for lane in 0..32 {
            to[lane] = if mask & 1 << lane != 0 { values[lane] } else { to[lane] };
        }
    }
}

/// Writes the lanes of `mask` of a predicate.
#[inline(always)]
pub(crate) fn put_pred(regs: &mut Regs, slot: u16, mask: u32, bits: u32) {
    let to = &mut regs.preds[usize::from(slot)];
    *to = *to & !mask | bits & mask;
}

#[inline(always)]
pub(crate) fn map1<D: Value, A: Value>(w: &mut Warp, op: &Op, f: impl Fn(A) -> D) -> Step {
    let mut out = [D::ZERO; 32];
    let a = A::row(&w.regs, op.r[1]);
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(A::get(a, lane));
    }
    D::put(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

#[inline(always)]
pub(crate) fn map2<D: Value, A: Value, B: Value>(w: &mut Warp, op: &Op, f: impl Fn(A, B) -> D) -> Step {
    let mut out = [D::ZERO; 32];
    let a = A::row(&w.regs, op.r[1]);
    let b = B::row(&w.regs, op.r[2]);
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(A::get(a, lane), B::get(b, lane));
    }
    D::put(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

#[inline(always)]
pub(crate) fn map3<D: Value, A: Value, B: Value, C: Value>(w: &mut Warp, op: &Op, f: impl Fn(A, B, C) -> D) -> Step {
    let mut out = [D::ZERO; 32];
    let a = A::row(&w.regs, op.r[1]);
    let b = B::row(&w.regs, op.r[2]);
    let c = C::row(&w.regs, op.r[3]);
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(A::get(a, lane), B::get(b, lane), C::get(c, lane));
    }
    D::put(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

#[inline(always)]
pub(crate) fn map4<D: Value, A: Value, B: Value, C: Value, E: Value>(
    w: &mut Warp,
    op: &Op,
    f: impl Fn(A, B, C, E) -> D,
) -> Step {
    let mut out = [D::ZERO; 32];
    let a = A::row(&w.regs, op.r[1]);
    let b = B::row(&w.regs, op.r[2]);
    let c = C::row(&w.regs, op.r[3]);
    let e = E::row(&w.regs, op.r[4]);
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(A::get(a, lane), B::get(b, lane), C::get(c, lane), E::get(e, lane));
    }
    D::put(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}
