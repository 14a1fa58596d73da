//! Tiny models of every architecture against references made by another implementation: logits, losses, every gradient
//! and one optimizer step (tests/golden/README.md says how they were made).

use std::path::{Path, PathBuf};

use engine::checkpoint::Checkpoint;
use engine::engine::{Engine, PAGE_LEN};
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, Request, generate};
use opd::learner::{Learner, Views};
use opd::loss::{Objective, View};
use opd::master::Master;
use opd::sequences::Row;
use ptx::Cpu;
use ptx::ops::adamw::AdamW;
use ptx::ops::divergence::Kind;
use ptx::ops::linear::{Packed, WeightScale};
use ptx::ops::sample::Params;
use safetensors::SafeTensors;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

struct Reference(Vec<u8>);

impl Reference {
    fn open(name: &str) -> Reference {
        Reference(std::fs::read(golden(name).join("reference.safetensors")).expect("the fixture is committed"))
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).expect("the fixture is sound");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn ids(&self, name: &str) -> (Vec<usize>, Vec<u32>) {
        let file = SafeTensors::deserialize(&self.0).expect("the fixture is sound");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let step = tensor.data().len() / tensor.shape().iter().product::<usize>();
        (tensor.shape().to_vec(), tensor.data().chunks_exact(step).map(word).collect())
    }
}

/// Largest difference, relative to the norm of the wanted values.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(want).map(|(&g, &w)| f64::from(g) - f64::from(w)));
    difference / norm(&mut want.iter().map(|&w| f64::from(w))).max(1e-12)
}

struct Case {
    cpu: std::sync::Arc<Cpu>,
    model: Model,
    rows: Vec<Row>,
    reference: Reference,
    dir: PathBuf,
}

fn case(arch: &str) -> Case {
    let (dir, reference) = (golden(arch), Reference::open(arch));
    let cpu = std::sync::Arc::new(Cpu::new(2));
    let checkpoint = Checkpoint::open(&dir).expect("opens");
    let recipe = Recipe::built_in("f32", Precision::F32, checkpoint.config()).expect("known");
    let model = Model::load(&cpu, &checkpoint, recipe).expect("loads");
    let (shape, ids) = reference.ids("ids");
    // One token of prompt, so that every position but the last predicts.
    let rows = ids.chunks(shape[1]).map(|ids| Row::new(ids.to_vec(), 1)).collect();
    Case { cpu, model, rows, reference, dir }
}

/// A head that turns one-hot-like hidden rows into given logits: the teacher's logits come from a file, not a model.
fn given_logits(cpu: &Cpu, logits: &[f32], vocab: usize) -> (Packed, Vec<f32>) {
    let rows = logits.len() / vocab;
    let mut head = Packed::new(ptx::DType::F32, WeightScale::Channel, vocab, rows);
    let mut transposed = vec![0.0; vocab * rows];
    for row in 0..rows {
        for v in 0..vocab {
            transposed[v * rows + row] = logits[row * vocab + v];
        }
    }
    head.set_rows(cpu, 0, &transposed);
    let mut hidden = vec![0.0; rows * rows];
    (0..rows).for_each(|row| hidden[row * rows + row] = 1.0);
    (head, hidden)
}

/// The rows of `[batch, len, vocab]` that predict a next token.
fn predicting(logits: &[f32], rows: &[Row], vocab: usize) -> Vec<f32> {
    let len = rows[0].ids.len();
    logits.chunks(len * vocab).flat_map(|row| &row[..(len - 1) * vocab]).copied().collect()
}

fn check(arch: &str) {
    let Case { cpu, model, rows, reference, dir } = case(arch);
    let (config, vocab) = (model.config.clone(), model.config.vocab);

    // Logits: the prefill of each row, one step for both.
    let mut engine = Engine::new(std::sync::Arc::clone(&cpu), model, PAGE_LEN, 16, vocab);
    let want = reference.f32("student_logits");
    let mut sequences: Vec<_> = rows.iter().map(|row| engine.kv().sequence(row.ids.len())).collect();
    for (sequence, row) in sequences.iter_mut().zip(&rows) {
        engine.kv_mut().append(sequence, row.ids.len()).expect("fits");
    }
    let feeds = sequences.iter().zip(&rows).map(|(sequence, row)| engine::engine::Feed { sequence, ids: &row.ids });
    engine.step(feeds).expect("no device");
    let tokens: usize = rows.iter().map(|r| r.ids.len()).sum();
    let worst = engine
        .logits(0..tokens)
        .expect("no device")
        .iter()
        .zip(&want)
        .fold(0.0_f32, |max, (g, w)| max.max((g - w).abs()));
    // f32 against f32 with other orders of summation; both are within 3e-6 of the f64 result.
    assert!(worst < 2e-5, "{arch}: logits differ by {worst}");
    sequences.into_iter().for_each(|sequence| engine.kv_mut().end(sequence));

    // Greedy continuation.
    let (_, greedy) = reference.ids("greedy_ids");
    let params = Params { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let request = Request {
        prompt: rows[0].ids[..8].to_vec(),
        samples: 1,
        first_sample: 0,
        seed: 0,
        params,
        max_tokens: greedy.len(),
        stop_ids: Vec::new(),
        ..Request::default()
    };
    generate(&mut engine, &[request], Limits::default(), &mut |_, rollout| {
        assert_eq!(rollout.expect("served").ids, greedy, "{arch}: greedy continuation");
    });

    // Losses and gradients.
    let model = engine.model();
    let mut learner = Learner::new(model, tokens, rows.len());
    let teacher = predicting(&reference.f32("teacher_logits"), &rows, vocab);
    let (head, hidden) = given_logits(&cpu, &teacher, vocab);
    let count = tokens - rows.len();
    let weight = 1.0 / count as f32;
    for (kind, name) in [(Kind::ForwardKl, "forward_kl"), (Kind::ReverseKl, "reverse_kl")] {
        learner.gradients.clear();
        let objective = Objective::Distill { kind, inv_temp: 1.0 };
        let views = Views { teacher: Some(View { head: &head, hidden: &hidden }.into()), ..Views::default() };
        let sums =
            learner.micro_batch(&cpu, model, objective, &rows, views, vocab, weight, true).expect("the loss is finite");
        let (got, want) = (sums.loss / sums.tokens as f64, f64::from(reference.f32(name)[0]));
        assert!((got - want).abs() < 2e-6, "{arch}: {name} {got}, want {want}");
    }
    for param in learner.gradients.params() {
        let want = reference.f32(&format!("grad.{}", param.name));
        let got = learner.gradients.named(&param.name).expect("same inventory");
        let error = relative(got, &want);
        assert!(error < 3e-5, "{arch}: gradient of {} is off by {error:e} of its norm", param.name);
    }

    // One AdamW step. Weight decay in the reference applies to every parameter, here to matrices alone, so vectors are
    // compared after adding what the decay takes.
    let checkpoint = Checkpoint::open(&dir).expect("opens");
    let mut master = Master::load(&checkpoint, Precision::F32).expect("loads");
    let before = master.weights.clone();
    let hyper = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    master.update(&cpu, &learner.gradients, hyper, f32::INFINITY);
    for (i, param) in before.params().iter().enumerate() {
        let want = reference.f32(&format!("after.{}", param.name));
        let decayed = if param.shape.len() == 1 { 1e-3 * 0.1 } else { 0.0 };
        for (at, (&got, &want)) in master.weights.tensor(i).iter().zip(&want).enumerate() {
            let got = got - decayed * before.tensor(i)[at];
            let gradient = learner.gradients.tensor(i)[at].abs();
            // The first step is lr * g / (|g| + eps): where g is of the size of its own rounding error its sign is open.
            let tolerance = if gradient < 1e-6 { 2.1e-3 } else { 3e-6 };
            assert!((got - want).abs() < tolerance, "{arch}: {}[{at}] is {got}, want {want}", param.name);
        }
    }
    assert_eq!(config.layers, model.layers.len());
}

#[test]
fn qwen3() {
    check("qwen3");
}

#[test]
fn qwen2() {
    check("qwen2");
}

#[test]
fn llama() {
    check("llama");
}

#[test]
fn mistral() {
    check("mistral");
}
