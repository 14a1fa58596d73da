//! The next step: a token for every sample that decodes, then prefill in order of arrival.

use kv::{KvCache, Provenance};

use super::Scheduler;
use super::types::{Piece, Plan, Reservation};

impl Scheduler {
    pub(super) fn fill(&mut self, kv: &mut KvCache, plan: &mut Plan) {
        loop {
            plan.pieces.clear();
            plan.version = self.version_wanted();
            kv.set_provenance(Provenance { version: plan.version, ..kv.provenance() });
            let (decoded, gave_up) = self.fill_decode(kv, plan);
            let changed = self.fill_prefill(kv, plan, self.limits.step_tokens.saturating_sub(decoded)) || gave_up;
            // Without a piece, what was taken over has changed which version comes first, or a rebuild gave its pages up
            // to older samples of another version.
            if !plan.pieces.is_empty() || !changed {
                return;
            }
        }
    }

    /// Rebuilding what older versions made comes first, the oldest sample first.
    fn version_wanted(&self) -> u64 {
        let computing = self.live.iter().map(|&slot| self.sample(slot)).filter(|sample| sample.follows.is_none());
        let mut wanted = computing.map(|sample| sample.wants(self.version));
        wanted.find(|&version| version != self.version).unwrap_or(self.version)
    }

    /// How many tokens, and whether a sample gave its own pages up.
    fn fill_decode(&mut self, kv: &mut KvCache, plan: &mut Plan) -> (usize, bool) {
        let (mut at, mut decoded, mut gave_up) = (0, 0, false);
        while let Some(&slot) = self.live.get(at) {
            let sample = self.sample(slot);
            if sample.is_planned() || !sample.decodes() || sample.wants(self.version) != plan.version {
                at += 1;
                continue;
            }
            if self.append(kv, slot, 1) {
                self.add_piece(plan, slot, 1);
                decoded += 1;
                at = self.place(slot) + 1;
            } else {
                // The younger ones are gone; what is left belongs to older ones.
                self.take_pages(kv, slot);
                gave_up = true;
                at = 0; // whoever followed it has left too
            }
        }
        (decoded, gave_up)
    }

    /// True when something changed.
    fn fill_prefill(&mut self, kv: &mut KvCache, plan: &mut Plan, mut budget: usize) -> bool {
        let (mut at, mut changed) = (0, false);
        while budget > 0
            && let Some(&slot) = self.live.get(at)
        {
            let sample = self.sample(slot);
            let waits = sample.follows.is_some() || sample.is_planned() || sample.decodes();
            if waits || sample.wants(self.version) != plan.version {
                at += 1;
                continue;
            }
            if !sample.acquired {
                self.acquire(kv, slot);
                changed = true;
                continue;
            }
            let mut len = (sample.run_end(self.version) - sample.computed).min(budget);
            // All of it, or as much as the pages allow.
            while len > 0 && !self.append(kv, slot, len) {
                len /= 2;
            }
            if len == 0 {
                if plan.pieces.is_empty() {
                    self.take_pages(kv, slot);
                    changed = true;
                }
                break;
            }
            self.add_piece(plan, slot, len);
            budget -= len;
            at = self.place(slot) + 1;
        }
        changed
    }

    /// Makes places; where pages are not set aside, younger samples that are not in this step yet give theirs.
    fn append(&mut self, kv: &mut KvCache, slot: u32, tokens: usize) -> bool {
        loop {
            let sample = self.samples[slot as usize].as_mut().expect("a sample");
            match kv.append(&mut sample.sequence, tokens) {
                Ok(()) => return true,
                Err(exhausted) => assert_eq!(
                    self.limits.reservation,
                    Reservation::Optimistic,
                    "pages were set aside for a sample's lifetime, and yet {exhausted}"
                ),
            }
            match self.victim(slot) {
                Some(victim) => self.take_pages(kv, victim),
                None => return false,
            }
        }
    }

    /// The youngest sample after `slot` that holds pages and is not in this step, rather one that can be rebuilt.
    fn victim(&self, slot: u32) -> Option<u32> {
        let younger = self.live[self.place(slot) + 1..].iter().rev().copied();
        let mut candidates = younger.filter(|&other| {
            let sample = self.sample(other);
            !sample.sequence.is_empty() && !sample.is_planned()
        });
        let first = candidates.clone().next();
        candidates.find(|&other| !self.would_restart(other)).or(first)
    }

    fn place(&self, slot: u32) -> usize {
        self.live.iter().position(|&live| live == slot).expect("it is live")
    }

    /// The next `len` positions of a sample, whose places were appended.
    fn add_piece(&mut self, plan: &mut Plan, slot: u32, len: usize) {
        let version = plan.version;
        let index = self.job_index(self.sample(slot).id.job);
        let sample = self.samples[slot as usize].as_mut().expect("a sample");
        let state = self.jobs[index].as_ref().expect("its job");
        let (first, end) = (sample.computed, sample.computed + len);
        let decodes = sample.decodes();
        if end > sample.frontier {
            sample.kv.record(sample.frontier.max(first), version);
            sample.frontier = end;
        }
        let again = end.min(sample.high).saturating_sub(first);
        sample.high = sample.high.max(end);
        let samples_next = end == sample.tokens.len() && state.job.samples > 0;
        let wanted_first = if state.delivered < sample.prompt_len { state.delivered.max(first) } else { end };
        let wanted = wanted_first.min(end - usize::from(samples_next))..end;
        plan.pieces.push(Piece { sample: sample.id, first, len, wanted, samples_next });
        self.stats.recomputed_tokens += again as u64;
        self.stats.prefill_tokens_computed += if decodes { 0 } else { len as u64 };
    }
}
