//! Sixteen lanes as two AVX2 registers.

#![allow(clippy::needless_range_loop)] // fixed counts over several arrays at once unroll into registers

use std::arch::x86_64::*;
use std::ops::Range;

use super::Source;
use super::kernels::{BF16, CODE_BYTES, E4M3, E5M2, F32, kernels};
use crate::DType;

type V = [__m256; 2];

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn zero() -> V {
    [_mm256_setzero_ps(); 2]
}

/// # Safety
/// 16 elements can be read at `at`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load<const CODE: u8>(at: *const u8) -> V {
    match CODE {
        // SAFETY: the caller says so.
        F32 => unsafe { load_f32(at.cast()) },
        BF16 => {
            // SAFETY: the caller says so.
            let low = unsafe { _mm_loadu_si128(at.cast()) };
            // SAFETY: the caller says so.
            let high = unsafe { _mm_loadu_si128(at.wrapping_add(16).cast()) };
            [low, high].map(|x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))))
        }
        E5M2 => {
            // SAFETY: the caller says so.
            let codes = unsafe { _mm_loadu_si128(at.cast()) };
            let halves = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(codes));
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            [low, _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves))]
        }
        _ => {
            // SAFETY: the caller says so.
            let codes = unsafe { _mm_loadu_si128(at.cast()) };
            // The sign fills the upper bits; shifted, it lands in bits 15 and 14, of which f16 wants the first.
            let words = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
            let halves = _mm256_and_si256(words, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            [low, _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves))]
        }
    }
}

/// # Safety
/// 16 floats can be read at `at`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load_f32(at: *const f32) -> V {
    // SAFETY: the caller says so.
    let low = unsafe { _mm256_loadu_ps(at) };
    // SAFETY: the caller says so.
    let high = unsafe { _mm256_loadu_ps(at.wrapping_add(8)) };
    [low, high]
}

/// # Safety
/// 16 floats can be written at `to`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn store(to: *mut f32, v: V) {
    // SAFETY: the caller says so.
    unsafe { _mm256_storeu_ps(to, v[0]) };
    // SAFETY: the caller says so.
    unsafe { _mm256_storeu_ps(to.wrapping_add(8), v[1]) };
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fma(x: f32, v: V, sum: V) -> V {
    let x = _mm256_set1_ps(x);
    [_mm256_fmadd_ps(x, v[0], sum[0]), _mm256_fmadd_ps(x, v[1], sum[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fetch(at: *const u8) {
    _mm_prefetch::<_MM_HINT_T1>(at.cast()); // a hint: it cannot fault, whatever the address
}

kernels! {
    #[target_feature(enable = "avx2,fma,f16c")],
    1: 4, 4, 2;
    2: 2, 2, 2;
    3: 2, 2, 2;
    4: 1, 1, 1;
    5: 1, 1, 1;
    6: 1, 1, 1;
}
