//! Parameters that every device is tested with, on the rows of [`crate::ops::log_softmax::cases`].

use super::Params;

/// Every cut, alone and combined, at three temperatures.
#[must_use]
pub fn cuts() -> Vec<Params> {
    let mut all = vec![];
    for temperature in [1.0, 0.6, 1.7] {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (1, 1.0, 0.0),
            (4, 1.0, 0.0),
            (40, 1.0, 0.0),
            (2000, 1.0, 0.0),
            (0, 0.01, 0.0),
            (0, 0.5, 0.0),
            (0, 0.95, 0.0),
            (0, 0.999_9, 0.0),
            (0, 1.0, 1e-30),
            (0, 1.0, 0.07),
            (0, 1.0, 1.0),
            (20, 0.9, 0.0),
            (50, 0.97, 0.04),
            (0, 0.8, 0.03),
        ] {
            all.push(Params { temperature, top_k, top_p, min_p });
        }
    }
    all
}
