//! A prompt up to its next token.

use engine::engine::{Draw, Engine, Feed};
use engine::rollout::Limits;
use ptx::ops::sample::{Params, RowDraw};

use super::{BenchError, Cost, Figure, Measured, STEPS_MAX, Turns, What};
use crate::clock::Stopwatch;

/// A prompt of `tokens` tokens, nothing of it reused, in pieces as [`engine::rollout::Session`] computes them, and the draw of
/// its next token: the time to a first token.
///
/// # Errors
/// When there are no tokens, context or pool hold less, or the model's logits are no numbers.
pub fn prefill(engine: &mut Engine, tokens: usize, turns: &mut Turns<'_>) -> Result<Figure, BenchError> {
    let what = What::Prefill;
    if tokens == 0 {
        return Err(BenchError::Nothing { what, name: "prompt" });
    }
    super::check_cpu(engine)?;
    super::check_room(engine, what, 1, tokens)?;
    let ids = super::ids(tokens, turns.seed, engine.valid());
    let mut drew = Vec::new();
    let samples = turns.run(STEPS_MAX, |times| {
        let watch = Stopwatch::start();
        for _ in 0..times {
            let mut sequence = engine.kv().sequence(tokens);
            let mut last = 0;
            for piece in ids.chunks(Limits::default().step_tokens) {
                engine.kv_mut().append(&mut sequence, piece.len()).expect("the pool was found large enough");
                engine.step([Feed { sequence: &sequence, ids: piece }])?;
                last = piece.len() - 1;
            }
            engine.kv_mut().end(sequence);
            let how = RowDraw { params: Params::default(), uniform: 0.5 };
            engine.draw(&[Draw { row: last, how, top: 0, prefix: 0 }], &mut drew, &mut Vec::new())?;
            drew.pop().expect("one was asked for")?;
        }
        Ok::<_, BenchError>(watch.elapsed_s())
    })?;
    let cost = Cost::prefill(engine.config(), engine.recipe(), tokens);
    Ok(Figure {
        what,
        batch: Some(1),
        context: None,
        tokens: Some(tokens),
        measured: Measured { cost, samples },
        resident: None,
    })
}
