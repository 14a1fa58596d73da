//! One completion, and the job it belongs to.

use kv::Sequence;

use super::history::History;
use super::types::{Job, SampleId};

#[derive(Debug)]
pub(super) struct JobState {
    pub job: Job,
    pub made: u32,        // samples that exist or existed
    pub left: u32,        // samples that are not over
    pub delivered: usize, // wanted prompt positions before this were computed
}

impl JobState {
    pub fn new(job: Job) -> JobState {
        let (left, delivered) = (job.samples.max(1), job.first_wanted);
        JobState { job, made: 0, left, delivered }
    }

    /// Tokens of one sample's lifetime.
    pub fn room(&self) -> usize {
        self.job.prompt.len() + if self.job.samples == 0 { 0 } else { self.job.max_tokens }
    }

    /// Wanted rows of a prompt that is not complete come again.
    pub fn deliver_anew(&mut self) {
        if self.delivered < self.job.prompt.len() {
            self.delivered = self.job.first_wanted;
        }
    }
}

/// A sample waits (no pages), follows (admitted, no pages, another sample computes its prompt), or is computed.
#[derive(Debug)]
pub(super) struct Sample {
    pub id: SampleId,
    pub prompt_len: usize,
    pub room: usize,
    pub tokens: Vec<u32>,
    pub sequence: Sequence,
    pub computed: usize, // positions whose keys and values it holds
    pub frontier: usize, // positions that were ever computed and must be made again as `kv` says
    pub high: usize,     // positions that were ever computed, for counting
    pub kv: History,     // of positions 0 .. frontier
    pub versions: History,
    pub drawing: Option<u64>, // the version of a row that it is to draw from
    pub started: bool,
    pub live: bool,
    pub acquired: bool, // it has taken over what could be
    pub follows: Option<Follows>,
    pub claim: Claim,
}

/// Waits for `leader` to complete the prompt; takes its first `take` positions over then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follows {
    pub leader: u32,
    pub take: usize,
}

/// Pages set aside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    pub own: usize,
    pub group: Option<u32>,
    pub in_group: usize, // first pages of the sample that are the group's
}

/// Samples that hold one copy of their prompt's full pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub members: u32,
    pub pages: usize,
}

impl Sample {
    pub fn new(id: SampleId, state: &JobState) -> Sample {
        let mut tokens = Vec::with_capacity(state.room());
        tokens.extend_from_slice(&state.job.prompt);
        Sample {
            id,
            prompt_len: tokens.len(),
            room: state.room(),
            tokens,
            sequence: Sequence::default(),
            computed: 0,
            frontier: 0,
            high: 0,
            kv: History::default(),
            versions: History::default(),
            drawing: None,
            started: false,
            live: false,
            acquired: false,
            follows: None,
            claim: Claim::default(),
        }
    }

    /// No token was sampled yet.
    pub fn is_fresh(&self) -> bool {
        self.tokens.len() == self.prompt_len
    }

    /// Its next step feeds the token sampled last.
    pub fn decodes(&self) -> bool {
        !self.is_fresh() && self.computed + 1 == self.tokens.len()
    }

    /// Its places are in the step being planned.
    pub fn is_planned(&self) -> bool {
        self.sequence.len() > self.computed
    }

    /// The version that its next position is computed with.
    pub fn wants(&self, present: u64) -> u64 {
        if self.computed < self.frontier { self.kv.at(self.computed) } else { present }
    }

    /// Up to where its next positions are all computed with the version that the first of them wants.
    pub fn run_end(&self, present: u64) -> usize {
        if self.computed >= self.frontier {
            return self.tokens.len();
        }
        match self.kv.segment_end(self.computed) {
            Some(end) => end,
            None if self.kv.at(self.computed) == present => self.tokens.len(),
            None => self.frontier,
        }
    }

    /// Positions from the beginning that may be taken over: at least one is left to compute, and wanted rows are computed.
    pub fn most(&self, state: &JobState) -> usize {
        let most = self.tokens.len() - 1;
        if state.delivered < self.prompt_len { most.min(state.delivered) } else { most }
    }

    /// Something that was given out depends on how its positions were computed.
    pub fn is_bound(&self, state: &JobState) -> bool {
        let rows = state.delivered > state.job.first_wanted && state.delivered < self.prompt_len;
        !self.is_fresh() || rows
    }

    /// Forgets how its positions were computed.
    pub fn unbind(&mut self) {
        self.kv.clear();
        self.frontier = 0;
    }

    /// Forgets what it sampled.
    pub fn restart(&mut self) {
        self.tokens.truncate(self.prompt_len);
        self.versions.clear();
        self.unbind();
    }

    /// Holds a first copy of positions `0 .. sequence.len()` that another made, as `kv` says.
    pub fn take_over(&mut self, sequence: Sequence, kv: &History) {
        self.computed = sequence.len();
        self.sequence = sequence;
        self.acquired = true;
        self.follows = None;
        if self.frontier == 0 {
            self.kv.copy_prefix(kv, self.computed);
            self.frontier = self.computed;
        }
    }
}
