//! Work beside the limits, whatever it is.

use serde_json::{Map, Value, json};

use super::{Cost, Limits, Samples, Spread};

/// Which limit is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading memory.
    Read,
    /// Multiply-adds.
    Fma,
}

impl Bound {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bound::Read => "read",
            Bound::Fma => "fma",
        }
    }
}

/// What work must do, and how long it took. Rates and shares are those of the medians.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What one piece must do.
    pub cost: Cost,
    /// What rounds gave.
    pub samples: Samples,
}

impl Measured {
    /// Seconds of one piece of work.
    #[must_use]
    pub fn seconds(&self) -> Spread {
        self.samples.seconds()
    }

    /// Bytes that must be read, in a second; in 10^9. None where memory is no limit of it.
    #[must_use]
    pub fn gb_s(&self) -> Option<f64> {
        (self.cost.bytes > 0.0).then(|| self.cost.bytes / self.seconds().median / 1e9)
    }

    /// Flops in a second; in 10^9. None where there are none to speak of.
    #[must_use]
    pub fn gflop_s(&self) -> Option<f64> {
        (self.cost.flops > 0.0).then(|| self.cost.flops / self.seconds().median / 1e9)
    }

    /// The share of the reading limit that was reached: what must be read over what could have been in that time. What stays
    /// in the caches can exceed it.
    #[must_use]
    pub fn share_read(&self) -> Option<f64> {
        self.gb_s().map(|rate| rate * 1e9 / self.samples.limits().read.median)
    }

    /// The share of the multiply-adds.
    #[must_use]
    pub fn share_fma(&self) -> Option<f64> {
        self.gflop_s().map(|rate| rate * 1e9 / self.samples.limits().fma.median)
    }

    /// The larger of both shares: that of the limit which comes first.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share_read().unwrap_or(0.0).max(self.share_fma().unwrap_or(0.0))
    }

    /// The limit that comes first.
    #[must_use]
    pub fn bound(&self) -> Bound {
        if self.share_read() > self.share_fma() { Bound::Read } else { Bound::Fma }
    }

    /// Adds to a result object: `seconds`, rates, `bound` and shares, and the limits that they are of. What makes no sense is
    /// left out.
    pub fn put(&self, object: &mut Map<String, Value>) {
        let Limits { read, fma, .. } = self.samples.limits().median();
        for (key, value) in [
            ("rounds", json!(self.samples.seconds.len())),
            ("seconds", self.seconds().json()),
            ("gb_s", json!(self.gb_s())),
            ("gflop_s", json!(self.gflop_s())),
            ("bound", json!(self.bound().name())),
            ("share", json!(self.share())),
            ("share_read", json!(self.share_read())),
            ("share_fma", json!(self.share_fma())),
            ("read_gb_s", json!(read / 1e9)),
            ("fma_gflop_s", json!(fma / 1e9)),
        ] {
            if !value.is_null() {
                object.insert(key.to_owned(), value);
            }
        }
    }
}
