//! The slow truth in f64.

/// Turns the heads of `x` by `angles` (`[tokens, head_dim / 2]`, radians) and multiplies by `factor`.
#[must_use]
pub fn forward(heads: usize, head_dim: usize, x: &[f64], angles: &[f64], factor: f64) -> Vec<f64> {
    let half = head_dim / 2;
    let mut y = vec![0.0; x.len()];
    for (head, at) in (0..x.len()).step_by(head_dim).enumerate() {
        for i in 0..half {
            let angle = angles[head / heads * half + i];
            let (a, b) = (x[at + i], x[at + half + i]);
            y[at + i] = factor * (a * angle.cos() - b * angle.sin());
            y[at + half + i] = factor * (b * angle.cos() + a * angle.sin());
        }
    }
    y
}

/// The gradient of the input, given that of the output: the turn back.
#[must_use]
pub fn backward(heads: usize, head_dim: usize, dy: &[f64], angles: &[f64], factor: f64) -> Vec<f64> {
    forward(heads, head_dim, dy, &angles.iter().map(|a| -a).collect::<Vec<_>>(), factor)
}
