//! The states of slots and who may change them. Knows words and numbers only: no bytes of blocks, no files, no waiting.
//!
//! Generic over where the words are, so that the same code runs on the mapped file, on loom's atomics and in the
//! exhaustive simulation of crashes. Each function makes at most one change, so a crash falls between two calls.

use crate::error::Broken;

/// What a slot is doing. The discriminants are the two low bits of the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits for the producer.
    Free = 0,
    /// The producer writes into it.
    Filling = 1,
    /// Holds an accepted block that nobody has taken.
    Ready = 2,
    /// The consumer holds a lease on it.
    InUse = 3,
}

/// A state and the number of the block that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Block number; below 2^62.
    pub number: u64,
    /// What the slot does about it.
    pub state: State,
}

impl Word {
    /// A word of its parts.
    #[must_use]
    pub const fn new(number: u64, state: State) -> Word {
        Word { number, state }
    }

    /// As it lies in the file.
    #[must_use]
    pub const fn code(self) -> u64 {
        self.number << 2 | self.state as u64
    }

    /// From the file. Every code is a word.
    #[must_use]
    pub const fn from_code(code: u64) -> Word {
        let state = match code & 3 {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Ready,
            _ => State::InUse,
        };
        Word { number: code >> 2, state }
    }
}

/// Where the state words of a ring are.
pub trait Board {
    /// A power of two.
    fn slot_count(&self) -> u64;
    /// Reads the word of a slot, with acquire ordering.
    fn load(&self, slot: u64) -> u64;
    /// Replaces `from` by `to`, with acquire and release ordering; false where the word was not `from`.
    fn replace(&self, slot: u64, from: u64, to: u64) -> bool;
}

/// The word of the slot of a number.
pub fn word_of(board: &impl Board, number: u64) -> Word {
    Word::from_code(board.load(number % board.slot_count()))
}

fn change(board: &impl Board, from: Word, to: Word) -> Result<(), Broken> {
    let slot = from.number % board.slot_count();
    if board.replace(slot, from.code(), to.code()) {
        return Ok(());
    }
    Err(Broken { slot, expected: from, found: Word::from_code(board.load(slot)) })
}

/// The number after the last accepted block: what a producer that attaches fills next.
pub fn head(board: &impl Board) -> Result<u64, Broken> {
    let count = board.slot_count();
    let mut head = 0;
    for slot in 0..count {
        let word = Word::from_code(board.load(slot));
        if word.number % count != slot {
            return Err(Broken { slot, expected: Word::new(slot, State::Free), found: word });
        }
        head = head.max(match word.state {
            State::Ready | State::InUse => word.number + 1,
            // Published number − count; none yet where that is negative.
            State::Free | State::Filling => (word.number + 1).saturating_sub(count),
        });
    }
    Ok(head)
}

/// The least number that is ready, or the head: what a consumer that attaches takes first.
pub fn tail(board: &impl Board) -> Result<u64, Broken> {
    let head = head(board)?;
    let words = (0..board.slot_count()).map(|slot| Word::from_code(board.load(slot)));
    let ready = words.filter(|word| word.state == State::Ready).map(|word| word.number).min();
    Ok(ready.unwrap_or(head))
}

/// How many blocks from `head` on can be filled without waiting.
pub fn credits(board: &impl Board, head: u64) -> u64 {
    let free = |at: &u64| word_of(board, head + at) == Word::new(head + at, State::Free);
    (0..board.slot_count()).take_while(free).count() as u64
}

/// The producer begins block `number`; false while its slot still holds an earlier block.
pub fn claim(board: &impl Board, number: u64) -> Result<bool, Broken> {
    let word = word_of(board, number);
    let (free, filling) = (Word::new(number, State::Free), Word::new(number, State::Filling));
    if word == free {
        return change(board, free, filling).map(|()| true);
    }
    let earlier = matches!(word.state, State::Ready | State::InUse) && word.number + board.slot_count() == number;
    if earlier { Ok(false) } else { Err(Broken { slot: number % board.slot_count(), expected: free, found: word }) }
}

/// The producer's block is whole: from here on it is accepted.
pub fn publish(board: &impl Board, number: u64) -> Result<(), Broken> {
    change(board, Word::new(number, State::Filling), Word::new(number, State::Ready))
}

/// The producer gives its block up.
pub fn abandon(board: &impl Board, number: u64) -> Result<(), Broken> {
    change(board, Word::new(number, State::Filling), Word::new(number, State::Free))
}

/// What the consumer finds where block `number` is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It has a lease on the block.
    Taken,
    /// The block was acknowledged, by an earlier consumer: go on with the next number.
    Passed,
    /// Not published yet.
    NotYet,
}

/// The consumer asks for block `number`.
pub fn take(board: &impl Board, number: u64) -> Result<Take, Broken> {
    let count = board.slot_count();
    let word = word_of(board, number);
    let broken = || Broken { slot: number % count, expected: Word::new(number, State::Ready), found: word };
    match word.state {
        State::Ready if word.number == number => {
            change(board, word, Word::new(number, State::InUse)).map(|()| Take::Taken)
        }
        State::Free | State::Filling if word.number == number => Ok(Take::NotYet),
        // Acknowledged out of order; the producer may have gone on with the slot. Only a consumer that attached after
        // the acknowledgement can see this: it skips numbers that are no longer anywhere.
        _ if word.number > number && word.number % count == number % count => Ok(Take::Passed),
        // The slot still holds a lease of this consumer on an earlier block: the producer cannot have come round.
        State::InUse if word.number + count == number => Ok(Take::NotYet),
        _ => Err(broken()),
    }
}

/// The consumer is done with block `number`: acknowledged.
pub fn release(board: &impl Board, number: u64) -> Result<(), Broken> {
    change(board, Word::new(number, State::InUse), Word::new(number + board.slot_count(), State::Free))
}

/// A new producer frees a slot that a dead one was filling.
pub fn reclaim_filling(board: &impl Board, slot: u64) -> Result<bool, Broken> {
    reclaim(board, slot, State::Filling, State::Free)
}

/// A new consumer makes a slot ready again that a dead one had taken and not acknowledged.
pub fn reclaim_in_use(board: &impl Board, slot: u64) -> Result<bool, Broken> {
    reclaim(board, slot, State::InUse, State::Ready)
}

fn reclaim(board: &impl Board, slot: u64, from: State, to: State) -> Result<bool, Broken> {
    let word = Word::from_code(board.load(slot));
    if word.state != from {
        return Ok(false);
    }
    change(board, word, Word::new(word.number, to)).map(|()| true)
}
