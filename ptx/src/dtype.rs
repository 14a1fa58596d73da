//! Element formats and their bit-exact codecs.
//!
//! Encoding rounds to nearest even. The 8-bit formats saturate: whatever exceeds the largest finite value, infinity
//! included, becomes that value with its sign; NaN stays NaN. `value = code x scale`: no inverse scale is stored.

/// An element format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// OCP 8-bit, 4 exponent and 3 mantissa bits, no infinity, largest 448 (`float8_e4m3fn`).
    E4m3,
    /// OCP 8-bit, 5 exponent and 2 mantissa bits, largest finite 57344.
    E5m2,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::E4m3 | DType::E5m2 => 1,
        }
    }

    /// The largest finite value of an 8-bit format, which scales are made for; none for formats without a scale.
    #[must_use]
    pub const fn largest_code(self) -> Option<f32> {
        match self {
            DType::E4m3 => Some(E4M3_MAX),
            DType::E5m2 => Some(E5M2_MAX),
            DType::F32 | DType::Bf16 | DType::F16 => None,
        }
    }

    /// Its name in recipes and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Largest finite e4m3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Largest finite e5m2 value.
pub const E5M2_MAX: f32 = 57_344.0;

/// bf16 bits of `x`, rounded to nearest even; NaN becomes a quiet NaN of the same sign.
#[must_use]
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // the upper half of 32 bits
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    ((if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) >> 16) as u16
}

/// The value of bf16 bits.
#[must_use]
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to bf16.
#[must_use]
#[inline(always)]
pub fn round_bf16(x: f32) -> f32 {
    bf16_to_f32(bf16_from_f32(x))
}

/// f16 bits of `x`, rounded to nearest even.
#[must_use]
pub fn f16_from_f32(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The value of f16 bits.
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// e4m3 code of `x`: nearest even, saturating at 448; NaN becomes 0x7f or 0xff.
#[must_use]
#[inline(always)]
pub fn e4m3_from_f32(x: f32) -> u8 {
    encode8::<3, 7>(x, 0x7e, 0x7f)
}

/// e5m2 code of `x`: nearest even, saturating at 57344; NaN becomes 0x7f or 0xff.
#[must_use]
#[inline(always)]
pub fn e5m2_from_f32(x: f32) -> u8 {
    encode8::<2, 15>(x, 0x7b, 0x7f)
}

/// Adding and subtracting a power of two rounds the mantissa to `MANTISSA` bits (or to the subnormal step) to nearest
/// even in one exact operation, so the code is read off the result.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // a code has 8 bits
fn encode8<const MANTISSA: u32, const BIAS: u32>(x: f32, max_code: u32, nan: u32) -> u8 {
    let bits = x.to_bits();
    let sign = bits >> 24 & 0x80;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    // Exponent of the value, no less than that of the smallest normal.
    let exponent = ((bits >> 23) & 0xff).max(128 - BIAS).min(254 - 23 + MANTISSA);
    // 2^(exponent + 23 - MANTISSA): its last place is the step of the format at this magnitude.
    let magic = f32::from_bits((exponent + 23 - MANTISSA) << 23);
    let rounded = (magnitude + magic) - magic;
    let r = rounded.to_bits();
    // Normal: rebias exponent and keep the mantissa's upper bits. Subnormal: a multiple of 2^(1 - BIAS - MANTISSA).
    let normal = (r >> (23 - MANTISSA)).wrapping_sub((127 - BIAS) << MANTISSA);
    // Read off the last places of 2^23 + n, since a saturating cast does not vectorise.
    let step = f32::from_bits((127 + BIAS - 1 + MANTISSA) << 23);
    let subnormal = (rounded * step + 8_388_608.0).to_bits() & 0xff;
    let code = if r < (128 - BIAS) << 23 { subnormal } else { normal.min(max_code) };
    (sign | if magnitude.is_nan() { nan } else { code }) as u8
}

/// The value of an e4m3 code.
#[must_use]
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    let c = u32::from(code);
    let bits = (c & 0x80) << 24 | (c & 0x7f) << 20;
    let value = f32::from_bits(bits) * f32::from_bits((127 + 120) << 23); // exact: rebias by 2^120
    // NaN by masks: a choice would become a branch, which does not vectorise.
    let nan = u32::from(c & 0x7f == 0x7f).wrapping_neg() & 0x7fff_ffff;
    f32::from_bits(value.to_bits() & !nan | nan & 0x7fc0_0000)
}

/// The value of an e5m2 code, which is the upper byte of an f16.
#[must_use]
#[inline(always)]
pub fn e5m2_to_f32(code: u8) -> f32 {
    let c = u32::from(code);
    let bits = (c & 0x80) << 24 | (c & 0x7f) << 21;
    let value = f32::from_bits(bits) * f32::from_bits((127 + 112) << 23); // exact: rebias by 2^112
    // Infinity and NaN by masks, as for e4m3. A NaN comes out quiet, as hardware widens it from f16.
    let special = u32::from(c & 0x7f >= 0x7c).wrapping_neg() & 0x7f80_0000;
    let quiet = u32::from(c & 0x7f > 0x7c).wrapping_neg() & 0x0040_0000;
    f32::from_bits(value.to_bits() | special | quiet)
}

/// The power of two that brings values of magnitude up to `bound` within `max`, the largest of an 8-bit format:
/// `2^ceil(log2(bound / max))`, not below the least normal f32, and 1 for an all-zero or empty range.
///
/// # Panics
/// When `bound` is negative or not finite.
#[must_use]
pub fn scale_pow2(bound: f32, max: f32) -> f32 {
    assert!(bound.is_finite() && bound >= 0.0, "a bound of {bound} has no scale");
    let ratio = bound / max;
    if ratio < f32::MIN_POSITIVE {
        return if bound == 0.0 { 1.0 } else { f32::MIN_POSITIVE };
    }
    let exponent = ratio.to_bits() >> 23;
    let up = u32::from(ratio.to_bits() & 0x007f_ffff != 0);
    f32::from_bits((exponent + up) << 23)
}

/// The exponent byte e of the scale `2^(e - 127)` that a row of largest magnitude `amax` takes: [`scale_pow2`] as far
/// as `max * scale` stays finite. Above that, infinity included, the largest such scale. `amax` is not NaN.
#[must_use]
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // at most 254
pub fn scale_exponent(amax: f32, max: f32) -> u8 {
    let top = 127 + 254 - (max.to_bits() >> 23);
    let exponent = if amax == f32::INFINITY { top } else { scale_pow2(amax, max).to_bits() >> 23 };
    exponent.min(top) as u8
}

/// The scale `2^(e - 127)` of an exponent byte; e is from 1 to 254.
#[must_use]
#[inline(always)]
pub fn scale_from_exponent(e: u8) -> f32 {
    f32::from_bits(u32::from(e) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of a code's value, in f64, sharing nothing with the codec.
    fn value(code: u8, mantissa: i32, bias: i32, ieee: bool) -> f64 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let m = i32::from(code) & ((1 << mantissa) - 1);
        let e = (i32::from(code) & 0x7f) >> mantissa;
        let top = 0x7f >> mantissa;
        if (ieee && e == top && m != 0) || (!ieee && code & 0x7f == 0x7f) {
            return f64::NAN;
        }
        if ieee && e == top {
            return sign * f64::INFINITY;
        }
        let (lead, e) = if e == 0 { (0, 1) } else { (1, e) };
        sign * f64::from(m + (lead << mantissa)) * 2.0_f64.powi(e - bias - mantissa)
    }

    #[test]
    fn every_code_decodes_to_its_definition() {
        for code in 0..=u8::MAX {
            for (got, want) in
                [(e4m3_to_f32(code), value(code, 3, 7, false)), (e5m2_to_f32(code), value(code, 2, 15, true))]
            {
                let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
                assert!(same, "code {code:#04x}: want {want}, got {got}");
                assert_eq!(got.is_sign_negative(), code & 0x80 != 0, "sign of {code:#04x}");
            }
        }
    }

    /// Nearest code by exhaustive search, ties to the even code, saturating.
    fn nearest(x: f32, mantissa: i32, bias: i32, ieee: bool) -> u8 {
        let magnitude = f64::from(x.abs());
        let last = if ieee { 0x7b_u8 } else { 0x7e };
        let mut best = 0_u8;
        for code in 1..=last {
            let (d, b) = (
                (value(code, mantissa, bias, ieee) - magnitude).abs(),
                (value(best, mantissa, bias, ieee) - magnitude).abs(),
            );
            if d < b || (d == b && code & 1 == 0) {
                best = code;
            }
        }
        best | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn encoding_is_nearest_even_everywhere() {
        // Every 2^12-th float from 0 to 2^17 of both signs, and the neighbours of every midpoint.
        let mut xs: Vec<f32> = (0..0x4800_0000_u32).step_by(1 << 12).map(f32::from_bits).collect();
        for code in 0..0x7e_u8 {
            for (m, b, ieee) in [(3, 7, false), (2, 15, true)] {
                let mid = (value(code, m, b, ieee) + value(code + 1, m, b, ieee)) / 2.0;
                if mid.is_finite() {
                    #[allow(clippy::cast_possible_truncation)]
                    let mid = mid as f32;
                    xs.extend([
                        mid,
                        f32::from_bits(mid.to_bits() + 1),
                        f32::from_bits(mid.to_bits().saturating_sub(1)),
                    ]);
                }
            }
        }
        for x in xs {
            for x in [x, -x] {
                assert_eq!(e4m3_from_f32(x), nearest(x, 3, 7, false), "e4m3 of {x:e}");
                assert_eq!(e5m2_from_f32(x), nearest(x, 2, 15, true), "e5m2 of {x:e}");
            }
        }
    }

    #[test]
    fn golden_codes_and_edges() {
        let rows: [(f32, u8, u8); 14] = [
            (1.0, 0x38, 0x3c),
            (17.0, 0x58, 0x4c),
            (19.0, 0x5a, 0x4d),
            (0.1, 0x1d, 0x2e),
            (0.3, 0x2a, 0x35),
            (1.0625, 0x38, 0x3c),
            (1.1875, 0x3a, 0x3d),
            (-3.3, 0xc5, 0xc3),
            (0.015_625, 0x08, 0x24),
            (0.001_953_125, 0x01, 0x18),
            (0.000_976_562_5, 0x00, 0x14),
            (-0.0, 0x80, 0x80),
            (464.0, 0x7e, 0x5f),
            (1e9, 0x7e, 0x7b),
        ];
        for (x, e4, e5) in rows {
            assert_eq!((e4m3_from_f32(x), e5m2_from_f32(x)), (e4, e5), "{x}");
        }
        for x in [448.0, 465.0, 480.0, 500.0, f32::INFINITY, f32::MAX] {
            assert_eq!(e4m3_from_f32(x), 0x7e, "{x}");
            assert_eq!(e4m3_from_f32(-x), 0xfe, "-{x}");
        }
        assert_eq!(e5m2_from_f32(f32::INFINITY), 0x7b);
        assert_eq!((e4m3_from_f32(f32::NAN), e5m2_from_f32(f32::NAN)), (0x7f, 0x7f));
    }

    /// Widening is that of f16, payloads of NaN included, so that every path may use the hardware's conversion.
    #[test]
    fn e5m2_is_the_upper_byte_of_f16() {
        for code in 0..=u8::MAX {
            let want = half::f16::from_bits(u16::from(code) << 8).to_f32();
            assert_eq!(e5m2_to_f32(code).to_bits(), want.to_bits(), "{code:#04x}");
        }
    }

    #[test]
    fn bf16_agrees_with_half() {
        for bits in (0..=u32::MAX).step_by(9973) {
            let x = f32::from_bits(bits);
            assert_eq!(bf16_from_f32(x), half::bf16::from_f32(x).to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn static_scales_are_the_least_sufficient_power_of_two() {
        for (bound, want) in [(448.0, 1.0), (449.0, 2.0), (224.0, 0.5), (11.3, 0.031_25), (0.0, 1.0)] {
            assert_eq!(scale_pow2(bound, E4M3_MAX), want, "{bound}");
        }
    }

    /// Of every row that can be: the scale is normal, its largest code's value finite, and nothing saturates unless
    /// no such scale would do.
    #[test]
    fn exponent_bytes_are_least_sufficient_normal_and_finite() {
        for max in [E4M3_MAX, E5M2_MAX] {
            let mut bounds: Vec<f32> = (0..0x7f80_0000_u32).step_by(99_991).map(f32::from_bits).collect();
            for e in -140..=118 {
                #[allow(clippy::cast_possible_truncation)]
                let edge = (f64::from(max) * 2.0_f64.powi(e)) as f32;
                let bits = edge.to_bits();
                bounds.extend([bits, bits + 1, bits.saturating_sub(1)].map(f32::from_bits));
            }
            bounds.extend([f32::MAX, f32::INFINITY]);
            for amax in bounds.into_iter().filter(|b| !b.is_nan()) {
                let e = scale_exponent(amax, max);
                let scale = scale_from_exponent(e);
                assert!(scale.is_normal() && (max * scale).is_finite(), "{amax:e}: exponent {e}");
                assert_eq!(scale, 2.0_f32.powi(i32::from(e) - 127));
                let reach = f64::from(max) * f64::from(scale);
                let top = (max * scale * 2.0).is_infinite();
                assert!(f64::from(amax) <= reach || top, "{amax:e} exceeds {reach:e}");
                assert!(amax == 0.0 || e == 1 || f64::from(amax) > reach / 2.0, "{amax:e}: half of {scale:e} would do");
            }
            assert_eq!(scale_exponent(0.0, max), 127);
        }
    }
}
