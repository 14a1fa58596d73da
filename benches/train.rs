//! How near does a training step come to the machine's multiply-adds? Forward, distillation loss against given teacher
//! hidden rows, backward, AdamW and the next weights version, counted as six flops a parameter and token.

mod common;

use common::{Meter, Seeded, Shape, Work};
use engine::model::{Gradients, Model, WeightSource};
use engine::recipe::Precision;
use opd::learner::{Learner, Views};
use opd::loss::{Objective, View};
use opd::master::Master;
use opd::sequences::Row;
use ptx::ops::adamw::AdamW;
use ptx::ops::divergence::Kind;
use ptx::rng::{Purpose, Stream};

struct Case {
    name: &'static str,
    shape: Shape,
    rows: usize,
    len: usize,
}

const FULL: [Case; 2] = [
    Case {
        name: "107m",
        shape: Shape { hidden: 768, layers: 12, heads: 12, kv_heads: 4, head_dim: 64, ffn: 2304, vocab: 32_000 },
        rows: 4,
        len: 128,
    },
    Case {
        name: "0.8m",
        shape: Shape { hidden: 128, layers: 4, heads: 4, kv_heads: 2, head_dim: 32, ffn: 384, vocab: 64 },
        rows: 64,
        len: 27,
    },
];
const SMOKE: [Case; 1] = [Case {
    name: "smoke",
    shape: Shape { hidden: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16, ffn: 48, vocab: 64 },
    rows: 3,
    len: 9,
}];

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
    let mut c = common::criterion();
    let meter = Meter::new();
    let cases: &[Case] = if common::is_full() { &FULL } else { &SMOKE };
    for case in cases.iter().filter(|case| common::is_wanted(case.name)) {
        let (cpu, shape) = (&meter.cpu, case.shape);
        let mut model = common::model(cpu, shape, "f32", Precision::F32);
        let mut master = master(&model);
        let mut learner = Learner::new(&model, case.rows * case.len, case.rows);
        let mut stream = Stream::new(1, Purpose::Data, 0);
        // One token of prompt: every other token is predicted.
        let rows: Vec<Row> = (0..case.rows)
            .map(|_| {
                let vocab = u32::try_from(shape.vocab).expect("ids are u32");
                Row::new((0..case.len).map(|_| stream.below(vocab)).collect(), 1)
            })
            .collect();
        let predicted = case.rows * (case.len - 1);
        let hidden: Vec<f32> = (0..predicted * shape.hidden).map(|_| stream.normal()).collect();
        let teacher = common::model(cpu, shape, "f32", Precision::F32);
        let hyper = AdamW { lr: 1e-4, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.1 };
        let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 };
        let tokens = (case.rows * case.len) as f64;
        let work = Work { tokens, bytes: None, flops: 6.0 * shape.parameters() * tokens };
        meter.run(&mut c, "train", case.name, work, || {
            learner.gradients.clear();
            let views =
                Views { teacher: Some(View { head: teacher.head(), hidden: &hidden }.into()), ..Views::default() };
            let weight = 1.0 / predicted as f32;
            learner
                .micro_batch(cpu, &model, objective, &rows, views, shape.vocab, weight, true)
                .expect("logits are numbers");
            master.update(cpu, &learner.gradients, hyper, 1.0);
            model.update(cpu, master.updates, &mut master.version(cpu)).expect("it reads from memory");
        });
    }
    c.final_summary();
}
