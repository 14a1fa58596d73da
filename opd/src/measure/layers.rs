//! What every layer of a configuration costs alone, the rest of the model being the trained one.

use engine::checkpoint::Checkpoint;
use engine::model::Model;
use engine::recipe::Recipe;
use ptx::Cpu;

use super::source::apart;
use crate::meter::{Meter, MeterSettings, Start, Sum};
use crate::tune::{RolloutSet, STREAM_BYTES, TuneError};

/// One part of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCost {
    /// The decoder layer; nothing for embedding, last norm and head together.
    pub layer: Option<usize>,
    /// KL(with this part as the rollout has it || trained), by prompt.
    pub sums: Vec<Sum>,
}

/// Every layer that differs, and embedding, last norm and head together if they do. Weights of the rollout are from
/// `older`, where they are stale. Passes begin at the layer that is changed, from what the trained model left before it;
/// `done` is called after each.
///
/// # Errors
/// Weights that cannot be read or scaled, or logits that are no distribution.
#[allow(clippy::too_many_arguments)]
pub fn by_layer(
    cpu: &Cpu,
    checkpoint: &Checkpoint,
    older: Option<&Checkpoint>,
    trained: &Recipe,
    rollout: &Recipe,
    set: &RolloutSet,
    valid: usize,
    done: &mut dyn FnMut(),
) -> Result<Vec<LayerCost>, TuneError> {
    let (base, changed) = apart(trained, rollout);
    let source = older.unwrap_or(checkpoint);
    let mut model = Model::load(cpu, checkpoint, base.clone())?;
    let settings = MeterSettings { valid, temperature: set.temperature, stream_bytes: STREAM_BYTES };
    let mut meter = Meter::new(cpu, &model, set.rows.clone(), set.prompts.clone(), settings);
    let fault = |name: String| move |source| TuneError::Meter { name, source };
    let mut costs = Vec::new();
    for layer in 0..base.layers.len() {
        if older.is_some() || changed.layers[layer] != base.layers[layer] {
            drop(model.set_layer(cpu, layer, changed.layers[layer], &mut &*source)?);
            let sums = meter.measure(cpu, &model, model.head(), Start::Layer(layer));
            costs.push(LayerCost { layer: Some(layer), sums: sums.map_err(fault(format!("of layer {layer}")))? });
            drop(model.set_layer(cpu, layer, base.layers[layer], &mut &*checkpoint)?);
        }
        done();
    }
    let ends = |r: &Recipe| (r.embed, r.head);
    if older.is_some() || ends(&changed) != ends(&base) {
        let recipe = Recipe { layers: base.layers.clone(), ..changed };
        let mut other = Model::load(cpu, source, recipe)?;
        if older.is_some() {
            for (layer, &row) in base.layers.iter().enumerate() {
                drop(other.set_layer(cpu, layer, row, &mut &*checkpoint)?);
            }
        }
        let sums = meter.measure(cpu, &other, model.head(), Start::Embedding);
        costs.push(LayerCost { layer: None, sums: sums.map_err(fault("of embedding and head".into()))? });
    }
    done();
    Ok(costs)
}
