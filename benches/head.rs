//! What does a loss cost from the last hidden rows on? Heads of student and teacher (and of the rollout, where its mismatch
//! is measured), divergence, gradients of hidden rows and head, against the machine's multiply-adds. Flops are those of whole
//! rows; in vocabulary tiles (`-tiles`) heads run three times, so that it does more than is counted.

mod common;

use common::{Meter, Shape};
use engine::model::Gradients;
use engine::recipe::Precision;
use opd::bench::Cost;
use opd::loss::{BLOCK_BYTES, ByRow, LossWorkspace, Objective, Rows, View, loss};
use ptx::ops::divergence::Kind;
use ptx::rng::{Purpose, Stream};

struct Case {
    name: &'static str,
    hidden: usize,
    vocab: usize,
    rows: usize,
    rollout: bool,
    /// Bytes of one model's logits.
    bytes: usize,
}

/// Cuts the vocabulary of every full case.
const TIGHT: usize = 2 << 20;

const FULL: [Case; 5] = [
    Case { name: "107m", hidden: 768, vocab: 32_000, rows: 512, rollout: false, bytes: BLOCK_BYTES },
    Case { name: "107m-mismatch", hidden: 768, vocab: 32_000, rows: 512, rollout: true, bytes: BLOCK_BYTES },
    Case { name: "107m-tiles", hidden: 768, vocab: 32_000, rows: 512, rollout: false, bytes: TIGHT },
    Case { name: "152k", hidden: 1024, vocab: 151_936, rows: 128, rollout: false, bytes: BLOCK_BYTES },
    Case { name: "152k-tiles", hidden: 1024, vocab: 151_936, rows: 128, rollout: false, bytes: TIGHT },
];
const SMOKE: [Case; 1] = [Case { name: "smoke", hidden: 32, vocab: 64, rows: 5, rollout: true, bytes: 1 }];

fn main() {
    let mut c = common::criterion();
    let mut meter = Meter::new();
    let cpu = std::sync::Arc::clone(meter.cpu());
    let cases: &[Case] = if common::is_full() { &FULL } else { &SMOKE };
    for case in cases.iter().filter(|case| common::is_wanted(case.name)) {
        let &Case { hidden, vocab, rows, .. } = case;
        let shape = Shape { hidden, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, ffn: 32, vocab };
        let model = common::model(&cpu, shape, "f32", Precision::F32);
        let mut gradients = Gradients::zeros(&model.config);
        let mut stream = Stream::new(1, Purpose::Data, 0);
        let [student, teacher, rollout] =
            [(); 3].map(|()| (0..rows * hidden).map(|_| stream.normal()).collect::<Vec<f32>>());
        let targets: Vec<u32> = (0..rows).map(|_| stream.below(u32::try_from(vocab).expect("ids are u32"))).collect();
        let objective = Objective::Distill { kind: Kind::ReverseKl, inv_temp: 1.0 };
        let (mut dhidden, mut by_row, mut ws) = (Vec::new(), ByRow::default(), LossWorkspace::within(case.bytes));
        let heads = if case.rollout { 3 } else { 2 };
        let flops = 2.0 * (heads + 2) as f64 * (rows * hidden * vocab) as f64;
        meter.run(&mut c, &cpu, "head", case.name, Cost { flops, bytes: 0.0 }, |cpu| {
            let view = |hidden| Some(View { head: model.head(), hidden }.into());
            let input = Rows {
                hidden: &student,
                targets: &targets,
                teacher: view(&teacher[..]),
                behaviour: if case.rollout { view(&rollout[..]) } else { None },
                reference: None,
                factors: None,
                draws: None,
                valid: vocab,
                weight: 1.0 / rows as f32,
            };
            let gradients = Some((&mut gradients, &mut dhidden));
            let sums = loss(cpu, objective, &model, input, gradients, &mut by_row, &mut ws);
            assert!(sums.expect("logits are numbers").loss > 0.0);
        });
    }
    meter.finish(&mut c, "head");
}
