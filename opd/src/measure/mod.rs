//! What a rollout configuration costs: the numbers of one or two models on the same rollouts, token by token.
//!
//! ```text
//! rollouts -> hidden rows of each model, once -> blocks of logits -> KL, logprobs, moments by token -> crate `budget`
//! ```
//!
//! Only last hidden rows are kept of a model that has run, so that any two can be compared without running again. Logits
//! exist for 64 rows at a time.

mod compare;
mod layers;
mod lines;
mod source;
#[cfg(test)]
mod tests;
mod wiring;

pub use compare::{Compare, CompareError, EachPair, Token, hidden};
pub use layers::{LayerCost, by_layer};
pub use lines::{LineError, Lines};
pub use source::{Part, alone, apart, parts};
pub use wiring::{Cause, Diagnosis, WiringError, diagnose};

use crate::meter::Sum;
use crate::tune::RolloutSet;

/// Sums of one value a completion token by prompt, for intervals: `values` are in the order of the rows.
///
/// # Panics
/// When there are fewer values than tokens.
#[must_use]
pub fn by_prompt(set: &RolloutSet, values: impl IntoIterator<Item = f64>) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); set.prompt_count()];
    let mut values = values.into_iter();
    for (row, &prompt) in set.rows.iter().zip(&set.prompts) {
        for _ in row.targets() {
            sums[prompt].nats += values.next().expect("every token has a value");
            sums[prompt].tokens += 1;
        }
    }
    sums
}
