//! The middle of some measurements, and how far they lie apart.

/// Lowest, middle and highest of some measurements, in their unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The lowest.
    pub low: f64,
    /// The middle one; of an even number the mean of both in the middle.
    pub median: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// That of `values`.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "nothing was measured");
        values.sort_by(f64::total_cmp);
        let (middle, last) = (values.len() / 2, values.len() - 1);
        let median = f64::midpoint(values[(last) / 2], values[middle]);
        Spread { low: values[0], median, high: values[last] }
    }

    /// The same in another unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Spread {
        Spread { low: self.low * factor, median: self.median * factor, high: self.high * factor }
    }
}
