//! What goes into the scheduler and what comes out of it.

use std::ops::Range;

/// How a request's pages are secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    /// A sample's whole lifetime of pages is set aside when it is admitted: nothing is ever preempted for want of pages.
    #[default]
    Lifetime,
    /// A sample is admitted on the pages it needs now. When they run out the youngest is preempted, its pages are freed
    /// and it is recomputed later; the oldest always can finish.
    Optimistic,
}

/// What a weights update does with samples that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// They go on with the keys and values they have; each records at which position the version switched.
    Keep,
    /// Their keys and values are computed anew under the new version before they go on; their sampled tokens stay.
    Recompute,
    /// The update waits until they are done; nothing new is admitted meanwhile.
    #[default]
    Drain,
}

/// What the scheduler may do in a step, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences under way at a time.
    pub batch: usize,
    /// Tokens of a step: one for every decoding sample first, then prefill up to this many in all.
    pub step_tokens: usize,
    /// How pages are secured.
    pub reservation: Reservation,
    /// What an update does with samples under way.
    pub in_flight: InFlight,
    /// New samples may reuse the prefixes of retained older versions. Mixes versions, so it needs [`InFlight::Keep`].
    pub prefix_across_versions: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            batch: 64,
            step_tokens: 512,
            reservation: Reservation::default(),
            in_flight: InFlight::default(),
            prefix_across_versions: false,
        }
    }
}

/// A prompt and how many completions of it are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Prompt ids, at least one.
    pub prompt: Vec<u32>,
    /// Completions; 0 only scores the prompt.
    pub samples: u32,
    /// Most tokens of a completion; at least 1 unless there are none.
    pub max_tokens: usize,
    /// First prompt position whose logits are wanted: the last one for plain sampling, 0 for the prompt's logprobs. All
    /// positions from there to the prompt's end are wanted, each once for the whole job.
    pub first_wanted: usize,
}

/// A submitted [`Job`]; numbers rise in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(super) u64);

/// One completion of a job, or the only sequence of a job that scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId {
    pub(super) job: JobId,
    pub(super) index: u32,
    pub(super) slot: u32,
}

impl SampleId {
    /// Its job.
    #[must_use]
    pub fn job(self) -> JobId {
        self.job
    }

    /// Which of the job's samples it is, from 0.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }
}

/// Consecutive tokens of one sample that a step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose.
    pub sample: SampleId,
    /// Position of the first.
    pub first: usize,
    /// How many.
    pub len: usize,
    /// Positions among them whose logits are wanted, the one that is drawn from included.
    pub wanted: Range<usize>,
    /// The logits of the last position draw the next token of one sample or more: see `Scheduler::draws`.
    pub samples_next: bool,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Weights version it runs with: the present one, or a retained one that rebuilds keys and values made by it.
    pub version: u64,
    /// What it computes.
    pub pieces: Vec<Piece>,
}

/// From a first position on, a weights version.
pub type Segment = (usize, u64);

/// What a sample was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Prompt and sampled ids.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Versions that sampled its tokens: (index of the first sampled token, version), rising.
    pub versions: Vec<Segment>,
    /// Versions that computed its keys and values: (first position, version), rising positions.
    pub kv: Vec<Segment>,
}

/// A job that would not fit an empty pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sequence of up to {tokens} tokens needs {want} KV pages of {page_len}; the pool has {pages}")]
pub struct NeverFits {
    /// Tokens of one sample's lifetime.
    pub tokens: usize,
    /// Pages they need.
    pub want: usize,
    /// Tokens per page.
    pub page_len: usize,
    /// Pages there are.
    pub pages: usize,
}

/// Counts since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps computed.
    pub steps: u64,
    /// Samples admitted, each time.
    pub admitted: u64,
    /// Samples whose pages were taken from them.
    pub preempted: u64,
    /// Samples that lost their tokens because a version they needed is no longer retained.
    pub restarted: u64,
    /// Positions computed that the same sample had computed before.
    pub recomputed_tokens: u64,
    /// Positions computed by steps that were not decoding, recomputed ones included.
    pub prefill_tokens_computed: u64,
    /// Positions taken over from the prefix index or from another sample of the job.
    pub prefill_tokens_reused: u64,
}
