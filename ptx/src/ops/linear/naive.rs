//! The slow truth, in f64: plain loops over row-major matrices.

/// y\[m, n\] = x\[m, k\] W\[n, k\]^T + bias.
#[must_use]
pub fn forward(m: usize, n: usize, k: usize, x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let mut y = vec![0.0; m * n];
    for i in 0..m {
        for o in 0..n {
            let mut sum = 0.0;
            for j in 0..k {
                sum += x[i * k + j] * w[o * k + j];
            }
            y[i * n + o] = sum + bias.map_or(0.0, |b| b[o]);
        }
    }
    y
}

/// dx\[m, k\] = dy\[m, n\] W\[n, k\].
#[must_use]
pub fn backward_input(m: usize, n: usize, k: usize, dy: &[f64], w: &[f64]) -> Vec<f64> {
    let mut dx = vec![0.0; m * k];
    for i in 0..m {
        for o in 0..n {
            for j in 0..k {
                dx[i * k + j] += dy[i * n + o] * w[o * k + j];
            }
        }
    }
    dx
}

/// dw\[n, k\] = dy\[m, n\]^T x\[m, k\].
#[must_use]
pub fn backward_weight(m: usize, n: usize, k: usize, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let mut dw = vec![0.0; n * k];
    for i in 0..m {
        for o in 0..n {
            for j in 0..k {
                dw[o * k + j] += dy[i * n + o] * x[i * k + j];
            }
        }
    }
    dw
}

/// db\[n\] = sum over m of dy\[m, n\].
#[must_use]
pub fn backward_bias(m: usize, n: usize, dy: &[f64]) -> Vec<f64> {
    let mut db = vec![0.0; n];
    for i in 0..m {
        for o in 0..n {
            db[o] += dy[i * n + o];
        }
    }
    db
}
