//! The slow truth, by arithmetic on values: it shares nothing with the bit tricks of the codec.

/// The bf16 value nearest to `x`, ties to the even mantissa.
#[must_use]
pub fn bf16(x: f32) -> f64 {
    let x = f64::from(x);
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // 8 significant bits; the step does not shrink below that of the smallest normal, 2^-126.
    let step = 2.0_f64.powf(x.abs().log2().floor().max(-126.0) - 7.0);
    let rounded = (x / step).round_ties_even() * step;
    if rounded.abs() >= 2.0_f64.powi(128) { f64::INFINITY.copysign(x) } else { rounded }
}
