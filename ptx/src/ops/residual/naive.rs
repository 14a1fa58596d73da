//! The slow truth in f64.

/// `x + y`.
#[must_use]
pub fn add(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}
