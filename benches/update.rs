//! How long do sequences wait for new weights, and does memory stay flat? A folder in bf16, read, rounded to the recipe's formats,
//! packed and written over the old weights; ten times at Qwen3-0.6B's shape and a hundred times at 107 million parameters.
//! The bytes stored and those written are bound by memory; rounding to 8 bits takes what is above that.

mod common;

use std::sync::Arc;

use common::{Record, Shape, figures, gauge, is_full, is_wanted};
use engine::checkpoint::Checkpoint;
use engine::engine::{Engine, PAGE_LEN};
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use opd::bench::{Turns, update};
use ptx::Cpu;

/// Name, shape, recipe, updates.
const FULL: [(&str, Shape, &str, usize); 4] = [
    ("0.6b-bf16", Shape::QWEN3_06B, "bf16", 10),
    ("0.6b-fp8", Shape::QWEN3_06B, "fp8", 10),
    ("107m-bf16", Shape::M107, "bf16", 100),
    ("107m-fp8", Shape::M107, "fp8", 100),
];
const SMOKE: [(&str, Shape, &str, usize); 1] = [("smoke", Shape::SMOKE, "fp8", 3)];

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("update", &cpu));
    let cases: &[_] = if is_full() { &FULL } else { &SMOKE };
    let mut rows = Vec::new();
    for &(name, shape, recipe, updates) in cases.iter().filter(|case| is_wanted(case.0)) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let dir = dir.path().join("model");
        common::folder(&dir, shape);
        let checkpoint = Checkpoint::open(&dir).expect("it was just written");
        let recipe = Recipe::built_in(recipe, Precision::Bf16, checkpoint.config()).expect("built in");
        let model = Model::load(&cpu, &checkpoint, recipe).expect("it was just written");
        let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, 1, shape.vocab);
        let stored = checkpoint.tensors().map(|t| t.shape.iter().product::<usize>() * t.dtype.bytes()).sum();
        let mut turns = Turns { gauge: &gauge, rounds: updates, seed: 1, tick: &mut || () };
        rows.push((
            name.to_owned(),
            update(&mut engine, &mut &checkpoint, stored, &mut turns).expect("it can be read"),
        ));
    }
    figures(&mut record, &rows);
    for (name, figure) in &rows {
        if let Some(resident) = figure.resident {
            let [before, after] = [resident.before, resident.after].map(|bytes| bytes as f64 / f64::from(1 << 20));
            record.say(format_args!("{name}: {before:.1} MiB resident before, {after:.1} MiB after"));
        }
    }
    record.finish();
}
