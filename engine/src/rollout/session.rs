//! The executor: asks the scheduler for a step, runs it on the engine, and turns logits into tokens and logprobs.
//!
//! ```text
//! submit -> [plan -> engine step -> advance -> logits, 64 rows at a time -> draw or score -> push] -> answers
//!                      ^ update: between steps, the weights and everything that depends on their version
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ptx::cuda::CudaError;
use ptx::ops::sample::{RowDraw, SampleError, Sampled};
use ptx::rng::sample_uniform;

use super::request::{
    Finish, Partial, PromptLogprobs, Rebuilt, Request, RequestError, Rollout, ScoreRow, Scores, check, check_row,
};
use crate::engine::{Draw, Drew, Engine, EngineError, Feed, LOGIT_ROWS, Switch, Top};
use crate::model::WeightSource;
use crate::scheduler::{Finished, InFlight, Job, JobId, Limits, Plan, SampleId, Scheduler, Stats};
use crate::stop::{StopMatcher, StopWatcher};
use crate::tokenizer::Tokenizer;

/// What became of a request or a row; its number is the one it was submitted with.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A completion.
    Rollout(Rollout),
    /// A scored row.
    Scores {
        /// The row's number.
        request: usize,
        /// Its logprobs.
        scores: Scores,
    },
    /// A sample that could not be finished, or a whole request or row.
    Failed {
        /// The number.
        request: usize,
        /// Sample index, if it is one sample that failed.
        sample: Option<u64>,
        /// Why.
        error: RequestError,
    },
}

/// Requests under way on one engine. Every call takes the engine that the session was made for.
#[derive(Debug)]
pub struct Session {
    scheduler: Scheduler,
    limits: Limits,
    tokenizer: Option<Tokenizer>,
    jobs: HashMap<JobId, Ask>,
    plan: Plan,
    buffers: Buffers,
}

/// Room for a step, kept from one to the next.
#[derive(Debug, Default)]
struct Buffers {
    /// First row of each piece.
    firsts: Vec<usize>,
    draws: Vec<Draw>,
    drawing: Vec<SampleId>,
    drew: Vec<Drew>,
    tops: Vec<Top>,
    /// Scored rows: (row of the step, job, position).
    scored: Vec<(usize, JobId, usize)>,
    rows: Vec<usize>,
    inv_temps: Vec<f32>,
    targets: Vec<u32>,
    logprobs: Vec<f32>,
}

/// A submitted request or row.
#[derive(Debug)]
struct Ask {
    number: usize,
    kind: Kind,
    /// ln p of the prompt's ids from its second on, where they are wanted, and the weights version of each.
    scores: Vec<f32>,
    scored_by: Vec<u64>,
    candidates: Option<Vec<Vec<f32>>>,
    /// The same once it is whole, for all samples.
    prompt_logprobs: Option<Arc<PromptLogprobs>>,
}

#[derive(Debug)]
enum Kind {
    Sample { request: Request, limit: usize, stop: StopMatcher, samples: Vec<Sample>, open: u32 },
    Score(ScoreRow),
}

/// What a completion has gathered so far.
#[derive(Debug, Default)]
struct Sample {
    logprobs: Vec<f32>,
    logprobs_raw: Vec<f32>,
    support: Vec<u32>,
    top: Vec<Vec<Top>>,
    rebuilt: Vec<Rebuilt>,
    /// An update has taken its keys and values since the last token.
    rebuilds: bool,
    prompt_versions: Vec<(usize, u64)>,
    /// Where stop texts are looked for.
    watcher: Option<StopWatcher>,
}

impl Sample {
    /// Forgets all but the first `len` tokens; those that a restart has not taken away stay as they are.
    fn truncate(&mut self, len: usize) {
        self.logprobs.truncate(len);
        self.logprobs_raw.truncate(len);
        self.support.truncate(len);
        self.top.truncate(len);
        self.rebuilt.retain(|rebuilt| rebuilt.first < len);
        self.rebuilds &= len > 0;
    }
}

impl Ask {
    fn prompt(&self) -> &[u32] {
        match &self.kind {
            Kind::Sample { request, .. } => &request.prompt,
            Kind::Score(row) => &row.ids,
        }
    }

    /// The temperature that the prompt is scored at.
    fn inv_temp(&self) -> f32 {
        match &self.kind {
            Kind::Sample { .. } => 1.0,
            Kind::Score(row) => 1.0 / row.temperature,
        }
    }
}

impl Session {
    /// A session without requests.
    ///
    /// # Panics
    /// When `batch` or `step_tokens` is 0, prefixes are to be reused across versions without [`InFlight::Keep`], or pages
    /// of the engine's pool are held by somebody, such as a session that was not closed.
    #[must_use]
    pub fn new(engine: &mut Engine, limits: Limits) -> Session {
        let version = engine.version();
        let (held, pages) = (engine.kv().pages() - engine.kv().available_pages(), engine.kv().pages());
        assert_eq!(held, 0, "{held} of the pool's {pages} pages are held; close the session before");
        if !limits.prefix_across_versions {
            engine.kv_mut().forget_all_but(version);
        }
        let scheduler = Scheduler::new(limits, version);
        Session {
            scheduler,
            limits,
            tokenizer: None,
            jobs: HashMap::new(),
            plan: Plan::default(),
            buffers: Buffers::default(),
        }
    }

    /// The same session with what stop texts are looked for in.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: Option<Tokenizer>) -> Session {
        Session { tokenizer, ..self }
    }

    /// Takes a request, or refuses it.
    pub fn submit(&mut self, engine: &Engine, number: usize, request: Request) -> Result<JobId, RequestError> {
        let limit = check(engine, &request)?;
        let stop = StopMatcher::new(&request.stop).map_err(|e| RequestError::Params(e.to_string()))?;
        if !stop.is_empty() && self.tokenizer.is_none() {
            return Err(RequestError::StopWithoutTokenizer);
        }
        let scored = request.prompt_logprobs;
        let job = Job {
            prompt: request.prompt.clone(),
            samples: request.samples,
            max_tokens: limit,
            first_wanted: if scored { 0 } else { request.prompt.len() - 1 },
        };
        let (open, places) = (request.samples, if scored { request.prompt.len() - 1 } else { 0 });
        let kind = Kind::Sample { request, limit, stop, samples: Vec::new(), open };
        self.take(engine, number, job, kind, places, None)
    }

    /// Takes a row to be scored, or refuses it.
    pub fn submit_row(&mut self, engine: &Engine, number: usize, row: ScoreRow) -> Result<JobId, RequestError> {
        check_row(engine, &row)?;
        let job = Job { prompt: row.ids.clone(), samples: 0, max_tokens: 0, first_wanted: 0 };
        let places = row.ids.len() - 1;
        let candidates =
            row.candidates.as_ref().map(|lists| lists.iter().map(|ids| vec![f32::NAN; ids.len()]).collect());
        self.take(engine, number, job, Kind::Score(row), places, candidates)
    }

    fn take(
        &mut self,
        engine: &Engine,
        number: usize,
        job: Job,
        kind: Kind,
        places: usize,
        candidates: Option<Vec<Vec<f32>>>,
    ) -> Result<JobId, RequestError> {
        let id = self.scheduler.submit(engine.kv(), job)?;
        let scores = vec![f32::NAN; places];
        let scored_by = vec![0; places];
        self.jobs.insert(id, Ask { number, kind, scores, scored_by, candidates, prompt_logprobs: None });
        Ok(id)
    }

    /// Drops all requests and gives their pages back. A session without requests under way holds nothing.
    pub fn close(mut self, engine: &mut Engine) {
        for job in self.jobs.keys() {
            self.scheduler.abort(engine.kv_mut(), *job);
        }
        self.jobs.clear();
    }

    /// Tokens sampled so far of every sample under way, in the order of their requests and samples. Those that have none
    /// yet, and requests whose samples were not made yet, are left out.
    #[must_use]
    pub fn partials(&self) -> Vec<Partial> {
        let mut partials: Vec<Partial> = self.scheduler.under_way().filter_map(|id| self.partial(id)).collect();
        partials.sort_unstable_by_key(|partial| (partial.request, partial.sample));
        partials
    }

    fn partial(&self, id: SampleId) -> Option<Partial> {
        let ask = self.jobs.get(&id.job())?;
        let Kind::Sample { request, samples, .. } = &ask.kind else { return None };
        let ids = self.scheduler.tokens(id)[request.prompt.len()..].to_vec();
        let sample = samples.get(id.index() as usize).filter(|_| !ids.is_empty())?;
        let (versions, _) = self.scheduler.history(id);
        let count = ids.len();
        Some(Partial {
            request: ask.number,
            sample: request.first_sample + u64::from(id.index()),
            logprobs: sample.logprobs[..count].to_vec(),
            logprobs_raw: sample.logprobs_raw[..count].to_vec(),
            support: sample.support[..count].to_vec(),
            versions: versions.iter().copied().filter(|&(first, _)| first < count).collect(),
            rebuilt: sample.rebuilt.iter().filter(|rebuilt| rebuilt.first < count).cloned().collect(),
            prompt_versions: sample.prompt_versions.clone(),
            ids,
        })
    }

    /// Drops a request and whatever it has so far; false if it is over already.
    pub fn abort(&mut self, engine: &mut Engine, job: JobId) -> bool {
        self.jobs.remove(&job);
        self.scheduler.abort(engine.kv_mut(), job)
    }

    /// Runs one step and hands over what it finished; false when there is nothing left to do, or only an update that was
    /// asked for is waited for. When the device fails, every request is over with that error.
    ///
    /// # Panics
    /// When the engine's weights were updated by another way than [`Session::update`].
    pub fn step(&mut self, engine: &mut Engine, done: &mut dyn FnMut(Answer)) -> bool {
        let (engines, own) = (engine.version(), self.scheduler.version());
        assert_eq!(engines, own, "weights change under a session through Session::update");
        if !self.scheduler.plan(engine.kv_mut(), &mut self.plan) {
            return false;
        }
        let scheduler = &self.scheduler;
        let ran = engine.step_at(
            self.plan.version,
            self.plan.pieces.iter().map(|piece| Feed {
                sequence: scheduler.sequence(piece.sample),
                ids: &scheduler.tokens(piece.sample)[piece.first..piece.first + piece.len],
            }),
        );
        self.scheduler.advance(engine.kv_mut(), &self.plan);
        let ran = ran.and_then(|()| self.score(engine, done)).and_then(|()| self.draw(engine, done));
        if let Err(error) = ran {
            self.device_failed(engine, &error, done);
        }
        true
    }

    /// What the device was to compute is not there, so every request is over and nothing of it is reused.
    fn device_failed(&mut self, engine: &mut Engine, error: &CudaError, done: &mut dyn FnMut(Answer)) {
        let mut jobs: Vec<(JobId, Ask)> = self.jobs.drain().collect();
        jobs.sort_unstable_by_key(|(_, ask)| ask.number);
        for (job, ask) in jobs {
            self.scheduler.abort(engine.kv_mut(), job);
            done(Answer::Failed { request: ask.number, sample: None, error: error.clone().into() });
        }
        engine.kv_mut().forget_all_but(u64::MAX);
    }

    /// Logprobs of the wanted prompt positions; rows that only score are over with their last.
    fn score(&mut self, engine: &mut Engine, done: &mut dyn FnMut(Answer)) -> Result<(), CudaError> {
        let Session { jobs, plan, buffers, .. } = self;
        let Buffers { firsts, scored, rows, inv_temps, targets, logprobs, .. } = buffers;
        firsts.clear();
        scored.clear();
        let mut row = 0;
        for piece in &plan.pieces {
            firsts.push(row);
            let job = piece.sample.job();
            if let Some(ask) = jobs.get(&job) {
                let last = ask.scores.len();
                let wanted = piece.wanted.clone().filter(|&position| position < last);
                scored.extend(wanted.map(|position| (row + position - piece.first, job, position)));
            }
            row += piece.len;
        }
        for block in scored.chunks(LOGIT_ROWS) {
            rows.clear();
            inv_temps.clear();
            targets.clear();
            for &(row, job, position) in block {
                rows.push(row);
                // Of a row that failed in this very step nothing is wanted any more.
                let wanted = jobs.get(&job).map(|ask| (ask.inv_temp(), ask.prompt()[position + 1]));
                let (inv_temp, target) = wanted.unwrap_or((1.0, 0));
                inv_temps.push(inv_temp);
                targets.push(target);
            }
            engine.gather(rows, inv_temps, targets, logprobs)?;
            let mut at = 0;
            for run in block.chunk_by(|a, b| a.1 == b.1) {
                let own = at..at + run.len();
                at = own.end;
                let Some(ask) = jobs.get_mut(&run[0].1) else { continue };
                let logprobs = &logprobs[own.clone()];
                if let Some(bad) = logprobs.iter().position(|x| x.is_nan()) {
                    let error = RequestError::BadLogits { position: run[bad].2 + 1 };
                    let request = ask.number;
                    jobs.remove(&run[0].1);
                    self.scheduler.abort(engine.kv_mut(), run[0].1);
                    done(Answer::Failed { request, sample: None, error });
                    continue;
                }
                for (&(.., position), &logprob) in run.iter().zip(logprobs) {
                    ask.scores[position] = logprob;
                    ask.scored_by[position] = plan.version;
                }
                if let (Some(into), Kind::Score(row)) = (&mut ask.candidates, &ask.kind) {
                    let lists = row.candidates.as_ref().expect("they were given");
                    candidates(engine, own.start, run, lists, &inv_temps[own], into)?;
                }
            }
        }
        for piece in &plan.pieces {
            let job = piece.sample.job();
            let whole = matches!(jobs.get(&job), Some(Ask { kind: Kind::Score(row), .. })
                if piece.first + piece.len == row.ids.len());
            if whole {
                let ask = jobs.remove(&job).expect("it was just there");
                let versions = changes(&ask.scored_by);
                let scores = Scores { logprobs: ask.scores, candidates: ask.candidates, versions };
                done(Answer::Scores { request: ask.number, scores });
            }
        }
        Ok(())
    }

    /// The next token of every sample whose last row was computed.
    fn draw(&mut self, engine: &mut Engine, done: &mut dyn FnMut(Answer)) -> Result<(), CudaError> {
        let Buffers { firsts, draws, drawing, .. } = &mut self.buffers;
        draws.clear();
        drawing.clear();
        for &(piece, id) in self.scheduler.draws() {
            // The samples that were just forked from one prompt share its row.
            let row = firsts[piece] + self.plan.pieces[piece].len - 1;
            let (how, top) = row_draw(&self.jobs, &self.scheduler, id);
            let prefix = engine.logit_noise().map_or(0, |noise| noise.key(self.scheduler.tokens(id)));
            draws.push(Draw { row, how, top: top.min(engine.valid()), prefix });
            drawing.push(id);
        }
        let mut next = 0;
        while next < self.buffers.draws.len() {
            let Buffers { draws, drew, tops, .. } = &mut self.buffers;
            let count = engine.draw(&draws[next..], drew, tops)?;
            let mut end = 0;
            for at in 0..count {
                let id = self.buffers.drawing[next + at];
                let first = end;
                end += self.buffers.draws[next + at].top;
                match std::mem::replace(&mut self.buffers.drew[at], Err(SampleError::NoMass { valid: 0 })) {
                    Ok(token) => self.take_token(engine, id, token, first..end, done),
                    Err(_) => self.fail(engine, id, done),
                }
            }
            next += count;
        }
        Ok(())
    }

    fn take_token(
        &mut self,
        engine: &mut Engine,
        id: SampleId,
        drawn: Sampled,
        tops: Range<usize>,
        done: &mut dyn FnMut(Answer),
    ) {
        let ask = self.jobs.get_mut(&id.job()).expect("a sample under way has its request");
        let Kind::Sample { request, limit, stop, samples, open } = &mut ask.kind else {
            unreachable!("a row that is scored draws nothing")
        };
        if request.prompt_logprobs && ask.prompt_logprobs.is_none() {
            let (logprobs, versions) = (ask.scores.clone(), changes(&ask.scored_by));
            ask.prompt_logprobs = Some(Arc::new(PromptLogprobs { logprobs, versions }));
        }
        let index = id.index() as usize;
        if samples.len() <= index {
            samples.resize_with(index + 1, Sample::default);
        }
        let sample = &mut samples[index];
        // A restarted sample has lost its tokens.
        let count = self.scheduler.tokens(id).len() - request.prompt.len();
        sample.truncate(count);
        if count == 0 {
            let (_, by_position) = self.scheduler.history(id);
            let of_prompt = by_position.iter().take_while(|&&(position, _)| position < request.prompt.len());
            sample.prompt_versions = of_prompt.copied().collect();
            let watches = self.tokenizer.as_ref().filter(|_| !stop.is_empty());
            sample.watcher = watches.map(StopWatcher::new);
            sample.logprobs.reserve(*limit);
            sample.logprobs_raw.reserve(*limit);
            sample.support.reserve(*limit);
        }
        if request.top_logprobs > 0 {
            sample.top.push(self.buffers.tops[tops].to_vec());
        }
        sample.logprobs.push(drawn.logprob);
        sample.logprobs_raw.push(drawn.logprob_raw);
        sample.support.push(drawn.support);
        if std::mem::take(&mut sample.rebuilds) {
            let row = request.prompt.len() + count;
            let (_, by_position) = self.scheduler.history(id);
            let kv = by_position.iter().take_while(|&&(position, _)| position < row).copied().collect();
            sample.rebuilt.push(Rebuilt { first: count, kv });
        }
        let found = sample.watcher.as_mut().and_then(|watcher| watcher.push(stop, drawn.token));
        let stopped = found.is_some() || request.stop_ids.contains(&drawn.token);
        let last = stopped || count + 1 == *limit;
        let finished = self.scheduler.push(engine.kv_mut(), id, drawn.token, last);
        let Some(finished) = finished else { return };
        let finish = if stopped { Finish::Stop } else { Finish::Length };
        let sample = std::mem::take(sample);
        let mut rollout = rollout(ask.number, request, id, finished, sample, finish, ask.prompt_logprobs.clone());
        if let (Some(len), Some(tokenizer)) = (found.map(|stop| stop.start), &self.tokenizer) {
            let mut text = tokenizer.decode(&rollout.ids);
            text.truncate(len);
            rollout.text = Some(text);
        }
        *open -= 1;
        if *open == 0 {
            self.jobs.remove(&id.job());
        }
        done(Answer::Rollout(rollout));
    }

    fn fail(&mut self, engine: &mut Engine, id: SampleId, done: &mut dyn FnMut(Answer)) {
        let position = self.scheduler.tokens(id).len();
        let ask = self.jobs.get_mut(&id.job()).expect("a sample under way has its request");
        let (request_number, mut sample) = (ask.number, None);
        if let Kind::Sample { request, open, .. } = &mut ask.kind {
            sample = Some(request.first_sample + u64::from(id.index()));
            *open -= 1;
            if *open == 0 {
                self.jobs.remove(&id.job());
            }
        }
        self.scheduler.end(engine.kv_mut(), id);
        done(Answer::Failed { request: request_number, sample, error: RequestError::BadLogits { position } });
    }

    /// Asks for a weights update: under [`InFlight::Drain`] nothing new is admitted until it happened.
    pub fn request_update(&mut self) {
        self.scheduler.request_update();
    }

    /// Whether the weights may be changed now.
    #[must_use]
    pub fn may_update(&self) -> bool {
        self.scheduler.may_update()
    }

    /// The update transaction with samples under way: weights and scales become those of `version`, and what the samples
    /// hold is kept or recomputed as the limits say. Where a static KV scale changed, codes in pages would mean other
    /// values, so they are recomputed under every policy.
    ///
    /// # Panics
    /// When [`Session::may_update`] is false.
    pub fn update(
        &mut self,
        engine: &mut Engine,
        version: u64,
        source: &mut dyn WeightSource,
    ) -> Result<Switch, EngineError> {
        assert!(self.may_update(), "the session drains first: see Session::may_update");
        let switch = engine.update(version, source)?;
        let recompute = self.limits.in_flight == InFlight::Recompute || !switch.same_scales;
        if recompute {
            for id in self.scheduler.under_way() {
                if let Some(Ask { kind: Kind::Sample { request, samples, .. }, .. }) = self.jobs.get_mut(&id.job()) {
                    let count = self.scheduler.tokens(id).len() - request.prompt.len();
                    if let Some(sample) = samples.get_mut(id.index() as usize).filter(|_| count > 0) {
                        sample.rebuilds = true;
                    }
                }
            }
        }
        self.scheduler.updated(engine.kv_mut(), version, switch.oldest, recompute);
        Ok(switch)
    }

    /// Takes a sample's pages from it; it is computed again later, to the same bits.
    pub fn preempt(&mut self, engine: &mut Engine, sample: SampleId) {
        self.scheduler.preempt(engine.kv_mut(), sample);
    }

    /// What the scheduler knows.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }
}

/// Where a list takes another value: (index, value), the first included.
fn changes(list: &[u64]) -> Vec<(usize, u64)> {
    let first = |&at: &usize| at == 0 || list[at] != list[at - 1];
    (0..list.len()).filter(first).map(|at| (at, list[at])).collect()
}

/// How a sample's next token is drawn, and how many of the likeliest are wanted beside it.
fn row_draw(jobs: &HashMap<JobId, Ask>, scheduler: &Scheduler, id: SampleId) -> (RowDraw, usize) {
    let Kind::Sample { request, .. } = &jobs[&id.job()].kind else {
        unreachable!("a row that is scored draws nothing")
    };
    let position = u32::try_from(scheduler.tokens(id).len()).expect("positions are u32");
    let sample = request.first_sample + u64::from(id.index());
    let uniform = sample_uniform(request.seed, sample, position);
    (RowDraw { params: request.params, uniform }, request.top_logprobs)
}

/// ln p of the candidates of a run of rows that are one row's positions one after the other; `first` is the run's place in
/// the block.
fn candidates(
    engine: &mut Engine,
    first: usize,
    run: &[(usize, JobId, usize)],
    lists: &[Vec<u32>],
    inv_temps: &[f32],
    into: &mut [Vec<f32>],
) -> Result<(), CudaError> {
    let position = run[0].2;
    let lists = &lists[position..position + run.len()];
    let mut offsets = vec![0];
    for list in lists {
        offsets.push(offsets[offsets.len() - 1] + list.len());
    }
    let mut out = Vec::new();
    engine.gather_lists(first, inv_temps, &offsets, &lists.concat(), &mut out)?;
    for (into, at) in into[position..].iter_mut().zip(offsets.windows(2)) {
        into.copy_from_slice(&out[at[0]..at[1]]);
    }
    Ok(())
}

fn rollout(
    number: usize,
    request: &Request,
    id: SampleId,
    finished: Finished,
    sample: Sample,
    finish: Finish,
    prompt_logprobs: Option<Arc<PromptLogprobs>>,
) -> Rollout {
    let Finished { tokens, prompt_len, versions, .. } = finished;
    Rollout {
        request: number,
        sample: request.first_sample + u64::from(id.index()),
        ids: tokens[prompt_len..].to_vec(),
        logprobs: sample.logprobs,
        logprobs_raw: sample.logprobs_raw,
        support: sample.support,
        top: sample.top,
        prompt_logprobs,
        finish,
        text: None,
        versions,
        rebuilt: sample.rebuilt,
        prompt_versions: sample.prompt_versions,
    }
}
