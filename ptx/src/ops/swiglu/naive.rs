//! The slow truth in f64.

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `silu(gate) * up`.
#[must_use]
pub fn forward(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect()
}

/// (dgate, dup).
#[must_use]
pub fn backward(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let slope = |g: f64| sigmoid(g) * (1.0 + g * (1.0 - sigmoid(g)));
    let dgate = gate.iter().zip(up).zip(dy).map(|((g, u), d)| d * u * slope(*g)).collect();
    let dup = gate.iter().zip(dy).map(|(g, d)| d * g * sigmoid(*g)).collect();
    (dgate, dup)
}
