//! What every unit of a recipe costs: D with that unit alone in 8 bits, on rollouts that are the same for all.
//!
//! ```text
//! units -> recipes -> a model that takes each recipe in turn -> meter -> state, a line each
//! ```
//!
//! Statistics and the choice of units are the caller's.

mod heat;
mod rollouts;
mod state;
#[cfg(test)]
mod tests;
mod unit;

use std::collections::HashMap;
use std::sync::Arc;

use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::model::{Layer, Model};
use engine::recipe::{Recipe, WeightFormat};
use ptx::Cpu;
use ptx::ops::linear::Packed;

pub use heat::{Cell, draw};
pub use rollouts::{RolloutSet, RolloutsError};
pub use state::{STATE, State, StateError, write_whole};
pub use unit::{Kind, Unit, Which, page_bytes, saved, units, unrounded, with_units};

use crate::meter::{Meter, MeterError, MeterSettings, Start, Sum};

/// Most bytes of what entered the reference's layers that are kept in memory.
pub const STREAM_BYTES: usize = 1 << 30;

/// Why a recipe was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Weights in the recipe's formats.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The distributions.
    #[error("recipe {name}: {source}")]
    Meter {
        /// What was measured.
        name: String,
        /// Why.
        source: MeterError,
    },
    /// Keeping the result.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Measures recipes against the reference, each once.
#[derive(Debug)]
pub struct Tuner<'a> {
    cpu: Arc<Cpu>,
    checkpoint: &'a Checkpoint,
    model: Model,
    reference: Recipe,
    reference_hash: String,
    /// The reference's layers and head that are not in the model now.
    layers_aside: HashMap<usize, Layer>,
    head_aside: Option<(WeightFormat, Packed)>,
    meter: Meter,
    state: State,
}

impl<'a> Tuner<'a> {
    /// Runs the reference, the folder under `reference`, over `rollouts`. Ids below `valid` are real; results are kept in
    /// `state`.
    pub fn new(
        cpu: Arc<Cpu>,
        checkpoint: &'a Checkpoint,
        reference: Recipe,
        rollouts: &RolloutSet,
        valid: usize,
        state: State,
    ) -> Result<Tuner<'a>, TuneError> {
        let model = Model::load(&cpu, checkpoint, reference.clone())?;
        let settings = MeterSettings { valid, temperature: rollouts.temperature, stream_bytes: STREAM_BYTES };
        let meter = Meter::new(&cpu, &model, rollouts.rows.clone(), rollouts.prompts.clone(), settings);
        let (layers_aside, head_aside) = (HashMap::new(), None);
        let reference_hash = reference.hash();
        Ok(Tuner { cpu, checkpoint, model, reference, reference_hash, layers_aside, head_aside, meter, state })
    }

    /// The measurement of `recipe`, if there is one already.
    #[must_use]
    pub fn held(&self, recipe: &Recipe) -> Option<&[Sum]> {
        self.state.get(&self.reference_hash, &recipe.hash())
    }

    /// Ends with this reference; what was measured is kept.
    #[must_use]
    pub fn into_state(self) -> State {
        self.state
    }

    /// D of `recipe` by prompt: measured and kept, or as it was kept.
    pub fn measure(&mut self, recipe: &Recipe) -> Result<Vec<Sum>, TuneError> {
        let hash = recipe.hash();
        if let Some(sums) = self.state.get(&self.reference_hash, &hash) {
            return Ok(sums.to_vec());
        }
        self.take(recipe)?;
        let start = Start::of(&self.reference, recipe);
        let head = self.head_aside.as_ref().map_or(self.model.head(), |(_, head)| head);
        let sums = self.meter.measure(&self.cpu, &self.model, head, start);
        let sums = sums.map_err(|source| TuneError::Meter { name: recipe.name.clone(), source })?;
        self.state.add(&recipe.name, &self.reference_hash, &hash, sums.clone())?;
        Ok(sums)
    }

    /// Brings the model into the formats of `recipe`. What is the reference's is put aside and back, not read again.
    fn take(&mut self, recipe: &Recipe) -> Result<(), TuneError> {
        let Tuner { cpu, checkpoint, model, reference, layers_aside, head_aside, .. } = self;
        for (index, &row) in recipe.layers.iter().enumerate() {
            if model.recipe.layers[index] == row {
                continue;
            }
            if row == reference.layers[index] {
                let layer = layers_aside.remove(&index).expect("a changed layer's original is aside");
                drop(model.put_layer(index, layer));
            } else {
                let former = model.set_layer(cpu, index, row, checkpoint)?;
                layers_aside.entry(index).or_insert(former);
            }
        }
        let weights = recipe.head.weights;
        if model.recipe.head.weights != weights {
            if weights == reference.head.weights {
                let (weights, head) = head_aside.take().expect("a changed head's original is aside");
                drop(model.put_head(weights, head));
            } else {
                let former = model.recipe.head.weights;
                let head = model.set_head(cpu, weights, checkpoint)?;
                head_aside.get_or_insert((former, head));
            }
        }
        let formats = |r: &Recipe| (r.layers.clone(), r.embed, r.head);
        assert_eq!(formats(&model.recipe), formats(recipe), "only layers and head's weights can be changed");
        Ok(())
    }
}
