//! How near does a training step come to the machine's multiply-adds, which bound it? Forward, distillation loss against given
//! teacher hidden rows, backward, AdamW and the next weights version, in f32, counted as six flops a parameter and token.

mod common;

use std::sync::Arc;

use common::{Record, Seeded, Shape, figures, gauge, is_full, is_wanted, rounds};
use engine::model::{Gradients, Model, WeightSource};
use engine::recipe::Precision;
use opd::bench::{Training, Turns, train};
use opd::master::Master;
use ptx::Cpu;

const FULL: [(&str, Shape, Training); 3] = [
    ("107m", Shape::M107, Training { rows: 4, len: 128, supervised: false }),
    (
        "3.3m",
        Shape { hidden: 256, layers: 4, heads: 4, kv_heads: 2, head_dim: 64, ffn: 768, vocab: 512 },
        Training { rows: 8, len: 128, supervised: false },
    ),
    (
        "0.8m",
        Shape { hidden: 128, layers: 4, heads: 4, kv_heads: 2, head_dim: 32, ffn: 384, vocab: 64 },
        Training { rows: 64, len: 27, supervised: false },
    ),
];
const SMOKE: [(&str, Shape, Training); 1] = [("smoke", Shape::SMOKE, Training { rows: 3, len: 9, supervised: false })];

fn master(model: &Model) -> Master {
    let mut weights = Gradients::zeros(&model.config);
    let mut source = Seeded { state: 1 };
    for i in 0..weights.params().len() {
        let param = weights.params()[i].clone();
        source.rows(&param.name, 0, param.shape[0], weights.tensor_mut(i)).expect("it computes them");
    }
    Master::new(&model.config, weights, Precision::F32)
}

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("train", &cpu));
    let cases: &[_] = if is_full() { &FULL } else { &SMOKE };
    let mut rows = Vec::new();
    for &(name, shape, training) in cases.iter().filter(|case| is_wanted(case.0)) {
        let mut model = common::model(&cpu, shape, "f32", Precision::F32);
        let mut master = master(&model);
        let mut turns = Turns { gauge: &gauge, rounds: rounds(9), seed: 1, tick: &mut || () };
        let figure = train(&mut model, &mut master, training, shape.vocab, &mut turns).expect("logits are numbers");
        rows.push((name.to_owned(), figure));
    }
    figures(&mut record, &rows);
    record.finish();
}
