//! `cvt` to and from floats.

use crate::exec::float::{Round, directed, flush};
use crate::exec::formats::{
    bf16_to_f32, canonical, e4m3_to_f32, e5m2_to_f32, f16_to_f32, f32_to_bf16, f32_to_bf16_rz, f32_to_e4m3,
    f32_to_e5m2, f32_to_f16, f32_to_f16_rz, f64_to_f32_odd,
};
use crate::exec::value::{low_byte, low_half};
use crate::exec::{Row, alu};

/// Two halves of a register.
#[inline(always)]
fn pair(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[inline(always)]
fn byte_pair(high: u8, low: u8) -> u16 {
    u16::from(high) << 8 | u16::from(low)
}

#[inline(always)]
fn low_half_byte(x: u16) -> u8 {
    low_byte(u32::from(x))
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x > 0.0 || x.is_nan() { x } else { 0.0 }
}

#[inline(always)]
fn saturate(x: f32) -> f32 {
    if x >= 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
}

/// What a NaN becomes: zero, but the top bit alone where the source or the result has 64 bits.
macro_rules! or_nan {
    ($d:ty, $wide_source:literal, $x:expr) => {{
        let x = $x;
        if x.is_nan() && ($wide_source || <$d>::BITS == 64) { (1 as $d) << (<$d>::BITS - 1) } else { x as $d }
    }};
}

/// Integers from floats in the four roundings; out of range saturates.
macro_rules! to_int {
    ($out:ident; $($d:ty, $name:literal;)+) => {$(
        to_int! { @ $out, $d, $name, "rni", round_ties_even }
        to_int! { @ $out, $d, $name, "rzi", trunc }
        to_int! { @ $out, $d, $name, "rmi", floor }
        to_int! { @ $out, $d, $name, "rpi", ceil }
    )+};
    (@ $out:ident, $d:ty, $name:literal, $mode:literal, $round:ident) => {
        alu! { $out;
            Convert [
                concat!("cvt.", $mode, ".", $name, ".f32"),
                concat!("cvt.", $mode, ".sat.", $name, ".f32"),
            ] $d = |a: f32| or_nan!($d, false, a.$round());
            Convert [
                concat!("cvt.", $mode, ".ftz.", $name, ".f32"),
                concat!("cvt.", $mode, ".ftz.sat.", $name, ".f32"),
            ] $d = |a: f32| or_nan!($d, false, flush(a).$round());
            Convert [
                concat!("cvt.", $mode, ".", $name, ".f64"),
                concat!("cvt.", $mode, ".sat.", $name, ".f64"),
            ] $d = |a: f64| or_nan!($d, true, a.$round());
            Convert [
                concat!("cvt.", $mode, ".", $name, ".f16"),
                concat!("cvt.", $mode, ".sat.", $name, ".f16"),
            ] $d = |a: u16| or_nan!($d, false, f16_to_f32(a).$round());
            Convert [
                concat!("cvt.", $mode, ".", $name, ".bf16"),
                concat!("cvt.", $mode, ".sat.", $name, ".bf16"),
            ] $d = |a: u16| or_nan!($d, false, bf16_to_f32(a).$round());
        }
    };
}

/// Floats from integers, to nearest.
macro_rules! from_int {
    ($out:ident; $($s:ty, $name:literal;)+) => {$(
        alu! { $out;
            Convert [concat!("cvt.rn.f32.", $name)] f32 = |a: $s| a as f32;
            Convert [concat!("cvt.rn.f64.", $name)] f64 = |a: $s| a as f64;
        }
    )+};
}

/// From integers of at most 32 bits, which f64 holds exactly, in the other roundings and to narrow floats.
macro_rules! from_small_int {
    ($out:ident; $($s:ty, $name:literal;)+) => {$(
        alu! { $out;
            Convert [concat!("cvt.rz.f32.", $name)] f32 = |a: $s| directed(f64::from(a), Round::Zero);
            Convert [concat!("cvt.rm.f32.", $name)] f32 = |a: $s| directed(f64::from(a), Round::Down);
            Convert [concat!("cvt.rp.f32.", $name)] f32 = |a: $s| directed(f64::from(a), Round::Up);
            Convert [concat!("cvt.rn.f16.", $name)] u16 = |a: $s| f32_to_f16(f64_to_f32_odd(f64::from(a)));
            Convert [concat!("cvt.rn.bf16.", $name)] u16 = |a: $s| f32_to_bf16(f64_to_f32_odd(f64::from(a)));
        }
    )+};
}

/// The rows of this file.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, clippy::cast_lossless)]
#[allow(clippy::too_many_lines)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    to_int! { out; u8, "u8"; i8, "s8"; u16, "u16"; i16, "s16"; u32, "u32"; i32, "s32"; u64, "u64"; i64, "s64"; }
    from_int! { out; u8, "u8"; i8, "s8"; u16, "u16"; i16, "s16"; u32, "u32"; i32, "s32"; u64, "u64"; i64, "s64"; }
    from_small_int! { out; u8, "u8"; i8, "s8"; u16, "u16"; i16, "s16"; u32, "u32"; i32, "s32"; }
    alu! { out;
        Convert ["cvt.f64.f32"] f64 = |a: f32| f64::from(canonical(a));
        Convert ["cvt.ftz.f64.f32"] f64 = |a: f32| f64::from(flush(canonical(a)));
        Convert ["cvt.rn.f32.f64"] f32 = |a: f64| canonical(a as f32);
        Convert ["cvt.rn.ftz.f32.f64"] f32 = |a: f64| flush(canonical(a as f32));
        Convert ["cvt.rn.sat.f32.f64"] f32 = |a: f64| saturate(a as f32);
        Convert ["cvt.rz.f32.f64"] f32 = |a: f64| directed(a, Round::Zero);
        Convert ["cvt.rm.f32.f64"] f32 = |a: f64| directed(a, Round::Down);
        Convert ["cvt.rp.f32.f64"] f32 = |a: f64| directed(a, Round::Up);
        Convert ["cvt.f32.f32"] f32 = |a: f32| canonical(a);
        Convert ["cvt.ftz.f32.f32"] f32 = |a: f32| flush(canonical(a));
        Convert ["cvt.sat.f32.f32"] f32 = |a: f32| saturate(a);
        Convert ["cvt.ftz.sat.f32.f32"] f32 = |a: f32| saturate(flush(a));
        Convert ["cvt.rni.f32.f32"] f32 = |a: f32| canonical(a.round_ties_even());
        Convert ["cvt.rzi.f32.f32"] f32 = |a: f32| canonical(a.trunc());
        Convert ["cvt.rmi.f32.f32"] f32 = |a: f32| canonical(a.floor());
        Convert ["cvt.rpi.f32.f32"] f32 = |a: f32| canonical(a.ceil());
        Convert ["cvt.rni.ftz.f32.f32"] f32 = |a: f32| canonical(flush(a).round_ties_even());
        Convert ["cvt.rzi.ftz.f32.f32"] f32 = |a: f32| canonical(flush(a).trunc());
        Convert ["cvt.rmi.ftz.f32.f32"] f32 = |a: f32| canonical(flush(a).floor());
        Convert ["cvt.rpi.ftz.f32.f32"] f32 = |a: f32| canonical(flush(a).ceil());
        Convert ["cvt.f64.f64"] f64 = |a: f64| a;
        Convert ["cvt.rni.f64.f64"] f64 = |a: f64| a.round_ties_even();
        Convert ["cvt.rzi.f64.f64"] f64 = |a: f64| a.trunc();
        Convert ["cvt.rmi.f64.f64"] f64 = |a: f64| a.floor();
        Convert ["cvt.rpi.f64.f64"] f64 = |a: f64| a.ceil();
        Convert ["cvt.f32.f16", "cvt.ftz.f32.f16"] f32 = |a: u16| f16_to_f32(a);
        Convert ["cvt.f32.bf16"] f32 = |a: u16| bf16_to_f32(a);
        Convert ["cvt.ftz.f32.bf16"] f32 = |a: u16| flush(bf16_to_f32(a));
        Convert ["cvt.f64.f16"] f64 = |a: u16| f64::from(f16_to_f32(a));
        Convert ["cvt.f64.bf16"] f64 = |a: u16| f64::from(bf16_to_f32(a));
        Convert ["cvt.rn.f16.f64"] u16 = |a: f64| f32_to_f16(f64_to_f32_odd(a));
        Convert ["cvt.rn.bf16.f64"] u16 = |a: f64| f32_to_bf16(f64_to_f32_odd(a));
        Convert ["cvt.rn.f16.f32"] u16 = |a: f32| f32_to_f16(a);
        Convert ["cvt.rn.ftz.f16.f32"] u16 = |a: f32| f32_to_f16(flush(a));
        Convert ["cvt.rz.f16.f32"] u16 = |a: f32| f32_to_f16_rz(a);
        Convert ["cvt.rn.relu.f16.f32"] u16 = |a: f32| f32_to_f16(relu(a));
        Convert ["cvt.rn.sat.f16.f32"] u16 = |a: f32| f32_to_f16(saturate(a));
        Convert ["cvt.rn.bf16.f32"] u16 = |a: f32| f32_to_bf16(a);
        Convert ["cvt.rz.bf16.f32"] u16 = |a: f32| f32_to_bf16_rz(a);
        Convert ["cvt.rn.relu.bf16.f32"] u16 = |a: f32| f32_to_bf16(relu(a));
        Convert ["cvt.rn.f16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_f16(a), f32_to_f16(b));
        Convert ["cvt.rz.f16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_f16_rz(a), f32_to_f16_rz(b));
        Convert ["cvt.rn.relu.f16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_f16(relu(a)), f32_to_f16(relu(b)));
        Convert ["cvt.rn.bf16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_bf16(a), f32_to_bf16(b));
        Convert ["cvt.rz.bf16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_bf16_rz(a), f32_to_bf16_rz(b));
        Convert ["cvt.rn.relu.bf16x2.f32"] u32 = |a: f32, b: f32| pair(f32_to_bf16(relu(a)), f32_to_bf16(relu(b)));
        Convert ["cvt.rn.f16x2.e4m3x2"] u32 = |a: u16|
            pair(f32_to_f16(e4m3_to_f32(low_half_byte(a >> 8))), f32_to_f16(e4m3_to_f32(low_half_byte(a))));
        Convert ["cvt.rn.f16x2.e5m2x2"] u32 = |a: u16|
            pair(f32_to_f16(e5m2_to_f32(low_half_byte(a >> 8))), f32_to_f16(e5m2_to_f32(low_half_byte(a))));
        Convert ["cvt.rn.satfinite.e4m3x2.f32"] u16 = |a: f32, b: f32| byte_pair(f32_to_e4m3(a), f32_to_e4m3(b));
        Convert ["cvt.rn.satfinite.e5m2x2.f32"] u16 = |a: f32, b: f32| byte_pair(f32_to_e5m2(a), f32_to_e5m2(b));
        Convert ["cvt.rn.satfinite.relu.e4m3x2.f32"] u16 = |a: f32, b: f32|
            byte_pair(f32_to_e4m3(relu(a)), f32_to_e4m3(relu(b)));
        Convert ["cvt.rn.satfinite.e4m3x2.f16x2"] u16 = |a: u32|
            byte_pair(f32_to_e4m3(f16_to_f32(low_half(a >> 16))), f32_to_e4m3(f16_to_f32(low_half(a))));
        Convert ["cvt.rn.satfinite.e5m2x2.f16x2"] u16 = |a: u32|
            byte_pair(f32_to_e5m2(f16_to_f32(low_half(a >> 16))), f32_to_e5m2(f16_to_f32(low_half(a))));
    }
}
