//! Figures and limits as rows of a table and as JSON.

use serde_json::{Map, Value, json};

use super::{Figure, Limits, LimitsSpread, Spread};

/// Heading of [`Figure::cells`].
pub const HEADING: [&str; 12] = [
    "what",
    "batch",
    "context",
    "tokens",
    "ms",
    "low to high",
    "tokens/s",
    "GB/s",
    "GFLOP/s",
    "of read",
    "of fma",
    "bound",
];

impl Figure {
    /// A row under [`HEADING`]; what makes no sense is empty.
    #[must_use]
    pub fn cells(&self) -> [String; 12] {
        let Figure { measured, .. } = self;
        let count = |count: Option<usize>| count.map_or(String::new(), |count| count.to_string());
        let rate = |rate: Option<f64>, digits| rate.map_or(String::new(), |rate| format!("{rate:.digits$}"));
        let share = |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.1}%", 100.0 * share));
        let ms = measured.seconds().times(1e3);
        [
            self.what.to_string(),
            count(self.batch),
            count(self.context),
            count(self.tokens),
            format!("{:.3}", ms.median),
            format!("{:.3} to {:.3}", ms.low, ms.high),
            rate(self.tokens_per_s(), 1),
            rate(measured.gb_s(), 2),
            rate(measured.gflop_s(), 2),
            share(measured.share_read()),
            share(measured.share_fma()),
            measured.bound().name().to_owned(),
        ]
    }

    /// As results have it; what makes no sense is left out.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                object.insert(key.to_owned(), value);
            }
        };
        put("what", json!(self.what.name()));
        put("batch", json!(self.batch));
        put("context", json!(self.context));
        put("tokens", json!(self.tokens));
        put("tokens_per_s", json!(self.tokens_per_s()));
        if let Some(resident) = self.resident {
            put("rss_before_bytes", json!(resident.before));
            put("rss_after_bytes", json!(resident.after));
            put("rss_growth_bytes", json!(resident.after.saturating_sub(resident.before)));
        }
        self.measured.put(&mut object);
        Value::Object(object)
    }
}

impl Spread {
    /// As results have it.
    #[must_use]
    pub fn json(self) -> Value {
        json!({"low": self.low, "median": self.median, "high": self.high})
    }
}

impl LimitsSpread {
    /// The medians, as results have them.
    #[must_use]
    pub fn json(&self) -> Value {
        let Limits { read, read_one, fma, fma_one } = self.median();
        json!({"read_gb_s": read / 1e9, "read_one_gb_s": read_one / 1e9, "fma_gflop_s": fma / 1e9, "fma_one_gflop_s": fma_one / 1e9})
    }

    /// Rows of what, unit, median, and low to high.
    #[must_use]
    pub fn cells(&self) -> [[String; 4]; 4] {
        let row = |what: &str, unit: &str, spread: Spread| {
            let Spread { low, median, high } = spread.times(1e-9);
            [what.to_owned(), unit.to_owned(), format!("{median:.1}"), format!("{low:.1} to {high:.1}")]
        };
        [
            row("reading, all threads", "GB/s", self.read),
            row("reading, one", "GB/s", self.read_one),
            row("multiply-adds, all threads", "GFLOP/s", self.fma),
            row("multiply-adds, one", "GFLOP/s", self.fma_one),
        ]
    }
}
