//! What does sharing a prompt save? Several samples of one long prompt, three ways in turns: one request with all of them, which
//! computes the prompt once and shares its pages; a request each, one after another, whose prompts come from the prefix index;
//! and the same without reuse. Prefill is bound by multiply-adds, so the tokens that it does not compute are the time
//! saved. 107 million parameters.

mod common;

use std::sync::Arc;

use common::{Record, Shape, gauge, is_full, rounds, table::Table};
use engine::engine::{Engine, PAGE_LEN};
use engine::recipe::Precision;
use engine::rollout::{Answer, Limits, Request, Session};
use opd::bench::{LimitsSpread, Spread};
use opd::clock::Stopwatch;
use ptx::Cpu;
use serde_json::json;

struct Case {
    shape: Shape,
    prompt: usize,
    completion: usize,
    samples: u32,
}

const FULL: Case = Case { shape: Shape::M107, prompt: 1024, completion: 32, samples: 8 };
const SMOKE: Case = Case { shape: Shape::SMOKE, prompt: 40, completion: 4, samples: 3 };

/// How samples of one prompt are asked for.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Samples,
    Index,
    Alone,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Samples, "one request"),
    (Way::Index, "a request each, reused"),
    (Way::Alone, "a request each, nothing reused"),
];

/// What one way took.
struct Took {
    seconds: f64,
    computed: u64,
    reused: u64,
    pages: usize,
}

fn run(engine: &mut Engine, case: &Case, way: Way, salt: usize) -> Took {
    engine.kv_mut().set_prefix_reuse(way != Way::Alone);
    engine.kv_mut().forget_all_but(u64::MAX);
    let mut session = Session::new(engine, Limits::default());
    let id = |t: usize| u32::try_from((salt + t * 7) % case.shape.vocab).expect("ids are u32");
    let prompt: Vec<u32> = (0..case.prompt).map(id).collect();
    let whole = Request { prompt, max_tokens: case.completion, samples: case.samples, ..Request::default() };
    let (mut tokens, mut pages) = (0, 0);
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => tokens += rollout.ids.len(),
        other => panic!("{other:?}"),
    };
    let mut drain = |session: &mut Session, engine: &mut Engine| {
        while session.step(engine, &mut answer) {
            pages = pages.max(engine.kv().pages() - engine.kv().available_pages());
        }
    };
    let watch = Stopwatch::start();
    if way == Way::Samples {
        session.submit(engine, 0, whole).expect("it fits");
        drain(&mut session, engine);
    } else {
        for sample in 0..case.samples {
            let one = Request { samples: 1, first_sample: u64::from(sample), ..whole.clone() };
            session.submit(engine, sample as usize, one).expect("it fits");
            if sample == 0 && way == Way::Index {
                // A prompt is in the index once it was computed.
                drain(&mut session, engine);
            }
        }
        drain(&mut session, engine);
    }
    let seconds = watch.elapsed_s();
    assert_eq!(tokens, case.samples as usize * case.completion, "a model without stop ids goes on to the end");
    let stats = session.stats();
    Took { seconds, computed: stats.prefill_tokens_computed, reused: stats.prefill_tokens_reused, pages }
}

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("prefix", &cpu));
    let case = if is_full() { FULL } else { SMOKE };
    let model = common::model(&cpu, case.shape, "bf16", Precision::Bf16);
    let pages = case.samples as usize * (case.prompt + case.completion).div_ceil(PAGE_LEN);
    let mut engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, pages, case.shape.vocab);
    let (mut limits, mut took) = (Vec::new(), WAYS.map(|_| Vec::new()));
    for round in 0..rounds(5) + usize::from(is_full()) {
        for (at, &(way, _)) in WAYS.iter().enumerate() {
            let limit = gauge.measure();
            let one = run(&mut engine, &case, way, round);
            if !is_full() || round > 0 {
                limits.push(limit);
                took[at].push(one);
            }
        }
    }
    let tokens = case.samples as usize * case.completion;
    let mut table = Table::new([
        "way",
        "prompt tokens computed",
        "reused",
        "pages",
        "s",
        "low to high",
        "tokens/s",
        "of nothing reused",
    ]);
    for (at, (_, name)) in WAYS.iter().enumerate() {
        let seconds = Spread::of(took[at].iter().map(|took| took.seconds));
        let ratio = Spread::of(took[at].iter().zip(&took[2]).map(|(own, alone)| alone.seconds / own.seconds));
        let Took { computed, reused, pages, .. } = took[at][0];
        let rate = tokens as f64 / seconds.median;
        table.row([
            (*name).into(),
            computed.to_string(),
            reused.to_string(),
            pages.to_string(),
            format!("{:.3}", seconds.median),
            format!("{:.3} to {:.3}", seconds.low, seconds.high),
            format!("{rate:.1}"),
            format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high),
        ]);
        let object = json!({
            "way": name, "prefill_tokens": computed, "reused_tokens": reused, "pages": pages, "seconds": seconds.json(),
            "tokens_per_s": rate, "tokens_per_s_ratio": ratio.json(), "rounds": took[at].len(),
        });
        record.push("ways", object);
    }
    record.say(&table);
    for (key, value) in [("samples", case.samples as usize), ("prompt", case.prompt), ("completion", case.completion)] {
        record.put(key, value);
    }
    record.put("limits", LimitsSpread::of(limits.iter()).json());
    record.finish();
}
