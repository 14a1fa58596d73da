//! Number formats narrower than f32, bit by bit and without branches, so that loops over lanes vectorise.

use crate::exec::value::{low_byte, low_half};

/// What arithmetic gives for any NaN in f32.
pub(crate) const NAN: u32 = 0x7fff_ffff;

/// f16 to f32, exact; a NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    let sign = u32::from(h & 0x8000) << 16;
    // The f16 exponent in f32's place is 112 too small, for subnormals too; the product is exact.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let finite = scaled.to_bits() | sign;
    let bits = if magnitude > 0x0f80_0000 {
        NAN
    } else if magnitude == 0x0f80_0000 {
        0x7f80_0000 | sign
    } else {
        finite
    };
    f32::from_bits(bits)
}

/// f32 to f16, to nearest even; a NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-14 the addition of a half leaves the rounded subnormal in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    let rounded = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let bounded = if magnitude >= 0x4780_0000 { 0x7c00 } else { rounded.min(0x7c00) };
    let out = if magnitude > 0x7f80_0000 { 0x7fff } else { bounded | sign };
    low_half(out)
}

/// f32 to f16, towards zero.
#[inline(always)]
pub(crate) fn f32_to_f16_rz(x: f32) -> u16 {
    let near = f32_to_f16(x);
    let magnitude = near & 0x7fff;
    if x.is_nan() || x.is_infinite() {
        return near;
    }
    let over = f16_to_f32(magnitude) > x.abs();
    (if over { magnitude - 1 } else { magnitude }) | near & 0x8000
}

#[inline(always)]
pub(crate) fn bf16_to_f32(h: u16) -> f32 {
    canonical(f32::from_bits(u32::from(h) << 16))
}

/// f32 to bf16, to nearest even; a NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    low_half(if x.is_nan() { 0x7fff } else { rounded })
}

/// f32 to bf16, towards zero.
#[inline(always)]
pub(crate) fn f32_to_bf16_rz(x: f32) -> u16 {
    low_half(if x.is_nan() { 0x7fff } else { x.to_bits() >> 16 })
}

/// f64 to f16 or bf16 through f32: rounding to odd first makes the second rounding the only one that counts.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(x: f64) -> f32 {
    #[allow(clippy::cast_possible_truncation)]
    let near = x as f32;
    if f64::from(near) == x || near.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    if near.is_infinite() {
        // Only a finite value that overflowed comes here: the largest finite one is odd.
        return if x.is_infinite() { near } else { f32::MAX.copysign(near) };
    }
    let away = f64::from(near).abs() < x.abs();
    f32::from_bits(if away { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

/// Any NaN to the canonical one. By its bits: compilers reason about comparisons of a root with itself, and have erred.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN } else { bits })
}

/// e4m3 to f32, exact; 0x7f and 0xff are NaN.
#[inline(always)]
pub(crate) fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f) << 20;
    let sign = u32::from(code & 0x80) << 24;
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 120) << 23);
    f32::from_bits(if code & 0x7f == 0x7f { NAN } else { scaled.to_bits() | sign })
}

/// e5m2 to f32, exact: the high byte of an f16.
#[inline(always)]
pub(crate) fn e5m2_to_f32(code: u8) -> f32 {
    f16_to_f32(u16::from(code) << 8)
}

/// f32 to e4m3, to nearest even, beyond 448 to 448; a NaN becomes 0x7f.
#[inline(always)]
pub(crate) fn f32_to_e4m3(x: f32) -> u8 {
    let bits = x.to_bits();
    let sign = bits >> 24 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    // Subnormals of e4m3 step by 2^-9: 2^14 has that step in f32.
    let subnormal = (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(0x4680_0000);
    let odd = magnitude >> 20 & 1;
    let normal = (magnitude.wrapping_sub(120 << 23).wrapping_add(0x7_ffff).wrapping_add(odd)) >> 20;
    let rounded = if magnitude < 121 << 23 { subnormal } else { normal };
    let bounded = if magnitude >= 0x43e0_0000 { 0x7e } else { rounded.min(0x7e) };
    low_byte(if magnitude > 0x7f80_0000 { 0x7f } else { bounded | sign })
}

/// f32 to e5m2, to nearest even, beyond 57344 to 57344; a NaN becomes 0x7f.
#[inline(always)]
pub(crate) fn f32_to_e5m2(x: f32) -> u8 {
    let bits = x.to_bits();
    let sign = bits >> 24 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    // Subnormals of e5m2 step by 2^-16: 2^7 has that step in f32.
    let subnormal = (f32::from_bits(magnitude) + 128.0).to_bits().wrapping_sub(0x4300_0000);
    let odd = magnitude >> 21 & 1;
    let normal = (magnitude.wrapping_sub(112 << 23).wrapping_add(0xf_ffff).wrapping_add(odd)) >> 21;
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };
    let bounded = if magnitude >= 0x4760_0000 { 0x7b } else { rounded.min(0x7b) };
    low_byte(if magnitude > 0x7f80_0000 { 0x7f } else { bounded | sign })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a code of a format with `exponent` and `mantissa` bits, by the definition.
    fn value(code: u32, exponent: u32, mantissa: u32) -> f64 {
        let bias = (1 << (exponent - 1)) - 1;
        let e = i32::try_from(code >> mantissa & ((1 << exponent) - 1)).unwrap();
        let m = f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
        let sign = if code >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
        sign * if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e - bias) }
    }

    /// The code nearest to `x` among the finite ones, ties to the even code, beyond the last to `overflow`.
    fn nearest(x: f64, codes: u32, exponent: u32, mantissa: u32) -> u32 {
        (0..codes)
            .min_by(|&a, &b| {
                let (da, db) = ((value(a, exponent, mantissa) - x).abs(), (value(b, exponent, mantissa) - x).abs());
                da.total_cmp(&db).then((a & 1).cmp(&(b & 1)))
            })
            .unwrap()
    }

    #[test]
    fn widening_is_exact_for_every_finite_code() {
        for code in 0..=u16::MAX {
            if code >> 10 & 31 != 31 {
                assert_eq!(f64::from(f16_to_f32(code)), value(u32::from(code), 5, 10), "f16 {code:#x}");
            }
        }
        assert!(f16_to_f32(0xfc00) == f32::NEG_INFINITY && f16_to_f32(0x7c01).is_nan());
        for code in 0..=u8::MAX {
            if code & 0x7f != 0x7f {
                assert_eq!(f64::from(e4m3_to_f32(code)), value(u32::from(code), 4, 3), "e4m3 {code:#x}");
            }
            if code & 0x7f < 0x7c {
                assert_eq!(f64::from(e5m2_to_f32(code)), value(u32::from(code), 5, 2), "e5m2 {code:#x}");
            }
        }
    }

    #[test]
    fn narrowing_takes_the_nearest_code() {
        // Every code, every midpoint between neighbours, and a step of f32 to either side of both.
        for code in 0..0x7b_u32 {
            for x in [value(code, 5, 2), (value(code, 5, 2) + value(code + 1, 5, 2)) / 2.0] {
                #[allow(clippy::cast_possible_truncation)]
                let x = x as f32;
                for x in [x, x.next_up(), x.next_down()].map(f32::abs) {
                    assert_eq!(u32::from(f32_to_e5m2(x)), nearest(f64::from(x), 0x7c, 5, 2), "e5m2 {x:e}");
                    assert_eq!(f32_to_e5m2(-x), f32_to_e5m2(x) | 0x80);
                }
            }
        }
        for code in 0..0x7e_u32 {
            for x in [value(code, 4, 3), (value(code, 4, 3) + value(code + 1, 4, 3)) / 2.0] {
                #[allow(clippy::cast_possible_truncation)]
                let x = x as f32;
                for x in [x, x.next_up(), x.next_down()].map(f32::abs) {
                    assert_eq!(u32::from(f32_to_e4m3(x)), nearest(f64::from(x), 0x7f, 4, 3), "e4m3 {x:e}");
                }
            }
        }
        for code in (0..0x7bff_u16).step_by(7) {
            let (a, b) = (f16_to_f32(code), f16_to_f32(code + 1));
            let middle = a.midpoint(b);
            assert_eq!(f32_to_f16(a), code);
            assert_eq!(f32_to_f16(middle), if code & 1 == 0 { code } else { code + 1 }, "f16 {code:#x}");
            assert_eq!((f32_to_f16(middle.next_up()), f32_to_f16(middle.next_down())), (code + 1, code));
            assert_eq!(f32_to_f16_rz(b.next_down()), code);
        }
        assert_eq!([f32_to_f16(65519.0), f32_to_f16(65520.0), f32_to_f16(-1e30)], [0x7bff, 0x7c00, 0xfc00]);
        assert_eq!([f32_to_e4m3(1e30), f32_to_e4m3(f32::NEG_INFINITY), f32_to_e4m3(f32::NAN)], [0x7e, 0xfe, 0x7f]);
        assert_eq!([f32_to_e5m2(1e30), f32_to_e5m2(f32::INFINITY), f32_to_e5m2(f32::NAN)], [0x7b, 0x7b, 0x7f]);
        assert_eq!([f32_to_bf16(1.0), f32_to_bf16(f32::MAX), f32_to_bf16(f32::NAN)], [0x3f80, 0x7f80, 0x7fff]);
    }
}
