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

/// The values that rows of `width` finite values round to, and the scale of each row.
#[must_use]
pub fn e4m3_rows(width: usize, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(width) {
        let amax = x.iter().fold(0.0_f64, |amax, &x| amax.max(f64::from(x).abs()));
        // Scales are f32 numbers, so none is below 2^-126.
        let scale = if amax == 0.0 { 1.0 } else { 2.0_f64.powf((amax / 448.0).log2().ceil().max(-126.0)) };
        for &x in x {
            let x = f64::from(x) / scale;
            // 4 significant bits; the step does not shrink below that of the smallest normal, 2^-6.
            let step = if x == 0.0 { 1.0 } else { 2.0_f64.powf(x.abs().log2().floor().max(-6.0) - 3.0) };
            values.push((x / step).round_ties_even() * step * scale);
        }
        scales.push(scale);
    }
    (values, scales)
}
