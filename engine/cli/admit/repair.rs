//! What a rejected configuration fails by, layer by layer, and the least change with which it would be admitted.

use std::sync::Arc;

use budget::mismatch::RatioEstimate;
use engine::checkpoint::Checkpoint;
use engine::recipe::Recipe;
use opd::admit::Layers;
use opd::config::Config;
use ptx::Cpu;
use serde_json::{Value, json};

use super::super::{Failure, Global};
use super::{Outcome, clusters, mean};

/// Parts of D add up only nearly: what a repair is predicted to have is taken this much higher.
const GUARD: f64 = 1.2;

/// Layers by what they have of D, and a change that would do.
pub struct Blame {
    /// Layer and its D, nats per token, the worst first.
    pub layers: Vec<(usize, f64)>,
    /// What to change; none where nothing tried was predicted to be admitted.
    pub repair: Option<Repair>,
}

/// A change of the configuration.
pub struct Repair {
    /// Layers that go back to training precision.
    pub restored: Vec<usize>,
    /// The most versions that rollouts may be behind.
    pub staleness_max: u32,
    /// What D of it is predicted to be at most, growth and guard included, nats per token.
    pub predicted_nats: f64,
    /// The recipe as a file; none where it stays.
    pub recipe: Option<String>,
}

impl Blame {
    pub fn json(&self) -> Value {
        json!({
            "layers": self.layers.iter().map(|(layer, nats)| json!({"layer": layer, "d_nats": nats})).collect::<Vec<_>>(),
            "change": self.repair.as_ref().map(|repair| json!({
                "restored": repair.restored, "staleness_max": repair.staleness_max,
                "predicted_nats": repair.predicted_nats, "recipe": repair.recipe,
            })),
        })
    }
}

pub fn find(
    outcome: &Outcome,
    config: &Config,
    cpu: Arc<Cpu>,
    valid: usize,
    global: &Global,
) -> Result<Blame, Failure> {
    let checkpoint = Checkpoint::open(&config.student)?;
    let model = checkpoint.config().clone();
    let precision = config.train.precision.into();
    let identity = Recipe::built_in("identity", precision, &model)?;
    let recipe = Recipe::open(&config.rollout.recipe, precision, &model)?;
    let (rows, samples) = (outcome.probed.rows.clone(), config.rollout.n as usize);
    #[allow(clippy::cast_possible_truncation)] // as the run takes it
    let temperature = config.rollout.temperature as f32;
    let mut at = Layers::new(cpu, &checkpoint, identity, rows, samples, valid, temperature)?;
    let differ: Vec<usize> =
        (0..model.layers).filter(|&layer| recipe.layers[layer] != at.identity().layers[layer]).collect();
    let bar = global.bar(differ.len() as u64, "layers");
    let mut layers = Vec::new();
    for &layer in &differ {
        layers.push((layer, mean(&at.layer(&recipe, layer)?)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    layers.sort_by(|a, b| b.1.total_cmp(&a.1));
    let repair = least_change(outcome, config, &recipe, &layers, &mut at)?;
    let repair = repair.map(|mut repair| {
        if !repair.restored.is_empty() {
            let changed = restored(&recipe, at.identity(), &repair.restored);
            repair.recipe = Some(engine::recipe::to_toml(&changed, model.arch.model_type()));
        }
        repair
    });
    Ok(Blame { layers, repair })
}

fn restored(recipe: &Recipe, identity: &Recipe, layers: &[usize]) -> Recipe {
    let mut changed = recipe.clone();
    layers.iter().for_each(|&layer| changed.layers[layer] = identity.layers[layer]);
    changed
}

/// Fewer versions behind first, then one worse layer after the other at training precision, each with the most versions that
/// the limit leaves. D of a changed recipe is measured, that of age is taken from its law.
fn least_change(
    outcome: &Outcome,
    config: &Config,
    recipe: &Recipe,
    layers: &[(usize, f64)],
    at: &mut Layers<'_>,
) -> Result<Option<Repair>, Failure> {
    let limits = &outcome.limits;
    // Injected noise is nothing that a recipe repairs.
    if config.noise.as_ref().is_some_and(|noise| noise.staleness.is_none()) {
        return Ok(None);
    }
    let aged = |versions: u32| match outcome.staleness {
        Some((a, b)) if versions > 0 => a * f64::from(versions).powf(b),
        _ => 0.0,
    };
    for count in 0..=layers.len() {
        let set: Vec<usize> = layers[..count].iter().map(|&(layer, _)| layer).collect();
        let numerics = if count == 0 {
            RatioEstimate::new(&clusters(&outcome.probed.numerics), config.seed)?.ucb95
        } else {
            let sums = at.whole(&restored(recipe, at.identity(), &set))?;
            RatioEstimate::new(&clusters(&sums), config.seed)?.ucb95
        };
        for versions in (0..=outcome.age).rev() {
            if count == 0 && versions == outcome.age {
                continue; // that is what was rejected
            }
            let predicted_nats = limits.growth * GUARD * (numerics + aged(versions));
            if predicted_nats <= limits.lower_nats {
                return Ok(Some(Repair { restored: set, staleness_max: versions, predicted_nats, recipe: None }));
            }
        }
    }
    Ok(None)
}
