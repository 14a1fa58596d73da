//! The slow truth in f64.

/// Settings and running state of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its value.
    pub p: f64,
    /// Running mean of the gradient.
    pub m: f64,
    /// Running mean of the squared gradient.
    pub v: f64,
}

/// Learning rate, beta1, beta2, eps and weight decay.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the gradient's running mean.
    pub beta1: f64,
    /// Decay of the squared gradient's running mean.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// Update number `update`, from 1, with gradient `g`.
#[must_use]
pub fn step(s: Settings, update: u32, g: f64, at: Parameter) -> Parameter {
    let m = s.beta1 * at.m + (1.0 - s.beta1) * g;
    let v = s.beta2 * at.v + (1.0 - s.beta2) * g * g;
    let mhat = m / (1.0 - s.beta1.powf(f64::from(update)));
    let vhat = v / (1.0 - s.beta2.powf(f64::from(update)));
    let p = at.p - s.lr * s.weight_decay * at.p;
    Parameter { p: p - s.lr * mhat / (vhat.sqrt() + s.eps), m, v }
}
