//! The trainer's own random numbers: one for each predicting row, for divergences that draw a token.

use engine::rollout::Rollout;
use ptx::rng::{Purpose, Stream};

use crate::config::Config;
use crate::sequences::Row;
use crate::source::Asked;

/// A number in [0, 1) for each completion token of an update, in order; none where the loss draws nothing. It depends on
/// seed, sample and position alone, and shares no counter with the rollout's draws.
pub(super) fn of(config: &Config, rollouts: &[(Asked, Rollout)], rows: &[Row]) -> Option<Vec<f32>> {
    if !config.loss.objective().divergence.draws() {
        return None;
    }
    let streams = rollouts
        .iter()
        .zip(rows)
        .map(|((_, rollout), row)| (Stream::new(config.seed, Purpose::Noise, rollout.sample), row.targets().len()));
    Some(streams.flat_map(|(mut stream, len)| (0..len).map(move |_| stream.uniform()).collect::<Vec<_>>()).collect())
}
