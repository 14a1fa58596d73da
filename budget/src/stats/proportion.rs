//! Wilson's interval for a proportion, which keeps its coverage near 0 and 1 where the usual one has none.

use super::{Interval, Z_TWO_SIDED_95};

/// The 95% interval of a proportion after `successes` in `n` independent tries; all of [0, 1] after none.
///
/// # Panics
/// With more successes than tries.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts are far below 2^53
pub fn wilson(successes: u64, n: u64) -> Interval {
    assert!(successes <= n, "{successes} successes in {n} tries");
    if n == 0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let (tries, z2) = (n as f64, Z_TWO_SIDED_95 * Z_TWO_SIDED_95);
    let p = successes as f64 / tries;
    let centre = p + z2 / (2.0 * tries);
    let half = Z_TWO_SIDED_95 * (p * (1.0 - p) / tries + z2 / (4.0 * tries * tries)).sqrt();
    let scale = 1.0 + z2 / tries;
    // At the ends the limits are 0 and 1 exactly, which rounding would miss.
    let low = if successes == 0 { 0.0 } else { (centre - half) / scale };
    let high = if successes == n { 1.0 } else { (centre + half) / scale };
    Interval { low, high }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits are the roots p of (x/n - p)^2 = z^2 p (1 - p) / n, which is where Wilson's interval comes from.
    #[test]
    fn limits_solve_the_score_equation() {
        for n in [1_u32, 7, 50, 256, 1_000_000] {
            for x in [0, 1, n / 3, n / 2, n - 1, n] {
                let limits = wilson(u64::from(x), u64::from(n));
                let p = f64::from(x) / f64::from(n);
                for limit in [limits.low, limits.high] {
                    let distance = (p - limit).powi(2);
                    let allowed = Z_TWO_SIDED_95.powi(2) * limit * (1.0 - limit) / f64::from(n);
                    assert!((distance - allowed).abs() < 1e-12, "{x} of {n}: {limit}");
                }
                assert!(0.0 <= limits.low && limits.low <= p && p <= limits.high && limits.high <= 1.0);
                assert!(limits.width() > 0.0, "{x} of {n}");
            }
        }
    }

    /// Published: 8 of 10 gives .490 to .943.
    #[test]
    fn known_values() {
        let limits = wilson(8, 10);
        assert!((limits.low - 0.490).abs() < 5e-4 && (limits.high - 0.943).abs() < 5e-4, "{limits:?}");
        assert_eq!(wilson(0, 0), Interval { low: 0.0, high: 1.0 });
        assert_eq!((wilson(0, 9).low, wilson(9, 9).high), (0.0, 1.0));
    }
}
