//! How near does inference come to the machine's limits? Decoding one sequence is bound by reading the weights, many
//! sequences and prefill by multiply-adds.

mod common;

use std::sync::Arc;

use common::{Meter, Shape, Work};
use engine::engine::{Engine, Feed, LOGIT_ROWS, PAGE_LEN};
use engine::recipe::Precision;
use kv::Sequence;
use ptx::ops::sample::{self, Params};

/// Qwen3-0.6B.
const FULL: Shape =
    Shape { hidden: 1024, layers: 28, heads: 16, kv_heads: 8, head_dim: 128, ffn: 3072, vocab: 151_936 };
const SMOKE: Shape = Shape { hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 256 };

/// Tokens in the cache before the first decoded one.
const CONTEXT: usize = 128;
/// Tokens of the prefilled prompt.
const PROMPT: usize = 512;
/// Most decoded tokens of a sequence.
const ROOM: usize = 64;

fn sequences(engine: &mut Engine, count: usize, context: usize) -> Vec<Sequence> {
    (0..count)
        .map(|i| {
            let mut sequence = engine.kv().sequence(context + ROOM);
            let id = |t: usize| u32::try_from((t * 7 + i) % engine.valid()).expect("ids are u32");
            let ids: Vec<u32> = (0..context).map(id).collect();
            engine.kv_mut().append(&mut sequence, context).expect("the pool holds the batch");
            engine.step([Feed { sequence: &sequence, ids: &ids }]).expect("no device");
            sequence
        })
        .collect()
}

/// One token for every sequence: the step, the logits and the draw.
fn decode(engine: &mut Engine, sequences: &mut [Sequence], ids: &mut [[u32; 1]]) {
    for sequence in sequences.iter_mut() {
        engine.kv_mut().append(sequence, 1).expect("the pool holds the batch");
    }
    engine.step(sequences.iter().zip(&*ids).map(|(sequence, ids)| Feed { sequence, ids })).expect("no device");
    for first in (0..sequences.len()).step_by(LOGIT_ROWS) {
        let rows = first..sequences.len().min(first + LOGIT_ROWS);
        let vocab = engine.model().config.vocab;
        let isa = engine.cpu().isa();
        let logits = engine.logits(rows.clone()).expect("no device");
        for (row, ids) in logits.chunks_exact(vocab).zip(&mut ids[rows]) {
            let drawn = sample::draw(isa, &Params::default(), row, 0.5);
            ids[0] = drawn.expect("logits are numbers").token;
        }
    }
}

fn main() {
    let mut c = common::criterion();
    let meter = Meter::new();
    let (shape, context, prompt) = if common::is_full() { (FULL, CONTEXT, PROMPT) } else { (SMOKE, 20, 40) };
    for recipe in ["bf16", "fp8"].into_iter().filter(|recipe| common::is_wanted(recipe)) {
        let model = common::model(&meter.cpu, shape, recipe, Precision::Bf16);
        let (bytes, vocab) = (model.bytes() as f64, shape.vocab);
        let pages = 32 * (context + ROOM).div_ceil(PAGE_LEN) + prompt.div_ceil(PAGE_LEN);
        let mut engine = Engine::new(Arc::clone(&meter.cpu), model, PAGE_LEN, pages, vocab);
        for batch in [1, 8, 32] {
            let mut live = sequences(&mut engine, batch, context);
            let mut ids = vec![[1]; batch];
            let tokens = batch as f64;
            let work = Work { tokens, bytes: Some(bytes), flops: 2.0 * shape.parameters() * tokens };
            meter.run(&mut c, &format!("decode-{recipe}"), &format!("batch-{batch}"), work, || {
                if live[0].len() == context + ROOM {
                    let old = std::mem::take(&mut live);
                    old.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));
                    live = sequences(&mut engine, batch, context);
                }
                decode(&mut engine, &mut live, &mut ids);
            });
            live.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));
        }
        let id = |t: usize| u32::try_from(t * 7 % vocab).expect("ids are u32");
        let ids: Vec<u32> = (0..prompt).map(id).collect();
        let tokens = prompt as f64;
        let work = Work { tokens, bytes: None, flops: 2.0 * shape.layer_parameters() as f64 * tokens };
        meter.run(&mut c, &format!("prefill-{recipe}"), &prompt.to_string(), work, || {
            let mut sequence = engine.kv().sequence(prompt);
            engine.kv_mut().append(&mut sequence, prompt).expect("the pool holds the prompt");
            engine.step([Feed { sequence: &sequence, ids: &ids }]).expect("no device");
            engine.kv_mut().end(sequence);
        });
    }
    c.final_summary();
}
