//! The teacher's loop: a request, its scores under the same number, then the request is done.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use bridge::{Consumer, Draft, Geometry, Kind, Lease, Meta, Patience, Producer, ReceiveError};

use super::scorer::Scorer;
use super::{TeachError, requests_path};
use crate::clock::Stopwatch;
use crate::sequences::Row;

/// How long it waits before it gives another sign of life in both rings.
const BEAT: Duration = Duration::from_millis(50);

/// What the rings hold, where they have to be made.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Blocks under way in each; a power of two.
    pub slots: u32,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests answered, those without scores included.
    pub requests: u64,
    /// Rows scored.
    pub rows: u64,
    /// Tokens that the model ran over.
    pub tokens: u64,
    /// Requests that it had no scores for.
    pub missing: u64,
    /// Requests that an earlier server had answered and not ended.
    pub again: u64,
}

/// A teacher attached to its two rings.
#[derive(Debug)]
pub struct Server {
    scorer: Scorer,
    scores: Producer,
    requests: Consumer,
    done: Done,
    delay: Duration,
    company: Company,
}

/// Whether there is a learner, and how long there has been none.
#[derive(Debug)]
struct Company {
    /// Without one for so long it gives up.
    wait: Duration,
    alone: Stopwatch,
}

impl Company {
    /// Whether a learner is there now; an error when there was none for too long.
    fn look(&mut self, requests: &Consumer) -> Result<bool, TeachError> {
        let attached = requests.peer().holds_role;
        if attached {
            self.alone = Stopwatch::start();
        } else if seconds(&self.alone) > self.wait {
            return Err(TeachError::NoLearner { waited: self.wait });
        }
        Ok(attached)
    }
}

fn seconds(since: &Stopwatch) -> Duration {
    Duration::from_secs_f64(since.elapsed_s())
}

/// A request of the sampled kind that has no scores yet.
fn request_meta(rows: u32) -> Meta {
    Meta { rows, missing: true, ..Meta::new(Kind::Sampled) }
}

impl Server {
    /// Makes the rings where neither is there, and takes both roles of the teacher.
    ///
    /// # Errors
    /// The rings cannot be made, are not a pair, or have a teacher.
    pub fn open(path: &Path, rings: Rings, scorer: Scorer) -> Result<Server, TeachError> {
        let requests = requests_path(path);
        match (path.exists(), requests.exists()) {
            (true, true) => {}
            (true, false) => return Err(TeachError::HalfMade { there: path.to_owned(), missing: requests }),
            (false, true) => return Err(TeachError::HalfMade { there: requests, missing: path.to_owned() }),
            (false, false) => {
                let tokens = scorer.tokens_max();
                let size = |source| TeachError::Size { tokens, source };
                let count = u32::try_from(tokens).unwrap_or(u32::MAX);
                let (asked, answer) = (request_meta(count), scorer.meta(count));
                bridge::create(&requests, Geometry::for_blocks(rings.slots, &asked).map_err(size)?)?;
                if let Err(error) = Geometry::for_blocks(rings.slots, &answer)
                    .map_err(size)
                    .and_then(|geometry| Ok(bridge::create(path, geometry)?))
                {
                    // Without its twin it would stand in the way of the next attempt.
                    let _ = std::fs::remove_file(&requests);
                    return Err(error);
                }
            }
        }
        let (scores, requests) = (Producer::attach(path)?, Consumer::attach(&requests)?);
        let (answered, asked) = (scores.next(), requests.next());
        // An answer is published before its request ends, and only a corrupt request ends before that.
        if answered > asked + 1 || asked > answered + 1 {
            return Err(TeachError::Apart { ring: path.to_owned(), answered, asked });
        }
        let mut server = Server {
            scorer,
            scores,
            requests,
            done: Done::default(),
            delay: Duration::ZERO,
            company: Company { wait: Duration::MAX, alone: Stopwatch::start() },
        };
        server.check_rings(path)?;
        if asked > answered {
            server.answer_lost()?;
        }
        Ok(server)
    }

    /// Rings that an earlier teacher made have to hold what this one answers, and nothing that it cannot take.
    fn check_rings(&self, path: &Path) -> Result<(), TeachError> {
        let other =
            |what: String| TeachError::OtherRings { ring: path.to_owned(), requests: requests_path(path), what };
        let tokens = self.scorer.tokens_max();
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let answer = self.scorer.meta(count(tokens));
        self.scores.fits(&answer).map_err(|source| {
            other(format!("an answer of this --payload for --max-tokens {tokens} does not fit: {source}"))
        })?;
        let size = |source| TeachError::Size { tokens, source };
        let own = Geometry::for_blocks(2, &request_meta(count(tokens))).map_err(size)?.slot_bytes;
        if self.requests.slot_bytes() > own {
            return Err(other(format!(
                "they take longer sequences than --max-tokens {tokens}, which would have no scores"
            )));
        }
        Ok(())
    }

    /// The same teacher, which holds every answer back until its request is so old: to see what a slow one costs a run.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Server {
        Server { delay, ..self }
    }

    /// The same teacher, which gives up when there was no learner for so long.
    #[must_use]
    pub fn patient(self, wait: Duration) -> Server {
        Server { company: Company { wait, ..self.company }, ..self }
    }

    /// Takes the rings away, once a learner has said that it has no more to ask: they are memory, and nobody needs it.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn remove(self, path: &Path) -> std::io::Result<()> {
        for ring in [path.to_owned(), requests_path(path)] {
            for end in ["", ".producer", ".consumer"] {
                let mut file = ring.as_os_str().to_owned();
                file.push(end);
                match std::fs::remove_file(&file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        drop(self); // both roles are held until nobody can find the rings
        Ok(())
    }

    /// How often a teacher has attached to these rings.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.scores.epoch()
    }

    /// Answers until a learner that was there says that it has no more to ask. `refused` hears of requests without scores.
    ///
    /// # Errors
    /// The rings are damaged, or no learner comes.
    pub fn serve(&mut self, mut refused: impl FnMut(u64, &str)) -> Result<Done, TeachError> {
        let mut learner = false;
        // Requests whose answers are held back, with the time since they came.
        let mut held: VecDeque<(Lease, Stopwatch)> = VecDeque::new();
        loop {
            self.scores.beat();
            learner |= self.company.look(&self.requests)? || self.done.requests > 0;
            let waits = held.front().map(|(_, since)| self.delay.saturating_sub(seconds(since)));
            if waits == Some(Duration::ZERO) {
                let (lease, _) = held.pop_front().expect("it was just there");
                self.answer(&lease, &mut refused)?;
                continue;
            }
            match self.requests.receive(Patience::until(waits.unwrap_or(BEAT).min(BEAT))) {
                Ok(Some(lease)) if self.delay.is_zero() => self.answer(&lease, &mut refused)?,
                Ok(Some(lease)) => held.push_back((lease, Stopwatch::start())),
                Ok(None) if learner && held.is_empty() => return Ok(self.done),
                // The end is said, and what came before it is still to be answered; or an earlier learner said it, and
                // another one may come.
                Ok(None) => std::thread::sleep(waits.unwrap_or(BEAT)),
                Err(ReceiveError::Corrupt { number, why }) => {
                    // Answers are in the order of the requests.
                    for (lease, _) in held.drain(..) {
                        self.answer(&lease, &mut refused)?;
                    }
                    // An earlier teacher may have answered it, and died before it could end the request.
                    if number < self.scores.next() {
                        self.done.again += 1;
                    } else {
                        refused(number, &why.to_string());
                        self.answer_lost()?;
                    }
                }
                Err(error) => TeachError::empty(error)?,
            }
        }
    }

    fn answer(&mut self, request: &Lease, refused: &mut impl FnMut(u64, &str)) -> Result<(), TeachError> {
        let (number, asked, arrays) = (request.number(), request.meta(), request.arrays());
        if number < self.scores.next() {
            self.done.again += 1;
            return Ok(());
        }
        assert_eq!(number, self.scores.next(), "requests come in order and each has one answer");
        self.scores.beat();
        let prompt = arrays.mask.iter().position(|&mask| mask == 1).unwrap_or(0);
        let row = Row::new(arrays.tokens.to_vec(), prompt);
        let run = if asked.kind != Kind::Sampled || !asked.missing {
            Err("no request, but a block of scores".to_owned())
        } else if prompt == 0 {
            Err("no masked token, or none before the first".to_owned())
        } else {
            self.scorer.run(&row, asked.temperature)
        };
        let count = if run.is_ok() { row.targets().len() } else { row.ids.len() };
        let first = row.ids.len() - count;
        let meta = Meta {
            missing: run.is_err(),
            sequence_uid: asked.sequence_uid,
            prompt_hash: asked.prompt_hash,
            first_position: asked.first_position + first as u64,
            temperature: asked.temperature,
            ..self.scorer.meta(u32::try_from(count).expect("of a block"))
        };
        if let Err(why) = &run {
            refused(number, why);
            self.done.missing += 1;
        }
        let mut draft = claim(&mut self.scores, &self.requests, &mut self.company, &meta)?;
        let mut into = draft.arrays_mut();
        into.tokens.copy_from_slice(&arrays.tokens[first..]);
        into.logprobs.copy_from_slice(&arrays.logprobs[first..]);
        into.versions.copy_from_slice(&arrays.versions[first..]);
        if run.is_ok() {
            into.mask.copy_from_slice(&arrays.mask[first..]);
            self.scorer.write(&mut into, asked.temperature);
            self.done.rows += count as u64;
            self.done.tokens += row.ids.len() as u64;
        } else {
            into.mask.fill(0);
            into.lse.fill(0.0);
        }
        draft.publish()?;
        self.done.requests += 1;
        Ok(())
    }

    /// Answers a request that was corrupt: what it asked is not known.
    fn answer_lost(&mut self) -> Result<(), TeachError> {
        let meta = Meta { missing: true, ..self.scorer.meta(1) };
        let mut draft = claim(&mut self.scores, &self.requests, &mut self.company, &meta)?;
        let arrays = draft.arrays_mut();
        arrays.tokens.fill(0);
        arrays.logprobs.fill(0.0);
        arrays.lse.fill(0.0);
        arrays.mask.fill(0);
        arrays.versions.fill(0);
        draft.publish()?;
        self.done.requests += 1;
        self.done.missing += 1;
        Ok(())
    }
}

/// Waits for a free slot as long as there is a learner that may empty one, with signs of life in both rings.
fn claim<'a>(
    scores: &'a mut Producer,
    requests: &Consumer,
    company: &mut Company,
    meta: &Meta,
) -> Result<Draft<'a>, TeachError> {
    while scores.credits() == 0 {
        requests.beat();
        company.look(requests)?;
        match scores.claim(meta, Patience::until(BEAT)).map(drop) {
            Ok(()) => break,
            Err(error) => TeachError::full(error, meta.rows as usize)?,
        }
    }
    scores.claim(meta, Patience::NONE).map_err(|error| match TeachError::full(error, meta.rows as usize) {
        Err(error) => error,
        Ok(()) => unreachable!("a slot was free, and nobody else takes it"),
    })
}
