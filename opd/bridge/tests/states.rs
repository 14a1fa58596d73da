//! Every interleaving of a producer and a consumer over a small ring, each of which may die between any two accesses to a
//! word and come back: no accepted block is lost, none comes after it was acknowledged, no byte is read that is not the
//! block's, and credits are exact.
//!
//! The functions under test run as they are. To stop one behind each access, it is run again from its beginning with the
//! answers that it had so far, then makes one access more, and is unwound at the next.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bridge::states::{self, Board, Due, State, Take, Word};

/// Accesses that an operation has made: a load's code, or whether a change was made.
type Log = Vec<u64>;

/// How an operation is stopped.
struct Stop;

struct Replay<'a> {
    words: &'a RefCell<Vec<u64>>,
    log: &'a RefCell<Log>,
    at: Cell<usize>,
    fresh: Cell<bool>,
}

impl Replay<'_> {
    fn access(&self, access: impl FnOnce(&mut Vec<u64>) -> u64) -> u64 {
        let at = self.at.replace(self.at.get() + 1);
        if at == self.log.borrow().len() {
            if self.fresh.replace(false) {
                self.log.borrow_mut().push(access(&mut self.words.borrow_mut()));
            } else {
                resume_unwind(Box::new(Stop));
            }
        }
        self.log.borrow()[at]
    }
}

impl Board for Replay<'_> {
    fn slot_count(&self) -> u64 {
        self.words.borrow().len() as u64
    }
    fn load(&self, slot: u64) -> u64 {
        self.access(|words| words[slot as usize])
    }
    fn replace(&self, slot: u64, from: u64, to: u64) -> bool {
        let change = |words: &mut Vec<u64>| {
            let same = words[slot as usize] == from;
            if same {
                words[slot as usize] = to;
            }
            same.into()
        };
        self.access(change) == 1
    }
}

/// The same words without stops, for what is asked of them at one moment.
struct Still<'a>(&'a [u64]);

impl Board for Still<'_> {
    fn slot_count(&self) -> u64 {
        self.0.len() as u64
    }
    fn load(&self, slot: u64) -> u64 {
        self.0[slot as usize]
    }
    fn replace(&self, _: u64, _: u64, _: u64) -> bool {
        unreachable!("only asked")
    }
}

/// Makes one access of an operation; its result, if that was the last.
fn step<T>(words: &RefCell<Vec<u64>>, log: &mut Log, operation: impl Fn(&Replay) -> T) -> Option<T> {
    let cell = RefCell::new(std::mem::take(log));
    let board = Replay { words, log: &cell, at: Cell::new(0), fresh: Cell::new(true) };
    let result = match catch_unwind(AssertUnwindSafe(|| operation(&board))) {
        Ok(result) => Some(result),
        Err(stop) if stop.is::<Stop>() => None,
        Err(panic) => resume_unwind(panic),
    };
    if result.is_none() {
        *log = cell.into_inner();
    }
    result
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Making {
    Attach,
    Claim,
    /// So many of the block's two cells are written.
    Write(u8),
    Publish,
    Abandon,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Taking {
    Attach,
    Idle,
    Take,
    Release(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    words: Vec<u64>,
    /// What is written in each slot: two cells, so that half a block can be.
    cells: Vec<[u64; 2]>,
    making: (Making, Log, u64),
    taking: (Taking, Log, u64, u64, Vec<u64>),
    /// How often the producer and the consumer died.
    crashes: [u8; 2],
    /// What truly happened: blocks 0 .. accepted were accepted; a bit for each that was acknowledged.
    accepted: u64,
    acknowledged: u64,
}

struct Limits {
    blocks: u64,
    crashes_each: u8,
    crashes: u8,
}

impl World {
    fn new(slots: u64) -> World {
        World {
            words: (0..slots).map(|slot| Word::new(slot, State::Free).code()).collect(),
            cells: vec![[u64::MAX; 2]; slots as usize],
            making: (Making::Attach, Log::new(), 0),
            taking: (Taking::Attach, Log::new(), 0, 0, Vec::new()),
            crashes: [0; 2],
            accepted: 0,
            acknowledged: 0,
        }
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.words.len() as u64) as usize
    }

    fn acknowledged(&self, number: u64) -> bool {
        self.acknowledged >> number & 1 == 1
    }

    /// Notes what a change of the words did.
    fn note(&mut self, before: &[u64]) {
        for (&from, &to) in before.iter().zip(&self.words) {
            let (from, to) = (Word::from_code(from), Word::from_code(to));
            match (from.state, to.state) {
                (State::Filling, State::Ready) => {
                    assert_eq!(to.number, self.accepted, "accepted in order");
                    self.accepted += 1;
                }
                (State::InUse, State::Free) => {
                    assert!(!self.acknowledged(from.number), "acknowledged once");
                    self.acknowledged |= 1 << from.number;
                }
                _ => {}
            }
        }
    }

    /// The producer's next access.
    fn produce(&self, limits: &Limits, abandon: bool) -> Option<World> {
        let mut world = self.clone();
        let (making, log, number) = &mut world.making;
        let number = *number;
        let words = RefCell::new(self.words.clone());
        match *making {
            Making::Attach => {
                if let Some(next) = step(&words, log, |board| states::producer_attaches(board).expect("sound")) {
                    world.making = (Making::Claim, Log::new(), next);
                }
            }
            Making::Claim if number == limits.blocks && log.is_empty() => return None,
            Making::Claim => {
                if step(&words, log, |board| states::claim(board, number).expect("sound")) == Some(true) {
                    world.making = (Making::Write(0), Log::new(), number);
                }
            }
            Making::Write(2) => {
                world.making.0 = if abandon { Making::Abandon } else { Making::Publish };
            }
            Making::Write(cell) => {
                let slot = self.slot(number);
                world.cells[slot][usize::from(cell)] = number;
                world.making.0 = Making::Write(cell + 1);
            }
            Making::Publish => {
                if step(&words, log, |board| states::publish(board, number).expect("sound")).is_some() {
                    world.making = (Making::Claim, Log::new(), number + 1);
                }
            }
            Making::Abandon => {
                if step(&words, log, |board| states::abandon(board, number).expect("sound")).is_some() {
                    world.making = (Making::Claim, Log::new(), number);
                }
            }
        }
        world.words = words.into_inner();
        world.note(&self.words);
        if world.making.0 == Making::Claim && world.making.1.is_empty() {
            assert_eq!(world.making.2, world.accepted, "the producer goes on behind the last accepted block");
            world.check_credits();
        }
        Some(world)
    }

    /// Credits are as many slots as were never used or whose block was acknowledged, in a row from the next number.
    fn check_credits(&self) {
        let (next, count) = (self.making.2, self.words.len() as u64);
        let free = |number: &u64| *number < count || self.acknowledged(*number - count);
        let naive = (next..next + count).take_while(free).count() as u64;
        assert_eq!(states::credits(&Still(&self.words), next), naive, "{self:?}");
    }

    /// What the consumer can do next: go on with what it does, or, idle, take a block or acknowledge any lease.
    fn consume(&self) -> Vec<World> {
        match self.taking.0 {
            Taking::Idle => {
                let choices = self.taking.4.iter().map(|&number| Taking::Release(number)).chain([Taking::Take]);
                choices.map(|choice| World { taking: self.with(choice), ..self.clone() }.consume_one()).collect()
            }
            _ => vec![self.clone().consume_one()],
        }
    }

    fn with(&self, taking: Taking) -> (Taking, Log, u64, u64, Vec<u64>) {
        let (_, log, number, fresh, leases) = self.taking.clone();
        (taking, log, number, fresh, leases)
    }

    fn consume_one(mut self) -> World {
        let before = self.words.clone();
        let (taking, log, number, fresh, leases) = &mut self.taking;
        let words = RefCell::new(before.clone());
        let due = Due { number: *number, fresh: *fresh };
        match *taking {
            Taking::Attach => {
                if let Some(due) = step(&words, log, |board| states::consumer_attaches(board).expect("sound")) {
                    self.taking = (Taking::Idle, Log::new(), due.number, due.fresh, Vec::new());
                }
            }
            Taking::Take => match step(&words, log, |board| states::take(board, due).expect("sound")) {
                None => {}
                Some(take) => {
                    match take {
                        Take::Taken => leases.push(due.number),
                        Take::Passed => assert!(self.acknowledged >> due.number & 1 == 1, "passed over: {before:?}"),
                        Take::NotYet => {}
                    }
                    *taking = Taking::Idle;
                    *number += u64::from(take != Take::NotYet);
                }
            },
            Taking::Release(number) => {
                if step(&words, log, |board| states::release(board, number).expect("sound")).is_some() {
                    leases.retain(|&lease| lease != number);
                    *taking = Taking::Idle;
                }
            }
            Taking::Idle => unreachable!("chosen above"),
        }
        self.words = words.into_inner();
        self.note(&before);
        self
    }

    fn check(&self) {
        for number in 0..self.accepted {
            let word = Word::from_code(self.words[self.slot(number)]);
            if self.acknowledged(number) {
                assert!(word.number > number, "{number} was acknowledged and could come again: {self:?}");
                continue;
            }
            assert!(word.number == number && matches!(word.state, State::Ready | State::InUse), "lost: {self:?}");
            assert_eq!(self.cells[self.slot(number)], [number; 2], "the bytes of an accepted block: {self:?}");
            let attached = self.taking.0 != Taking::Attach;
            let reached = self.taking.2 <= number || self.taking.4.contains(&number);
            assert!(!attached || reached, "{number} was passed over: {self:?}");
        }
        // While a lease is held, or is being acknowledged and is not yet, its bytes are the block's.
        for &lease in self.taking.4.iter().filter(|&&lease| !self.acknowledged(lease)) {
            assert!(lease < self.accepted, "{self:?}");
            assert_eq!(self.cells[self.slot(lease)], [lease; 2], "{self:?}");
        }
    }

    fn successors(&self, limits: &Limits) -> Vec<World> {
        let mut next = self.consume();
        next.extend(self.produce(limits, false));
        if self.making.0 == Making::Write(2) {
            next.extend(self.produce(limits, true));
        }
        let [producer, consumer] = self.crashes;
        if producer < limits.crashes_each && producer + consumer < limits.crashes {
            let making = (Making::Attach, Log::new(), 0);
            next.push(World { making, crashes: [producer + 1, consumer], ..self.clone() });
        }
        if consumer < limits.crashes_each && producer + consumer < limits.crashes {
            let taking = (Taking::Attach, Log::new(), 0, 0, Vec::new());
            next.push(World { taking, crashes: [producer, consumer + 1], ..self.clone() });
        }
        next
    }
}

/// Visits every world that can be reached; gives how many there are, and how many in which all is done.
fn explore(slots: u64, limits: &Limits) -> (usize, usize) {
    let start = World::new(slots);
    let (mut seen, mut stack, mut done) = (HashSet::from([start.clone()]), vec![start], 0);
    while let Some(world) = stack.pop() {
        world.check();
        done += usize::from(world.acknowledged == (1 << limits.blocks) - 1);
        for next in world.successors(limits) {
            if !seen.contains(&next) {
                seen.insert(next.clone());
                stack.push(next);
            }
        }
    }
    (seen.len(), done)
}

#[test]
fn two_slots_every_interleaving_and_crash() {
    let (worlds, done) = explore(2, &Limits { blocks: 5, crashes_each: 2, crashes: 4 });
    println!("{worlds} worlds, {done} with all blocks acknowledged");
    assert!(worlds > 10_000 && done > 100, "{worlds} {done}");
}

#[test]
fn four_slots_every_interleaving_and_crash() {
    let (worlds, done) = explore(4, &Limits { blocks: 5, crashes_each: 1, crashes: 1 });
    println!("{worlds} worlds, {done} with all blocks acknowledged");
    assert!(worlds > 10_000 && done > 100, "{worlds} {done}");
}
