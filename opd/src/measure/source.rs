//! Where a recipe's mismatch comes from: its parts one at a time on the trained model's recipe.

use engine::recipe::{Activations, LayerRecipe, Recipe};
use ptx::DType;

use crate::tune::unrounded;

/// A source of mismatch within a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// How matrices are stored, embedding and head among them.
    Weights,
    /// What matmul inputs are rounded to.
    Activations,
    /// Formats and scales of cached keys and values.
    Kv,
}

impl Part {
    /// All.
    pub const ALL: [Part; 3] = [Part::Weights, Part::Activations, Part::Kv];

    /// Its key in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Weights => "weights",
            Part::Activations => "activations",
            Part::Kv => "kv",
        }
    }
}

/// The trained model's recipe with one part of the rollout's.
#[must_use]
pub fn alone(trained: &Recipe, rollout: &Recipe, part: Part) -> Recipe {
    let mut recipe = Recipe { name: part.name().to_owned(), ..trained.clone() };
    for (row, theirs) in recipe.layers.iter_mut().zip(&rollout.layers) {
        match part {
            Part::Weights => {
                row.projections.iter_mut().zip(&theirs.projections).for_each(|(p, q)| p.weights = q.weights);
            }
            Part::Activations => {
                row.projections.iter_mut().zip(&theirs.projections).for_each(|(p, q)| p.activations = q.activations);
            }
            Part::Kv => (row.k, row.v, row.kv_scale) = (theirs.k, theirs.v, theirs.kv_scale),
        }
    }
    match part {
        Part::Weights => (recipe.embed, recipe.head.weights) = (rollout.embed, rollout.head.weights),
        Part::Activations => recipe.head.activations = rollout.head.activations,
        Part::Kv => recipe.static_scales = rollout.static_scales.clone(),
    }
    recipe
}

/// The parts in which two recipes differ.
#[must_use]
pub fn parts(trained: &Recipe, rollout: &Recipe) -> Vec<Part> {
    Part::ALL.into_iter().filter(|&part| alone(trained, rollout, part).hash() != trained.hash()).collect()
}

/// For single layers: the trained recipe without its rounding of inputs, keys and values, and the rollout's with only what
/// it changes of them. Under that rounding any change turns over roundings further on, at a cost that is about the same
/// whatever the change, and every layer would be charged with it.
#[must_use]
pub fn apart(trained: &Recipe, rollout: &Recipe) -> (Recipe, Recipe) {
    let base = Recipe { static_scales: rollout.static_scales.clone(), ..unrounded(trained) };
    let activations = |ours: Activations, theirs: Activations| if ours == theirs { Activations::F32 } else { theirs };
    let cache = |ours: DType, theirs: DType| if ours == theirs { DType::F32 } else { theirs };
    let row = |(ours, theirs): (&LayerRecipe, &LayerRecipe)| {
        let mut row = *theirs;
        for (p, q) in row.projections.iter_mut().zip(&ours.projections) {
            p.activations = activations(q.activations, p.activations);
        }
        (row.k, row.v) = (cache(ours.k, theirs.k), cache(ours.v, theirs.v));
        row
    };
    let mut changed =
        Recipe { layers: trained.layers.iter().zip(&rollout.layers).map(row).collect(), ..rollout.clone() };
    changed.head.activations = activations(trained.head.activations, rollout.head.activations);
    (base, changed)
}
