//! What can be asked for, what comes back, and what is refused.

use std::sync::Arc;

use ptx::cuda::CudaError;
use ptx::ops::sample::Params;

use crate::engine::{Engine, Top};
use crate::scheduler::NeverFits;

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
    /// Texts that end a completion; the token that completes one is part of it. They need the session's tokenizer.
    pub stop: Vec<String>,
    /// Report this many most likely tokens at each step.
    pub top_logprobs: usize,
    /// Report ln p of the prompt's own tokens, at temperature 1.
    pub prompt_logprobs: bool,
}

impl Default for Request {
    /// One untruncated sample of up to 128 tokens at temperature 1, of a prompt still to be given.
    fn default() -> Request {
        Request {
            prompt: Vec::new(),
            samples: 1,
            first_sample: 0,
            seed: 0,
            params: Params::default(),
            max_tokens: 128,
            stop_ids: Vec::new(),
            stop: Vec::new(),
            top_logprobs: 0,
            prompt_logprobs: false,
        }
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was sampled, or a stop text completed; that token is the last id.
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

/// Logprobs of a prompt's own ids.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprobs {
    /// ln p of the ids from the second on, in nats.
    pub logprobs: Vec<f32>,
    /// Which weights version scored what: (first entry, version), ascending.
    pub versions: Vec<(usize, u64)>,
}

/// A token before which keys and values were computed anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// The first token that was drawn from them.
    pub first: usize,
    /// Which version computed what of them: (first position, version), ascending.
    pub kv: Vec<(usize, u64)>,
}

/// One sampled completion. Everything that is by token has as many entries as `ids`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Number of its request.
    pub request: usize,
    /// Sample index.
    pub sample: u64,
    /// Sampled ids.
    pub ids: Vec<u32>,
    /// ln p of each id under the distribution it was drawn from, in nats.
    pub logprobs: Vec<f32>,
    /// ln p of each id at temperature 1 without truncation.
    pub logprobs_raw: Vec<f32>,
    /// How many tokens could have been drawn at each step.
    pub support: Vec<u32>,
    /// The most likely tokens of each step, the likeliest first, equal ones by id; empty unless asked for.
    pub top: Vec<Vec<Top>>,
    /// Logprobs of the prompt's ids at temperature 1, the same for all samples of a request; if asked for.
    pub prompt_logprobs: Option<Arc<PromptLogprobs>>,
    /// Why it ended.
    pub finish: Finish,
    /// The completion's text before the stop text that ended it, if one did.
    pub text: Option<String>,
    /// Which weights version sampled what: (first token, version), ascending.
    pub versions: Vec<(usize, u64)>,
    /// Where the keys and values of everything before had been computed anew, ascending.
    pub rebuilt: Vec<Rebuilt>,
    /// Which version computed the keys and values of the prompt: (first position, version).
    pub prompt_versions: Vec<(usize, u64)>,
}

impl Rollout {
    /// Whether one weights version sampled all of it, from keys and values of its own.
    #[must_use]
    pub fn is_only_of(&self, version: u64) -> bool {
        let rebuilt = self.rebuilt.iter().flat_map(|rebuilt| &rebuilt.kv);
        self.versions.iter().chain(&self.prompt_versions).chain(rebuilt).all(|&(_, own)| own == version)
    }
}

/// The beginning of a completion that is not finished: enough to go on with it elsewhere or later.
///
/// To go on, ask for one sample of the prompt with these ids behind it, under the same seed and sample index: draws are
/// keyed by position, so they are those that would have come. [`Partial::join`] makes one rollout of both.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Number of its request.
    pub request: usize,
    /// Sample index.
    pub sample: u64,
    /// Sampled ids, at least one.
    pub ids: Vec<u32>,
    /// As in [`Rollout`], and so those below.
    pub logprobs: Vec<f32>,
    /// See there.
    pub logprobs_raw: Vec<f32>,
    /// See there.
    pub support: Vec<u32>,
    /// See there.
    pub versions: Vec<(usize, u64)>,
    /// See there.
    pub rebuilt: Vec<Rebuilt>,
    /// See there.
    pub prompt_versions: Vec<(usize, u64)>,
}

impl Partial {
    /// The whole completion, of which `rest` is an answer to the prompt with these ids behind it. The keys and values
    /// that the rest was drawn from are computed anew where it begins, and the rollout says so.
    #[must_use]
    pub fn join(self, rest: Rollout) -> Rollout {
        let finish = rest.finish;
        self.extended(rest.into()).finished(finish)
    }

    /// The completion, if this was the whole of it.
    #[must_use]
    pub fn finished(self, finish: Finish) -> Rollout {
        let Partial { request, sample, ids, logprobs, logprobs_raw, support, versions, rebuilt, prompt_versions } =
            self;
        let (top, prompt_logprobs, text) = (Vec::new(), None, None);
        Rollout {
            request,
            sample,
            ids,
            logprobs,
            logprobs_raw,
            support,
            top,
            prompt_logprobs,
            finish,
            text,
            versions,
            rebuilt,
            prompt_versions,
        }
    }

    /// The same of a rest that is not finished either.
    #[must_use]
    pub fn extended(mut self, rest: Partial) -> Partial {
        let at = self.ids.len();
        self.request = rest.request;
        for (first, version) in rest.versions {
            if self.versions.last().is_none_or(|&(_, last)| last != version) {
                self.versions.push((at + first, version));
            }
        }
        self.rebuilt.push(Rebuilt { first: at, kv: rest.prompt_versions });
        self.rebuilt.extend(rest.rebuilt.into_iter().map(|later| Rebuilt { first: at + later.first, kv: later.kv }));
        self.ids.extend(rest.ids);
        self.logprobs.extend(rest.logprobs);
        self.logprobs_raw.extend(rest.logprobs_raw);
        self.support.extend(rest.support);
        self
    }
}

impl From<Rollout> for Partial {
    fn from(rollout: Rollout) -> Partial {
        let Rollout {
            request, sample, ids, logprobs, logprobs_raw, support, versions, rebuilt, prompt_versions, ..
        } = rollout;
        Partial { request, sample, ids, logprobs, logprobs_raw, support, versions, rebuilt, prompt_versions }
    }
}

/// What to score.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreRow {
    /// Ids; each from the second on is scored given those before it.
    pub ids: Vec<u32>,
    /// Temperature of the logprobs.
    pub temperature: f32,
    /// For each scored place, any number of ids whose ln p is wanted there.
    pub candidates: Option<Vec<Vec<u32>>>,
}

impl ScoreRow {
    /// The ids at temperature 1.
    #[must_use]
    pub fn new(ids: Vec<u32>) -> ScoreRow {
        ScoreRow { ids, temperature: 1.0, candidates: None }
    }
}

/// Logprobs of given ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// `logprobs[i]` is ln p of id `i + 1` given the ids up to `i`, in nats: one less than there are ids.
    pub logprobs: Vec<f32>,
    /// ln p of the candidates, in the shape they were given in.
    pub candidates: Option<Vec<Vec<f32>>>,
    /// Which weights version scored what: (first entry of `logprobs`, version), ascending.
    pub versions: Vec<(usize, u64)>,
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
    /// A candidate that the vocabulary does not have.
    #[error("candidate {id} at place {place}: the model has ids 0..{valid}")]
    CandidateOutOfRange {
        /// Which scored place.
        place: usize,
        /// What.
        id: u32,
        /// How many ids are real.
        valid: usize,
    },
    /// Lists of candidates for another number of places.
    #[error("{lists} lists of candidates for {places} scored places; give one a place, empty ones included")]
    CandidateLists {
        /// How many lists.
        lists: usize,
        /// How many scored places.
        places: usize,
    },
    /// The context ends before anything could be sampled.
    #[error("the prompt has {len} tokens; the model's context holds {max}, and one must be left to sample")]
    PromptTooLong {
        /// Its length.
        len: usize,
        /// The context.
        max: usize,
    },
    /// More ids than the context holds.
    #[error("the row has {len} ids; the model's context holds {max}")]
    RowTooLong {
        /// Its length.
        len: usize,
        /// The context.
        max: usize,
    },
    /// It can never fit, however empty the pool.
    #[error(transparent)]
    NeverFits(#[from] NeverFits),
    /// Stop texts are texts, and ids alone are none.
    #[error("stop texts need the model's tokenizer, and the folder has no tokenizer.json; give stop ids instead")]
    StopWithoutTokenizer,
    /// Sampling settings out of range.
    #[error("{0}")]
    Params(String),
    /// The model's logits are not numbers.
    #[error("the model's logits at position {position} are not finite; check the weights with `leeway doctor --model`")]
    BadLogits {
        /// Position whose next token could not be drawn.
        position: usize,
    },
    /// The device failed: nothing more runs on it, whatever the request.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// Checks that `request` can be served at all; returns the most tokens each of its samples may get.
pub fn check(engine: &Engine, request: &Request) -> Result<usize, RequestError> {
    let (len, max) = (request.prompt.len(), engine.config().max_positions);
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
    Ok(limit)
}

/// Checks that `row` can be scored at all.
pub fn check_row(engine: &Engine, row: &ScoreRow) -> Result<(), RequestError> {
    let (len, max, valid) = (row.ids.len(), engine.config().max_positions, engine.valid());
    check_ids(engine, &row.ids)?;
    if len > max {
        return Err(RequestError::RowTooLong { len, max });
    }
    if !(row.temperature.is_finite() && row.temperature >= Params::TEMPERATURE_MIN) {
        let least = Params::TEMPERATURE_MIN;
        return Err(RequestError::Params(format!(
            "temperature {}: scoring needs a finite one of at least {least}",
            row.temperature
        )));
    }
    if let Some(lists) = &row.candidates {
        if lists.len() != len - 1 {
            return Err(RequestError::CandidateLists { lists: lists.len(), places: len - 1 });
        }
        for (place, ids) in lists.iter().enumerate() {
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= valid) {
                return Err(RequestError::CandidateOutOfRange { place, id, valid });
            }
        }
    }
    Ok(())
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
