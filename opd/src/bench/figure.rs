//! One measurement of a model beside the limits.

use std::fmt;
use std::str::FromStr;

use super::Measured;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A step of sequences that decode.
    Decode,
    /// A prompt up to its next token.
    Prefill,
    /// Logprobs of every token of a row.
    Score,
    /// What a pool holds: a plan, not a time.
    Capacity,
    /// New weights.
    Update,
    /// Forward, loss, backward, optimizer and next version.
    Train,
}

impl What {
    /// All of them.
    pub const ALL: [What; 6] = [What::Decode, What::Prefill, What::Score, What::Capacity, What::Update, What::Train];

    /// Its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            What::Decode => "decode",
            What::Prefill => "prefill",
            What::Score => "score",
            What::Capacity => "capacity",
            What::Update => "update",
            What::Train => "train",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<What, String> {
        What::ALL.into_iter().find(|what| what.name() == text).ok_or_else(|| {
            let known = What::ALL.map(What::name).join(", ");
            format!("{text:?} is nothing that can be measured; give some of {known}, with commas between")
        })
    }
}

/// Resident memory of the process over an update, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Before the first that counts.
    pub before: usize,
    /// After the last.
    pub after: usize,
}

/// One measurement of a model beside the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub what: What,
    /// Sequences or rows of it.
    pub batch: Option<usize>,
    /// Tokens that each of them held before, or holds in all where it is a row of a training step.
    pub context: Option<usize>,
    /// Tokens that one piece of work computes; none of an update.
    pub tokens: Option<usize>,
    /// How long one piece took.
    pub measured: Measured,
    /// Of updates, where the system tells.
    pub resident: Option<Resident>,
}

impl Figure {
    /// Tokens in a second, of the median.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        self.tokens.map(|tokens| tokens as f64 / self.measured.seconds().median)
    }
}
