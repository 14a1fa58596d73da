//! Which prompts the rollout stage may begin, so that what comes out can be trained on when its turn comes.
//!
//! Update `u` (from 1) trains the prompts `(u - 1) batch .. u batch`, and trains version `u - 1`: `prompt / batch`. A token
//! of version v is then `prompt / batch - v` versions old, whenever it was sampled; so its age at use is known, and bounded,
//! when its prompt begins. Nothing is dropped for being late: what would become too old does not begin.

use std::collections::BTreeSet;

/// How far rollouts go ahead of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Prompts of update u are sampled by version u - 1 - n, or by the first, and by no other.
    Exactly(u64),
    /// By any version that is at most so many behind when they are used.
    UpTo(u64),
}

impl Lead {
    /// The largest age of a token at its use, in versions.
    #[must_use]
    pub fn cap(self) -> u64 {
        match self {
            Lead::Exactly(n) | Lead::UpTo(n) => n,
        }
    }
}

/// The prompts of a run in order, and which of them have begun.
#[derive(Clone, Debug)]
pub struct Admission {
    lead: Lead,
    batch: u64,
    /// Versions before this one are not to be had: where the run, or its resumption, began.
    first_version: u64,
    next: u64,
    end: u64,
    /// Prompts that begin once more.
    again: BTreeSet<u64>,
}

impl Admission {
    /// The last version that a prompt has to be begun with exactly: until the rollout stage has it, it may not be replaced.
    #[must_use]
    pub fn last_wanted(lead: Lead, batch: u64, end: u64) -> Option<u64> {
        match lead {
            Lead::Exactly(n) => Some((end.saturating_sub(1) / batch).saturating_sub(n)),
            Lead::UpTo(_) => None,
        }
    }

    /// From prompt `next` to before `end`, `batch` of them an update, with weights from `first_version` on.
    ///
    /// # Panics
    /// When `batch` is 0.
    #[must_use]
    pub fn new(lead: Lead, batch: u64, first_version: u64, next: u64, end: u64) -> Admission {
        assert!(batch > 0, "an update has prompts");
        Admission { lead, batch, first_version, next, end, again: BTreeSet::new() }
    }

    /// Begins the prompt that comes next, if it may with weights version `version`. Up to a lead, prompts from `until` on
    /// do not begin yet: a prompt that begins later is fresher, so rollouts go far ahead only for a learner that waits.
    pub fn begin(&mut self, version: u64, until: u64) -> Option<u64> {
        // What comes again is needed the soonest.
        if let Some(&prompt) = self.again.first() {
            let fresh = prompt / self.batch <= version + self.lead.cap();
            return fresh.then(|| self.again.pop_first()).flatten();
        }
        let due = self.next / self.batch;
        let may = self.next < self.end
            && match self.lead {
                Lead::UpTo(cap) => due <= version + cap && self.next < until,
                Lead::Exactly(_) => version == self.wants().expect("there is a next prompt"),
            };
        may.then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The version that the next prompt has to be begun with, where it is exactly one.
    #[must_use]
    pub fn wants(&self) -> Option<u64> {
        match self.lead {
            Lead::Exactly(n) if self.next < self.end => {
                Some((self.next / self.batch).saturating_sub(n).max(self.first_version))
            }
            _ => None,
        }
    }

    /// A prompt that has begun begins once more: what came of it cannot be used.
    ///
    /// # Panics
    /// When it has not begun.
    pub fn again(&mut self, prompt: u64) {
        assert!(prompt < self.next, "prompt {prompt} has not begun");
        self.again.insert(prompt);
    }

    /// Prompts below this have begun.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }
}
