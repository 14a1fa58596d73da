//! What each layer of a recipe has of D, on rollouts that are there: that layer in the recipe's formats and all else at
//! training precision, at the weights that the student's folder has.

use std::sync::Arc;

use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::model::Model;
use engine::recipe::Recipe;
use ptx::Cpu;

use crate::meter::{Meter, MeterError, MeterSettings, Start, Sum};
use crate::sequences::Row;
use crate::tune::STREAM_BYTES;

/// Why a layer was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// Weights in the recipe's formats.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The distributions.
    #[error("{name}: {source}")]
    Meter {
        /// What was measured.
        name: String,
        /// Why.
        source: MeterError,
    },
}

/// The student at training precision on its rollouts, of which one layer at a time takes another format.
#[derive(Debug)]
pub struct Layers<'a> {
    cpu: Arc<Cpu>,
    checkpoint: &'a Checkpoint,
    model: Model,
    identity: Recipe,
    meter: Meter,
}

impl<'a> Layers<'a> {
    /// Runs the folder at training precision, `identity`, over `rows`, of which each prompt has `samples` side by side. Ids
    /// below `valid` are real.
    pub fn new(
        cpu: Arc<Cpu>,
        checkpoint: &'a Checkpoint,
        identity: Recipe,
        rows: Vec<Row>,
        samples: usize,
        valid: usize,
        temperature: f32,
    ) -> Result<Layers<'a>, LayerError> {
        let model = Model::load(&cpu, checkpoint, identity.clone())?;
        let prompts = (0..rows.len()).map(|row| row / samples).collect();
        let settings = MeterSettings { valid, temperature, stream_bytes: STREAM_BYTES };
        let meter = Meter::new(&cpu, &model, rows, prompts, settings);
        Ok(Layers { cpu, checkpoint, model, identity, meter })
    }

    /// Training precision.
    #[must_use]
    pub fn identity(&self) -> &Recipe {
        &self.identity
    }

    /// D by prompt with layer `index` alone as in `recipe`.
    pub fn layer(&mut self, recipe: &Recipe, index: usize) -> Result<Vec<Sum>, LayerError> {
        let former = self.model.set_layer(&self.cpu, index, recipe.layers[index], &mut self.checkpoint)?;
        let sums = self.meter.measure(&self.cpu, &self.model, self.model.head(), Start::Layer(index));
        drop(self.model.put_layer(index, former));
        sums.map_err(|source| LayerError::Meter { name: format!("layers.{index}"), source })
    }

    /// D by prompt of a whole recipe.
    pub fn whole(&mut self, recipe: &Recipe) -> Result<Vec<Sum>, LayerError> {
        let variant = Model::load(&self.cpu, self.checkpoint, recipe.clone())?;
        self.meter
            .measure(&self.cpu, &variant, self.model.head(), Start::Embedding)
            .map_err(|source| LayerError::Meter { name: recipe.name.clone(), source })
    }
}
