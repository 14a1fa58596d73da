//! How fast a model runs here, beside what this machine can do at most. `leeway bench` and the benches print it.
//!
//! Every figure comes from rounds in which the machine's limits and the measured work take turns ([`Turns`]), since other
//! work on a machine takes memory bandwidth and cores from both alike. [`decode`], [`prefill`] and [`score`] run an engine as
//! rollouts do, [`update`] gives it new weights, [`train`] does what an update of the student does; [`Capacity`] is a plan
//! and takes no time. Nothing here is an input of any result: times are for people.

mod capacity;
mod cost;
mod decode;
mod error;
mod figure;
mod gauge;
mod machine;
mod measured;
mod prefill;
mod report;
mod score;
mod spread;
mod train;
mod turns;
mod update;

#[cfg(test)]
mod tests;

pub use capacity::Capacity;
pub use cost::Cost;
pub use decode::decode;
pub use error::BenchError;
pub use figure::{Figure, Resident, What};
pub use gauge::{Gauge, Limits, LimitsSpread};
pub use machine::{cpu_name, machine_name, resident_bytes};
pub use measured::{Bound, Measured};
pub use prefill::prefill;
pub use report::HEADING;
pub use score::score;
pub use spread::Spread;
pub use train::{Training, train};
pub use turns::{Samples, Turns};
pub use update::update;

use engine::engine::Engine;

/// Most steps that one sequence decodes between two looks at the clock.
const STEPS_MAX: usize = 16;

/// Tokens that a pool must hold of each sequence that decodes behind `context` tokens, in a model that takes at most
/// `max_positions`: the steps of a round come on top.
#[must_use]
pub fn decode_tokens(context: usize, max_positions: usize) -> usize {
    (context + STEPS_MAX).min(max_positions)
}

/// Ids that look like text to the machine: none twice in a row, all real.
fn ids(count: usize, seed: u64, valid: usize) -> Vec<u32> {
    let first = usize::try_from(seed % 1009).expect("below 1009");
    (0..count).map(|t| u32::try_from((first + t * 7) % valid).expect("ids are u32")).collect()
}

/// That the engine is on the CPU, whose limits are known.
fn check_cpu(engine: &Engine) -> Result<(), BenchError> {
    if engine.device().is_cpu() { Ok(()) } else { Err(BenchError::Device { device: engine.device().to_string() }) }
}

/// That the pool holds `sequences` sequences of `tokens` tokens, and the model's context one.
fn check_room(engine: &Engine, what: What, sequences: usize, tokens: usize) -> Result<(), BenchError> {
    let max = engine.config().max_positions;
    if tokens > max {
        return Err(BenchError::Context { what, tokens, max });
    }
    let (kv, layout) = (engine.kv(), engine.kv().layout());
    let want = sequences.saturating_mul(layout.pages_for(tokens));
    if want > kv.pages() {
        let want_bytes = want.saturating_mul(layout.page_bytes());
        let (page_len, pages) = (layout.page_len(), kv.pages());
        return Err(BenchError::Pool { what, sequences, tokens, want, want_bytes, page_len, pages });
    }
    Ok(())
}
