//! The learner's side: asks for the scores of micro-batches, and gets them in the order asked.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bridge::{Consumer, Kind, Lease, Meta, OpenError, Patience, Producer, ReceiveError, Scores};
use engine::checkpoint::Checkpoint;
use engine::model::load_head;
use engine::recipe::{Precision, Recipe};
use ptx::Cpu;
use ptx::dtype::bf16_to_f32;
use ptx::ops::linear::Packed;

use super::{TeachError, hash_word, head_descriptor, requests_path};
use crate::loss::View;
use crate::sequences::Row;

/// What the teacher has to be.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its model's hash.
    pub model_hash: String,
    /// Its precision, which its head has too.
    pub precision: Precision,
    /// Of the rollouts; scores are at this temperature.
    pub temperature: f32,
    /// Tokens of the longest sequence that will be asked for.
    pub longest: usize,
}

/// The scores of a micro-batch's predicted tokens, row after row, in the order of [`Side::run`](crate::side::Side::run).
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Hidden rows, `[predicting, hidden]`.
    Hidden(Vec<f32>),
    /// Logits, `[predicting, vocab]`.
    Logits(Vec<f32>),
    /// The likeliest tokens.
    TopK {
        /// `[predicting, k]`.
        ids: Vec<u32>,
        /// `[predicting, k]`, in nats.
        ln_q: Vec<f32>,
        /// ln of the rest, `[predicting]`.
        tail: Vec<f32>,
    },
    /// Logprobs of the tokens taken, `[predicting]`, in nats.
    Sampled(Vec<f32>),
}

impl Received {
    /// What they are.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Received::Hidden(_) => "hidden rows",
            Received::Logits(_) => "logits",
            Received::TopK { .. } => "the likeliest tokens",
            Received::Sampled(_) => "logprobs of the tokens taken",
        }
    }
}

/// A micro-batch under way.
#[derive(Debug)]
struct Asked {
    /// Rows that are not answered yet, from the first on.
    left: VecDeque<Vec<u32>>,
    count: usize,
    scores: Option<Received>,
    lse: Vec<f32>,
    missing: Vec<usize>,
    why: String,
}

/// A row that waits for a slot: all ids, and how many of them are the prompt.
type Waiting = (Row, u32);

/// A teacher in another process.
#[derive(Debug)]
pub struct RingTeacher {
    requests: Producer,
    scores: Consumer,
    head: Arc<Packed>,
    expected: Expected,
    deadline: Duration,
    /// The first request of this learner; answers before it are to an earlier one.
    first: u64,
    waiting: VecDeque<Waiting>,
    batches: VecDeque<Asked>,
    hidden: Vec<f32>,
    lse: Vec<f32>,
}

impl RingTeacher {
    /// Takes both roles of the learner in the rings at `path`, once the teacher has made them, and loads the teacher's head,
    /// and nothing else, from its folder. No block is waited for longer than `deadline`.
    ///
    /// # Errors
    /// No ring appears in time, it has a learner, or the folder cannot be read.
    pub fn connect(
        cpu: &Cpu,
        path: &Path,
        folder: &Checkpoint,
        expected: Expected,
        deadline: Duration,
    ) -> Result<RingTeacher, TeachError> {
        let watch = crate::clock::Stopwatch::start();
        let (requests, scores) = loop {
            // The scores' ring is made last.
            match Consumer::attach(path).and_then(|scores| Ok((Producer::attach(&requests_path(path))?, scores))) {
                Ok(both) => break both,
                Err(OpenError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    let waited = Duration::from_secs_f64(watch.elapsed_s());
                    if waited >= deadline {
                        let (what, peer) =
                            (format!("the ring {}", path.display()), "no teacher has made it".to_owned());
                        return Err(TeachError::Deadline { what, waited, peer });
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error.into()),
            }
        };
        let first = requests.next();
        if scores.next() > first {
            return Err(TeachError::Apart { ring: path.to_owned(), answered: scores.next(), asked: first });
        }
        let tokens = expected.longest;
        let rows = u32::try_from(tokens).unwrap_or(u32::MAX);
        let longest = Meta { rows, missing: true, ..Meta::new(Kind::Sampled) };
        requests.fits(&longest).map_err(|source| TeachError::Row { tokens, source })?;
        let recipe = Recipe::built_in("identity", expected.precision, folder.config())?;
        let head = Arc::new(load_head(cpu, folder, &recipe)?);
        let (waiting, batches, hidden, lse) = (VecDeque::new(), VecDeque::new(), Vec::new(), Vec::new());
        Ok(RingTeacher { requests, scores, head, expected, deadline, first, waiting, batches, hidden, lse })
    }

    /// Asks for the scores of a micro-batch sampled at a weights version. Does not wait: what finds no free slot goes out
    /// while answers are received.
    ///
    /// # Errors
    /// A row fits no slot, or the file is damaged.
    ///
    /// # Panics
    /// When a row has no prompt or no completion.
    pub fn send(&mut self, rows: &[Row], version: u32) -> Result<(), TeachError> {
        for row in rows {
            assert!(row.prompt > 0 && row.prompt < row.ids.len(), "a row has a prompt and a completion");
        }
        self.waiting.extend(rows.iter().map(|row| (row.clone(), version)));
        let left: VecDeque<_> = rows.iter().map(|row| row.targets().to_vec()).collect();
        let (count, why) = (left.len(), String::new());
        self.batches.push_back(Asked { left, count, scores: None, lse: Vec::new(), missing: Vec::new(), why });
        self.pump()
    }

    /// Publishes what waits, as far as slots are free.
    fn pump(&mut self) -> Result<(), TeachError> {
        while self.requests.credits() > 0 {
            let Some((Row { ids, prompt, .. }, version)) = self.waiting.front() else { break };
            let prompt_hash = blake3::hash(bytemuck::cast_slice(&ids[..*prompt]));
            let meta = Meta {
                rows: u32::try_from(ids.len()).expect("sequences are short"),
                missing: true,
                sequence_uid: self.requests.next(),
                prompt_hash: u64::from_be_bytes(prompt_hash.as_bytes()[..8].try_into().expect("eight")),
                temperature: self.expected.temperature,
                ..Meta::new(Kind::Sampled)
            };
            let mut draft = match self.requests.claim(&meta, Patience::NONE) {
                Ok(draft) => draft,
                Err(error) => {
                    TeachError::full(error, ids.len())?;
                    break;
                }
            };
            let arrays = draft.arrays_mut();
            arrays.tokens.copy_from_slice(ids);
            arrays.logprobs.fill(0.0);
            arrays.mask[..*prompt].fill(0);
            arrays.mask[*prompt..].fill(1);
            arrays.versions.fill(*version);
            draft.publish()?;
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// The scores of the oldest micro-batch that was asked for. After [`TeachError::Dead`] and [`TeachError::Deadline`] it can
    /// be called again and goes on where it was: a teacher that was started again answers what is left.
    ///
    /// # Errors
    /// The teacher is gone, or late, or another one; or it has no scores of some rows, which ends the micro-batch.
    ///
    /// # Panics
    /// When nothing was asked for.
    pub fn receive(&mut self) -> Result<Received, TeachError> {
        self.receive_within(self.deadline)
    }

    /// The same, which waits for no block longer than `patience`.
    ///
    /// # Errors
    /// As [`RingTeacher::receive`].
    ///
    /// # Panics
    /// When nothing was asked for.
    pub fn receive_within(&mut self, patience: Duration) -> Result<Received, TeachError> {
        assert!(!self.batches.is_empty(), "no micro-batch was asked for");
        while !self.batches[0].left.is_empty() {
            self.pump()?;
            self.requests.beat();
            let patience = Patience::until(patience).unless_silent(self.deadline);
            let due = self.scores.next();
            let what = || format!("the scores of request {due}");
            match self.scores.receive(patience) {
                Ok(Some(lease)) => self.take(&lease)?,
                Ok(None) => return Err(TeachError::Dead { what: what(), peer: self.scores.peer() }),
                Err(ReceiveError::Wait(error)) => return Err(TeachError::of_wait(what(), error)),
                Err(ReceiveError::Corrupt { number, why }) if number >= self.first => self.lost(why.to_string()),
                Err(ReceiveError::Corrupt { .. }) => {}
                Err(other) => {
                    return Err(TeachError::Answer { number: due, what: other.to_string() });
                }
            }
        }
        let batch = self.batches.pop_front().expect("not empty");
        match batch.scores {
            Some(scores) if batch.missing.is_empty() => {
                self.lse = batch.lse;
                if let Received::Hidden(hidden) = &scores {
                    self.hidden.clone_from(hidden);
                }
                Ok(scores)
            }
            _ => Err(TeachError::Missing { rows: batch.missing, why: batch.why }),
        }
    }

    /// What [`RingTeacher::receive`] last gave of hidden rows, for the loss.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { head: &self.head, hidden: &self.hidden }
    }

    /// The teacher's head, which makes logits of hidden rows.
    #[must_use]
    pub fn head(&self) -> Arc<Packed> {
        Arc::clone(&self.head)
    }

    /// The teacher's log-normalisers of the micro-batch that was received last, `[predicting]`, in nats.
    #[must_use]
    pub fn lse(&self) -> &[f32] {
        &self.lse
    }

    /// Rows that were asked for and have no answer yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.batches.iter().map(|batch| batch.left.len()).sum()
    }

    /// Says that nothing more will be asked: the teacher ends.
    pub fn finish(self) {
        self.requests.finish();
    }

    /// The micro-batch and row that the next answer is for.
    fn due(&mut self) -> &mut Asked {
        self.batches.iter_mut().find(|batch| !batch.left.is_empty()).expect("as many answers as requests")
    }

    fn lost(&mut self, why: String) {
        let batch = self.due();
        batch.missing.push(batch.count - batch.left.len());
        batch.why = why;
        batch.left.pop_front();
    }

    /// Takes an answer over.
    fn take(&mut self, lease: &Lease) -> Result<(), TeachError> {
        let (number, meta, arrays) = (lease.number(), lease.meta(), lease.arrays());
        if number < self.first {
            return Ok(()); // asked by a learner that is gone
        }
        let wrong = |what: &str| TeachError::Answer { number, what: what.to_owned() };
        let expected = hash_word(&self.expected.model_hash);
        if meta.teacher_hash != expected {
            return Err(TeachError::Model { expected, found: meta.teacher_hash });
        }
        if meta.missing {
            self.lost(format!("request {number} was refused; the teacher has said why"));
            return Ok(());
        }
        if meta.temperature.to_bits() != self.expected.temperature.to_bits() {
            return Err(TeachError::Temperature { expected: self.expected.temperature, found: meta.temperature });
        }
        let head = head_descriptor(self.expected.precision);
        if meta.kind == Kind::Hidden && meta.head_descriptor != head {
            return Err(TeachError::Head { expected: head, found: meta.head_descriptor });
        }
        if meta.kind == Kind::Hidden && meta.width as usize != self.head.k() {
            return Err(wrong("of another width than the teacher's head"));
        }
        if meta.sequence_uid != number {
            return Err(wrong("for another request"));
        }
        let batch = self.due();
        if batch.left[0] != arrays.tokens || arrays.lse.len() != arrays.tokens.len() {
            return Err(wrong("not of the tokens that were asked for"));
        }
        let fresh = empty(meta.kind);
        let scores = batch.scores.get_or_insert(fresh);
        let rows = arrays.tokens.len();
        match (scores, arrays.scores) {
            (Received::Hidden(all) | Received::Logits(all), Scores::Dense(dense)) => {
                for row in (0..rows).map(|row| dense.row(row)) {
                    match meta.dtype {
                        bridge::Dtype::Bf16 => {
                            all.extend(bytemuck::cast_slice::<u8, u16>(row).iter().map(|&bits| bf16_to_f32(bits)));
                        }
                        bridge::Dtype::F32 => all.extend_from_slice(bytemuck::cast_slice(row)),
                    }
                }
            }
            (Received::TopK { ids, ln_q, tail }, Scores::TopK { ids: i, ln_q: l, tail: t }) => {
                ids.extend_from_slice(i);
                ln_q.extend_from_slice(l);
                tail.extend_from_slice(t);
            }
            (Received::Sampled(all), Scores::Sampled(logprobs)) => all.extend_from_slice(logprobs),
            _ => return Err(wrong("of another kind than the one before")),
        }
        batch.lse.extend_from_slice(arrays.lse);
        batch.left.pop_front();
        Ok(())
    }
}

fn empty(kind: Kind) -> Received {
    match kind {
        Kind::Hidden => Received::Hidden(Vec::new()),
        Kind::Logits => Received::Logits(Vec::new()),
        Kind::TopK => Received::TopK { ids: Vec::new(), ln_q: Vec::new(), tail: Vec::new() },
        Kind::Sampled => Received::Sampled(Vec::new()),
    }
}
