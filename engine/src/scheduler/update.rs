//! Weights updates, and samples that lose their pages.

use kv::{KvCache, Provenance};

use super::Scheduler;
use super::types::InFlight;

impl Scheduler {
    /// What a sample gave out cannot be rebuilt: a version behind it is gone.
    pub(super) fn would_restart(&self, slot: u32) -> bool {
        let sample = self.sample(slot);
        let gone = sample.kv.oldest_from(0).is_some_and(|version| version < self.oldest_retained);
        gone && sample.is_bound(self.job(sample.id.job))
    }

    /// Preempts a live sample.
    pub(super) fn take_pages(&mut self, kv: &mut KvCache, slot: u32) {
        self.dismiss(kv, slot, true);
        self.stats.preempted += 1;
        self.settle(slot);
    }

    /// Decides what of its history binds a sample that holds no pages.
    fn settle(&mut self, slot: u32) {
        let sample = self.sample(slot);
        let job = sample.id.job;
        if !sample.is_bound(self.job(job)) {
            self.sample_mut(slot).unbind();
        } else if self.would_restart(slot) {
            self.sample_mut(slot).restart();
            self.job_mut(job).deliver_anew();
            self.stats.restarted += 1;
        }
    }

    pub(super) fn switch(&mut self, kv: &mut KvCache, version: u64, oldest_retained: u64, recompute: bool) {
        self.retained.push(self.version);
        self.retained.retain(|&version| version >= oldest_retained);
        self.version = version;
        self.oldest_retained = oldest_retained;
        self.draining = false;
        kv.set_provenance(Provenance { version, ..kv.provenance() });
        match if recompute { InFlight::Recompute } else { self.limits.in_flight } {
            InFlight::Recompute => {
                while let Some(&slot) = self.live.last() {
                    self.dismiss(kv, slot, false);
                }
                for i in 0..self.waiting.len() {
                    let slot = self.waiting[i];
                    let job = self.sample(slot).id.job;
                    self.sample_mut(slot).unbind();
                    self.job_mut(job).deliver_anew();
                }
            }
            InFlight::Keep => {
                // Those that are being rebuilt need versions that may have gone.
                while let Some(slot) = self.live.iter().copied().find(|&slot| self.lost(slot)) {
                    self.dismiss(kv, slot, false);
                    self.settle(slot);
                }
                for i in 0..self.waiting.len() {
                    self.settle(self.waiting[i]);
                }
            }
            InFlight::Drain => {}
        }
        if self.limits.prefix_across_versions && !recompute {
            kv.forget_before(oldest_retained);
        } else {
            kv.forget_all_but(version);
        }
    }

    /// A live sample that has still to rebuild positions of a version that is gone.
    fn lost(&self, slot: u32) -> bool {
        let sample = self.sample(slot);
        let rebuilds = sample.computed < sample.frontier;
        rebuilds && sample.kv.oldest_from(sample.computed).is_some_and(|version| version < self.oldest_retained)
    }
}
