//! Samples of one prompt share its pages and its prefill; what is cached is used, and never across weights versions.

mod common;

use std::sync::Arc;

use engine::engine::Engine;
use engine::rollout::{Answer, Limits, Request, Reservation, Session, generate};
use ptx::Cpu;
use ptx::rng::{Purpose, Stream};

const PAGE_LEN: usize = 16;
const SAMPLES: u32 = 8;
const TAIL: usize = 40;

fn engine(pages: usize) -> (tempfile::TempDir, Engine) {
    let dir = common::golden_copy("qwen3", |config| config["max_position_embeddings"] = 1024.into());
    let cpu = Arc::new(Cpu::new(2));
    let model = common::load(&cpu, dir.path(), "kv8");
    (dir, Engine::new(cpu, model, PAGE_LEN, pages, 127))
}

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    let mut draw = Stream::new(seed, Purpose::Data, 0);
    (0..len).map(|_| draw.below(127)).collect()
}

fn request(prompt: Vec<u32>, samples: u32, max_tokens: usize) -> Request {
    Request { prompt, samples, max_tokens, ..Request::default() }
}

/// Eight samples of 512 tokens, and of a prompt that ends within a page: at most the prompt's pages and eight tails at
/// any time, and the prompt computed once, whatever the pool and its policy.
#[test]
fn eight_samples_of_a_prompt_hold_it_once() {
    for (len, pages, reservation) in
        [(512, 400, Reservation::Lifetime), (509, 400, Reservation::Lifetime), (512, 57, Reservation::Optimistic)]
    {
        let (_dir, mut engine) = engine(pages);
        engine.kv_mut().set_prefix_reuse(false);
        let mut session = Session::new(&mut engine, Limits { reservation, ..Limits::default() });
        session.submit(&engine, 0, request(prompt(1, len), SAMPLES, TAIL)).expect("it fits");
        let mut finished = 0;
        let mut answer = |answer| match answer {
            Answer::Rollout(rollout) => {
                assert_eq!(rollout.ids.len(), TAIL);
                finished += 1;
            }
            other => panic!("{other:?}"),
        };
        let whole = len / PAGE_LEN;
        let tail = (len + TAIL).div_ceil(PAGE_LEN) - whole;
        let mut most = 0;
        while session.step(&mut engine, &mut answer) {
            most = most.max(engine.kv().pages() - engine.kv().free_pages());
        }
        assert_eq!(finished, SAMPLES);
        let bound = len.div_ceil(PAGE_LEN) + SAMPLES as usize * tail;
        assert!(most <= bound, "{most} pages for a prompt of {len}; {bound} are its pages and {SAMPLES} tails");
        let stats = session.stats();
        assert_eq!(stats.preempted, 0);
        assert_eq!(stats.prefill_tokens_computed, len as u64, "{len}: the prompt is computed once");
    }
}

/// Two hundred equal requests with an 8-bit cache: whatever page they land on, the answers are equal.
#[test]
fn equal_requests_have_equal_answers() {
    let (_dir, mut engine) = engine(90);
    engine.kv_mut().arena_mut().poison();
    let one = Request { seed: 5, ..request(prompt(2, 61), 1, 12) };
    let requests = vec![one; 200];
    let mut answers = Vec::new();
    generate(&mut engine, &requests, Limits::default(), &mut |_, rollout| {
        let rollout = rollout.expect("served");
        let bits: Vec<u32> = rollout.logprobs.iter().map(|x| x.to_bits()).collect();
        answers.push((rollout.ids, bits));
    });
    assert_eq!(answers.len(), 200);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert!(engine.kv().prefix_stats().hit_tokens > 0, "most of them found the prompt in the cache");
}

/// A cached prompt whose length is a multiple of the page still computes a token, and an empty one is refused alone.
#[test]
fn a_wholly_cached_prompt_computes_its_last_token() {
    let (_dir, mut engine) = engine(90);
    for round in 0..3 {
        for len in [1, PAGE_LEN, 4 * PAGE_LEN] {
            let mut session = Session::new(&mut engine, Limits::default());
            session.submit(&engine, 0, request(prompt(3, len), 2, 3)).expect("it fits");
            assert!(session.submit(&engine, 1, request(Vec::new(), 1, 3)).is_err());
            while session.step(&mut engine, &mut |answer| assert!(matches!(answer, Answer::Rollout(_)))) {}
            let computed = session.stats().prefill_tokens_computed;
            if round > 0 {
                assert_eq!(computed, 1, "prompt of {len}, found in the cache");
            }
        }
    }
}
