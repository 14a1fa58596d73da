use std::sync::Arc;

use engine::engine::{Engine, PAGE_LEN};
use engine::model::{Gradients, Model, WeightSource};
use engine::recipe::{Precision, Recipe};
use engine::selftest::{Small, models};
use ptx::Cpu;

use super::*;
use crate::master::Master;

fn small() -> Small {
    models().into_iter().find(|small| small.name == "qwen3 kv8").expect("it is there")
}

fn engine(pages: usize) -> Engine {
    let small = small();
    let cpu = Arc::new(Cpu::new(2));
    Engine::open(&cpu.into(), small.config, small.recipe, 0, &mut small.weights.clone(), PAGE_LEN, pages, 197)
        .expect("made from a seed")
}

fn turns<'a>(gauge: &'a Gauge, rounds: usize, tick: &'a mut dyn FnMut()) -> Turns<'a> {
    Turns { gauge, rounds, seed: 3, tick }
}

#[test]
fn the_middle_of_measurements() {
    assert_eq!(Spread::of([3.0]), Spread { low: 3.0, median: 3.0, high: 3.0 });
    assert_eq!(Spread::of([4.0, 1.0, 2.0]), Spread { low: 1.0, median: 2.0, high: 4.0 });
    assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]), Spread { low: 1.0, median: 2.5, high: 4.0 });
}

#[test]
fn rounds_take_turns_with_limits_and_the_first_does_not_count() {
    let gauge = Gauge::small(Arc::new(Cpu::new(2)));
    let (mut ticks, mut calls) = (0, Vec::new());
    let mut tick = || ticks += 1;
    let samples = turns(&gauge, 5, &mut tick)
        .run::<()>(4, |times| {
            calls.push(times);
            Ok(times as f64 * 0.006)
        })
        .expect("it never fails");
    assert_eq!(calls, [1, 1, 4, 4, 4, 4, 4], "two to warm up, then as many as take long enough");
    assert_eq!((samples.seconds.len(), samples.limits.len(), ticks), (5, 5, 5));
    assert!((samples.seconds().median - 0.006).abs() < 1e-12);
    let long =
        turns(&gauge, 1, &mut || ()).run::<&str>(4, |times| if times == 1 { Ok(0.5) } else { Err("once is enough") });
    assert_eq!(long.expect("once").seconds, [0.5]);
    assert_eq!(turns(&gauge, 1, &mut || ()).run(4, |_| Err("no")), Err("no"));
}

#[test]
fn the_limit_that_comes_first_bounds() {
    let limits = Limits { read: 10.0, read_one: 5.0, fma: 100.0, fma_one: 50.0 };
    let samples = Samples { seconds: vec![2.0; 5], limits: vec![limits; 5] };
    let figure = |flops, bytes| Figure {
        what: What::Decode,
        batch: Some(4),
        context: Some(1),
        tokens: Some(4),
        measured: Measured { cost: Cost { flops, bytes }, samples: samples.clone() },
        resident: None,
    };
    assert_eq!(figure(50.0, 10.0).tokens_per_s(), Some(2.0));
    let read = figure(50.0, 10.0).measured;
    assert_eq!((read.bound(), read.share(), read.share_fma()), (Bound::Read, 0.5, Some(0.25)));
    let fma = figure(150.0, 10.0).measured;
    assert_eq!((fma.bound(), fma.share(), fma.share_read()), (Bound::Fma, 0.75, Some(0.5)));
    let only = figure(100.0, 0.0);
    assert_eq!((only.measured.bound(), only.measured.share(), only.measured.share_read()), (Bound::Fma, 0.5, None));
    let json = only.json();
    assert!(json.get("share_read").is_none() && json.get("gb_s").is_none() && json["share_fma"] == 0.5, "{json}");
    assert_eq!(figure(0.0, 4.0).json()["bound"], "read");
}

#[test]
fn every_measure_gives_a_figure_and_every_page_back() {
    let (mut engine, gauge) = (engine(40), Gauge::small(Arc::new(Cpu::new(2))));
    let mut tick = || ();
    let mut turns = turns(&gauge, 2, &mut tick);
    for (batch, context) in [(1, 20), (5, 33)] {
        let figure = decode(&mut engine, batch, context, &mut turns).expect("it fits");
        assert_eq!((figure.tokens, figure.measured.samples.seconds.len()), (Some(batch), 2));
        assert!(figure.measured.seconds().low > 0.0 && figure.measured.share() > 0.0, "{figure:?}");
        assert_eq!(engine.kv().free_pages(), 40);
    }
    for measure in [prefill, score] {
        let figure = measure(&mut engine, 40, &mut turns).expect("it fits");
        assert!(figure.tokens == Some(40) && figure.measured.seconds().low > 0.0, "{figure:?}");
        assert_eq!(engine.kv().available_pages(), 40);
    }
    let figure = update(&mut engine, &mut small().weights.clone(), 1000, &mut turns).expect("from a seed");
    assert!(engine.version() >= 3 && figure.tokens.is_none() && figure.measured.share_read() > Some(0.0), "{figure:?}");
    assert_eq!(figure.resident.is_some(), resident_bytes().is_some());
}

#[test]
fn a_training_step_is_counted_by_six_flops() {
    let small = small();
    let cpu = Arc::new(Cpu::new(2));
    let recipe = Recipe::built_in("f32", Precision::F32, &small.config).expect("built in");
    let mut model = Model::empty(small.config.clone(), recipe);
    model.update(&cpu, 0, &mut small.weights.clone()).expect("from a seed");
    let mut weights = Gradients::zeros(&small.config);
    for i in 0..weights.params().len() {
        let param = weights.params()[i].clone();
        small.weights.clone().rows(&param.name, 0, param.shape[0], weights.tensor_mut(i)).expect("from a seed");
    }
    let mut master = Master::new(&small.config, weights, Precision::F32);
    let gauge = Gauge::small(cpu);
    let mut tick = || ();
    let mut turns = turns(&gauge, 1, &mut tick);
    for supervised in [false, true] {
        let training = Training { rows: 2, len: 9, supervised };
        let figure = train(&mut model, &mut master, training, 197, &mut turns).expect("numbers");
        assert_eq!(figure.tokens, Some(18));
        let parameters = small.config.matmul_parameters() as f64;
        assert!((figure.measured.cost.flops - 6.0 * parameters * 18.0).abs() < 1.0);
    }
    for (rows, len) in [(0, 9), (1, 1), (1, 1025)] {
        let training = Training { rows, len, supervised: false };
        assert!(train(&mut model, &mut master, training, 197, &mut turns).is_err(), "{training:?}");
    }
}

#[test]
fn what_does_not_fit_says_so() {
    let (mut engine, gauge) = (engine(4), Gauge::small(Arc::new(Cpu::new(1))));
    let mut tick = || ();
    let mut turns = turns(&gauge, 1, &mut tick);
    let pool = decode(&mut engine, 3, 20, &mut turns).expect_err("9 pages are needed").to_string();
    assert!(pool.contains("3 sequences of 36 tokens need 9 KV pages") && pool.contains("has 4"), "{pool}");
    let context = prefill(&mut engine, 1025, &mut turns).expect_err("the context is 1024").to_string();
    assert!(context.contains("1025") && context.contains("1024"), "{context}");
    assert!(decode(&mut engine, 1, 1024, &mut turns).is_err(), "there is no place for another token");
    for result in [
        decode(&mut engine, 0, 8, &mut turns),
        decode(&mut engine, 1, 0, &mut turns),
        score(&mut engine, 1, &mut turns),
    ] {
        assert!(matches!(result, Err(BenchError::Nothing { .. })), "{result:?}");
    }
    assert_eq!(engine.kv().free_pages(), 4);
}

/// Against the sums written out for a model of known shape.
#[test]
fn costs_are_those_of_the_shape() {
    let engine = engine(4);
    let (config, recipe, layout) = (engine.config(), engine.recipe(), engine.kv().layout());
    // Hidden 64, 2 layers, 4 heads and 2 kv heads of 32, ffn 96, vocabulary 200, tied.
    let layer = 64 * 128 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 96;
    let (layers, head, seen) = ((2 * layer) as f64, (200 * 64) as f64, (2 * 4 * 32) as f64);
    assert_eq!(config.matmul_parameters(), 2 * layer + 200 * 64);
    let step = Cost::decode(config, recipe, layout, 3, 10);
    assert_eq!(step.flops, 3.0 * (2.0 * (layers + head) + 4.0 * seen * 11.0));
    // 8-bit keys and values with static scales: a byte each.
    let kv = 3.0 * 11.0 * (2 * 2 * 2 * 32) as f64;
    let weights = step.bytes - kv;
    assert_eq!(weights, engine::plan::Weights::of(config, recipe).total() as f64);
    assert_eq!(Cost::prefill(config, recipe, 5).flops, 5.0 * 2.0 * layers + 2.0 * head + 4.0 * seen * 15.0);
    assert_eq!(Cost::score(config, recipe, 5).flops, 5.0 * 2.0 * layers + 4.0 * 2.0 * head + 4.0 * seen * 15.0);
}

#[test]
fn words_that_name_a_measure() {
    for what in What::ALL {
        assert_eq!(what.name().parse(), Ok(what));
    }
    let error = "decoding".parse::<What>().expect_err("it is no name");
    assert!(error.contains("\"decoding\"") && error.contains("decode, prefill, score"), "{error}");
}
