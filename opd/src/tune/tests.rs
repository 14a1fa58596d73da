use std::path::Path;

use engine::config::Arch;
use engine::recipe::Precision;
use serde_json::json;

use super::*;
use crate::meter::tests::{VOCAB, folder, rows};

fn state(dir: &Path) -> State {
    State::open(dir, json!({"format": 1}).as_object().unwrap()).unwrap()
}

fn rollouts() -> RolloutSet {
    let (rows, prompts) = rows(6);
    RolloutSet { rows, prompts, temperature: 1.0 }
}

/// Quantising nothing costs nothing against the unrounded reference either, whose weights take as many bytes; and there
/// units are what they are in whole recipes: only weights, keys and values change, never what inputs are rounded to.
#[test]
fn units_are_measured_without_other_rounding() {
    let cpu = Arc::new(Cpu::new(1));
    let dir = folder(Arch::Qwen3, true, 2);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config();
    let base = Recipe::built_in("bf16", Precision::Bf16, config).unwrap();
    let plain = unrounded(&base);
    assert_eq!(unrounded(&Recipe::built_in("f32", Precision::F32, config).unwrap()).layers[0].k, plain.layers[0].k);
    assert!(plain.layers.iter().all(engine::recipe::LayerRecipe::is_f32));
    let out = tempfile::tempdir().unwrap();
    let tuner = |reference: &Recipe, state| {
        Tuner::new(cpu.clone(), &checkpoint, reference.clone(), &rollouts(), VOCAB as usize, state).unwrap()
    };
    let mut rounded = tuner(&base, state(out.path()));
    let nothing = with_units(&base, config, [], "nothing");
    assert!(rounded.measure(&nothing).unwrap().iter().all(|sum| sum.nats == 0.0));
    // Each reference has measurements of its own in one state.
    let mut tuner = tuner(&plain, rounded.into_state());
    assert_eq!(tuner.held(&nothing), None);
    for unit in units(2, Which::All) {
        let recipe = with_units(&plain, config, [unit], "one");
        assert_eq!(unrounded(&recipe).hash() == plain.hash(), unit.is_kv(), "{unit}: else only its weights change");
        assert!(tuner.measure(&recipe).unwrap().iter().all(|sum| sum.nats > 0.0), "{unit}");
    }
}

/// In whatever order recipes are taken, each has the bits that it has when it is the first; and what is on the disk is
/// not measured again.
#[test]
fn measurements_do_not_depend_on_what_came_before() {
    let cpu = Arc::new(Cpu::new(1));
    for tied in [false, true] {
        let dir = folder(Arch::Llama, tied, 3);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let config = checkpoint.config().clone();
        let base = Recipe::built_in("bf16", Precision::Bf16, &config).unwrap();
        let all = units(3, Which::All);
        let pick = |at: &[usize]| with_units(&base, &config, at.iter().map(|&at| all[at]), "some");
        let last = all.len() - 1;
        let recipes =
            [pick(&[0]), pick(&[3]), pick(&[12, 13, 25]), pick(&[last]), pick(&[4, last]), pick(&[]), pick(&[4])];
        let tuner = |out: &Path| {
            Tuner::new(cpu.clone(), &checkpoint, base.clone(), &rollouts(), VOCAB as usize, state(out)).unwrap()
        };
        let out = tempfile::tempdir().unwrap();
        let mut together = tuner(out.path());
        let sums: Vec<_> = recipes.iter().map(|recipe| together.measure(recipe).unwrap()).collect();
        for (recipe, sums) in recipes.iter().zip(&sums) {
            let fresh = tempfile::tempdir().unwrap();
            assert_eq!(tuner(fresh.path()).measure(recipe).unwrap(), *sums, "tied: {tied}");
        }
        assert!(sums[5].iter().all(|sum| sum.nats == 0.0), "nothing was quantised: {:?}", sums[5]);
        assert!(sums[..5].iter().flatten().all(|sum| sum.nats > 0.0));
        drop(together);
        let lines = std::fs::read_to_string(out.path().join(STATE)).unwrap();
        let mut again = tuner(out.path());
        assert_eq!(again.held(&recipes[2]), Some(&sums[2][..]));
        assert_eq!(again.measure(&recipes[0]).unwrap(), sums[0]);
        assert_eq!(std::fs::read_to_string(out.path().join(STATE)).unwrap(), lines, "nothing new was measured");
    }
}

#[test]
fn units_and_what_they_save() {
    let dir = folder(Arch::Qwen3, true, 2);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config();
    let base = Recipe::built_in("bf16", Precision::Bf16, config).unwrap();
    let names = |which| units(2, which).iter().map(Unit::to_string).collect::<Vec<_>>();
    assert_eq!(names(Which::Kv), ["layers.0.k", "layers.0.v", "layers.1.k", "layers.1.v"]);
    assert_eq!((names(Which::All).len(), names(Which::Weights).len()), (19, 15));
    assert_eq!(names(Which::Weights)[13..], ["layers.1.mlp.down_proj", "lm_head"]);

    // All units together are the difference of whole models and whole pages.
    let all = with_units(&base, config, units(2, Which::All), "all");
    let fp8 = Recipe::built_in("fp8", Precision::Bf16, config).unwrap();
    assert_eq!(all.layers, fp8.layers);
    assert_eq!((all.embed, all.head.weights), (fp8.layers[0].projections[0].weights, all.embed));
    let (weights, page) = units(2, Which::All)
        .into_iter()
        .map(|unit| saved(config, &base, unit))
        .fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
    let cpu = Cpu::new(1);
    let bytes = |recipe: &Recipe| Model::load(&cpu, &checkpoint, recipe.clone()).unwrap().bytes() as u64;
    assert_eq!(weights, bytes(&base) - bytes(&all));
    assert_eq!(page, page_bytes(config, &base) - page_bytes(config, &all));
    assert_eq!(page_bytes(config, &base), 2 * page, "8 of 16 bits");
}

#[test]
fn the_heat_map_shows_every_unit() {
    let cells: Vec<Cell> = units(3, Which::All)
        .into_iter()
        .enumerate()
        .map(|(i, unit)| Cell { unit, d_nats: [0.0, 1e-5, 2e-4, 0.03][i % 4], chosen: i % 3 == 0 })
        .collect();
    let svg = draw(&cells, "Costs of units").unwrap();
    // A rectangle a cell, one for nothing, one for the ground, and those of the scale.
    assert_eq!(svg.matches("<rect").count(), 28 + 2 + 180);
    assert_eq!(svg.matches("<circle").count(), 10 + 1);
    for text in ["Costs of units", "1e-5", "3e-5", "1e-4", "3e-2", "down", "k cache", "head", "nats per token"] {
        assert!(svg.contains(text), "no {text:?} in the picture");
    }
    let nothing = [Cell { unit: Unit::Layer { layer: 0, kind: Kind::Keys }, d_nats: 0.0, chosen: true }];
    assert!(draw(&nothing, "").unwrap().contains("exactly 0"));
}
