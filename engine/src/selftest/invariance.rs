//! The same tokens, weights and recipe give the same bits on one device: alone, batched, in pieces, scored again, over
//! cached prefixes, on any pages, with graphs and without.

use std::collections::HashSet;

use ptx::ops::attention::CHUNK;
use ptx::ops::sample::Params;
use ptx::rng::{Purpose, Stream};

use super::{Finding, Small, open};
use crate::engine::{Device, Engine, EngineError};
use crate::rollout::{Answer, Limits, Request, RequestError, Reservation, ScoreRow, Session, score};

/// Ids that prompts are made of.
const IDS: u32 = 190;
const SAMPLES: u32 = 2;
const TOKENS: usize = 6;
const TEMPERATURE: f32 = 0.8;
/// Pages of the pools but the small one, in tokens.
const POOL: usize = 2400;

/// One way to do the same work.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    batch: usize,
    step_tokens: usize,
    page_len: usize,
    /// Each sample is a request of its own, and no prefix is reused.
    alone: bool,
    /// The same was done before on this engine, so that prompts are found in the cache.
    warm: bool,
    /// Other sequences took and gave pages before.
    churned: bool,
    graphs: bool,
    /// So few pages that samples are preempted.
    pressed: bool,
    /// With the prompt that is longer than a chunk of attention's keys.
    long: bool,
}

const PLAIN: Way = Way {
    name: "batched",
    batch: 16,
    step_tokens: 512,
    page_len: 16,
    alone: false,
    warm: false,
    churned: false,
    graphs: false,
    pressed: false,
    long: true,
};

const WAYS: [Way; 6] = [
    Way { name: "alone", batch: 1, alone: true, long: false, ..PLAIN },
    Way { name: "prefilled in pieces", step_tokens: 7, batch: 3, page_len: 4, ..PLAIN },
    Way { name: "over a cached prefix", warm: true, long: false, ..PLAIN },
    Way { name: "on other pages", churned: true, page_len: 8, long: false, ..PLAIN },
    Way { name: "in a graph", graphs: true, ..PLAIN },
    Way { name: "preempted", pressed: true, graphs: true, page_len: 4, long: false, ..PLAIN },
];

/// A sample: number, ids, and bits of its logprobs as drawn and at temperature 1.
#[derive(Clone, Debug, PartialEq)]
struct Sample(u64, Vec<u32>, Vec<u32>, Vec<u32>);

/// Checks every way against the plain one.
pub fn invariance(device: &Device, small: &Small, each: &mut dyn FnMut(Finding)) -> Result<(), EngineError> {
    let mut engine = engine(device, small, PLAIN)?;
    let want = sampled(&mut engine, PLAIN)?;
    let mut report = |check: &str, failure: Option<String>| {
        let worst = if failure.is_some() { f64::INFINITY } else { 0.0 };
        each(Finding { model: small.name, check: check.to_owned(), worst, failure });
    };
    let different = want.iter().map(|sample| &sample.1).collect::<HashSet<_>>().len();
    let alike = (different <= want.len() / 2).then(|| format!("{different} of {} samples differ", want.len()));
    report("samples differ, so that bits can", alike);
    for way in WAYS {
        // Graphs are a matter of CUDA devices.
        if device.is_cpu() && way.name == "in a graph" {
            continue;
        }
        let mut other = self::engine(device, small, way)?;
        let got = sampled(&mut other, way)?;
        // The long prompt's samples are the last.
        let expected = want.iter().filter(|sample| way.long || prompt_of(sample) < prompts(way).len());
        let mut failure =
            (got.len() != expected.count()).then(|| format!("{} of {} samples came", got.len(), want.len()));
        let unlike = got.iter().zip(&want).find(|(got, want)| got != want).map(|(got, want)| {
            format!("sample {}: {:?} with logprobs {:x?}, batched {:?} with {:x?}", got.0, got.1, got.2, want.1, want.2)
        });
        failure = failure.or(unlike);
        if way.graphs && !device.is_cpu() && other.graph_steps() == 0 {
            failure = failure.or(Some("no step ran as a graph".into()));
        }
        report(way.name, failure);
    }
    report("scored again", scored(&mut engine, &want)?);
    Ok(())
}

fn engine(device: &Device, small: &Small, way: Way) -> Result<Engine, EngineError> {
    let tokens = if way.pressed { 80 } else { POOL };
    let mut engine = open(device, small, way.page_len, tokens / way.page_len)?;
    engine.set_graphs(way.graphs);
    engine.poison_pages()?;
    engine.kv_mut().set_prefix_reuse(!way.alone);
    if way.churned {
        churn(&mut engine);
    }
    Ok(engine)
}

/// Leaves the free pages in another order than a fresh pool's.
fn churn(engine: &mut Engine) {
    let held: Vec<_> = (0..24)
        .map(|i| {
            let mut sequence = engine.kv().sequence(0);
            engine.kv_mut().append(&mut sequence, i % 3 * 8 + 1).expect("the pool is larger");
            sequence
        })
        .collect();
    let mut held: Vec<_> = held.into_iter().map(Some).collect();
    let mut order: Vec<usize> = (0..held.len()).collect();
    Stream::new(9, Purpose::Data, 1).shuffle(&mut order);
    for i in order {
        let sequence = held[i].take().expect("each once");
        engine.kv_mut().end(sequence);
    }
}

/// Prompts that begin alike, one of a token, one that ends with a page, and one of a chunk of attention's keys.
fn prompts(way: Way) -> Vec<Vec<u32>> {
    let mut draw = Stream::new(5, Purpose::Data, 0);
    let mut ids = |len: usize| -> Vec<u32> { (0..len).map(|_| draw.below(IDS)).collect() };
    let first = ids(19);
    let mut all = vec![first.clone(), [&first[..13], &ids(8)].concat(), ids(1), ids(16)];
    if way.long {
        // It is decoded from one chunk into the next.
        all.push(ids(CHUNK - 2));
    }
    all
}

fn requests(way: Way) -> Vec<Request> {
    let (apart, each) = if way.alone { (SAMPLES, 1) } else { (1, SAMPLES) };
    let of = |(i, prompt): (usize, Vec<u32>)| {
        let (apart, each) = if prompt.len() < CHUNK / 2 { (apart, each) } else { (1, 1) };
        (0..apart).map(move |k| Request {
            prompt: prompt.clone(),
            samples: each,
            first_sample: i as u64 * u64::from(SAMPLES) + u64::from(k),
            seed: 3,
            // Truncated and not, side by side.
            params: Params { temperature: TEMPERATURE, top_p: if i % 2 == 0 { 1.0 } else { 0.9 }, ..Params::default() },
            max_tokens: TOKENS,
            ..Request::default()
        })
    };
    prompts(way).into_iter().enumerate().flat_map(of).collect()
}

fn sampled(engine: &mut Engine, way: Way) -> Result<Vec<Sample>, EngineError> {
    if way.warm {
        run(engine, way)?;
    }
    let mut all = run(engine, way)?;
    all.sort_by_key(|sample| sample.0);
    Ok(all)
}

fn limits(way: Way) -> Limits {
    let reservation = if way.pressed { Reservation::Optimistic } else { Reservation::Lifetime };
    Limits { batch: way.batch, step_tokens: way.step_tokens, reservation, ..Limits::default() }
}

fn run(engine: &mut Engine, way: Way) -> Result<Vec<Sample>, EngineError> {
    let mut session = Session::new(engine, limits(way));
    for (number, request) in requests(way).into_iter().enumerate() {
        session.submit(engine, number, request).expect("it can be served");
    }
    let (mut all, mut broken) = (Vec::new(), None);
    let mut answer = |answer| match answer {
        Answer::Rollout(r) => all.push(Sample(r.sample, r.ids, bits(&r.logprobs), bits(&r.logprobs_raw))),
        Answer::Failed { error: RequestError::Device(error), .. } => broken = Some(error),
        other => panic!("{other:?}"),
    };
    while session.step(engine, &mut answer) {}
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(all),
    }
}

/// Number of the prompt that a sample is of.
fn prompt_of(sample: &Sample) -> usize {
    usize::try_from(sample.0).expect("few") / SAMPLES as usize
}

/// What differs when the sampled tokens are scored in whole sequences, if anything does.
fn scored(engine: &mut Engine, want: &[Sample]) -> Result<Option<String>, EngineError> {
    let prompts = prompts(PLAIN);
    let prompt_of = |sample: &Sample| &prompts[prompt_of(sample)];
    let rows: Vec<ScoreRow> = want
        .iter()
        .map(|sample| ScoreRow { temperature: 1.0, ..ScoreRow::new([&prompt_of(sample)[..], &sample.1].concat()) })
        .collect();
    let (mut wrong, mut broken, mut answered) = (None, None, 0);
    score(engine, &rows, Limits::default(), &mut |i, scores| match scores {
        Ok(scores) => {
            answered += 1;
            let got = bits(&scores.logprobs[prompt_of(&want[i]).len() - 1..]);
            if got != want[i].3 {
                wrong = Some(format!("sample {}: {got:x?}, sampled {:x?}", want[i].0, want[i].3));
            }
        }
        Err(RequestError::Device(error)) => broken = Some(error),
        Err(other) => wrong = Some(other.to_string()),
    });
    match broken {
        Some(error) => Err(error.into()),
        None if answered < want.len() => {
            Ok(wrong.or_else(|| Some(format!("{answered} of {} samples were scored", want.len()))))
        }
        None => Ok(wrong),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
