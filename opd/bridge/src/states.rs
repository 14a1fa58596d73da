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

/// The number that a slot's word has published, plus one; 0 where it has published none.
fn published(board: &impl Board, word: Word) -> u64 {
    match word.state {
        State::Ready | State::InUse => word.number + 1,
        State::Free | State::Filling => (word.number + 1).saturating_sub(board.slot_count()),
    }
}

/// The words of all slots, each for a number that belongs into its slot.
fn words(board: &impl Board) -> Result<Vec<Word>, Broken> {
    let count = board.slot_count();
    let read = |slot| {
        let word = Word::from_code(board.load(slot));
        let fits = word.number % count == slot;
        if fits { Ok(word) } else { Err(Broken { slot, expected: Word::new(slot, State::Free), found: word }) }
    };
    (0..count).map(read).collect()
}

/// The number after the last accepted block: what a producer that attaches fills next. For whoever holds the producer's
/// role: then no published number changes while the words are read, so they have to agree exactly.
fn head(board: &impl Board) -> Result<u64, Broken> {
    let (count, words) = (board.slot_count(), words(board)?);
    let head = words.iter().map(|&word| published(board, word)).max().unwrap_or(0);
    for (slot, &found) in (0..).zip(&words) {
        // The number that the slot takes next, and the one that it published last.
        let next = head + (count + slot - head % count) % count;
        let due = match found.state {
            State::Free => found.number == next,
            State::Filling => found.number == next && next == head,
            State::Ready | State::InUse => found.number + count == next,
        };
        if !due {
            return Err(Broken { slot, expected: Word::new(next, State::Free), found });
        }
    }
    Ok(head)
}

/// Where a consumer that attaches stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The least number that is not acknowledged: published or not.
    pub number: u64,
    /// Numbers from here on cannot have been acknowledged before.
    pub fresh: u64,
}

/// Where a consumer that attaches begins. For whoever holds the consumer's role: then nothing is acknowledged while the words
/// are read. The producer may publish meanwhile, so the words are of several moments; a word's number never falls, and the
/// least of them is the word of the least number that is not acknowledged.
fn due(board: &impl Board) -> Result<Due, Broken> {
    let (count, words) = (board.slot_count(), words(board)?);
    let number = words.iter().map(|word| word.number).min().unwrap_or(0);
    // The producer gets as far as the slots reach, and a slot acknowledged out of order waits for the round after.
    if let Some(&found) = words.iter().find(|word| word.number >= number + 2 * count) {
        let slot = found.number % count;
        return Err(Broken {
            slot,
            expected: Word::new(number + (count + slot - number % count) % count, State::Free),
            found,
        });
    }
    let fresh = words.iter().map(|&word| published(board, word)).max().unwrap_or(0);
    Ok(Due { number, fresh })
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

/// The consumer asks for the block that is due.
pub fn take(board: &impl Board, due: Due) -> Result<Take, Broken> {
    let (count, number) = (board.slot_count(), due.number);
    let word = word_of(board, number);
    match word.state {
        State::Ready if word.number == number => {
            change(board, word, Word::new(number, State::InUse)).map(|()| Take::Taken)
        }
        State::Free | State::Filling if word.number == number => Ok(Take::NotYet),
        // An earlier consumer acknowledged it out of order; the producer may have gone on with the slot by one round.
        State::Free | State::Filling | State::Ready if number < due.fresh && word.number == number + count => {
            Ok(Take::Passed)
        }
        // The slot still holds a lease of this consumer on an earlier block: the producer cannot have come round.
        State::InUse if word.number + count == number => Ok(Take::NotYet),
        _ => Err(Broken { slot: number % count, expected: Word::new(number, State::Ready), found: word }),
    }
}

/// The consumer is done with block `number`: acknowledged.
pub fn release(board: &impl Board, number: u64) -> Result<(), Broken> {
    change(board, Word::new(number, State::InUse), Word::new(number + board.slot_count(), State::Free))
}

/// A new producer frees what a dead one was filling; gives the number to fill next.
pub fn producer_attaches(board: &impl Board) -> Result<u64, Broken> {
    let head = head(board)?;
    for slot in 0..board.slot_count() {
        reclaim(board, slot, State::Filling, State::Free)?;
    }
    Ok(head)
}

/// A new consumer makes ready again what a dead one had taken and not acknowledged; gives where to begin.
pub fn consumer_attaches(board: &impl Board) -> Result<Due, Broken> {
    // Before any change: a damaged ring is left as it is.
    due(board)?;
    for slot in 0..board.slot_count() {
        reclaim(board, slot, State::InUse, State::Ready)?;
    }
    due(board)
}

fn reclaim(board: &impl Board, slot: u64, from: State, to: State) -> Result<(), Broken> {
    let word = Word::from_code(board.load(slot));
    if word.state == from { change(board, word, Word::new(word.number, to)) } else { Ok(()) }
}
