//! How the learning rate goes over a run.

/// Of `updates`, the rate rises linearly over the first `warmup`, stays, and falls linearly over the last `decay`; the last one
/// still has a rate.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// First updates.
    pub warmup: u64,
    /// Last updates; 0 for none.
    pub decay: u64,
    /// All updates.
    pub updates: u64,
}

impl Rate {
    /// The rate of one update, counted from 1, where the highest is `lr`.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // update counts
    pub fn at(&self, lr: f32, update: u64) -> f32 {
        if update < self.warmup {
            return lr * update as f32 / self.warmup as f32;
        }
        let left = (self.updates + 1).saturating_sub(update);
        if self.decay == 0 || left > self.decay { lr } else { lr * left as f32 / (self.decay + 1) as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn it_rises_stays_and_falls() {
        let shape = Rate { warmup: 4, decay: 3, updates: 10 };
        let got: Vec<f32> = (1..=10).map(|update| shape.at(1.0, update)).collect();
        assert_eq!(got, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]);
    }

    #[test]
    fn without_decay_it_stays() {
        let shape = Rate { warmup: 0, decay: 0, updates: 2 };
        assert_eq!([1, 2, 3].map(|update| shape.at(0.5, update)), [0.5; 3]);
    }
}
