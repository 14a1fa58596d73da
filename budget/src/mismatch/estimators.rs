//! KL(rollout || train) from tokens sampled by the rollout. With `log_ratio` = ln p_train - ln p_rollout of the token
//! taken, in nats, the means of k1 and k3 are the KL and that of k2 equals it to second order (Schulman, "Approximating
//! KL divergence", 2020). k3 is the live monitor: its noise shrinks with D, that of k1 only with its square root.

/// Log ratios are clamped to this many nats either way, so that one impossible token cannot end a run's record.
pub const LOG_RATIO_MAX: f64 = 20.0;

/// `-ln r`, in nats. NaN stays NaN: a missing logprob must not pass for agreement.
#[must_use]
pub fn k1(log_ratio: f64) -> f64 {
    0.0 - clamp(log_ratio) // and not -x, which makes a negative zero of agreement
}

/// `(ln r)^2 / 2`, in nats.
#[must_use]
pub fn k2(log_ratio: f64) -> f64 {
    let x = clamp(log_ratio);
    0.5 * x * x
}

/// `r - 1 - ln r`, in nats; never negative.
#[must_use]
pub fn k3(log_ratio: f64) -> f64 {
    let x = clamp(log_ratio);
    if x.abs() < 1e-3 {
        // The difference below would lose all digits; the first term left out is x^6 / 720.
        return 0.5 * x * x * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0)));
    }
    x.exp_m1() - x
}

fn clamp(log_ratio: f64) -> f64 {
    log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLOUT: [f64; 4] = [0.3, 0.4, 0.1, 0.2];
    const TRAIN: [f64; 4] = [0.6, 0.25, 0.1, 0.05];

    fn mean(f: impl Fn(f64) -> f64) -> f64 {
        ROLLOUT.iter().zip(TRAIN).map(|(p, q)| p * f((q / p).ln())).sum()
    }

    /// Values computed apart, to six digits.
    #[test]
    fn golden_values() {
        let golden = [
            ("E k1", mean(k1), 0.257316),
            ("E k2", mean(k2), 0.308430),
            ("E k3", mean(k3), 0.257316),
            ("Var k1", mean(|x| k1(x).powi(2)) - mean(k1).powi(2), 0.550648),
            ("Var k3", mean(|x| k3(x).powi(2)) - mean(k3).powi(2), 0.0466204),
            ("k3 of +5", k3(5.0), 142.413159),
            ("k3 of -5", k3(-5.0), 4.006738),
            ("k2 of 5", k2(5.0), 12.5),
        ];
        for (name, got, want) in golden {
            assert!((got - want).abs() < 6e-7, "{name}: {got}, not {want}");
        }
    }

    #[test]
    fn agreement_is_exactly_zero() {
        for k in [k1, k2, k3] {
            assert_eq!(k(0.0).to_bits(), 0);
        }
    }

    #[test]
    fn clamped_and_honest_about_nan() {
        for k in [k1, k2, k3] {
            assert_eq!((k(f64::INFINITY), k(-1e300)), (k(20.0), k(-20.0)));
            assert!(k(f64::NAN).is_nan());
        }
        assert_eq!((k1(30.0), k2(30.0)), (-20.0, 200.0));
    }

    /// k3 meets its series on both sides of the switch, and is never negative. At 1e-3 the difference of two numbers
    /// near 1e-3, each right to 1e-16 of itself, is 5e-7 and so right to a few 1e-13 of itself.
    #[test]
    fn k3_near_zero() {
        for x in [1e-9, 1e-5, 9.99e-4, 1.001e-3, -1e-9, -9.99e-4, -1.001e-3_f64] {
            let series = x * x / 2.0 + x.powi(3) / 6.0 + x.powi(4) / 24.0 + x.powi(5) / 120.0;
            assert!(k3(x) > 0.0 && (k3(x) / series - 1.0).abs() < 2e-12, "{x}: {} and {series}", k3(x));
        }
    }
}
