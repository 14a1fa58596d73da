//! Intervals and the numbers behind them.

mod median;
mod proportion;
mod quantiles;
mod random;
mod rank;

use serde::{Deserialize, Serialize};

pub use median::{MedianInterval, median_interval};
pub use proportion::wilson;
pub use quantiles::{Z_ONE_SIDED_95, Z_TWO_SIDED_95, t_one_sided, t_one_sided_95, t_two_sided_95};
pub use random::Random;
pub use rank::{auroc, auroc_interval, rank_correlation};

/// A closed interval, in the unit of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// Upper less lower end.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.high - self.low
    }

    /// Whether `x` lies in it, ends included.
    #[must_use]
    pub fn contains(&self, x: f64) -> bool {
        (self.low..=self.high).contains(&x)
    }
}
