//! What scoring costs beside prefill: the teacher's side of an update (hidden rows alone; the loss makes logits from them),
//! and logprobs of every token, head included. In turns, in one run, so that ratios mean something.

mod common;

use std::sync::Arc;

use common::{Shape, median, timed};
use engine::engine::{Engine, Feed, PAGE_LEN};
use engine::recipe::Precision;
use engine::rollout::{Limits, ScoreRow, score};
use opd::sequences::Row;
use opd::side::Side;
use ptx::Cpu;

const FULL: [(&str, Shape, usize); 2] = [
    ("107m", Shape { hidden: 768, layers: 12, heads: 12, kv_heads: 4, head_dim: 64, ffn: 2304, vocab: 32_000 }, 7),
    ("0.6b", Shape { hidden: 1024, layers: 28, heads: 16, kv_heads: 8, head_dim: 128, ffn: 3072, vocab: 151_936 }, 5),
];
const SMOKE: [(&str, Shape, usize); 1] =
    [("smoke", Shape { hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 256 }, 2)];
const ROWS: usize = 4;
const LEN: usize = 128;

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let cases: &[_] = if common::is_full() { &FULL } else { &SMOKE };
    for &(name, shape, rounds) in cases.iter().filter(|case| common::is_wanted(case.0)) {
        let model = common::model(&cpu, shape, "bf16", Precision::Bf16);
        let mut side = Side::new(&model, ROWS * LEN, ROWS);
        let pages = ROWS * LEN.div_ceil(PAGE_LEN);
        let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, pages, shape.vocab);
        let id = |row: usize, t: usize| u32::try_from((t * 7 + row) % shape.vocab).expect("ids are u32");
        let rows: Vec<Row> = (0..ROWS).map(|row| Row::new((0..LEN).map(|t| id(row, t)).collect(), 1)).collect();
        let scored: Vec<ScoreRow> = rows.iter().map(|row| ScoreRow::new(row.ids.clone())).collect();
        let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=rounds {
            let mut sequences: Vec<_> = rows.iter().map(|_| engine.kv().sequence(LEN)).collect();
            for sequence in &mut sequences {
                engine.kv_mut().append(sequence, LEN).expect("the pool holds the rows");
            }
            let feeds = sequences.iter().zip(&rows).map(|(sequence, row)| Feed { sequence, ids: &row.ids });
            let (prefill, ()) = timed(|| engine.step(feeds).expect("no device"));
            sequences.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));
            let (teacher, ()) = timed(|| side.run(&cpu, engine.model(), &rows));
            let (whole, ()) = timed(|| {
                score(&mut engine, &scored, Limits::default(), &mut |_, result| {
                    result.expect("it can be scored");
                });
            });
            if round > 0 {
                // The first warms caches and buffers.
                [prefill, teacher, whole].iter().zip(&mut seconds).for_each(|(t, all)| all.push(t.as_secs_f64()));
            }
        }
        if common::is_full() {
            let tokens = (ROWS * LEN) as f64;
            let rate = |at: usize| tokens / median(&seconds[at]);
            let ratio = |at: usize| {
                let ratios: Vec<f64> =
                    seconds[0].iter().zip(&seconds[at]).map(|(prefill, own)| prefill / own).collect();
                let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(a, b), &r| (a.min(r), b.max(r)));
                format!("{:.2} of prefill ({least:.2} to {most:.2})", median(&ratios))
            };
            let head = (shape.vocab * shape.hidden) as f64;
            let flops = (shape.layer_parameters() as f64 + head) / shape.layer_parameters() as f64;
            println!(
                "TEACHER {name}: prefill {:.0} tok/s; teacher's side {:.0} tok/s, {}; logprobs of all tokens {:.0} tok/s, {}, \
                 whose head makes it {flops:.2} times the flops: {:.2} of prefill by flops ({rounds} rounds)",
                rate(0),
                rate(1),
                ratio(1),
                rate(2),
                ratio(2),
                flops * rate(2) / rate(0),
            );
        }
    }
}
