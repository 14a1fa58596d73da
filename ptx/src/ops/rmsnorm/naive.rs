//! The slow truth in f64.

/// 1/rms of each row of `x`.
#[must_use]
pub fn inv_rms(dim: usize, x: &[f64], eps: f64) -> Vec<f64> {
    #[allow(clippy::cast_precision_loss)] // row lengths are far below 2^52
    let mean = |row: &[f64]| row.iter().map(|v| v * v).sum::<f64>() / dim as f64;
    x.chunks_exact(dim).map(|row| 1.0 / (mean(row) + eps).sqrt()).collect()
}

/// The normalised rows times `gain`.
#[must_use]
pub fn forward(dim: usize, x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let inv = inv_rms(dim, x, eps);
    x.iter().enumerate().map(|(i, x)| x * inv[i / dim] * gain[i % dim]).collect()
}

/// (dx, dgain).
#[must_use]
pub fn backward(dim: usize, x: &[f64], gain: &[f64], eps: f64, dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let inv = inv_rms(dim, x, eps);
    let (mut dx, mut dgain) = (vec![0.0; x.len()], vec![0.0; dim]);
    for (row, inv) in inv.iter().enumerate() {
        let at = row * dim;
        let mut dot = 0.0;
        for j in 0..dim {
            dgain[j] += dy[at + j] * x[at + j] * inv;
            dot += dy[at + j] * gain[j] * x[at + j];
        }
        for j in 0..dim {
            #[allow(clippy::cast_precision_loss)]
            let mean = dot / dim as f64;
            dx[at + j] = inv * (dy[at + j] * gain[j] - x[at + j] * inv * inv * mean);
        }
    }
    (dx, dgain)
}
