//! Quantiles of the normal and of Student's t distribution, for 95% limits.

/// The normal's 95th percentile.
pub const Z_ONE_SIDED_95: f64 = 1.644_853_626_951_472_2;
/// The normal's 97.5th percentile.
pub const Z_TWO_SIDED_95: f64 = 1.959_963_984_540_054;

/// t's 95th percentile for 1, 2, ... degrees of freedom.
const T_95: [f64; 28] = [
    6.313_752, 2.919_986, 2.353_363, 2.131_847, 2.015_048, 1.943_180, 1.894_579, 1.859_548, 1.833_113, 1.812_461,
    1.795_885, 1.782_288, 1.770_933, 1.761_310, 1.753_050, 1.745_884, 1.739_607, 1.734_064, 1.729_133, 1.724_718,
    1.720_743, 1.717_144, 1.713_872, 1.710_882, 1.708_141, 1.705_618, 1.703_288, 1.701_131,
];
/// t's 97.5th percentile for 1, 2, ... degrees of freedom.
const T_975: [f64; 28] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157, 2.228_139,
    2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922, 2.093_024, 2.085_963,
    2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831, 2.048_407,
];

/// The factor of a standard error in a one-sided 95% limit with `freedom` degrees of freedom; the normal's from 29 on,
/// which is 30 clusters.
///
/// # Panics
/// With none.
#[must_use]
pub fn t_one_sided_95(freedom: usize) -> f64 {
    lookup(&T_95, freedom, Z_ONE_SIDED_95)
}

/// The factor of a standard error in a two-sided 95% interval with `freedom` degrees of freedom; the normal's from 29
/// on, which is 30 clusters.
///
/// # Panics
/// With none.
#[must_use]
pub fn t_two_sided_95(freedom: usize) -> f64 {
    lookup(&T_975, freedom, Z_TWO_SIDED_95)
}

/// The factor of a standard error in a one-sided limit that is missed with probability `tail`, with `freedom` degrees of
/// freedom: by halving, on the density's integral. With x = sqrt(v) tan a the density becomes cos(a)^(v-1) on a right angle.
///
/// # Panics
/// With none, or a tail outside (0, 0.5].
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of prompts
pub fn t_one_sided(tail: f64, freedom: usize) -> f64 {
    assert!(freedom > 0, "a limit needs at least one degree of freedom");
    assert!(tail > 0.0 && tail <= 0.5, "a tail of {tail}");
    let v = freedom as f64;
    let density = |angle: f64| angle.cos().powf(v - 1.0);
    let whole = area(density, std::f64::consts::FRAC_PI_2);
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let above = 0.5 - 0.5 * area(density, middle) / whole;
        if above > tail { low = middle } else { high = middle }
    }
    v.sqrt() * low.tan()
}

/// The integral of an unnormalised density from 0 to `limit` by Simpson's rule.
fn area(density: impl Fn(f64) -> f64, limit: f64) -> f64 {
    let n = 2000;
    let h = limit / f64::from(n);
    let weight = |i: i32| if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    (0..=n).map(|i| weight(i) * density(h * f64::from(i))).sum::<f64>() * h / 3.0
}

fn lookup(table: &[f64], freedom: usize, normal: f64) -> f64 {
    assert!(freedom > 0, "an interval needs at least one degree of freedom");
    table.get(freedom - 1).copied().unwrap_or(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With x = sqrt(v) tan a the t density becomes cos(a)^(v-1) on a right angle, which Simpson's rule takes well.
    #[test]
    fn t_against_its_density() {
        for freedom in 1..=28_u32 {
            let v = f64::from(freedom);
            let density = |angle: f64| angle.cos().powf(v - 1.0);
            let whole = area(density, std::f64::consts::FRAC_PI_2);
            let below = |t: f64| 0.5 + 0.5 * area(density, (t / v.sqrt()).atan()) / whole;
            let n = freedom as usize;
            // Six decimals of t: an error of 5e-7 times a density below .4, and at most 1e-7 of it here.
            for (t, want) in [(t_one_sided_95(n), 0.95), (t_two_sided_95(n), 0.975)] {
                assert!((below(t) - want).abs() < 1e-7, "{freedom} degrees: {} below {t}", below(t));
            }
        }
    }

    #[test]
    fn any_tail_agrees_with_the_tables() {
        for freedom in [1, 2, 5, 15, 28] {
            assert!((t_one_sided(0.05, freedom) / t_one_sided_95(freedom) - 1.0).abs() < 1e-6, "{freedom}");
            assert!((t_one_sided(0.025, freedom) / t_two_sided_95(freedom) - 1.0).abs() < 1e-6, "{freedom}");
        }
        // Printed tables: t with 15 degrees of freedom, and nearly the normal.
        assert!((t_one_sided(0.01, 15) - 2.602_480).abs() < 1e-5);
        assert!((t_one_sided(0.01, 100_000) - 2.326_348).abs() < 1e-3);
    }

    #[test]
    fn normal_against_its_density() {
        let density = |x: f64| (-0.5 * x * x).exp();
        let whole = area(density, 12.0);
        for (z, want) in [(t_one_sided_95(29), 0.95), (t_two_sided_95(1000), 0.975)] {
            let below = 0.5 + 0.5 * area(density, z) / whole;
            assert!((below - want).abs() < 1e-10, "{below} below {z}");
        }
    }
}
