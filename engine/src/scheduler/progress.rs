//! What follows from a step: prompts complete, samples are forked, tokens come in, samples end.

use kv::KvCache;

use super::Scheduler;
use super::sample::Follows;
use super::types::{Finished, Plan};

impl Scheduler {
    pub(super) fn computed(&mut self, kv: &mut KvCache, plan: &Plan) {
        for (index, piece) in plan.pieces.iter().enumerate() {
            let slot = piece.sample.slot;
            let sample = self.sample_mut(slot);
            sample.computed = piece.first + piece.len;
            let (computed, prompt_len, job) = (sample.computed, sample.prompt_len, sample.id.job);
            if piece.samples_next {
                sample.drawing = Some(plan.version);
                self.draws.push((index, piece.sample));
            }
            let state = self.job_mut(job);
            state.delivered = state.delivered.max(computed.min(prompt_len));
            let scored = state.job.samples == 0 && computed == prompt_len;
            if scored {
                self.finish(kv, slot);
            } else if piece.first < prompt_len && computed >= prompt_len {
                self.remember(kv, slot);
                self.lead(kv, slot, index, plan.version);
            }
        }
    }

    /// The prompt of `leader` is complete: those that follow take it over, and draw from its last row if they are new.
    fn lead(&mut self, kv: &mut KvCache, leader: u32, piece: usize, version: u64) {
        let follows = |scheduler: &Scheduler, slot: u32| match scheduler.sample(slot).follows {
            Some(Follows { leader: of, take }) if of == leader => Some(take),
            _ => None,
        };
        let mut at = 0;
        while let Some(&slot) = self.live.get(at) {
            let Some(take) = follows(self, slot) else {
                at += 1;
                continue;
            };
            let sample = self.sample(slot);
            let known = take.min(sample.frontier);
            if self.sample(leader).kv.agree(&sample.kv, known) < known {
                // The leader went on under another version than this one needs.
                self.dismiss(kv, slot, false);
                continue;
            }
            self.fork(kv, leader, slot, take);
            let sample = self.sample_mut(slot);
            if sample.computed == sample.tokens.len() {
                sample.drawing = Some(version);
                let id = sample.id;
                self.draws.push((piece, id));
            }
            at += 1;
        }
    }

    /// Ends a sample that is live or waits.
    pub(super) fn finish(&mut self, kv: &mut KvCache, slot: u32) -> Finished {
        if self.sample(slot).live {
            self.dismiss(kv, slot, true);
        }
        self.waiting.retain(|&waiting| waiting != slot);
        let sample = self.samples[slot as usize].take().expect("a sample");
        self.vacant.push(slot);
        let state = self.job_mut(sample.id.job);
        state.deliver_anew();
        state.left -= 1;
        if state.left == 0 {
            self.forget_job(sample.id.job);
        }
        Finished {
            prompt_len: sample.prompt_len,
            tokens: sample.tokens,
            versions: sample.versions.into_segments(),
            kv: sample.kv.into_segments(),
        }
    }
}
