//! What scoring costs beside prefill: the teacher's side of an update (hidden rows alone; the loss makes logits from them),
//! and logprobs of every token, head included. In turns, in one run, so that ratios mean something. All three are bound by
//! multiply-adds.

mod common;

use std::sync::Arc;

use common::{Record, Shape, gauge, is_full, is_wanted, table::Table};
use engine::engine::{Engine, Feed, PAGE_LEN};
use engine::recipe::Precision;
use engine::rollout::{Limits, ScoreRow, score};
use opd::bench::{LimitsSpread, Spread};
use opd::clock::Stopwatch;
use opd::sequences::Row;
use opd::side::Side;
use ptx::Cpu;
use serde_json::json;

const FULL: [(&str, Shape, usize); 2] = [("107m", Shape::M107, 7), ("0.6b", Shape::QWEN3_06B, 5)];
const SMOKE: [(&str, Shape, usize); 1] = [("smoke", Shape::SMOKE, 2)];
/// What is measured, in turns.
const WAYS: [&str; 3] = ["prefill", "teacher's side", "logprobs of all tokens"];
const ROWS: usize = 4;
const LEN: usize = 128;

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("teacher", &cpu));
    let mut table = Table::new(["case", "tokens/s", "of prefill", "low to high", "of prefill, by flops"]);
    let mut limits = Vec::new();
    let cases: &[_] = if is_full() { &FULL } else { &SMOKE };
    for &(name, shape, rounds) in cases.iter().filter(|case| is_wanted(case.0)) {
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
            let limit = gauge.measure();
            let mut watch = Stopwatch::start();
            engine.step(feeds).expect("no device");
            let prefill = watch.lap_s();
            sequences.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));
            watch.lap_s();
            side.run(&cpu, engine.model(), &rows);
            let teacher = watch.lap_s();
            score(&mut engine, &scored, Limits::default(), &mut |_, result| {
                result.expect("it can be scored");
            });
            let whole = watch.lap_s();
            if round > 0 {
                // The first warms caches and buffers.
                limits.push(limit);
                [prefill, teacher, whole].into_iter().zip(&mut seconds).for_each(|(t, all)| all.push(t));
            }
        }
        let tokens = (ROWS * LEN) as f64;
        // The head makes scoring this many times the flops.
        let head = (shape.vocab * shape.hidden) as f64;
        let flops = [1.0, 1.0, (shape.layer_parameters() as f64 + head) / shape.layer_parameters() as f64];
        for (at, way) in WAYS.into_iter().enumerate() {
            let rate = tokens / Spread::of(seconds[at].iter().copied()).median;
            let ratio = Spread::of(seconds[0].iter().zip(&seconds[at]).map(|(prefill, own)| prefill / own));
            table.row([
                format!("{name}, {way}"),
                format!("{rate:.1}"),
                format!("{:.2}", ratio.median),
                format!("{:.2} to {:.2}", ratio.low, ratio.high),
                format!("{:.2}", ratio.median * flops[at]),
            ]);
            let object = json!({
                "case": name, "what": way, "tokens_per_s": rate, "of_prefill": ratio.json(), "flops_of_prefill": flops[at],
                "rounds": seconds[at].len(),
            });
            record.push("teachers", object);
        }
    }
    record.say(&table);
    if !limits.is_empty() {
        record.put("limits", LimitsSpread::of(limits.iter()).json());
    }
    record.finish();
}
