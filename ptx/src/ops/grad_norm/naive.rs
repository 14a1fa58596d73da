//! The slow truth in f64.

/// Sum of squares.
#[must_use]
pub fn sum_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

/// First index that is not finite.
#[must_use]
pub fn all_finite(x: &[f32]) -> Option<usize> {
    x.iter().position(|x| !x.is_finite())
}
