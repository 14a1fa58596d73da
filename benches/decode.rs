//! How near do decoding, prefill and scoring come to the machine's limits? Decoding one sequence is bound by reading the weights,
//! many sequences, prefill and scoring by multiply-adds. Qwen3-0.6B's shape.

mod common;

use std::sync::Arc;

use common::{Record, Shape, figures, gauge, is_full, is_wanted, rounds};
use engine::engine::{Engine, PAGE_LEN};
use engine::recipe::Precision;
use opd::bench::{Turns, decode, decode_tokens, prefill, score};
use ptx::Cpu;

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("decode", &cpu));
    let (shape, contexts, prompt): (_, &[usize], usize) =
        if is_full() { (Shape::QWEN3_06B, &[128, 1024], 512) } else { (Shape::SMOKE, &[20], 40) };
    let mut rows = Vec::new();
    for recipe in ["bf16", "fp8"].into_iter().filter(|recipe| is_wanted(recipe)) {
        let model = common::model(&cpu, shape, recipe, Precision::Bf16);
        let long = contexts.iter().map(|&context| decode_tokens(context, model.config.max_positions));
        let pages = (32 * long.max().unwrap_or(0).div_ceil(PAGE_LEN)).max(prompt.div_ceil(PAGE_LEN));
        let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, pages, shape.vocab);
        engine.kv_mut().set_prefix_reuse(false);
        let mut turns = Turns { gauge: &gauge, rounds: rounds(9), seed: 1, tick: &mut || () };
        for &context in contexts {
            for batch in [1, 8, 32] {
                let figure = decode(&mut engine, batch, context, &mut turns).expect("the pool holds the batch");
                rows.push((recipe.to_owned(), figure));
            }
        }
        for measure in [prefill, score] {
            turns.rounds = rounds(5);
            rows.push((recipe.to_owned(), measure(&mut engine, prompt, &mut turns).expect("the pool holds the row")));
        }
    }
    figures(&mut record, &rows);
    record.finish();
}
