//! Logprobs of every token of a row.

use engine::engine::Engine;
use engine::rollout::{Limits, RequestError, ScoreRow};

use super::{BenchError, Cost, Figure, Measured, STEPS_MAX, Turns, What};
use crate::clock::Stopwatch;

/// Logprobs of a row of `tokens` ids, [`engine::rollout::score`]: a prefill with the head over every row.
///
/// # Errors
/// When there are fewer than two tokens, context or pool hold less, or the model's logits are no numbers.
pub fn score(engine: &mut Engine, tokens: usize, turns: &mut Turns<'_>) -> Result<Figure, BenchError> {
    let what = What::Score;
    if tokens < 2 {
        return Err(BenchError::Nothing { what, name: "prompt less one" });
    }
    super::check_cpu(engine)?;
    super::check_room(engine, what, 1, tokens)?;
    let rows = [ScoreRow::new(super::ids(tokens, turns.seed, engine.valid()))];
    let samples = turns.run(STEPS_MAX, |times| {
        let mut failed: Option<RequestError> = None;
        let watch = Stopwatch::start();
        for _ in 0..times {
            engine::rollout::score(engine, &rows, Limits::default(), &mut |_, result| failed = result.err());
        }
        let seconds = watch.elapsed_s();
        failed.map_or(Ok(seconds), |error| Err(BenchError::Request(error)))
    })?;
    let cost = Cost::score(engine.config(), engine.recipe(), tokens);
    Ok(Figure {
        what,
        batch: Some(1),
        context: None,
        tokens: Some(tokens),
        measured: Measured { cost, samples },
        resident: None,
    })
}
