//! Who may start: in order of arrival, as long as the batch and the pages allow.

use kv::{KvCache, Provenance};

use super::Scheduler;
use super::history::History;
use super::sample::{Claim, Follows, Group, Sample};
use super::types::{JobId, Reservation, SampleId};

/// Where a sample's prompt comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The first positions of another sample of the job.
    Sibling { slot: u32, len: usize },
    /// Another sample of the job that is computing the prompt.
    Leader(Follows),
    /// The prefix index, when its turn to compute comes, or nowhere.
    Alone,
}

impl Scheduler {
    pub(super) fn admit(&mut self, kv: &mut KvCache) {
        while self.live.len() < self.limits.batch {
            let Some(slot) = self.next_waiting() else { break };
            let source = self.source(kv, slot);
            let claim = self.claim(kv, slot, source);
            if !self.fits(kv, slot, source, claim) {
                break;
            }
            self.start(kv, slot, source, claim);
        }
    }

    /// The oldest sample that may be admitted. Samples that were admitted before are older than new ones, which are made
    /// one at a time; under a drain only they go on.
    fn next_waiting(&mut self) -> Option<u32> {
        if self.waiting.is_empty() && !self.draining {
            self.make_next();
        }
        let slot = *self.waiting.first()?;
        (self.sample(slot).started || !self.draining).then_some(slot)
    }

    fn make_next(&mut self) {
        loop {
            let index = self.job_index(JobId(self.fresh));
            let Some(state) = self.jobs.get_mut(index) else { return };
            match state {
                Some(state) if state.made < state.job.samples.max(1) => {
                    let slot = self.vacant.pop().unwrap_or_else(|| {
                        self.samples.push(None);
                        u32::try_from(self.samples.len() - 1).expect("fewer than u32::MAX samples at a time")
                    });
                    let id = SampleId { job: JobId(self.fresh), index: state.made, slot };
                    state.made += 1;
                    self.samples[slot as usize] = Some(Sample::new(id, state));
                    self.waiting.push(slot);
                    return;
                }
                _ => self.fresh += 1,
            }
        }
    }

    fn source(&self, kv: &KvCache, slot: u32) -> Source {
        let sample = self.sample(slot);
        let most = sample.most(self.job(sample.id.job)).min(sample.prompt_len);
        let mut best = (slot, 0);
        for &other in &self.live {
            let of = self.sample(other);
            if of.id.job != sample.id.job || of.follows.is_some() {
                continue;
            }
            if of.computed < of.prompt_len {
                // Only a row that ends the leader's piece can be drawn from.
                let take = sample.prompt_len - usize::from(sample.is_fresh() && !of.is_fresh());
                if take > 0 && self.agrees(of, sample) {
                    return Source::Leader(Follows { leader: other, take });
                }
                continue;
            }
            let len = match sample.frontier {
                0 => of.kv.begins_with(self.version, most),
                frontier => of.kv.agree(&sample.kv, most.min(frontier)),
            };
            if len > best.1 {
                best = (other, len);
            }
        }
        // Where pages are not set aside nothing speaks against the longer prefix; where they are, a sibling's pages are
        // counted once.
        let indexed = match self.limits.reservation {
            Reservation::Lifetime => 0,
            Reservation::Optimistic => self.find(kv, slot).1,
        };
        let (slot, len) = best;
        if len > indexed { Source::Sibling { slot, len } } else { Source::Alone }
    }

    /// The positions of its prompt that `leader` is known by suit `sample`; the rest shows later. A new sample takes none
    /// of an older version over, also not as they are rebuilt, unless the job's wanted rows are under way with them: one
    /// sample computes those.
    fn agrees(&self, leader: &Sample, sample: &Sample) -> bool {
        let known = leader.frontier.min(sample.prompt_len);
        match sample.frontier {
            0 if self.job(sample.id.job).delivered < sample.prompt_len => true,
            0 => leader.kv.begins_with(self.version, known) == known,
            frontier => leader.kv.agree(&sample.kv, known.min(frontier)) == known.min(frontier),
        }
    }

    /// The version under which the index has the longest prefix of a sample, and its length.
    pub(super) fn find(&self, kv: &KvCache, slot: u32) -> (u64, usize, usize) {
        let sample = self.sample(slot);
        let most = sample.most(self.job(sample.id.job));
        let look = |version, most| {
            let found = kv.find_prefix(Provenance { version, ..kv.provenance() }, &sample.tokens, most);
            (version, found.tokens, found.idle_pages)
        };
        if sample.frontier > 0 {
            let end = sample.kv.segment_end(0).unwrap_or(sample.frontier);
            let present = sample.kv.only() == Some(self.version);
            return look(sample.kv.at(0), if present { most } else { most.min(end) });
        }
        let mut best = look(self.version, most);
        if self.limits.prefix_across_versions {
            for &version in self.retained.iter().rev() {
                let found = look(version, most);
                if found.1 > best.1 {
                    best = found;
                }
            }
        }
        best
    }

    fn claim(&self, kv: &KvCache, slot: u32, source: Source) -> Claim {
        let (sample, layout) = (self.sample(slot), kv.layout());
        let share = |of: u32, len: usize| {
            let of = self.sample(of).claim;
            (of.group, of.in_group.min(len / layout.page_len()))
        };
        let (group, in_group) = match source {
            Source::Sibling { slot, len } => share(slot, len),
            Source::Leader(Follows { leader, take }) => share(leader, take),
            Source::Alone => (None, sample.prompt_len / layout.page_len()),
        };
        Claim { own: layout.pages_for(sample.room) - in_group, group, in_group }
    }

    fn fits(&self, kv: &KvCache, slot: u32, source: Source, claim: Claim) -> bool {
        if self.limits.reservation == Reservation::Lifetime {
            let group = if claim.group.is_none() { claim.in_group } else { 0 };
            return self.reserved + claim.own + group <= kv.pages();
        }
        if self.live.is_empty() {
            return true;
        }
        let (sample, layout) = (self.sample(slot), kv.layout());
        let pages = layout.pages_for(sample.tokens.len());
        let need = match source {
            Source::Sibling { len, .. } => pages - len / layout.page_len(),
            Source::Leader(Follows { take, .. }) => pages - take / layout.page_len(),
            Source::Alone => {
                let (_, tokens, idle) = self.find(kv, slot);
                pages - tokens / layout.page_len() + idle
            }
        };
        let promised: usize = self.live.iter().map(|&other| self.promised(kv, other)).sum();
        promised + need <= kv.available_pages()
    }

    /// Pages that a live sample takes before it decodes.
    fn promised(&self, kv: &KvCache, slot: u32) -> usize {
        let (sample, layout) = (self.sample(slot), kv.layout());
        let pages = layout.pages_for(sample.tokens.len());
        match sample.follows {
            Some(Follows { take, .. }) => pages - take / layout.page_len(),
            None if !sample.acquired => pages,
            None => kv.pages_to_append(&sample.sequence, sample.tokens.len() - sample.sequence.len()),
        }
    }

    fn start(&mut self, kv: &mut KvCache, slot: u32, source: Source, mut claim: Claim) {
        self.waiting.retain(|&waiting| waiting != slot);
        let at = self.live.partition_point(|&live| self.sample(live).id < self.sample(slot).id);
        self.live.insert(at, slot);
        let group = claim.group.unwrap_or_else(|| {
            self.reserved += claim.in_group;
            let group = Group { members: 0, pages: claim.in_group };
            let at = self.groups.iter().position(|g| g.members == 0).unwrap_or(self.groups.len());
            if at == self.groups.len() {
                self.groups.push(group);
            }
            self.groups[at] = group;
            u32::try_from(at).expect("a group has a sample")
        });
        claim.group = Some(group);
        self.groups[group as usize].members += 1;
        self.reserved += claim.own;
        self.stats.admitted += 1;
        let sample = self.sample_mut(slot);
        sample.claim = claim;
        sample.started = true;
        sample.live = true;
        match source {
            Source::Alone => {}
            Source::Leader(follows) => sample.follows = Some(follows),
            Source::Sibling { slot: from, len } => self.fork(kv, from, slot, len),
        }
    }

    /// Gives `to` the first `len` positions of `from`.
    pub(super) fn fork(&mut self, kv: &mut KvCache, from: u32, to: u32, len: usize) {
        let mut sample = self.samples[to as usize].take().expect("a sample");
        let of = self.sample(from);
        let sequence = kv.fork_prefix(&of.sequence, len, sample.room);
        sample.take_over(sequence, &of.kv);
        self.samples[to as usize] = Some(sample);
        self.stats.prefill_tokens_reused += len as u64;
    }

    /// Takes over what the index has of a sample, as its first step begins.
    pub(super) fn acquire(&mut self, kv: &mut KvCache, slot: u32) {
        let (version, most, _) = self.find(kv, slot);
        let provenance = Provenance { version, ..kv.provenance() };
        let sample = self.sample_mut(slot);
        let sequence = kv.share_prefix(provenance, &sample.tokens, most, sample.room);
        let len = sequence.len() as u64;
        sample.take_over(sequence, &History::of(version));
        self.stats.prefill_tokens_reused += len;
    }

    /// Takes a live sample's pages and its claim; whoever follows it waits again. `remember` keeps what it computed in
    /// the index.
    pub(super) fn dismiss(&mut self, kv: &mut KvCache, slot: u32, remember: bool) {
        if remember {
            self.remember(kv, slot);
        }
        let sample = self.samples[slot as usize].as_mut().expect("a sample");
        kv.end(std::mem::take(&mut sample.sequence));
        sample.computed = 0;
        sample.acquired = false;
        sample.follows = None;
        sample.drawing = None;
        sample.live = false;
        let id = sample.id;
        let claim = std::mem::take(&mut sample.claim);
        self.reserved -= claim.own;
        if let Some(group) = claim.group {
            let group = &mut self.groups[group as usize];
            group.members -= 1;
            if group.members == 0 {
                self.reserved -= group.pages;
            }
        }
        self.answer(id);
        self.live.retain(|&live| live != slot);
        let at = self.waiting.partition_point(|&waiting| self.sample(waiting).id < id);
        self.waiting.insert(at, slot);
        while let Some(&follower) =
            self.live.iter().find(|&&live| self.sample(live).follows.is_some_and(|f| f.leader == slot))
        {
            self.dismiss(kv, follower, false);
        }
    }

    /// Keeps what a sample computed in the index, if one version made all of it and that may be reused.
    pub(super) fn remember(&self, kv: &mut KvCache, slot: u32) {
        let sample = self.sample(slot);
        let Some(version) = sample.kv.only() else { return };
        let reusable = self.limits.prefix_across_versions && version >= self.oldest_retained;
        if version == self.version || reusable {
            let provenance = Provenance { version, ..kv.provenance() };
            kv.remember(provenance, &sample.tokens[..sample.computed], &sample.sequence);
        }
    }
}
