//! One run: what it is made of, the executor's loop, and what is checked at every turn.

use std::collections::BTreeMap;

use engine::scheduler::{
    Finished, InFlight, Job, JobId, Limits, Plan, Reservation, SampleId, Scheduler, Segment, Stats,
};
use kv::{KvCache, PageId, Provenance};

use crate::toy::{self, PAGE_LEN, VOCAB};

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Spec {
    pub seed: u64,
    pub limits: Limits,
    pub pages: usize,
    pub reuse: bool,
    /// Older versions that can still be run.
    pub retained: u64,
    /// Token 0 ends a sample.
    pub stop: bool,
    pub jobs: usize,
    /// Chances in 1000 a step, and how many of each at most.
    pub updates: u64,
    /// Of an update to change scales, so that nothing computed before may be read on.
    pub rescales: u64,
    pub preemptions: u64,
    pub aborts: u64,
    pub most_events: u32,
}

impl Spec {
    pub fn quiet() -> Spec {
        Spec {
            seed: 1,
            limits: Limits::default(),
            pages: 64,
            reuse: true,
            retained: 0,
            stop: true,
            jobs: 0,
            updates: 0,
            rescales: 0,
            preemptions: 0,
            aborts: 0,
            most_events: 8,
        }
    }

    pub fn random(seed: u64) -> Spec {
        let mut rng = Rng(toy::mix(seed, 0x5eed));
        let in_flight = rng.pick(&[InFlight::Keep, InFlight::Recompute, InFlight::Drain]);
        let limits = Limits {
            batch: rng.up_to(1, 9),
            step_tokens: rng.up_to(1, 26),
            reservation: rng.pick(&[Reservation::Lifetime, Reservation::Optimistic]),
            in_flight,
            prefix_across_versions: in_flight == InFlight::Keep && rng.chance(300),
        };
        Spec {
            seed,
            limits,
            pages: rng.pick(&[7, 9, 12, 16, 24, 40, 400]),
            reuse: rng.chance(750),
            retained: rng.below(4),
            stop: true,
            jobs: rng.up_to(1, 9),
            updates: rng.pick(&[0, 30, 120]),
            rescales: rng.pick(&[0, 0, 500]),
            preemptions: rng.pick(&[0, 0, 60, 200]),
            aborts: rng.pick(&[0, 0, 20]),
            most_events: 8,
        }
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = toy::mix(self.0, 1);
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn up_to(&mut self, first: usize, end: usize) -> usize {
        first + usize::try_from(self.below((end - first) as u64)).expect("small")
    }

    fn chance(&mut self, in_1000: u64) -> bool {
        self.below(1000) < in_1000
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.up_to(0, from.len())]
    }
}

/// A job as the caller sees it.
struct Served {
    job: Job,
    number: u64,
    submitted_at: u64, // version
    rows: Vec<u32>,    // by prompt position: times delivered
    over: u32,         // samples
    aborted: bool,
}

pub struct Simulation {
    spec: Spec,
    rng: Rng,
    cache: KvCache,
    pub scheduler: Scheduler,
    plan: Plan,
    version: u64,
    oldest: u64,
    served: BTreeMap<JobId, Served>,
    seen: BTreeMap<SampleId, Vec<u32>>, // samples under way: the tokens drawn for them
    drawn_from: BTreeMap<SampleId, Vec<Vec<Segment>>>, // and the histories of what each was drawn from
    finished: Vec<Finished>,
    events: [u32; 3],
    explicit: u64, // preemptions that were asked for
    ended: bool,   // some sample was ended by hand
    update_wanted: bool,
    /// Some update recomputed what [`InFlight::Keep`] would have kept: last histories no longer say how tokens were drawn.
    rescaled: bool,
}

impl Simulation {
    pub fn new(spec: Spec) -> Simulation {
        let mut cache = toy::cache(spec.pages);
        cache.set_provenance(Provenance { version: 0, recipe: [7; 32] });
        cache.set_prefix_reuse(spec.reuse);
        Simulation {
            rng: Rng(toy::mix(spec.seed, 0x51)),
            cache,
            scheduler: Scheduler::new(spec.limits, 0),
            plan: Plan::default(),
            version: 0,
            oldest: 0,
            served: BTreeMap::new(),
            seen: BTreeMap::new(),
            drawn_from: BTreeMap::new(),
            finished: Vec::new(),
            events: [0; 3],
            explicit: 0,
            ended: false,
            update_wanted: false,
            rescaled: false,
            spec,
        }
    }

    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    pub fn finished(&self) -> &[Finished] {
        &self.finished
    }

    pub fn submit(&mut self, job: Job) {
        let id = self.scheduler.submit(&self.cache, job.clone()).expect("it fits an empty pool");
        let (number, rows) = (self.served.len() as u64, vec![0; job.prompt.len()]);
        let served = Served { job, number, submitted_at: self.version, rows, over: 0, aborted: false };
        self.served.insert(id, served);
    }

    /// A job that fits the pool; prompts begin alike often.
    fn random_job(&mut self) -> Job {
        let rng = &mut self.rng;
        let most = (self.spec.pages * PAGE_LEN).min(40);
        let len = rng.up_to(1, most.min(27));
        let (family, common) = (rng.below(2), rng.up_to(0, 30));
        let token = |of: u64| u32::try_from(of % u64::from(VOCAB)).expect("small");
        let prompt: Vec<u32> =
            (0..len as u64).map(|i| token(if i < common as u64 { toy::mix(family, i) } else { rng.next() })).collect();
        let samples = u32::try_from(rng.below(6)).expect("small");
        let max_tokens = rng.up_to(1, (most - len + 1).min(13));
        let first_wanted = if rng.chance(600) { len - 1 } else { rng.up_to(0, len) };
        Job { prompt, samples, max_tokens, first_wanted }
    }

    pub fn run(mut self) {
        let mut left = self.spec.jobs;
        for _ in 0..20_000 {
            while left > 0 && self.rng.chance(250) {
                let job = self.random_job();
                self.submit(job);
                left -= 1;
            }
            self.chance_events();
            let worked = self.step();
            if self.update_wanted && self.scheduler.may_update() {
                self.update();
            } else if !worked && left == 0 {
                assert!(!self.update_wanted, "nothing is under way and the update waits");
                return self.close();
            }
        }
        panic!("it did not come to an end");
    }

    fn happens(&mut self, event: usize, chance: u64) -> bool {
        let happens = self.events[event] < self.spec.most_events && self.rng.chance(chance);
        self.events[event] += u32::from(happens);
        happens
    }

    fn chance_events(&mut self) {
        if self.happens(0, self.spec.updates) {
            self.scheduler.request_update();
            self.update_wanted = true;
        }
        if !self.seen.is_empty() && self.happens(1, self.spec.preemptions) {
            let at = self.rng.up_to(0, self.seen.len());
            let sample = *self.seen.keys().nth(at).expect("in range");
            self.preempt(sample);
        }
        if !self.seen.is_empty() && self.happens(2, self.spec.aborts) {
            let at = self.rng.up_to(0, self.seen.len());
            let sample = *self.seen.keys().nth(at).expect("in range");
            if self.rng.chance(500) {
                assert!(self.scheduler.abort(&mut self.cache, sample.job()));
                self.served.get_mut(&sample.job()).expect("served").aborted = true;
                self.seen.retain(|other, _| other.job() != sample.job());
            } else {
                self.end(sample);
            }
        }
    }

    pub fn end(&mut self, sample: SampleId) {
        self.scheduler.end(&mut self.cache, sample);
        self.ended = true;
        self.seen.remove(&sample);
        self.served.get_mut(&sample.job()).expect("served").over += 1;
    }

    pub fn preempt(&mut self, sample: SampleId) {
        let before = self.stats().preempted;
        self.scheduler.preempt(&mut self.cache, sample);
        self.explicit += self.stats().preempted - before;
    }

    /// Samples that a step computed or that drew a token, and are not over.
    pub fn under_way(&self) -> Vec<SampleId> {
        self.seen.keys().copied().collect()
    }

    pub fn update(&mut self) {
        self.version += 1;
        self.oldest = self.oldest.max(self.version.saturating_sub(self.spec.retained));
        let recompute = self.rng.chance(self.spec.rescales);
        self.rescaled |= recompute;
        self.scheduler.updated(&mut self.cache, self.version, self.oldest, recompute);
        self.update_wanted = false;
    }

    /// Plans, computes, draws; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        if !self.scheduler.plan(&mut self.cache, &mut self.plan) {
            assert!(self.plan.pieces.is_empty());
            return false;
        }
        self.check_plan();
        let plan = std::mem::take(&mut self.plan);
        let mut last_rows = Vec::new();
        for piece in &plan.pieces {
            let tokens = self.scheduler.tokens(piece.sample);
            let fed = &tokens[piece.first..piece.first + piece.len];
            let sequence = self.scheduler.sequence(piece.sample);
            assert_eq!(sequence.len(), piece.first + piece.len, "places for the piece end the sequence");
            let rows = toy::forward(&mut self.cache, sequence, piece.first, fed, plan.version);
            let (_, history) = self.scheduler.history(piece.sample);
            let served = self.served.get_mut(&piece.sample.job()).expect("served");
            for position in piece.wanted.clone() {
                let want = toy::naive(&tokens[..=position], history);
                assert_eq!(rows[position - piece.first], want, "row {position} of {:?}", piece.sample);
                if let Some(times) = served.rows.get_mut(position) {
                    *times += 1;
                }
            }
            last_rows.push(rows[piece.len - 1]);
            self.seen.entry(piece.sample).or_default();
        }
        self.scheduler.advance(&mut self.cache, &plan);
        for piece in &plan.pieces {
            let served = self.served.get_mut(&piece.sample.job()).expect("served");
            if served.job.samples == 0 && piece.first + piece.len == served.job.prompt.len() {
                served.over += 1;
                self.seen.remove(&piece.sample);
            }
        }
        while let Some(&(piece, sample)) = self.scheduler.draws().first() {
            assert!(plan.pieces[piece].samples_next && plan.pieces[piece].sample.job() == sample.job());
            self.draw(sample, last_rows[piece]);
        }
        self.plan = plan;
        self.check_pages();
        true
    }

    fn draw(&mut self, sample: SampleId, logits: u64) {
        let served = self.served.get_mut(&sample.job()).expect("served");
        let (position, prompt_len) = (self.scheduler.tokens(sample).len(), served.job.prompt.len());
        let token = toy::draw(logits, (self.spec.seed, served.number, sample.index()), position);
        let drawn = self.seen.entry(sample).or_default();
        drawn.truncate(position - prompt_len); // shorter than before after a restart
        drawn.push(token);
        let histories = self.drawn_from.entry(sample).or_default();
        histories.truncate(position - prompt_len);
        histories.push(self.scheduler.history(sample).1.to_vec());
        let last = self.spec.stop && token == 0;
        let finished = self.scheduler.push(&mut self.cache, sample, token, last);
        assert_eq!(finished.is_some(), last || drawn.len() == served.job.max_tokens);
        let Some(finished) = finished else { return };
        served.over += 1;
        assert_eq!(finished.tokens, [&served.job.prompt[..], drawn].concat());
        assert_eq!(finished.prompt_len, prompt_len);
        self.seen.remove(&sample);
        self.check_finished(sample, &finished);
        self.finished.push(finished);
    }

    /// Every token is the one that the naive model draws.
    fn check_finished(&self, sample: SampleId, finished: &Finished) {
        let served = &self.served[&sample.job()];
        let Finished { tokens, prompt_len, versions, kv } = finished;
        let key = (self.spec.seed, served.number, sample.index());
        let lasting = self.spec.limits.in_flight == InFlight::Keep && !self.rescaled;
        for position in *prompt_len..tokens.len() {
            let version = at(versions, position - prompt_len);
            // Keys and values that were kept are those that the last history tells of; others have been replaced since.
            let history = &self.drawn_from[&sample][position - prompt_len];
            let known = |segments: &[Segment]| (0..position).map(|p| at(segments, p)).collect::<Vec<_>>();
            assert!(!lasting || known(history) == known(kv), "{sample:?}: {finished:?}");
            assert_eq!(at(history, position - 1), version, "{sample:?}: {finished:?}");
            let want = toy::draw(toy::naive(&tokens[..position], history), key, position);
            assert_eq!(tokens[position], want, "token {position} of {sample:?}: {finished:?}");
        }
        match self.spec.limits.in_flight {
            InFlight::Keep => {}
            InFlight::Recompute => assert_eq!(kv.len(), 1, "rebuilt as a whole"),
            InFlight::Drain => assert_eq!((kv.len(), versions.len(), kv[0].1), (1, 1, versions[0].1), "mixed"),
        }
        if !self.spec.limits.prefix_across_versions {
            assert!(kv[0].1 >= served.submitted_at, "reused the prefix of an older version");
        }
    }

    fn check_plan(&self) {
        let (plan, limits) = (&self.plan, self.spec.limits);
        assert!((self.oldest..=self.version).contains(&plan.version), "version {} is gone", plan.version);
        let mut samples: Vec<_> = plan.pieces.iter().map(|piece| piece.sample).collect();
        samples.sort_unstable();
        samples.dedup();
        assert_eq!(samples.len(), plan.pieces.len(), "one piece a sample");
        assert!(plan.pieces.len() <= limits.batch);
        let tokens: usize = plan.pieces.iter().map(|piece| piece.len).sum();
        assert!(tokens <= limits.step_tokens.max(plan.pieces.len()), "{tokens} tokens in a step");
        for piece in &plan.pieces {
            assert!(piece.wanted.is_empty() || piece.wanted.end == piece.first + piece.len);
            assert!(piece.wanted.start >= piece.first && (!piece.samples_next || !piece.wanted.is_empty()));
        }
        self.check_pages();
    }

    fn check_pages(&self) {
        if self.spec.limits.reservation == Reservation::Lifetime {
            let held = self.cache.pages() - self.cache.available_pages();
            let reserved = self.scheduler.reserved_pages();
            assert!(held <= reserved && reserved <= self.cache.pages(), "{held} held of {reserved} set aside");
            assert_eq!(self.stats().preempted, self.explicit, "preempted for want of pages");
        }
        assert!(self.scheduler.live() <= self.spec.limits.batch);
    }

    fn close(mut self) {
        let stats = self.stats();
        for served in self.served.values().filter(|served| !served.aborted) {
            assert_eq!(served.over, served.job.samples.max(1), "a sample is missing");
            let last = served.rows.len() - 1;
            let recomputes = self.spec.limits.in_flight == InFlight::Recompute || self.rescaled;
            let again = recomputes || stats.restarted > 0 || self.ended;
            for (position, &times) in served.rows.iter().enumerate().skip(served.job.first_wanted) {
                // The last row serves again for samples that come later.
                let once = times == 1 || (times > 1 && (again || position == last)) || self.ended;
                assert!(once, "row {position} came {times} times: {stats:?}");
            }
            assert!(served.rows[..served.job.first_wanted].iter().all(|&times| times == 0));
        }
        assert!(self.seen.is_empty());
        assert_eq!(self.scheduler.reserved_pages(), 0);
        assert_eq!(self.cache.available_pages(), self.cache.pages(), "pages have leaked");
        self.cache.set_prefix_reuse(false);
        assert_eq!(self.cache.free_pages(), self.cache.pages(), "the index has leaked pages");
        let pages = u32::try_from(self.cache.pages()).expect("small");
        assert!((0..pages).all(|page| self.cache.page_versions(PageId(page)).is_none()));
        let samples: u32 = self.served.values().map(|served| served.job.samples.max(1)).sum();
        let calm = self.version == 0 && stats.preempted == 0 && self.events == [0; 3] && !self.spec.reuse;
        if calm && self.spec.pages == 400 && samples as usize <= self.spec.limits.batch {
            let prompts: usize = self.served.values().map(|served| served.job.prompt.len()).sum();
            assert_eq!(stats.prefill_tokens_computed, prompts as u64, "each prompt once");
        }
        if calm {
            assert_eq!(stats.recomputed_tokens, 0);
        }
    }
}

fn at(segments: &[Segment], position: usize) -> u64 {
    segments.iter().rfind(|&&(first, _)| first <= position).expect("it begins at 0").1
}
