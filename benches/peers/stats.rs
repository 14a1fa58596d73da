//! What is said of a few measurements: the middle one, and from where to where they go.

use serde::Serialize;

/// Low, median and high.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    /// Of at least one value; of an even count the median is between the two in the middle.
    pub fn of(values: &[f64]) -> Spread {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        Spread { low, median: f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]), high }
    }

    /// Of what two contestants got in the same rounds, one over the other: what changes from round to round is in both.
    pub fn of_ratios(over: &[f64], under: &[f64]) -> Spread {
        let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Spread::of(&ratios)
    }
}
