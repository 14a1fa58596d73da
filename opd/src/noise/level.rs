//! How strong noise has to be for a D: D is in proportion to the square of sigma while it is small, and less steep beyond.

/// Share of the way in ln sigma that a step of the loop goes: half of the exponent 1/2 of the quadratic law. The loop then
/// settles for any law from the power 0 to the power 4.
const GAIN: f64 = 0.25;
/// The farthest that a step changes sigma, as a factor.
const STEP_MAX: f64 = 2.0;
/// The farthest that a step of a search changes it.
const SEARCH_MAX: f64 = 10.0;

/// Sigma for the next update, after one at `sigma` that measured D: (target / measured)^(1/2), damped. Unless D is far too low
/// the error counts in proportion, so that what is held is the mean of D over updates and not that of its logarithm: D of
/// fresh draws is skewed.
#[must_use]
pub fn held(sigma: f64, target: f64, measured: f64) -> f64 {
    if measured.is_nan() {
        return sigma; // nothing was sampled from the student
    }
    let ratio = measured / target;
    let error = if ratio >= 0.1 { 1.0 - ratio } else { -ratio.ln() };
    sigma * (GAIN * error).exp().clamp(1.0 / STEP_MAX, STEP_MAX)
}

/// Sigma to try next in a search that has tried `sigma`.
#[must_use]
pub fn sought(sigma: f64, target: f64, measured: f64) -> f64 {
    sigma * (target / measured).sqrt().clamp(1.0 / SEARCH_MAX, SEARCH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under laws of several powers, with measurements that scatter by a fifth, D comes to its target and stays there.
    #[test]
    fn it_settles_where_it_is_told() {
        let mut draw = ptx::rng::Stream::new(3, ptx::rng::Purpose::Test, 0);
        for (power, size) in [(2.0, 1.0), (2.0, 1e-3), (1.0, 1.0), (3.0, 5.0)] {
            for target in [0.003, 0.1, 3.0] {
                let mut sigma = 0.05;
                let mut late = Vec::new();
                for update in 0..400_u32 {
                    let scatter = 1.0 + 0.35 * (2.0 * f64::from(draw.uniform()) - 1.0); // standard deviation .2
                    let d = size * f64::powf(sigma, power) * scatter;
                    sigma = held(sigma, target, d);
                    if update >= 100 {
                        late.push(d);
                    }
                }
                #[allow(clippy::cast_precision_loss)] // a count
                let mean = late.iter().sum::<f64>() / late.len() as f64;
                assert!((mean / target - 1.0).abs() < 0.05, "power {power}, size {size}: {mean} for {target}");
            }
        }
    }

    #[test]
    fn what_says_nothing_changes_nothing_and_zero_is_too_little() {
        assert_eq!(held(0.3, 0.1, f64::NAN), 0.3);
        assert_eq!(held(0.3, 0.1, 0.1), 0.3);
        assert_eq!(held(0.3, 0.1, 0.0), 0.6);
        assert_eq!((sought(0.3, 0.1, 0.0), sought(0.3, 0.1, 0.4)), (3.0, 0.15));
    }
}
