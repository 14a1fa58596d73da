//! New weights.

use engine::engine::Engine;
use engine::model::WeightSource;

use super::{BenchError, Cost, Figure, Measured, Resident, STEPS_MAX, Turns, What, resident_bytes};
use crate::clock::Stopwatch;

/// The update transaction, [`Engine::update`]: weights from `source`, where they take `stored` bytes, rounded, packed and
/// written over the old ones, and the KV scales that belong to them. Each is a version of its own, whatever its values.
///
/// # Errors
/// When the source cannot be read.
pub fn update(
    engine: &mut Engine,
    source: &mut dyn WeightSource,
    stored: usize,
    turns: &mut Turns<'_>,
) -> Result<Figure, BenchError> {
    super::check_cpu(engine)?;
    let (mut before, mut after) = (None, None);
    let samples = turns.run(STEPS_MAX, |times| {
        before = before.or(after);
        let watch = Stopwatch::start();
        for _ in 0..times {
            let version = engine.version() + 1;
            engine.update(version, source)?;
        }
        let seconds = watch.elapsed_s();
        after = resident_bytes();
        Ok::<_, BenchError>(seconds)
    })?;
    let cost = Cost::update(engine.config(), engine.recipe(), stored);
    let resident = before.zip(after).map(|(before, after)| Resident { before, after });
    Ok(Figure {
        what: What::Update,
        batch: None,
        context: None,
        tokens: None,
        measured: Measured { cost, samples },
        resident,
    })
}
