//! What has been sampled and scored and waits for its update; and what may not be trained on.

use std::collections::BTreeMap;

/// What an update is made of: all completions of a prompt.
pub trait Group {
    /// The oldest weights version that sampled a token of it.
    fn oldest(&self) -> u64;
}

/// Why a group is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is there already.
    #[error("prompt {prompt} came twice")]
    Twice {
        /// Which.
        prompt: u64,
    },
    /// Its update is over.
    #[error("prompt {prompt} came after its update")]
    Over {
        /// Which.
        prompt: u64,
    },
}

/// Groups by prompt, in the order in which they are trained on.
#[derive(Debug)]
pub struct Intake<G> {
    batch: u64,
    cap: u64,
    /// Prompts below this have been handed out.
    next: u64,
    held: BTreeMap<u64, G>,
}

impl<G: Group> Intake<G> {
    /// Hands out from prompt `next` on, `batch` an update, none with a token of more than `cap` versions before.
    ///
    /// # Panics
    /// When `batch` is 0, or `next` is within an update.
    #[must_use]
    pub fn new(batch: u64, cap: u64, next: u64) -> Intake<G> {
        assert!(batch > 0 && next.is_multiple_of(batch), "an update begins at a multiple of its prompts");
        Intake { batch, cap, next, held: BTreeMap::new() }
    }

    /// Takes what came of a prompt.
    ///
    /// # Errors
    /// When it has come before: nothing is trained on twice.
    pub fn take(&mut self, prompt: u64, group: G) -> Result<(), Refused> {
        if prompt < self.next {
            return Err(Refused::Over { prompt });
        }
        if self.held.contains_key(&prompt) {
            return Err(Refused::Twice { prompt });
        }
        self.held.insert(prompt, group);
        Ok(())
    }

    /// Takes groups out that would be too old in the next update, and names their prompts: they have to be sampled again.
    /// Age is measured here, at use, against the version that the update trains, whatever was promised when they began.
    pub fn too_old(&mut self) -> Vec<(u64, G)> {
        let (batch, cap) = (self.batch, self.cap);
        let due = self.next..self.next + batch;
        let old = |prompt: u64, group: &G| prompt / batch > group.oldest() + cap;
        let prompts: Vec<u64> = self.held.range(due).filter(|&(&p, g)| old(p, g)).map(|(&p, _)| p).collect();
        prompts.into_iter().map(|prompt| (prompt, self.held.remove(&prompt).expect("it was there"))).collect()
    }

    /// The first prompt of the next update that is not there, if one is missing.
    #[must_use]
    pub fn lacks(&self) -> Option<u64> {
        self.lacks_before(self.next + self.batch)
    }

    /// The first prompt before `end` that is neither there nor handed out.
    #[must_use]
    pub fn lacks_before(&self, end: u64) -> Option<u64> {
        (self.next..end).find(|prompt| !self.held.contains_key(prompt))
    }

    /// The groups of the next update in order.
    ///
    /// # Panics
    /// When one is missing or too old.
    pub fn hand_out(&mut self) -> Vec<(u64, G)> {
        assert_eq!(self.lacks(), None, "the update's prompts are not all there");
        let end = self.next + self.batch;
        let later = self.held.split_off(&end);
        let batch: Vec<(u64, G)> = std::mem::replace(&mut self.held, later).into_iter().collect();
        for (prompt, group) in &batch {
            let (due, oldest) = (prompt / self.batch, group.oldest());
            assert!(due <= oldest + self.cap, "prompt {prompt} is of version {oldest}, which is too old for {due}");
        }
        self.next = end;
        batch
    }

    /// Groups that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// All groups that wait, by prompt.
    pub fn held(&self) -> impl Iterator<Item = (u64, &G)> {
        self.held.iter().map(|(&prompt, group)| (prompt, group))
    }
}
