//! AVX2: tiles of up to 6 x 16, 12 sums in registers, two for each panel; one and two rows take the panel whole.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi16, _mm_slli_epi16, _mm_srai_epi16,
    _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi32, _mm256_storeu_ps,
    _mm256_storeu_si256, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::PANEL;
use super::kernel::{Ahead, E4M3_FACTOR, STRIP, each_row, prefetch};
use super::packed::Codes;

/// What x is multiplied by where codes are placed in f32 lanes, whose bias is 120 more than theirs: 2^120.
pub(super) const LANE_FACTOR: f32 = f32::from_bits((127 + 120) << 23);

/// Most rows whose sums over a whole panel fit the registers beside what they are made of.
pub(super) const WIDE_ROWS: usize = 2;

/// The eighth-of-a-row `part` (0 .. 4): floats 8 part .. 8 part + 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<const W: usize>(x: &[f32; W], part: usize) -> __m256 {
    // SAFETY: the reference covers the 8 floats that are read.
    unsafe { _mm256_loadu_ps(x.as_chunks::<8>().0[part].as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store<const W: usize>(x: &mut [f32; W], part: usize, value: __m256) {
    // SAFETY: the reference covers the 8 floats that are written.
    unsafe { _mm256_storeu_ps(x.as_chunks_mut::<8>().0[part].as_mut_ptr(), value) }
}

#[allow(unused_unsafe)]
// safe to call only in newer compilers
// Half `half` of a group as two registers: outputs 8 p .. 8 p + 8 for the parts p of `parts_*(half)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn f32_half(group: &[f32; PANEL], half: usize) -> (__m256, __m256) {
    (load(group, 2 * half), load(group, 2 * half + 1))
}

const fn f32_parts(half: usize) -> (usize, usize) {
    (2 * half, 2 * half + 1)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bf16_half(group: &[u16; PANEL], half: usize) -> (__m256, __m256) {
    // SAFETY: the reference covers the 32 bytes that are read.
    let pairs: __m256i = unsafe { _mm256_loadu_si256(group.as_chunks::<16>().0[half].as_ptr().cast()) };
    let upper = _mm256_set1_epi32(-0x1_0000);
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)))
}

/// Values / 256: sign, exponent and mantissa of a code placed in an f16, whose bias is 8 more.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn e4m3_half(group: &[u8; PANEL], half: usize) -> (__m256, __m256) {
    // SAFETY: the reference covers the 16 bytes that are read.
    let pairs: __m128i = unsafe { _mm_loadu_si128(group.as_chunks::<16>().0[half].as_ptr().cast()) };
    // The arithmetic shift copies the sign into bit 14, and the mask drops it there together with the other code.
    let keep = _mm_set1_epi16(-0x4080); // 0xbf80
    let even = _mm_and_si128(_mm_srai_epi16::<1>(_mm_slli_epi16::<8>(pairs)), keep);
    let odd = _mm_and_si128(_mm_srai_epi16::<1>(pairs), keep);
    (_mm256_cvtph_ps(even), _mm256_cvtph_ps(odd))
}

const fn code_parts(half: usize) -> (usize, usize) {
    (half, half + 2)
}

// A whole group as four registers: the parts of half 0, then those of half 1.

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn f32_whole(group: &[f32; PANEL]) -> [__m256; 4] {
    [load(group, 0), load(group, 1), load(group, 2), load(group, 3)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bf16_whole(group: &[u16; PANEL]) -> [__m256; 4] {
    let (left, right) = (bf16_half(group, 0), bf16_half(group, 1));
    [left.0, left.1, right.0, right.1]
}

/// Half `half` of a group as the values / 2^120 of the codes in bytes 2 half and 2 half + 1 of each 32-bit lane, exactly: sign,
/// exponent and mantissa in the places of an f32, whose bias is 120 more, small ones as subnormal numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lanes_half(group: &[u8; PANEL], half: usize) -> (__m256, __m256) {
    // SAFETY: the reference covers the 32 bytes that are read.
    let lanes: __m256i = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
    // Each code at the top of its lane; the arithmetic shift copies the sign into bits that the mask clears.
    let top = if half == 0 {
        (_mm256_slli_epi32::<24>(lanes), _mm256_slli_epi32::<16>(lanes))
    } else {
        (_mm256_slli_epi32::<8>(lanes), lanes)
    };
    let keep = _mm256_set1_epi32(i32::MIN | 0x07f0_0000);
    let place = |top| _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32::<4>(top), keep));
    (place(top.0), place(top.1))
}

/// A whole group as [`lanes_half`] has it, divided by 256 alone where `REBIAS` says so.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn e4m3_lanes<const REBIAS: bool>(group: &[u8; PANEL]) -> [__m256; 4] {
    let (low, high) = (lanes_half(group, 0), lanes_half(group, 1));
    let lanes = [low.0, low.1, high.0, high.1];
    if !REBIAS {
        return lanes;
    }
    let rebias = _mm256_set1_ps(LANE_FACTOR / E4M3_FACTOR);
    [0, 1, 2, 3].map(|i| _mm256_mul_ps(lanes[i], rebias))
}

macro_rules! half {
    ($half:ident, $code:ty, $widen:ident, $parts:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $half<const R: usize, const HALF: usize>(
            a: &[f32],
            b: &[[$code; PANEL]],
            sums: &mut [[f32; PANEL]],
            ahead: Ahead,
        ) {
            let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("one row of sums for each row");
            let parts = const { $parts(HALF) };
            let mut first = [_mm256_setzero_ps(); R];
            let mut second = [_mm256_setzero_ps(); R];
            each_row!(R, r, {
                first[r] = load(&sums[r], parts.0);
                second[r] = load(&sums[r], parts.1);
            });
            let mut at = ahead.at;
            for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
                prefetch(at);
                at = at.wrapping_add(ahead.step);
                let (b_first, b_second) = $widen(b, HALF);
                each_row!(R, r, {
                    let x = _mm256_set1_ps(a[r]);
                    first[r] = _mm256_fmadd_ps(x, b_first, first[r]);
                    second[r] = _mm256_fmadd_ps(x, b_second, second[r]);
                });
            }
            each_row!(R, r, {
                store(&mut sums[r], parts.0, first[r]);
                store(&mut sums[r], parts.1, second[r]);
            });
        }
    };
}

macro_rules! wide {
    ($wide:ident, $code:ty, $whole:ident, $parts:ident, $lines:expr) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $wide<const R: usize>(a: &[f32], b: &[[$code; PANEL]], sums: &mut [[f32; PANEL]], ahead: Ahead) {
            let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("one row of sums for each row");
            let mut acc = [[_mm256_setzero_ps(); 4]; R];
            for r in 0..R {
                for part in 0..4 {
                    acc[r][part] = load(&sums[r], part);
                }
            }
            let (left, right) = const { ($parts(0), $parts(1)) };
            let mut at = ahead.at;
            for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
                for line in 0..$lines {
                    prefetch(at.wrapping_add(64 * line));
                }
                at = at.wrapping_add(ahead.step);
                let b = $whole(b);
                for r in 0..R {
                    let x = _mm256_set1_ps(a[r]);
                    acc[r][left.0] = _mm256_fmadd_ps(x, b[0], acc[r][left.0]);
                    acc[r][left.1] = _mm256_fmadd_ps(x, b[1], acc[r][left.1]);
                    acc[r][right.0] = _mm256_fmadd_ps(x, b[2], acc[r][right.0]);
                    acc[r][right.1] = _mm256_fmadd_ps(x, b[3], acc[r][right.1]);
                }
            }
            for r in 0..R {
                for part in 0..4 {
                    store(&mut sums[r], part, acc[r][part]);
                }
            }
        }
    };
}

half!(half_f32, f32, f32_half, f32_parts);
half!(half_bf16, u16, bf16_half, code_parts);
half!(half_lanes, u8, lanes_half, f32_parts);
wide!(wide_f32, f32, f32_whole, f32_parts, 2);
wide!(wide_bf16, u16, bf16_whole, code_parts, 1);

/// Sums in the order of [`e4m3_lanes`]: the even outputs of the first 16 and of the second, then the odd ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_lanes(sums: &[f32; PANEL]) -> [__m256; 4] {
    let [low, high] = [0, 2].map(|part| {
        let (p, q) = (load(sums, part), load(sums, part + 1));
        let (first, second) = (_mm256_permute2f128_ps::<0x20>(p, q), _mm256_permute2f128_ps::<0x31>(p, q));
        (_mm256_shuffle_ps::<0x88>(first, second), _mm256_shuffle_ps::<0xdd>(first, second))
    });
    [low.0, high.0, low.1, high.1]
}

/// The way back from [`to_lanes`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn from_lanes(lanes: [__m256; 4], sums: &mut [f32; PANEL]) {
    for half in 0..2 {
        let (even, odd) = (lanes[half], lanes[half + 2]);
        let (first, second) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        store(sums, 2 * half, _mm256_permute2f128_ps::<0x20>(first, second));
        store(sums, 2 * half + 1, _mm256_permute2f128_ps::<0x31>(first, second));
    }
}

/// One or two rows of e4m3, x times [`LANE_FACTOR`]; with `REBIAS` times 256, as AVX-512 has it: narrow registers with more of
/// them at work are no slower there.
#[allow(clippy::needless_range_loop)] // parts of two arrays at once
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn wide_e4m3<const R: usize, const REBIAS: bool>(
    a: &[f32],
    b: &[[u8; PANEL]],
    sums: &mut [[f32; PANEL]],
    ahead: Ahead,
) {
    let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("one row of sums for each row");
    let mut acc = [[_mm256_setzero_ps(); 4]; R];
    for r in 0..R {
        acc[r] = to_lanes(&sums[r]);
    }
    let mut at = ahead.at;
    for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
        prefetch(at);
        at = at.wrapping_add(ahead.step);
        let b = e4m3_lanes::<REBIAS>(b);
        for r in 0..R {
            let x = _mm256_set1_ps(a[r]);
            for part in 0..4 {
                acc[r][part] = _mm256_fmadd_ps(x, b[part], acc[r][part]);
            }
        }
    }
    for r in 0..R {
        from_lanes(acc[r], &mut sums[r]);
    }
}

/// More rows of e4m3, by halves of the lanes.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_lanes<const R: usize>(a: &[f32], b: &[[u8; PANEL]], sums: &mut [[f32; PANEL]], halves: [Ahead; 2]) {
    for sums in &mut *sums {
        for (part, lanes) in to_lanes(sums).into_iter().enumerate() {
            store(sums, part, lanes);
        }
    }
    half_lanes::<R, 0>(a, b, sums, halves[0]);
    half_lanes::<R, 1>(a, b, sums, halves[1]);
    for sums in sums {
        from_lanes([load(sums, 0), load(sums, 1), load(sums, 2), load(sums, 3)], sums);
    }
}

/// See `kernel::tile`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile(rows: usize, a: &[f32], b: Codes<'_>, sums: &mut [[f32; PANEL]], ahead: Ahead) {
    let step = ahead.step / 2;
    let steps = a.len() / rows;
    let halves = [Ahead { step, ..ahead }, Ahead { at: ahead.at.wrapping_add(steps * step), step }];
    macro_rules! by_rows {
        ($half:ident, $wide:ident, $b:expr; $($rows:literal)*) => {
            match rows {
                1 => $wide::<1>(a, $b, sums, ahead),
                2 => $wide::<2>(a, $b, sums, ahead),
                $($rows => {
                    $half::<$rows, 0>(a, $b, sums, halves[0]);
                    $half::<$rows, 1>(a, $b, sums, halves[1]);
                })*
                _ => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    match b {
        Codes::F32(b) => by_rows!(half_f32, wide_f32, b; 3 4 5 6),
        Codes::Bf16(b) => by_rows!(half_bf16, wide_bf16, b; 3 4 5 6),
        Codes::E4m3(b) => match rows {
            1 => wide_e4m3::<1, false>(a, b, sums, ahead),
            2 => wide_e4m3::<2, false>(a, b, sums, ahead),
            3 => tile_lanes::<3>(a, b, sums, halves),
            4 => tile_lanes::<4>(a, b, sums, halves),
            5 => tile_lanes::<5>(a, b, sums, halves),
            6 => tile_lanes::<6>(a, b, sums, halves),
            _ => unreachable!("a tile of {rows} rows"),
        },
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn strip_of<const R: usize>(a: &[f32], b: &[[f32; STRIP]], sums: &mut [[f32; STRIP]]) {
    let sums: &mut [[f32; STRIP]; R] = sums.try_into().expect("one row of sums for each row");
    let mut first = [_mm256_setzero_ps(); R];
    let mut second = [_mm256_setzero_ps(); R];
    each_row!(R, r, {
        first[r] = load(&sums[r], 0);
        second[r] = load(&sums[r], 1);
    });
    for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
        let (b_first, b_second) = (load(b, 0), load(b, 1));
        each_row!(R, r, {
            let x = _mm256_set1_ps(a[r]);
            first[r] = _mm256_fmadd_ps(x, b_first, first[r]);
            second[r] = _mm256_fmadd_ps(x, b_second, second[r]);
        });
    }
    each_row!(R, r, {
        store(&mut sums[r], 0, first[r]);
        store(&mut sums[r], 1, second[r]);
    });
}

/// See `kernel::strip`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn strip(a: &[f32], b: &[[f32; STRIP]], sums: &mut [[f32; STRIP]]) {
    match sums.len() {
        1 => strip_of::<1>(a, b, sums),
        2 => strip_of::<2>(a, b, sums),
        3 => strip_of::<3>(a, b, sums),
        4 => strip_of::<4>(a, b, sums),
        5 => strip_of::<5>(a, b, sums),
        6 => strip_of::<6>(a, b, sums),
        rows => unreachable!("a tile of {rows} rows"),
    }
}

/// See `kernel::fold`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fold(chains: &mut [[f32; PANEL]], scale: f32, sums: &mut [[f32; PANEL]]) {
    let scale = _mm256_set1_ps(scale);
    for (chain, sum) in chains.iter_mut().zip(sums) {
        for part in 0..4 {
            store(sum, part, _mm256_fmadd_ps(load(chain, part), scale, load(sum, part)));
            store(chain, part, _mm256_setzero_ps());
        }
    }
}

/// See `kernel::widen`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen(codes: Codes<'_>, out: &mut [[f32; PANEL]]) {
    match codes {
        Codes::F32(groups) => out.copy_from_slice(groups),
        Codes::Bf16(groups) => {
            for (out, group) in out.iter_mut().zip(groups) {
                for half in 0..2 {
                    let (first, second) = bf16_half(group, half);
                    store(out, code_parts(half).0, first);
                    store(out, code_parts(half).1, second);
                }
            }
        }
        Codes::E4m3(groups) => {
            let factor = _mm256_set1_ps(E4M3_FACTOR);
            for (out, group) in out.iter_mut().zip(groups) {
                for half in 0..2 {
                    let (first, second) = e4m3_half(group, half);
                    store(out, code_parts(half).0, _mm256_mul_ps(first, factor));
                    store(out, code_parts(half).1, _mm256_mul_ps(second, factor));
                }
            }
        }
    }
}

/// See `kernel::widen_to_bf16`: of two registers of values one of pairs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen_to_bf16(codes: &[[u8; PANEL]], out: &mut [[u16; PANEL]]) {
    let (factor, upper) = (_mm256_set1_ps(E4M3_FACTOR), _mm256_set1_epi32(-0x1_0000));
    for (out, group) in out.iter_mut().zip(codes) {
        for half in 0..2 {
            let (first, second) = e4m3_half(group, half);
            let bits = |x| _mm256_castps_si256(_mm256_mul_ps(x, factor));
            let pairs = _mm256_or_si256(_mm256_srli_epi32::<16>(bits(first)), _mm256_and_si256(bits(second), upper));
            // SAFETY: the reference covers the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(out.as_chunks_mut::<16>().0[half].as_mut_ptr().cast(), pairs) };
        }
    }
}

/// See `kernel::turn`: squares of 8 through registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn turn(from: &[[f32; PANEL]; PANEL], scales: Option<&[f32; PANEL]>, out: &mut [[f32; PANEL]; PANEL]) {
    for part in 0..4 {
        let scale = scales.map_or(_mm256_set1_ps(1.0), |s| load(s, part));
        for at in 0..4 {
            let mut s = [_mm256_setzero_ps(); 8];
            for (i, s) in s.iter_mut().enumerate() {
                *s = _mm256_mul_ps(load(&from[8 * at + i], part), scale);
            }
            for (i, &t) in turn8(s).iter().enumerate() {
                store(&mut out[8 * part + i], at, t);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turn8(s: [__m256; 8]) -> [__m256; 8] {
    let mut t = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(s[2 * i], s[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(s[2 * i], s[2 * i + 1]);
    }
    let mut u = [_mm256_setzero_ps(); 8];
    for i in 0..2 {
        for j in 0..2 {
            u[4 * i + 2 * j] = _mm256_shuffle_ps::<0x44>(t[4 * i + j], t[4 * i + 2 + j]);
            u[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i + j], t[4 * i + 2 + j]);
        }
    }
    let mut v = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        v[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[4 + i]);
        v[4 + i] = _mm256_permute2f128_ps::<0x31>(u[i], u[4 + i]);
    }
    v
}
