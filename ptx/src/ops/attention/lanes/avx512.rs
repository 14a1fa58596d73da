//! Sixteen lanes as one AVX-512 register.

#![allow(clippy::needless_range_loop)] // fixed counts over several arrays at once unroll into registers

use std::arch::x86_64::*;
use std::ops::Range;

use super::Source;
use super::kernels::{BF16, CODE_BYTES, E4M3, E5M2, F32, kernels};
use crate::DType;

type V = __m512;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
fn zero() -> V {
    _mm512_setzero_ps()
}

/// # Safety
/// 16 elements can be read at `at`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
unsafe fn load<const CODE: u8>(at: *const u8) -> V {
    match CODE {
        // SAFETY: the caller says so.
        F32 => unsafe { load_f32(at.cast()) },
        BF16 => {
            // SAFETY: the caller says so.
            let codes = unsafe { _mm256_loadu_si256(at.cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(codes)))
        }
        E5M2 => {
            // SAFETY: the caller says so.
            let codes = unsafe { _mm_loadu_si128(at.cast()) };
            _mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(codes)))
        }
        _ => {
            // SAFETY: the caller says so.
            let codes = unsafe { _mm_loadu_si128(at.cast()) };
            // The sign fills the upper bits; shifted, it lands in bits 15 and 14, of which f16 wants the first.
            let words = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
            _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(0xbfff_u16.cast_signed())))
        }
    }
}

/// # Safety
/// 16 floats can be read at `at`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
unsafe fn load_f32(at: *const f32) -> V {
    // SAFETY: the caller says so.
    unsafe { _mm512_loadu_ps(at) }
}

/// # Safety
/// 16 floats can be written at `to`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
unsafe fn store(to: *mut f32, v: V) {
    // SAFETY: the caller says so.
    unsafe { _mm512_storeu_ps(to, v) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
fn fma(x: f32, v: V, sum: V) -> V {
    _mm512_fmadd_ps(_mm512_set1_ps(x), v, sum)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
fn fetch(at: *const u8) {
    _mm_prefetch::<_MM_HINT_T1>(at.cast()); // a hint: it cannot fault, whatever the address
}

kernels! {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")],
    1: 8, 8, 4;
    2: 4, 8, 4;
    3: 4, 8, 4;
    4: 4, 4, 4;
    5: 4, 4, 4;
    6: 4, 4, 4;
}
