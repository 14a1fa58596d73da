//! Which tokens the next step computes. Knows tokens, pages and versions: no engine, no weights, no clock, no chance.
//!
//! A caller's loop, with the cache `kv` and a [`Plan`] whose buffers are reused:
//!
//! ```text
//! kv.set_provenance(version, recipe); scheduler.submit(&kv, job) ...
//! while scheduler.plan(&mut kv, &mut plan) {       // places for every piece are appended
//!     run the pieces with the weights of plan.version, at scheduler.tokens(sample)[first .. first + len]
//!     scheduler.advance(&mut kv, &plan)            // prompts are remembered, leaders forked into their followers
//!     while let Some(&(piece, sample)) = scheduler.draws().first() {
//!         draw from the last row of plan.pieces[piece], then scheduler.push(&mut kv, sample, token, last)
//!     }
//!     between steps: request_update, and when may_update: change the weights, scheduler.updated(..)
//! }
//! ```
//!
//! A sample waits, is admitted, is computed, and ends. Its prompt is computed once for the job: by the first sample that
//! is admitted, which the others follow. Whoever loses its pages waits again and is computed from the beginning, under the
//! versions that made its positions the first time, so that what it gave out stays true of it.

mod admit;
mod history;
mod plan;
mod progress;
mod sample;
mod types;
mod update;

use std::collections::VecDeque;

use kv::{KvCache, Sequence};
use sample::{Group, JobState, Sample};
pub use types::{
    Finished, InFlight, Job, JobId, Limits, NeverFits, Piece, Plan, Reservation, SampleId, Segment, Stats,
};

/// Jobs, their samples, and who is next. All sequences of the cache are to be the scheduler's.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    version: u64,
    oldest_retained: u64,
    retained: Vec<u64>, // versions before the present one that can still be run, rising
    jobs: VecDeque<Option<JobState>>,
    first_job: u64, // number of the first of `jobs`
    fresh: u64,     // number of the job that the next new sample is of
    samples: Vec<Option<Sample>>,
    vacant: Vec<u32>,
    live: Vec<u32>,    // slots of `samples` that were admitted, in order of arrival
    waiting: Vec<u32>, // slots that were not, or no longer are, in order of arrival
    groups: Vec<Group>,
    reserved: usize, // pages
    draws: Vec<(usize, SampleId)>,
    answered: usize, // of `draws`
    planned: bool,
    draining: bool,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler without jobs, for weights of `version`. The recipe of the cache's provenance stays; its version is
    /// the scheduler's to set.
    ///
    /// # Panics
    /// When `batch` or `step_tokens` is 0, or prefixes are to be reused across versions without [`InFlight::Keep`].
    #[must_use]
    pub fn new(limits: Limits, version: u64) -> Scheduler {
        assert!(limits.batch > 0 && limits.step_tokens > 0, "nothing fits a step of {limits:?}");
        let mixes = limits.prefix_across_versions;
        assert!(!mixes || limits.in_flight == InFlight::Keep, "prefixes across versions mix versions: {limits:?}");
        Scheduler {
            limits,
            version,
            oldest_retained: version,
            retained: Vec::new(),
            jobs: VecDeque::new(),
            first_job: 0,
            fresh: 0,
            samples: Vec::new(),
            vacant: Vec::new(),
            live: Vec::new(),
            waiting: Vec::new(),
            groups: Vec::new(),
            reserved: 0,
            draws: Vec::new(),
            answered: 0,
            planned: false,
            draining: false,
            stats: Stats::default(),
        }
    }

    /// Queues a job.
    ///
    /// # Panics
    /// When the prompt is empty, `first_wanted` is outside it, or there are samples without tokens.
    pub fn submit(&mut self, kv: &KvCache, job: Job) -> Result<JobId, NeverFits> {
        assert!(job.first_wanted < job.prompt.len(), "position {} of {}", job.first_wanted, job.prompt.len());
        assert!(job.samples == 0 || job.max_tokens > 0, "samples without tokens");
        let state = JobState::new(job);
        let (tokens, layout, pages) = (state.room(), kv.layout(), kv.pages());
        let want = layout.pages_for(tokens);
        if want > pages {
            return Err(NeverFits { tokens, want, page_len: layout.page_len(), pages });
        }
        self.jobs.push_back(Some(state));
        Ok(JobId(self.first_job + self.jobs.len() as u64 - 1))
    }

    /// Ends a job and all its samples; false if it is over already. Its pending draws are dropped.
    pub fn abort(&mut self, kv: &mut KvCache, job: JobId) -> bool {
        self.between_steps();
        let known = job.0.checked_sub(self.first_job).and_then(|i| self.jobs.get_mut(usize::try_from(i).ok()?));
        let Some(Some(state)) = known else { return false };
        // Those not made yet are not made any more.
        state.left -= state.job.samples.max(1) - state.made;
        state.made = state.job.samples.max(1);
        if state.left == 0 {
            self.forget_job(job);
            return true;
        }
        let of_job = |scheduler: &Scheduler| {
            let mut all = scheduler.live.iter().chain(&scheduler.waiting).copied();
            all.find(|&slot| scheduler.sample(slot).id.job == job)
        };
        while let Some(slot) = of_job(self) {
            self.finish(kv, slot);
        }
        true
    }

    /// Ends one sample without a further token, as when its logits are not numbers.
    ///
    /// # Panics
    /// When it is over already.
    pub fn end(&mut self, kv: &mut KvCache, sample: SampleId) -> Finished {
        self.between_steps();
        let slot = self.slot(sample);
        self.finish(kv, slot)
    }

    /// Fills `plan` with the next step and appends its places; false when nothing is left to do, or only a drain is
    /// waited for.
    ///
    /// # Panics
    /// When a draw of the step before was not answered by [`Scheduler::push`], or that step was not computed.
    pub fn plan(&mut self, kv: &mut KvCache, plan: &mut Plan) -> bool {
        self.between_steps();
        assert!(self.draws().is_empty(), "draws were not answered: {:?}", self.draws());
        self.admit(kv);
        self.fill(kv, plan);
        self.planned = !plan.pieces.is_empty();
        let idle = self.live.is_empty() && (self.waiting.is_empty() || self.draining);
        assert!(self.planned || idle, "samples are under way, and no step computes any of them: {:?}", self.stats);
        self.planned
    }

    /// Prompt and sampled ids of a sample under way. Fewer than before when it had to restart: the index of the next
    /// sampled token is their number less the prompt's.
    ///
    /// # Panics
    /// When the sample is over; so the calls below.
    #[must_use]
    pub fn tokens(&self, sample: SampleId) -> &[u32] {
        &self.sample(self.slot(sample)).tokens
    }

    /// Pages of a sample under way. The piece planned for it is at the end.
    #[must_use]
    pub fn sequence(&self, sample: SampleId) -> &Sequence {
        &self.sample(self.slot(sample)).sequence
    }

    /// Versions behind a sample under way, its planned piece included: `versions`, then `kv`, as in [`Finished`].
    #[must_use]
    pub fn history(&self, sample: SampleId) -> (&[Segment], &[Segment]) {
        let sample = self.sample(self.slot(sample));
        (sample.versions.segments(), sample.kv.segments())
    }

    /// The pieces of `plan` were computed. A job that only scores is over with its last piece.
    ///
    /// # Panics
    /// When `plan` is not what [`Scheduler::plan`] filled last.
    pub fn advance(&mut self, kv: &mut KvCache, plan: &Plan) {
        assert!(std::mem::take(&mut self.planned), "no step was planned");
        self.stats.steps += 1;
        self.draws.clear();
        self.answered = 0;
        self.computed(kv, plan);
    }

    /// Who has still to draw from which piece's last row, in the order of the pieces: (index into `plan.pieces`, sample).
    /// All new samples of a prompt draw from the row that ends it. Whoever is answered, ended or preempted leaves.
    #[must_use]
    pub fn draws(&self) -> &[(usize, SampleId)] {
        &self.draws[self.answered..]
    }

    /// The token drawn for a sample. With `last`, or as the last that its job allows, it is finished: its pages go back
    /// and what it was made of returns.
    ///
    /// # Panics
    /// When it has nothing to draw from.
    pub fn push(&mut self, kv: &mut KvCache, sample: SampleId, token: u32, last: bool) -> Option<Finished> {
        let slot = self.slot(sample);
        let of = self.sample_mut(slot);
        let version = of.drawing.take().expect("a draw is pending");
        of.versions.record(of.tokens.len() - of.prompt_len, version);
        of.tokens.push(token);
        let over = last || of.tokens.len() == of.room;
        self.answer(sample);
        over.then(|| self.finish(kv, slot))
    }

    /// Takes a sample's pages from it; it is computed again later. A draw that is pending is dropped and comes again.
    pub fn preempt(&mut self, kv: &mut KvCache, sample: SampleId) {
        self.between_steps();
        let slot = self.slot(sample);
        if self.sample(slot).live {
            self.take_pages(kv, slot);
        }
    }

    /// An update is wanted: under [`InFlight::Drain`] nothing new is admitted until it happened.
    pub fn request_update(&mut self) {
        self.draining = self.limits.in_flight == InFlight::Drain;
    }

    /// The weights may be changed now.
    #[must_use]
    pub fn may_update(&self) -> bool {
        let started = |&slot: &u32| self.sample(slot).started;
        let drained = self.live.is_empty() && !self.waiting.iter().any(started);
        !self.planned && (self.limits.in_flight != InFlight::Drain || drained)
    }

    /// The weights were changed to `version`; versions from `oldest_retained` on can still be run. With `recompute` keys
    /// and values of before may not be read on, whatever the limits say of samples under way.
    ///
    /// # Panics
    /// When [`Scheduler::may_update`] is false, or versions do not rise.
    pub fn updated(&mut self, kv: &mut KvCache, version: u64, oldest_retained: u64, recompute: bool) {
        assert!(self.may_update(), "samples are under way");
        assert!(version > self.version && oldest_retained <= version, "version {version} after {}", self.version);
        self.switch(kv, version, oldest_retained, recompute);
    }

    /// The weights version that new positions are computed with.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Samples that hold pages or are promised some.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Samples that were made and are not over, whether they hold pages or wait for some.
    pub fn under_way(&self) -> impl Iterator<Item = SampleId> {
        self.live.iter().chain(&self.waiting).map(|&slot| self.sample(slot).id)
    }

    /// Pages set aside for samples under way, each prompt's full pages once for those that share them.
    #[must_use]
    pub fn reserved_pages(&self) -> usize {
        self.reserved
    }

    /// The draw of a sample is no longer pending.
    fn answer(&mut self, id: SampleId) {
        match self.draws().iter().position(|&(_, drawing)| drawing == id) {
            Some(0) => self.answered += 1,
            Some(at) => {
                self.draws.remove(self.answered + at);
            }
            None => {}
        }
    }

    fn between_steps(&self) {
        assert!(!self.planned, "the step that was planned has not been computed");
    }

    fn slot(&self, id: SampleId) -> u32 {
        assert!(self.samples[id.slot as usize].as_ref().is_some_and(|s| s.id == id), "{id:?} is over");
        id.slot
    }

    fn sample(&self, slot: u32) -> &Sample {
        self.samples[slot as usize].as_ref().expect("a sample")
    }

    fn sample_mut(&mut self, slot: u32) -> &mut Sample {
        self.samples[slot as usize].as_mut().expect("a sample")
    }

    fn job_index(&self, job: JobId) -> usize {
        usize::try_from(job.0 - self.first_job).expect("the jobs are in memory")
    }

    fn job(&self, job: JobId) -> &JobState {
        self.jobs[self.job_index(job)].as_ref().expect("its job")
    }

    fn job_mut(&mut self, job: JobId) -> &mut JobState {
        let index = self.job_index(job);
        self.jobs[index].as_mut().expect("its job")
    }

    fn forget_job(&mut self, job: JobId) {
        let index = self.job_index(job);
        self.jobs[index] = None;
        while let Some(None) = self.jobs.front() {
            self.jobs.pop_front();
            self.first_job += 1;
        }
        self.fresh = self.fresh.max(self.first_job);
    }
}
