//! AVX-512: tiles of up to 12 x 32, 24 sums in registers.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi16, _mm256_slli_epi16,
    _mm256_srai_epi16, _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use super::kernel::{Ahead, E4M3_FACTOR, each_row, prefetch};
use super::packed::Codes;
use super::{PANEL, avx2};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn load(x: &[f32; PANEL], half: usize) -> __m512 {
    // SAFETY: the reference covers the 16 floats that are read.
    unsafe { _mm512_loadu_ps(x.as_chunks::<16>().0[half].as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn store(x: &mut [f32; PANEL], half: usize, value: __m512) {
    // SAFETY: the reference covers the 16 floats that are written.
    unsafe { _mm512_storeu_ps(x.as_chunks_mut::<16>().0[half].as_mut_ptr(), value) }
}

#[allow(unused_unsafe)] // safe to call only in newer compilers
/// Outputs 0 .. 16 and 16 .. 32 of a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn f32_group(group: &[f32; PANEL]) -> (__m512, __m512) {
    (load(group, 0), load(group, 1))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn bf16_group(group: &[u16; PANEL]) -> (__m512, __m512) {
    // SAFETY: the reference covers the 64 bytes that are read.
    let pairs: __m512i = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
    let upper = _mm512_set1_epi32(-0x1_0000);
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)))
}

/// Values / 256: sign, exponent and mantissa of a code placed in an f16, whose bias is 8 more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn e4m3_group(group: &[u8; PANEL]) -> (__m512, __m512) {
    // SAFETY: the reference covers the 32 bytes that are read.
    let pairs: __m256i = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
    // The arithmetic shift copies the sign into bit 14, and the mask drops it there together with the other code.
    let keep = _mm256_set1_epi16(-0x4080); // 0xbf80
    let even = _mm256_and_si256(_mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(pairs)), keep);
    let odd = _mm256_and_si256(_mm256_srai_epi16::<1>(pairs), keep);
    (_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd))
}

macro_rules! tile {
    ($name:ident, $code:ty, $group:ident, $lines:expr) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn $name<const R: usize>(a: &[f32], b: &[[$code; PANEL]], sums: &mut [[f32; PANEL]], ahead: Ahead) {
            let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("one row of sums for each row");
            let mut low = [_mm512_setzero_ps(); R];
            let mut high = [_mm512_setzero_ps(); R];
            each_row!(R, r, {
                low[r] = load(&sums[r], 0);
                high[r] = load(&sums[r], 1);
            });
            let mut at = ahead.at;
            for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
                for line in 0..$lines {
                    prefetch(at.wrapping_add(64 * line));
                }
                at = at.wrapping_add(ahead.step);
                let (b_low, b_high) = $group(b);
                each_row!(R, r, {
                    let x = _mm512_set1_ps(a[r]);
                    low[r] = _mm512_fmadd_ps(x, b_low, low[r]);
                    high[r] = _mm512_fmadd_ps(x, b_high, high[r]);
                });
            }
            each_row!(R, r, {
                store(&mut sums[r], 0, low[r]);
                store(&mut sums[r], 1, high[r]);
            });
        }
    };
}

tile!(tile_f32, f32, f32_group, 2);
tile!(tile_bf16, u16, bf16_group, 1);
tile!(tile_e4m3, u8, e4m3_group, 1);

/// See `kernel::tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) fn tile(rows: usize, a: &[f32], b: Codes<'_>, sums: &mut [[f32; PANEL]], ahead: Ahead) {
    macro_rules! by_rows {
        ($name:ident, $b:expr; $($rows:literal)*) => {
            match rows {
                $($rows => $name::<$rows>(a, $b, sums, ahead),)*
                _ => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    match b {
        Codes::F32(b) => by_rows!(tile_f32, b; 1 2 3 4 5 6 7 8 9 10 11 12),
        Codes::Bf16(b) => by_rows!(tile_bf16, b; 1 2 3 4 5 6 7 8 9 10 11 12),
        Codes::E4m3(b) if rows == 1 => avx2::wide_e4m3::<1, true>(a, b, sums, ahead),
        Codes::E4m3(b) if rows == 2 => avx2::wide_e4m3::<2, true>(a, b, sums, ahead),
        Codes::E4m3(b) => by_rows!(tile_e4m3, b; 3 4 5 6 7 8 9 10 11 12),
    }
}

/// See `kernel::fold`. Stores as wide as the loads of the tile that follows: narrower ones would not be forwarded, and
/// tiles of 8 rows took half as long again (2026-12-02).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) fn fold(chains: &mut [[f32; PANEL]], scale: f32, sums: &mut [[f32; PANEL]]) {
    let scale = _mm512_set1_ps(scale);
    for (chain, sum) in chains.iter_mut().zip(sums) {
        for half in 0..2 {
            store(sum, half, _mm512_fmadd_ps(load(chain, half), scale, load(sum, half)));
            store(chain, half, _mm512_setzero_ps());
        }
    }
}

/// See `kernel::widen`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) fn widen(codes: Codes<'_>, out: &mut [[f32; PANEL]]) {
    match codes {
        Codes::F32(groups) => out.copy_from_slice(groups),
        Codes::Bf16(groups) => {
            for (out, group) in out.iter_mut().zip(groups) {
                let (low, high) = bf16_group(group);
                store(out, 0, low);
                store(out, 1, high);
            }
        }
        Codes::E4m3(groups) => {
            let factor = _mm512_set1_ps(E4M3_FACTOR);
            for (out, group) in out.iter_mut().zip(groups) {
                let (low, high) = e4m3_group(group);
                store(out, 0, _mm512_mul_ps(low, factor));
                store(out, 1, _mm512_mul_ps(high, factor));
            }
        }
    }
}
