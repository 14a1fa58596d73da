//! The loop on a fake clock: rollouts, scores and updates of a toy student take seeded times, and things go wrong on the
//! way. Whatever happens, an update trains its own prompts, each once, and nothing that is too old or was refused.

use std::collections::{BTreeMap, BTreeSet};

use ptx::rng::{Purpose, Stream};

use super::{Admission, Group, Intake, Lead, Refused};

/// A prompt's completions, as far as the loop sees them.
#[derive(Clone, Debug, PartialEq)]
struct Toy {
    prompt: u64,
    /// Versions that sampled its tokens, ascending.
    versions: Vec<u64>,
    /// How often it was sampled before.
    attempt: u64,
}

impl Group for Toy {
    fn oldest(&self) -> u64 {
        self.versions[0]
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// One score in so many takes fifty times as long.
    late_teacher: u32,
    /// From this time on no score comes.
    dead_teacher_at: Option<u64>,
    /// One prompt in so many claims to be of a version that is long gone.
    stale: u32,
    /// The process is killed so many times.
    restarts: u32,
    /// Scores come twice, one in so many.
    twice: u32,
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// By update: what it trained.
    trained: Vec<Vec<Toy>>,
    /// Sampled again because they were too old.
    again: u64,
    refused: u64,
    restarts: u32,
    /// Nothing came for longer than anybody waits.
    deadline: bool,
    largest_age: u64,
}

const BATCH: u64 = 4;
const UPDATES: u64 = 30;
const PATIENCE: u64 = 2_000;
/// Prompts that are sampled at a time.
const SLOTS: usize = 6;

struct Sim {
    rng: Stream,
    faults: Faults,
    lead: Lead,
    now: u64,
    admission: Admission,
    intake: Intake<Toy>,
    /// Sampling, by when it is done.
    sampling: Vec<(u64, Toy)>,
    /// Being scored, by when.
    scoring: Vec<(u64, Toy)>,
    stage_version: u64,
    version: u64,
    attempts: BTreeMap<u64, u64>,
    /// When the update under way is done, and what it trains.
    updating: Option<(u64, Vec<Toy>)>,
    hungry_since: Option<u64>,
    outcome: Outcome,
}

impl Sim {
    fn new(seed: u64, lead: Lead, faults: Faults) -> Sim {
        Sim {
            rng: Stream::new(seed, Purpose::Data, 0),
            faults,
            lead,
            now: 0,
            admission: Admission::new(lead, BATCH, 0, 0, BATCH * UPDATES),
            intake: Intake::new(BATCH, lead.cap(), 0),
            sampling: Vec::new(),
            scoring: Vec::new(),
            stage_version: 0,
            version: 0,
            attempts: BTreeMap::new(),
            updating: None,
            hungry_since: None,
            outcome: Outcome::default(),
        }
    }

    fn one_in(&mut self, many: u32) -> bool {
        many > 0 && self.rng.below(many) == 0
    }

    fn between(&mut self, least: u32, most: u32) -> u64 {
        u64::from(least + self.rng.below(most - least))
    }

    /// The rollout stage: takes weights where it may, and begins what admission lets.
    fn stage(&mut self) {
        let news = match self.lead {
            Lead::UpTo(_) => self.version > self.stage_version,
            Lead::Exactly(_) => {
                let want = self.admission.wants();
                self.sampling.is_empty() && want.is_some_and(|want| self.stage_version < want && want <= self.version)
            }
        };
        if news {
            self.stage_version = self.version;
            let version = self.version;
            self.sampling
                .iter_mut()
                .filter(|(done, _)| *done > self.now)
                .for_each(|(_, toy)| toy.versions.push(version));
        }
        let until = if self.hungry_since.is_some() { u64::MAX } else { (self.version + 2) * BATCH };
        while self.sampling.len() < SLOTS
            && let Some(prompt) = self.admission.begin(self.stage_version, until)
        {
            let attempt = self.attempts.entry(prompt).or_default();
            *attempt += 1;
            let attempt = *attempt - 1;
            let mut versions = vec![self.stage_version];
            if attempt == 0 && self.one_in(self.faults.stale) {
                versions[0] = self.stage_version.saturating_sub(20);
            }
            let done = self.now + self.between(5, 200);
            self.sampling.push((done, Toy { prompt, versions, attempt }));
        }
    }

    /// One tick of everybody.
    fn tick(&mut self) {
        self.stage();
        let now = self.now;
        let (done, rest) = std::mem::take(&mut self.sampling).into_iter().partition(|&(at, _)| at <= now);
        self.sampling = rest;
        let done: Vec<(u64, Toy)> = done;
        for (_, toy) in done {
            let slow = if self.one_in(self.faults.late_teacher) { 50 } else { 1 };
            let mut at = now + slow * self.between(1, 12);
            if self.faults.dead_teacher_at.is_some_and(|dead| at >= dead) {
                at = u64::MAX;
            }
            if self.one_in(self.faults.twice) {
                self.scoring.push((at, toy.clone()));
            }
            self.scoring.push((at, toy));
        }
        let (scored, rest) = std::mem::take(&mut self.scoring).into_iter().partition(|&(at, _)| at <= now);
        self.scoring = rest;
        let scored: Vec<(u64, Toy)> = scored;
        for (_, toy) in scored {
            match self.intake.take(toy.prompt, toy.clone()) {
                Ok(()) => self.hungry_since = self.hungry_since.map(|_| now),
                Err(Refused::Twice { prompt } | Refused::Over { prompt }) => {
                    assert_eq!(prompt, toy.prompt);
                    self.outcome.refused += 1;
                }
            }
        }
        self.learner();
        self.now += 1;
    }

    fn learner(&mut self) {
        if let Some((at, batch)) = self.updating.take() {
            // With an exact lead the version that is replaced has to have been taken.
            let last = Admission::last_wanted(self.lead, BATCH, BATCH * UPDATES);
            let held = last.is_some_and(|last| self.version <= last && self.stage_version < self.version);
            if self.now < at || held {
                self.updating = Some((at, batch));
                return;
            }
            self.outcome.trained.push(batch);
            self.version += 1;
        }
        if self.version == UPDATES {
            return;
        }
        if self.intake.lacks().is_some() {
            self.hungry_since.get_or_insert(self.now);
            return;
        }
        for (prompt, _) in self.intake.too_old() {
            self.outcome.again += 1;
            self.admission.again(prompt);
        }
        if self.intake.lacks().is_some() {
            return;
        }
        self.hungry_since = None;
        let batch: Vec<Toy> = self.intake.hand_out().into_iter().map(|(_, toy)| toy).collect();
        let ages = batch.iter().flat_map(|toy| &toy.versions).map(|&of| self.version - of);
        self.outcome.largest_age = self.outcome.largest_age.max(ages.max().expect("a token"));
        let at = self.now + self.between(20, 60);
        self.updating = Some((at, batch));
    }

    /// kill -9 behind a checkpoint: what is written is the version, what is in flight, and nothing else.
    fn restart(&mut self) {
        self.outcome.restarts += 1;
        let mut in_flight: BTreeMap<u64, Toy> = BTreeMap::new();
        let done = self.version * BATCH;
        let handed = self.updating.take().map_or(Vec::new(), |(_, batch)| batch);
        let held: Vec<Toy> = self.intake.held().map(|(_, toy)| toy.clone()).collect();
        let moving = self.sampling.drain(..).chain(self.scoring.drain(..)).map(|(_, toy)| toy);
        for toy in handed.into_iter().chain(held).chain(moving) {
            // What begins once more has a later attempt under way.
            let later = in_flight.get(&toy.prompt).is_some_and(|own| own.attempt >= toy.attempt);
            if toy.prompt >= done && !later {
                in_flight.insert(toy.prompt, toy);
            }
        }
        let next = in_flight.keys().last().map_or(done, |last| last + 1).max(done);
        self.admission = Admission::new(self.lead, BATCH, self.version, next, BATCH * UPDATES);
        let begun: BTreeSet<u64> = in_flight.keys().copied().collect();
        (done..next).filter(|prompt| !begun.contains(prompt)).for_each(|prompt| self.admission.again(prompt));
        self.intake = Intake::new(BATCH, self.lead.cap(), done);
        self.stage_version = self.version;
        self.hungry_since = None;
        // Goes on sampling what had begun.
        let now = self.now;
        self.sampling = in_flight.into_values().map(|toy| (now + 3, toy)).collect();
    }

    fn run(mut self) -> Outcome {
        let kills: Vec<u64> = (0..self.faults.restarts).map(|_| self.between(50, 1500)).collect();
        while self.version < UPDATES {
            assert!(self.now < 200_000, "the loop does not end: {:?}", self.outcome);
            self.tick();
            if kills.contains(&self.now) && self.version < UPDATES {
                self.restart();
            }
            if self.hungry_since.is_some_and(|since| self.now - since > PATIENCE) {
                self.outcome.deadline = true;
                break;
            }
        }
        self.outcome
    }
}

/// Whatever was trained: prompts of its own update, all of them, in order, once, and none too old.
fn check(outcome: &Outcome, lead: Lead) {
    for (update, batch) in outcome.trained.iter().enumerate() {
        let prompts: Vec<u64> = batch.iter().map(|toy| toy.prompt).collect();
        let first = update as u64 * BATCH;
        assert_eq!(prompts, (first..first + BATCH).collect::<Vec<_>>());
        for toy in batch {
            assert!(toy.versions.iter().all(|&of| of + lead.cap() >= update as u64), "update {update}: {toy:?}");
        }
    }
    assert!(outcome.largest_age <= lead.cap());
}

#[test]
fn nothing_too_old_or_refused_ever_trains() {
    let leads = [Lead::UpTo(1), Lead::UpTo(2), Lead::UpTo(8), Lead::Exactly(1), Lead::Exactly(3)];
    let all = Faults { late_teacher: 9, stale: 7, restarts: 3, twice: 5, dead_teacher_at: None };
    let (mut again, mut refused, mut restarts) = (0, 0, 0);
    for seed in 0..200 {
        for lead in leads {
            // A sampler that lies about its version breaks what an exact lead promises, so there is none there.
            let exact = matches!(lead, Lead::Exactly(_));
            let faults = if exact { Faults { stale: 0, restarts: 0, ..all } } else { all };
            let outcome = Sim::new(seed, lead, faults).run();
            check(&outcome, lead);
            assert_eq!((outcome.trained.len() as u64, outcome.deadline), (UPDATES, false), "seed {seed}, {lead:?}");
            if exact {
                for (update, batch) in outcome.trained.iter().enumerate() {
                    let of = (update as u64).saturating_sub(lead.cap());
                    assert!(batch.iter().all(|toy| toy.versions == [of]), "seed {seed}, update {update}: {batch:?}");
                }
            }
            again += outcome.again;
            refused += outcome.refused;
            restarts += outcome.restarts;
        }
    }
    assert!(again > 100 && refused > 1000 && restarts > 500, "the faults happen: {again} {refused} {restarts}");
}

#[test]
fn a_dead_teacher_is_noticed() {
    for seed in 0..50 {
        let faults = Faults { dead_teacher_at: Some(700), ..Faults::default() };
        let outcome = Sim::new(seed, Lead::UpTo(2), faults).run();
        check(&outcome, Lead::UpTo(2));
        assert!(outcome.deadline && (outcome.trained.len() as u64) < UPDATES, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let faults = Faults { late_teacher: 4, stale: 5, restarts: 2, twice: 3, dead_teacher_at: None };
    let run = || Sim::new(11, Lead::UpTo(4), faults).run();
    assert_eq!(run(), run());
}

/// A learner that is the slower side gets rollouts of the version before, not of the oldest that is allowed.
#[test]
fn rollouts_are_as_fresh_as_they_can_be() {
    let mut sim = Sim::new(3, Lead::UpTo(8), Faults::default());
    // Sampling is done at once.
    while sim.version < UPDATES {
        sim.tick();
        let now = sim.now;
        sim.sampling.iter_mut().for_each(|(at, _)| *at = now);
        sim.scoring.iter_mut().for_each(|(at, _)| *at = now);
    }
    assert!(sim.outcome.largest_age <= 2, "{}", sim.outcome.largest_age);
}
