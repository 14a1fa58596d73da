//! Rollouts: prompts in, sampled completions with their logprobs out.
//!
//! A request's life: checked -> its whole lifetime of pages reserved -> prompt prefilled once -> forked into its samples
//! -> decoded in lockstep with the rest of its wave -> finished by a stop id or by length. Requests are taken in the
//! order given; a wave is as many as the pool and the batch hold.

use kv::Sequence;
use ptx::ops::log_softmax;
use ptx::ops::sample::{self, Params};
use ptx::rng::sample_uniform;

use crate::engine::{Engine, Feed, LOGIT_ROWS};

/// What to sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt ids.
    pub prompt: Vec<u32>,
    /// Number of completions.
    pub samples: u32,
    /// Sample index of the first; draws are keyed by (seed, sample index, position), so an index is never used twice
    /// with one seed.
    pub first_sample: u64,
    /// Seed of the draws.
    pub seed: u64,
    /// Temperature and truncation.
    pub params: Params,
    /// Most tokens to sample.
    pub max_tokens: usize,
    /// Ids that end a completion; the id itself is part of it.
    pub stop_ids: Vec<u32>,
    /// Report this many most likely tokens at each step.
    pub top_logprobs: usize,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was sampled; it is the last id.
    Stop,
    /// The most tokens asked for, or the end of the context.
    Length,
}

impl Finish {
    /// Its name in rollout files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// One sampled completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Index of its request.
    pub request: usize,
    /// Sample index.
    pub sample: u64,
    /// Sampled ids.
    pub ids: Vec<u32>,
    /// ln p of each id under the distribution it was drawn from, in nats.
    pub logprobs: Vec<f32>,
    /// ln p of each id at temperature 1 without truncation.
    pub logprobs_raw: Vec<f32>,
    /// The most likely tokens at each step with their ln p at the request's temperature, if asked for.
    pub top: Vec<Vec<(u32, f32)>>,
    /// Why it ended.
    pub finish: Finish,
    /// Weights version that sampled it.
    pub version: u64,
}

/// Why a request cannot be served. It stands alone: the other requests are not touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// An id that the vocabulary does not have.
    #[error("token {index} of the prompt is id {id}; the model has ids 0..{valid}")]
    IdOutOfRange {
        /// Where.
        index: usize,
        /// What.
        id: u32,
        /// How many ids are real.
        valid: usize,
    },
    /// The context ends before anything could be sampled.
    #[error("the prompt has {len} tokens; the model's context holds {max}, and one must be left to sample")]
    PromptTooLong {
        /// Its length.
        len: usize,
        /// The context.
        max: usize,
    },
    /// It can never fit, however empty the pool.
    #[error(
        "prompt and completion of up to {tokens} tokens need {want} KV pages of {page_len}; the pool has {pages}: raise --kv-memory or lower --max-tokens"
    )]
    NeverFits {
        /// Tokens of one sample's lifetime.
        tokens: usize,
        /// Pages they need.
        want: usize,
        /// Tokens per page.
        page_len: usize,
        /// Pages there are.
        pages: usize,
    },
    /// Sampling settings out of range.
    #[error("{0}")]
    Params(String),
    /// The model's logits are not numbers.
    #[error("the model's logits at position {position} are not finite; check the weights with `leeway doctor --model`")]
    BadLogits {
        /// Position whose next token could not be drawn.
        position: usize,
    },
}

/// Limits of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences decoded at a time.
    pub batch: usize,
    /// Tokens prefilled in one step.
    pub step_tokens: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { batch: 64, step_tokens: 512 }
    }
}

/// A sample being decoded.
struct Active {
    sequence: Sequence,
    limit: usize,
    rollout: Rollout,
    failed: Option<RequestError>,
}

/// Checks that `request` can be served at all; returns the most tokens each of its samples may get.
pub fn check(engine: &Engine, request: &Request) -> Result<usize, RequestError> {
    let (len, max) = (request.prompt.len(), engine.model().config.max_positions);
    check_ids(engine, &request.prompt)?;
    request.params.check().map_err(|e| RequestError::Params(e.to_string()))?;
    if len >= max {
        return Err(RequestError::PromptTooLong { len, max });
    }
    let limit = request.max_tokens.min(max - len);
    if limit == 0 || request.samples == 0 {
        let what = if limit == 0 { "max_tokens" } else { "samples" };
        return Err(RequestError::Params(format!("{what} is 0; nothing would be sampled")));
    }
    check_fits(engine, len + limit)?;
    Ok(limit)
}

fn check_ids(engine: &Engine, ids: &[u32]) -> Result<(), RequestError> {
    let valid = engine.valid();
    if ids.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    match ids.iter().position(|&id| id as usize >= valid) {
        Some(index) => Err(RequestError::IdOutOfRange { index, id: ids[index], valid }),
        None => Ok(()),
    }
}

fn check_fits(engine: &Engine, tokens: usize) -> Result<(), RequestError> {
    let (layout, pages) = (engine.kv().layout(), engine.kv().pages());
    let want = layout.pages_for(tokens);
    if want > pages {
        return Err(RequestError::NeverFits { tokens, want, page_len: layout.page_len(), pages });
    }
    Ok(())
}

/// Samples every request, calling `done` with each rollout as it finishes, or once with the error of a request that
/// cannot be served.
pub fn generate(
    engine: &mut Engine,
    requests: &[Request],
    limits: Limits,
    done: &mut dyn FnMut(usize, Result<Rollout, RequestError>),
) {
    let mut waiting = Vec::new(); // (request, samples already taken, token limit)
    for (index, request) in requests.iter().enumerate() {
        match check(engine, request) {
            Ok(limit) => waiting.push((index, 0_u32, limit)),
            Err(error) => done(index, Err(error)),
        }
    }
    let mut first = 0;
    while first < waiting.len() {
        // As many as fit, each with its whole lifetime reserved; the first always fits with at least one sample.
        let (mut room, mut pages) = (limits.batch.max(1), engine.kv().free_pages());
        let mut wave = Vec::new();
        while let Some((index, taken, limit)) = waiting.get_mut(first) {
            let (request, layout) = (&requests[*index], engine.kv().layout());
            let shared = request.prompt.len() / layout.page_len();
            let own = layout.pages_for(request.prompt.len() + *limit) - shared;
            let fit = pages.saturating_sub(shared) / own;
            let take = ((request.samples - *taken) as usize).min(room).min(fit);
            if take == 0 {
                break;
            }
            wave.push((*index, *taken, take, *limit));
            *taken += u32::try_from(take).expect("at most the request's samples");
            room -= take;
            pages -= shared + take * own;
            if *taken < request.samples {
                break;
            }
            first += 1;
        }
        assert!(!wave.is_empty(), "a request that fits an empty pool did not fit: pages have leaked");
        let mut active = prefill(engine, requests, &wave, limits, done);
        while !active.is_empty() {
            decode(engine, requests, &mut active, done);
        }
    }
}

/// Prefills every prompt of the wave once, forks its samples and draws their first tokens.
fn prefill(
    engine: &mut Engine,
    requests: &[Request],
    wave: &[(usize, u32, usize, usize)],
    limits: Limits,
    done: &mut dyn FnMut(usize, Result<Rollout, RequestError>),
) -> Vec<Active> {
    let mut active: Vec<Active> = Vec::new();
    let mut next = 0;
    while next < wave.len() {
        // Whole prompts side by side up to the step's tokens; a longer one goes alone, in pieces.
        let mut group: Vec<(usize, Sequence)> = Vec::new();
        let mut tokens = 0;
        while next < wave.len() {
            let prompt = &requests[wave[next].0].prompt;
            if !group.is_empty() && (tokens + prompt.len() > limits.step_tokens || group.len() == LOGIT_ROWS) {
                break;
            }
            group.push((next, engine.kv().sequence(prompt.len())));
            tokens += prompt.len();
            next += 1;
        }
        let mut last_rows: Vec<usize> = Vec::new();
        if let [(at, sequence)] = &mut group[..] {
            let prompt = &requests[wave[*at].0].prompt;
            for piece in prompt.chunks(limits.step_tokens) {
                engine.kv_mut().append(sequence, piece.len()).expect("the lifetime was reserved");
                engine.step([Feed { sequence, ids: piece }]);
                last_rows = vec![piece.len() - 1];
            }
        } else {
            let mut row = 0;
            for (at, sequence) in &mut group {
                let len = requests[wave[*at].0].prompt.len();
                engine.kv_mut().append(sequence, len).expect("the lifetime was reserved");
                row += len;
                last_rows.push(row - 1);
            }
            engine.step(group.iter().map(|(at, sequence)| Feed { sequence, ids: &requests[wave[*at].0].prompt }));
        }
        engine.logits(last_rows.iter().copied());
        for (row, (at, prompt_sequence)) in group.into_iter().enumerate() {
            let (index, taken, samples, limit) = wave[at];
            let request = &requests[index];
            for sample in 0..samples {
                let tokens = request.prompt.len() + limit;
                let mut one = Active {
                    sequence: engine.kv_mut().fork(&prompt_sequence, tokens),
                    limit,
                    rollout: Rollout {
                        request: index,
                        sample: request.first_sample + u64::from(taken) + sample as u64,
                        ids: Vec::with_capacity(limit),
                        logprobs: Vec::with_capacity(limit),
                        logprobs_raw: Vec::with_capacity(limit),
                        top: Vec::new(),
                        finish: Finish::Length,
                        version: engine.model().version(),
                    },
                    failed: None,
                };
                let finished = draw(engine, request, row, &mut one);
                if finished { finish(engine, one, done) } else { active.push(one) }
            }
            engine.kv_mut().end(prompt_sequence);
        }
    }
    active
}

/// One token for every active sample; those that finish leave.
fn decode(
    engine: &mut Engine,
    requests: &[Request],
    active: &mut Vec<Active>,
    done: &mut dyn FnMut(usize, Result<Rollout, RequestError>),
) {
    for one in active.iter_mut() {
        engine.kv_mut().append(&mut one.sequence, 1).expect("the lifetime was reserved");
    }
    engine.step(
        active.iter().map(|one| Feed { sequence: &one.sequence, ids: &one.rollout.ids[one.rollout.ids.len() - 1..] }),
    );
    let rows = active.len();
    let mut kept = 0; // active[..kept] go on; a finished one is swapped to the end of what was looked at
    let mut over = 0;
    for block in (0..rows).step_by(LOGIT_ROWS) {
        let count = LOGIT_ROWS.min(rows - block);
        engine.logits(block..block + count);
        for row in 0..count {
            let one = &mut active[block + row];
            if draw(engine, &requests[one.rollout.request], row, one) {
                over += 1;
            } else {
                active.swap(kept, block + row);
                kept += 1;
            }
        }
    }
    assert_eq!(kept + over, rows);
    while active.len() > kept {
        let one = active.pop().expect("more than kept");
        finish(engine, one, done);
    }
}

/// Draws the next token of `one` from row `row` of the logits; true when it was its last.
fn draw(engine: &Engine, request: &Request, row: usize, one: &mut Active) -> bool {
    let (vocab, valid) = (engine.model().config.vocab, engine.valid());
    let logits = &engine.last_logits()[row * vocab..row * vocab + valid];
    let rollout = &mut one.rollout;
    let position = request.prompt.len() + rollout.ids.len();
    let uniform = sample_uniform(request.seed, rollout.sample, u32::try_from(position).expect("positions are u32"));
    let drawn = match sample::draw(engine.cpu().isa(), &request.params, logits, uniform) {
        Ok(drawn) => drawn,
        Err(_) => {
            one.failed = Some(RequestError::BadLogits { position });
            return true;
        }
    };
    if request.top_logprobs > 0 {
        let k = request.top_logprobs.min(valid);
        let (mut ids, mut logprobs) = (vec![0; k], vec![0.0; k]);
        let inv_temp = request.params.inv_temp();
        let top = log_softmax::top_k(engine.cpu(), 1, valid, valid, inv_temp, logits, k, &mut ids, &mut logprobs);
        top.expect("the draw above found these logits finite");
        rollout.top.push(ids.into_iter().zip(logprobs).collect());
    }
    rollout.ids.push(drawn.token);
    rollout.logprobs.push(drawn.logprob);
    rollout.logprobs_raw.push(drawn.logprob_raw);
    if request.stop_ids.contains(&drawn.token) {
        rollout.finish = Finish::Stop;
        return true;
    }
    rollout.ids.len() == one.limit
}

fn finish(engine: &mut Engine, one: Active, done: &mut dyn FnMut(usize, Result<Rollout, RequestError>)) {
    engine.kv_mut().end(one.sequence);
    let request = one.rollout.request;
    done(request, one.failed.map_or(Ok(one.rollout), Err));
}

/// Logprobs of given ids: `logprobs[i]` is ln p of id `i + 1` given the ids up to `i`, in nats.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// One less than there are ids.
    pub logprobs: Vec<f32>,
}

/// Scores rows of ids at `temperature`, calling `done` with each row's result.
///
/// # Panics
/// When the temperature is not a positive number.
pub fn score(
    engine: &mut Engine,
    rows: &[&[u32]],
    temperature: f32,
    limits: Limits,
    done: &mut dyn FnMut(usize, Result<Scores, RequestError>),
) {
    assert!(temperature.is_finite() && temperature > 0.0, "a temperature of {temperature} scores nothing");
    let mut next = 0;
    while next < rows.len() {
        let mut group: Vec<(usize, Sequence, Scores, Option<RequestError>)> = Vec::new();
        let mut tokens = 0;
        while next < rows.len() {
            let ids = rows[next];
            let max = engine.model().config.max_positions;
            let len = ids.len();
            let in_context = if len > max { Err(RequestError::PromptTooLong { len, max }) } else { Ok(()) };
            let fits = check_ids(engine, ids).and(in_context).and_then(|()| check_fits(engine, len));
            if let Err(error) = fits {
                done(next, Err(error));
                next += 1;
                continue;
            }
            let room = engine.kv().layout().pages_for(ids.len()) <= engine.kv().free_pages();
            if !group.is_empty() && (tokens + ids.len() > limits.step_tokens || !room) {
                break;
            }
            let mut sequence = engine.kv().sequence(ids.len());
            let first = ids.len().min(limits.step_tokens);
            engine.kv_mut().append(&mut sequence, first).expect("room was checked");
            group.push((next, sequence, Scores { logprobs: Vec::with_capacity(ids.len() - 1) }, None));
            tokens += ids.len();
            next += 1;
        }
        if let [(at, sequence, scores, failed)] = &mut group[..] {
            let ids = rows[*at];
            for (piece, fed) in ids.chunks(limits.step_tokens).enumerate() {
                if piece > 0 {
                    engine.kv_mut().append(sequence, fed.len()).expect("it fits the pool alone");
                }
                engine.step([Feed { sequence, ids: fed }]);
                let first = piece * limits.step_tokens;
                let rows = fed.len().min(ids.len() - 1 - first);
                let targets = &ids[first + 1..first + 1 + rows];
                if let Err(row) = gather(engine, 0, targets, temperature, &mut scores.logprobs) {
                    *failed = Some(RequestError::BadLogits { position: first + row + 1 });
                    break;
                }
            }
        } else if !group.is_empty() {
            engine.step(group.iter().map(|(at, sequence, ..)| Feed { sequence, ids: rows[*at] }));
            let mut row = 0;
            for (at, _, scores, failed) in &mut group {
                if let Err(bad) = gather(engine, row, &rows[*at][1..], temperature, &mut scores.logprobs) {
                    *failed = Some(RequestError::BadLogits { position: bad - row + 1 });
                }
                row += rows[*at].len();
            }
        }
        for (at, sequence, scores, failed) in group {
            engine.kv_mut().end(sequence);
            done(at, failed.map_or(Ok(scores), Err));
        }
    }
}

/// ln p of `targets` at the last step's rows `first_row ..`; the first row whose logits are not numbers fails it.
fn gather(
    engine: &mut Engine,
    first_row: usize,
    targets: &[u32],
    temperature: f32,
    into: &mut Vec<f32>,
) -> Result<(), usize> {
    for (block, targets) in targets.chunks(LOGIT_ROWS).enumerate() {
        let first = first_row + block * LOGIT_ROWS;
        engine.logits(first..first + targets.len());
        let at = into.len();
        into.resize(at + targets.len(), 0.0);
        let (cpu, vocab, valid) = (engine.cpu(), engine.model().config.vocab, engine.valid());
        let (logits, out) = (engine.last_logits(), &mut into[at..]);
        log_softmax::gather(cpu, targets.len(), vocab, valid, 1.0 / temperature, logits, targets, out)
            .map_err(|error| first + error.row())?;
    }
    Ok(())
}
