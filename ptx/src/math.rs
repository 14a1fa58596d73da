//! exp, ln, sin and cos of our own: branch-free scalar code that the compiler vectorises, so that every instruction set
//! gives the same bits. Errors are below 2 ulp (tested against f64 over dense grids).

/// e^x. Overflow gives infinity, underflow zero or a subnormal, NaN stays NaN.
#[must_use]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is infinite or zero whatever the excess; the clamp keeps the exponent arithmetic in range.
    let c = if x > 89.0 { 89.0 } else { x };
    let c = if c < -104.0 { -104.0 } else { c };
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
    let shifted = c.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-0.693_359_4, c);
    let r = n.mul_add(2.121_944_4e-4, r);
    // Minimax polynomial of (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] (Cephes expf).
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 5e-1);
    let y = p.mul_add(r * r, r) + 1.0;
    // 2^n in two exact steps, so that n = 128 and subnormal results work. Wrapping throughout: a check for overflow would
    // keep the loops around this from vectorising in builds that have such checks.
    // Read off the bits because `as`, which saturates, does not vectorise. Of NaN they make no sense; the product below
    // is NaN anyway because y is.
    let n = shifted.to_bits().wrapping_sub(SHIFT.to_bits()) as i32;
    let half = n >> 1;
    let a = f32::from_bits((half.wrapping_add(127) as u32) << 23);
    let b = f32::from_bits((n.wrapping_sub(half).wrapping_add(127) as u32) << 23);
    y * a * b
}

/// (e^x - 1, e^x - 1 - x) for |x| <= 80, both with a small relative error however small x is: below 4 ulp for the first,
/// 32 for the second (what is left of e^x when its leading terms cancel just outside |x| = ln2/2).
#[must_use]
#[inline(always)]
pub fn exp_rest(x: f32) -> (f32, f32) {
    const SHIFT: f32 = 12_582_912.0; // as in `exp`
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    // The polynomial of `exp`: p r^2 = e^r - 1 - r.
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let second = p * (r * r);
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23); // 2^n
    let first = (r + second).mul_add(scale, scale - 1.0);
    (first, if n == 0.0 { second } else { first - x })
}

/// Natural logarithm. Zero gives minus infinity, a negative number NaN, infinity infinity.
#[must_use]
#[inline(always)]
#[allow(clippy::cast_precision_loss)] // the exponent is small
pub fn ln(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let e = e as f32 - if tiny { 23.0 } else { 0.0 };
    let f = m - 1.0;
    // Minimax polynomial of (ln(1+f) - f + f^2/2) / f^3 (Cephes logf).
    let p = 7.037_683_6e-2_f32;
    let p = p.mul_add(f, -1.151_461e-1);
    let p = p.mul_add(f, 1.167_699_9e-1);
    let p = p.mul_add(f, -1.242_014_1e-1);
    let p = p.mul_add(f, 1.424_932_3e-1);
    let p = p.mul_add(f, -1.666_805_8e-1);
    let p = p.mul_add(f, 2.000_071_5e-1);
    let p = p.mul_add(f, -2.499_999_4e-1);
    let p = p.mul_add(f, 3.333_333e-1);
    let ff = f * f;
    let low = e.mul_add(-2.121_944_4e-4, p * f * ff);
    let low = (-0.5_f32).mul_add(ff, low);
    let y = e.mul_add(0.693_359_4, f + low);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// (sin x, cos x) for |x| up to 2^30, computed in f64 and rounded once: the angles of rotary embeddings are positions
/// times frequencies, up to 10^6 radians, and need the wide reduction.
#[must_use]
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // rounding to f32 is the purpose
pub fn sin_cos(x: f32) -> (f32, f32) {
    const SHIFT: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: as in `exp`
    let x = f64::from(x);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r); // the rest of pi/2
    let z = r * r;
    // Taylor in f64 on [-pi/4, pi/4]: the first term left out is below 1e-12.
    let s = -2.505_210_838_544_172e-8_f64;
    let s = s.mul_add(z, 2.755_731_922_398_589e-6);
    let s = s.mul_add(z, -1.984_126_984_126_984e-4);
    let s = s.mul_add(z, 8.333_333_333_333_333e-3);
    let s = s.mul_add(z, -1.666_666_666_666_666_6e-1);
    let sin = (s * z).mul_add(r, r);
    let c = 2.087_675_698_786_81e-9_f64;
    let c = c.mul_add(z, -2.755_731_922_398_589e-7);
    let c = c.mul_add(z, 2.480_158_730_158_73e-5);
    let c = c.mul_add(z, -1.388_888_888_888_889e-3);
    let c = c.mul_add(z, 4.166_666_666_666_666_4e-2);
    let c = c.mul_add(z, -0.5);
    let cos = c.mul_add(z, 1.0);
    let quadrant = shifted.to_bits() & 3; // the low bits of SHIFT are zero
    let (s, c) = if quadrant & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let s = if quadrant & 2 == 0 { s } else { -s };
    let c = if (quadrant + 1) & 2 == 0 { c } else { -c };
    (s as f32, c as f32)
}

/// 1 / (1 + e^-x).
#[must_use]
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The fixed tree over 16 strided sums: halves are added until one is left.
#[must_use]
#[inline(always)]
pub fn tree16(s: &[f32; 16]) -> f32 {
    let mut a = [0.0_f32; 8];
    for i in 0..8 {
        a[i] = s[i] + s[i + 8];
    }
    let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
    (b[0] + b[2]) + (b[1] + b[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        #[allow(clippy::cast_possible_truncation)]
        let step = f64::from((want.abs() as f32).max(f32::MIN_POSITIVE).to_bits() >> 23);
        (f64::from(got) - want).abs() / 2.0_f64.powf(step - 127.0 - 23.0)
    }

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn exp_and_ln_are_within_2_ulp() {
        let (mut worst_exp, mut worst_ln) = (0.0_f64, 0.0_f64);
        for i in -870_000..=887_000 {
            let x = i as f32 * 1e-4;
            worst_exp = worst_exp.max(ulps(exp(x), f64::from(x).exp()));
        }
        for bits in (0x0080_0000_u32..0x7f80_0000).step_by(1511) {
            let x = f32::from_bits(bits);
            worst_ln = worst_ln.max(ulps(ln(x), f64::from(x).ln()));
        }
        assert!(worst_exp < 2.0 && worst_ln < 2.0, "exp {worst_exp}, ln {worst_ln} ulp");
    }

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn exp_rest_keeps_its_relative_accuracy() {
        let (mut worst_first, mut worst_second) = (0.0_f64, 0.0_f64);
        let mut check = |x: f32| {
            let wide = f64::from(x);
            // e^x - 1 - x in f64 loses all of its digits near 0; there the series is exact enough.
            let series = wide * wide * (0.5 + wide / 6.0 + wide * wide / 24.0 + wide.powi(3) / 120.0);
            let second = if x.abs() < 1e-3 { series } else { wide.exp_m1() - wide };
            let got = exp_rest(x);
            worst_first = worst_first.max(ulps(got.0, wide.exp_m1()));
            worst_second = worst_second.max(ulps(got.1, second));
        };
        (-800_000..=800_000).for_each(|i| check(i as f32 * 1e-4));
        (-500_000..=500_000).for_each(|i| check(i as f32 * 1e-6));
        (1..50).for_each(|i| [-1.0, 1.0].into_iter().for_each(|sign| check(sign * 2.0_f32.powi(-i))));
        assert!(worst_first < 4.0 && worst_second < 32.0, "{worst_first} and {worst_second} ulp");
        assert_eq!(exp_rest(0.0), (0.0, 0.0));
    }

    #[test]
    fn special_values() {
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY), exp(-200.0)), (1.0, 0.0, f32::INFINITY, 0.0));
        assert_eq!(
            (exp(88.8), ln(1.0), ln(0.0), ln(f32::INFINITY)),
            (f32::INFINITY, 0.0, f32::NEG_INFINITY, f32::INFINITY)
        );
        assert!(exp(f32::NAN).is_nan() && ln(f32::NAN).is_nan() && ln(-1.0).is_nan());
        assert!(exp(-100.0) > 0.0 && (ulps(exp(-100.0), (-100.0_f64).exp()) <= 1.0));
        assert!((f64::from(ln(1e-40)) - f64::from(1e-40_f32).ln()).abs() < 1e-5);
    }

    #[test]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn sin_cos_round_correctly_nearly_always() {
        for i in 0..400_000_u32 {
            let x = (i as f32) * 2.617 - 3e5;
            let (s, c) = sin_cos(x);
            let (ws, wc) = f64::from(x).sin_cos();
            assert!(
                (f64::from(s) - ws).abs() < 1e-7 && (f64::from(c) - wc).abs() < 1e-7,
                "{x}: {s} {c}, want {ws} {wc}"
            );
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        crate::isa::by_isa! {
            fn all(x: &[f32], out: &mut [f32]) {
                for (o, &x) in out.iter_mut().zip(x) {
                    *o = exp(x) + ln(x.abs()) + sigmoid(x);
                }
            }
        }
        let mut stream = crate::rng::Stream::new(3, crate::rng::Purpose::Test, 9);
        let x: Vec<f32> = (0..10_000).map(|_| stream.normal() * 30.0).collect();
        let run = |isa| {
            let mut out = vec![0.0; x.len()];
            all(isa, &x, &mut out);
            out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let want = run(crate::Isa::Portable);
        for isa in crate::Isa::available() {
            assert!(run(isa) == want, "{}", isa.name());
        }
    }
}
