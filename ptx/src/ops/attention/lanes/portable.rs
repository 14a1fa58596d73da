//! Sixteen lanes as an array, for any architecture.

#![allow(clippy::needless_range_loop)] // fixed counts over several arrays at once unroll into registers

use std::ops::Range;

use super::kernels::{BF16, CODE_BYTES, E4M3, E5M2, F32, kernels};
use super::{E4M3_GAIN, Source};
use crate::DType;
use crate::dtype::{bf16_to_f32, e4m3_to_f32, e5m2_to_f32};

type V = [f32; 16];

#[inline(always)]
fn zero() -> V {
    [0.0; 16]
}

/// # Safety
/// 16 elements can be read at `at`.
#[inline(always)]
unsafe fn load<const CODE: u8>(at: *const u8) -> V {
    match CODE {
        // SAFETY: the caller says so.
        F32 => unsafe { at.cast::<V>().read_unaligned() },
        BF16 => {
            // SAFETY: the caller says so.
            let codes = unsafe { at.cast::<[u16; 16]>().read_unaligned() };
            std::array::from_fn(|i| bf16_to_f32(codes[i]))
        }
        E5M2 => {
            // SAFETY: the caller says so.
            let codes = unsafe { at.cast::<[u8; 16]>().read_unaligned() };
            std::array::from_fn(|i| e5m2_to_f32(codes[i]))
        }
        _ => {
            // SAFETY: the caller says so.
            let codes = unsafe { at.cast::<[u8; 16]>().read_unaligned() };
            std::array::from_fn(|i| e4m3_to_f32(codes[i]) * (1.0 / E4M3_GAIN))
        }
    }
}

/// # Safety
/// 16 floats can be read at `at`.
#[inline(always)]
unsafe fn load_f32(at: *const f32) -> V {
    // SAFETY: the caller says so.
    unsafe { at.cast::<V>().read_unaligned() }
}

/// # Safety
/// 16 floats can be written at `to`.
#[inline(always)]
unsafe fn store(to: *mut f32, v: V) {
    // SAFETY: the caller says so.
    unsafe { to.cast::<V>().write_unaligned(v) };
}

#[inline(always)]
fn fma(x: f32, v: V, sum: V) -> V {
    std::array::from_fn(|i| x.mul_add(v[i], sum[i]))
}

/// Plain Rust has no hint to give.
#[inline(always)]
fn fetch(_at: *const u8) {}

kernels! {
    #[inline],
    1: 2, 2, 1;
    2: 1, 1, 1;
    3: 1, 1, 1;
    4: 1, 1, 1;
    5: 1, 1, 1;
    6: 1, 1, 1;
}
