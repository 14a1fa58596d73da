//! Steps of sequences that decode.

use engine::engine::{Draw, Drew, Engine, Feed};
use engine::rollout::Limits;
use kv::{PageId, Sequence};
use ptx::ops::sample::{Params, RowDraw};
use ptx::rng::sample_uniform;

use super::{BenchError, Cost, Figure, Measured, STEPS_MAX, Turns, What};
use crate::clock::Stopwatch;

/// A step of `batch` sequences that hold `context` tokens each: places for one more token of each, the forward pass, and a
/// draw for each at temperature 1, as [`engine::rollout::Session`] does them. Each round begins at `context`; up to 16 steps of
/// it count.
///
/// # Errors
/// When `batch` or `context` is 0, context or pool hold less ([`super::decode_tokens`] says what is taken), or the model's logits
/// are no numbers.
pub fn decode(engine: &mut Engine, batch: usize, context: usize, turns: &mut Turns<'_>) -> Result<Figure, BenchError> {
    let what = What::Decode;
    for (name, size) in [("batch", batch), ("context", context)] {
        if size == 0 {
            return Err(BenchError::Nothing { what, name });
        }
    }
    super::check_cpu(engine)?;
    let max = engine.config().max_positions;
    let tokens = super::decode_tokens(context, max);
    super::check_room(engine, what, batch, tokens.max(context + 1))?;
    let sequences = (0..batch).map(|_| engine.kv().sequence(tokens)).collect();
    let ids = super::ids(batch, turns.seed, engine.valid()).into_iter().map(|id| [id]).collect();
    let mut steps = Steps { sequences, ids, seed: turns.seed, draws: Vec::new(), drew: Vec::new() };
    let samples = steps.fill(engine, context).and_then(|()| {
        turns.run(STEPS_MAX.min(tokens - context), |times| {
            steps.rewind(engine, context);
            let watch = Stopwatch::start();
            for _ in 0..times {
                steps.step(engine)?;
            }
            Ok(watch.elapsed_s())
        })
    });
    steps.sequences.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));
    let cost = Cost::decode(engine.config(), engine.recipe(), engine.kv().layout(), batch, context);
    Ok(Figure {
        what,
        batch: Some(batch),
        context: Some(context),
        tokens: Some(batch),
        measured: Measured { cost, samples: samples? },
        resident: None,
    })
}

/// Sequences under way.
struct Steps {
    sequences: Vec<Sequence>,
    /// The next token of each.
    ids: Vec<[u32; 1]>,
    seed: u64,
    draws: Vec<Draw>,
    drew: Vec<Drew>,
}

impl Steps {
    /// Gives every sequence `context` tokens. One is computed and the others are copies: pages of their own with numbers in
    /// them, which is all that time can depend on.
    fn fill(&mut self, engine: &mut Engine, context: usize) -> Result<(), BenchError> {
        let ids = super::ids(context, self.seed, engine.valid());
        let (first, rest) = self.sequences.split_first_mut().expect("a batch is not empty");
        for piece in ids.chunks(Limits::default().step_tokens) {
            engine.kv_mut().append(first, piece.len()).expect("the pool was found large enough");
            engine.step([Feed { sequence: first, ids: piece }])?;
        }
        for sequence in rest {
            let kv = engine.kv_mut();
            kv.append(sequence, context).expect("the pool was found large enough");
            for (&from, &to) in first.block_table().iter().zip(sequence.block_table()) {
                kv.arena_mut().copy_page(PageId(from), PageId(to));
            }
        }
        Ok(())
    }

    /// Goes back to `context` tokens. The pages may come back in another order; those of a round before hold numbers too.
    fn rewind(&mut self, engine: &mut Engine, context: usize) {
        for sequence in &mut self.sequences {
            engine.kv_mut().clear(sequence);
        }
        for sequence in &mut self.sequences {
            engine.kv_mut().append(sequence, context).expect("as many places as just before");
        }
    }

    /// One token of each.
    fn step(&mut self, engine: &mut Engine) -> Result<(), BenchError> {
        let Steps { sequences, ids, seed, draws, drew } = self;
        for sequence in sequences.iter_mut() {
            engine.kv_mut().append(sequence, 1).expect("the pool was found large enough");
        }
        engine.step(sequences.iter().zip(&*ids).map(|(sequence, ids)| Feed { sequence, ids }))?;
        draws.clear();
        draws.extend(sequences.iter().enumerate().map(|(row, sequence)| {
            let position = u32::try_from(sequence.len()).expect("positions are u32");
            let uniform = sample_uniform(*seed, row as u64, position);
            Draw { row, how: RowDraw { params: Params::default(), uniform }, top: 0, prefix: 0 }
        }));
        let mut next = 0;
        while next < draws.len() {
            let count = engine.draw(&draws[next..], drew, &mut Vec::new())?;
            for (ids, drawn) in ids[next..next + count].iter_mut().zip(drew.drain(..)) {
                ids[0] = drawn?.token;
            }
            next += count;
        }
        Ok(())
    }
}
