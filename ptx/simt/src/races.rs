//! Races in global memory: who wrote and who read each word of what a launch stores to.
//!
//! Two accesses of one word, one of them a plain store, are ordered if one thread made both, or threads of one block with a
//! barrier between that orders them ([`crate::clocks`]). Blocks of a launch are not ordered. Atomic, volatile and relaxed
//! accesses race only with plain ones; two threads may store one value. Fences, and accesses that acquire or release, order
//! threads in ways that are not followed here: in a kernel that has any, no access races.
//!
//! A moment is a warp between two of its barriers, in one block of one launch. Moments are numbered as they first touch
//! such memory, and numbers are not used again, so that nothing is cleared between launches: what a number below the
//! launch's first has done is ordered with everything. A word's record holds the moment and lane of its last writer and of
//! its readers since. Readers that are not ordered become "several of a warp", "of a block" or "of a launch".
//!
//! Records lie beside the words of an allocation, eight bytes for each, once a launch is known to store there; where
//! accesses are narrower than a word, another eight for each byte. Pages of them that nobody touches cost nothing.
//! Records are read and written without locks: with several threads of the host a race may go unseen if both sides happen
//! in the same nanoseconds, but what is no race never looks like one.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::clocks::Clocks;

/// Bits of a record below the moment.
const MOMENT: u32 = 8;
/// Read through `ld.global.nc`.
const READ_ONLY: u32 = 1 << 7;
/// Neither a plain load nor a plain store.
const ATOMIC: u32 = 1 << 6;
/// A lane below 32, or several of the moment's warp, of a block, of the launch.
const WHO: u32 = ATOMIC - 1;
const WARP: u32 = 32;
const BLOCK: u32 = 33;
const LAUNCH: u32 = 34;
/// In the place of a word's record: its bytes have their own.
const SPLIT: u64 = u64::MAX;
/// Moments in all; the last number is left out, so that no record equals `SPLIT`.
const MOMENTS: u32 = (1 << (32 - MOMENT)) - 1;
/// Moments that a worker takes at a time.
const CHUNK: u32 = 64;

/// The records of an allocation.
pub(crate) struct Records {
    words: Box<[AtomicU64]>,
    bytes: OnceLock<Box<[AtomicU64]>>,
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    // Zeros come from the system as pages that take no memory until they are written.
    let zeros = vec![0_u64; count].into_boxed_slice();
    // SAFETY: an `AtomicU64` has the size, alignment and bit validity of a `u64`, and nothing else holds the box.
    unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU64]) }
}

impl Records {
    pub(crate) fn new(words: usize) -> Records {
        Records { words: zeros(words), bytes: OnceLock::new() }
    }

    /// The records of a word's bytes, each of which has the word's until now.
    fn split(&self, word: usize) -> &[AtomicU64] {
        let bytes = &self.bytes.get_or_init(|| zeros(4 * self.words.len()))[4 * word..][..4];
        let old = self.words[word].load(Acquire);
        if old != SPLIT {
            bytes.iter().for_each(|byte| byte.store(old, Relaxed));
            self.words[word].store(SPLIT, Release);
        }
        bytes
    }

    pub(crate) fn run(&self, words: Range<usize>) -> &[AtomicU64] {
        &self.words[words]
    }
}

fn parts(record: u64) -> (u32, u32) {
    #[allow(clippy::cast_possible_truncation)] // the halves
    ((record >> 32) as u32, record as u32)
}

fn join(write: u32, read: u32) -> u64 {
    u64::from(write) << 32 | u64::from(read)
}

/// What the workers of a launch share.
pub(crate) struct Ledger {
    /// The launch's first moment, which no warp has: that of "several of a launch".
    first: u32,
    next: AtomicU32,
    /// Moments with which a block's began, and the block's number.
    blocks: Mutex<Vec<(u32, u64)>>,
}

impl Ledger {
    /// A launch whose moments begin at `first`.
    pub(crate) fn new(first: u32) -> Ledger {
        Ledger { first, next: AtomicU32::new(first + 1), blocks: Mutex::new(Vec::new()) }
    }

    /// The first moment of the next launch. `None` when too few may be left for one: then no record may stay.
    pub(crate) fn end(self) -> Option<u32> {
        Some(self.next.into_inner()).filter(|&next| next < MOMENTS / 2)
    }

    /// The first moment of all.
    pub(crate) const START: u32 = 1;
}

/// Who made an access that another one is not ordered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Thread(u32),
    Threads,
    /// Of this number, where one block alone has.
    Block(Option<u64>),
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    Write(By),
    Read(By),
    /// A write of what the launch reads through `ld.global.nc`.
    ReadOnly,
}

/// A thread at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Me {
    pub(crate) thread: u32,
    pub(crate) atomic: bool,
    pub(crate) read_only: bool,
}

/// A warp at a moment: what one look at a record is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// Records below are of earlier launches.
    floor: u32,
    /// Those from here on, so many, are of this block before its last barrier.
    own: u32,
    own_len: u32,
    /// The record of the first lane; those of the others follow.
    first: u32,
    /// The record of several of the launch.
    launch: u32,
}

impl Now {
    #[inline(always)]
    fn is_past(self, record: u32) -> bool {
        (record < self.floor) | (record.wrapping_sub(self.own) < self.own_len)
    }

    /// A plain read by a lane, or by several where `who` is [`Now::TOGETHER`], where one look shows that it is in order.
    #[inline(always)]
    pub(crate) fn read(self, record: &AtomicU64, who: u32, read_only: bool) -> bool {
        let (write, read) = parts(record.load(Relaxed));
        if !(self.is_past(write) || write == self.first + who) {
            return false;
        }
        let flag = if read_only { READ_ONLY } else { 0 };
        let new = self.first + who + flag;
        if (read < self.floor) | (self.is_past(read) & (read & READ_ONLY == 0)) {
            record.store(join(write, new), Relaxed);
            return true;
        }
        // Who read before is remembered already, unless as another single thread.
        (read == new)
            | (read == self.first + WARP + flag)
            | (read == self.first + BLOCK + flag)
            | (read == self.launch + flag)
    }

    /// Several lanes of the warp.
    pub(crate) const TOGETHER: u32 = WARP;

    /// Whether one look shows that a plain write by a lane is in order; [`Now::wrote`] then records it.
    #[inline(always)]
    pub(crate) fn may_write(self, record: &AtomicU64, lane: u32) -> bool {
        let (write, read) = parts(record.load(Relaxed));
        let mine = self.first + lane;
        (self.is_past(write) | (write == mine))
            & ((read < self.floor) | (read & READ_ONLY == 0) & (self.is_past(read) | (read == mine)))
    }

    /// The data is there already, so that who sees the record sees it too.
    #[inline(always)]
    pub(crate) fn wrote(self, record: &AtomicU64, lane: u32) {
        record.store(join(self.first + lane, 0), Release);
    }
}

/// The moments of the block that a worker runs.
pub(crate) struct Races<'a> {
    ledger: &'a Ledger,
    /// No access races.
    lenient: bool,
    grid: [u32; 3],
    block: u64,
    /// Moments taken from the launch and not used yet.
    chunk: Range<u32>,
    /// Moments of this block, in pieces without gaps.
    pieces: Vec<Range<u32>>,
    /// Moments of this block below lie before its last barrier; the others with their warp and clock.
    past: u32,
    moments: Vec<(u32, u32, u32)>,
    /// By warp: the clock, and the moment that it has in it.
    current: Vec<(u32, u32)>,
    own: Range<u32>,
}

impl<'a> Races<'a> {
    pub(crate) fn new(ledger: &'a Ledger, warps: usize, grid: [u32; 3], lenient: bool) -> Races<'a> {
        Races {
            ledger,
            lenient,
            grid,
            block: 0,
            chunk: 0..0,
            pieces: Vec::new(),
            past: 0,
            moments: Vec::new(),
            current: vec![(0, 0); warps],
            own: 0..0,
        }
    }

    /// A block begins.
    pub(crate) fn restart(&mut self, block: u64) {
        self.block = block;
        self.pieces.clear();
        self.forget();
        self.own = 0..0;
    }

    /// All warps of the block that still run have passed a barrier.
    pub(crate) fn block_barrier(&mut self) {
        self.forget();
        self.own = self.pieces.last().cloned().unwrap_or(0..0);
    }

    fn forget(&mut self) {
        // Later moments have larger numbers, be they of this chunk or of another.
        self.past = self.chunk.start;
        self.moments.clear();
        self.current.fill((0, 0));
    }

    /// The present moment of a warp; none if there are no more numbers, and then nothing is recorded.
    #[inline(always)]
    pub(crate) fn now(&mut self, warp: u32, clocks: &Clocks) -> Option<Now> {
        let clock = clocks.of(warp);
        let (at, moment) = self.current[warp as usize];
        let moment = if at == clock { moment } else { self.take(warp, clock)? };
        Some(Now {
            floor: self.ledger.first << MOMENT,
            own: self.own.start << MOMENT,
            own_len: (self.own.end - self.own.start) << MOMENT,
            first: moment << MOMENT,
            launch: self.several(),
        })
    }

    fn several(&self) -> u32 {
        self.ledger.first << MOMENT | LAUNCH
    }

    #[cold]
    fn take(&mut self, warp: u32, clock: u32) -> Option<u32> {
        if self.chunk.is_empty() {
            // Numbers that run out must not begin again, however often a worker asks.
            let free = |next: u32| next.checked_add(CHUNK).filter(|&end| end <= MOMENTS);
            let start = self.ledger.next.fetch_update(Relaxed, Relaxed, free).ok()?;
            self.chunk = start..start + CHUNK;
        }
        let moment = self.chunk.start;
        self.chunk.start += 1;
        match self.pieces.last_mut() {
            Some(piece) if piece.end == moment => piece.end += 1,
            _ => {
                self.pieces.push(moment..moment + 1);
                let mut blocks = self.ledger.blocks.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.push((moment, self.block));
            }
        }
        self.moments.push((moment, warp, clock));
        self.current[warp as usize] = (clock, moment);
        Some(moment)
    }

    fn is_own(&self, moment: u32) -> bool {
        self.pieces.iter().rev().any(|piece| piece.contains(&moment))
    }

    /// Warp and clock of a moment of this block since its last barrier.
    fn recent(&self, moment: u32) -> Option<(u32, u32)> {
        let at = self.moments.binary_search_by_key(&moment, |m| m.0).ok()?;
        Some((self.moments[at].1, self.moments[at].2))
    }

    /// Whether a recorded access is ordered before what `me` does now.
    fn ordered(&self, record: u32, me: Me, clocks: &Clocks) -> bool {
        let moment = record >> MOMENT;
        if moment < self.ledger.first || self.lenient || (record & ATOMIC != 0 && me.atomic) {
            return true;
        }
        if record & WHO == LAUNCH || !self.is_own(moment) {
            return false;
        }
        if moment < self.past {
            return true;
        }
        let Some((warp, clock)) = self.recent(moment) else { return true };
        match record & WHO {
            BLOCK => false,
            WARP => clocks.ordered(clock, warp, None, me.thread),
            lane => 32 * warp + lane == me.thread || clocks.ordered(clock, warp, Some(lane), me.thread),
        }
    }

    /// A record of readers, or of atomics, after one more.
    fn merged(&self, old: u32, new: u32, me: Me, clocks: &Clocks) -> u32 {
        let moment = old >> MOMENT;
        let sticky = if moment < self.ledger.first { 0 } else { old & READ_ONLY };
        if self.ordered(old, Me { atomic: false, ..me }, clocks) {
            // A thread's plain access is not hidden behind its own atomic of the same moment.
            let hides = moment == new >> MOMENT && old & ATOMIC == 0;
            return new & if hides { !ATOMIC } else { !0 } | sticky;
        }
        let flags = sticky | new & READ_ONLY | old & new & ATOMIC;
        if old & WHO == LAUNCH || !self.is_own(moment) {
            return self.several() | flags;
        }
        let of_warp = old & WHO != BLOCK && self.recent(moment).is_some_and(|(warp, _)| warp == me.thread / 32);
        new & !(WHO | READ_ONLY | ATOMIC) | if of_warp { WARP } else { BLOCK } | flags
    }

    /// In the words of a fault: who made a recorded access.
    fn by(&self, record: u32) -> By {
        let moment = record >> MOMENT;
        if record & WHO == LAUNCH {
            return By::Block(None);
        }
        if !self.is_own(moment) {
            let blocks = self.ledger.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            return By::Block(blocks.iter().filter(|b| b.0 <= moment).max().map(|b| b.1));
        }
        match (record & WHO, self.recent(moment)) {
            (lane @ 0..WARP, Some((warp, _))) => By::Thread(32 * warp + lane),
            _ => By::Threads,
        }
    }

    /// Where a block lies in the grid.
    pub(crate) fn place(&self, block: u64) -> [u64; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [block % x, block / x % y, block / (x * y)]
    }

    fn read_record(&self, record: &AtomicU64, new: u32, me: Me, clocks: &Clocks) -> Result<(), Conflict> {
        let (write, read) = parts(record.load(Acquire));
        if !self.ordered(write, me, clocks) {
            return Err(Conflict::Write(self.by(write)));
        }
        record.store(join(write, self.merged(read, new, me, clocks)), Release);
        Ok(())
    }

    fn write_record(&self, record: &AtomicU64, new: u32, me: Me, same: bool, clocks: &Clocks) -> Result<(), Conflict> {
        let (write, read) = parts(record.load(Acquire));
        if read & READ_ONLY != 0 && read >> MOMENT >= self.ledger.first {
            return Err(Conflict::ReadOnly);
        }
        if !same && !self.ordered(write, me, clocks) {
            return Err(Conflict::Write(self.by(write)));
        }
        if !self.ordered(read, me, clocks) {
            return Err(Conflict::Read(self.by(read)));
        }
        // Plain reads stay: an atomic is ordered after them, which others need not be.
        let read = if me.atomic { read } else { 0 };
        record.store(join(self.merged(write, new, me, clocks), read), Release);
        Ok(())
    }

    /// A read of the bytes of `word` in `bytes`.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(
        &self,
        records: &Records,
        (word, bytes): (usize, u32),
        (now, me): (Now, Me),
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        let flags = if me.read_only { READ_ONLY } else { 0 } | if me.atomic { ATOMIC } else { 0 };
        let new = now.first | (me.thread % 32) | flags;
        let whole = &records.words[word];
        if bytes == 15 && whole.load(Acquire) != SPLIT {
            return self.read_record(whole, new, me, clocks);
        }
        let split = records.split(word).iter().enumerate();
        for (_, record) in split.filter(|(byte, _)| bytes >> byte & 1 == 1) {
            if me.atomic || !now.read(record, me.thread % 32, me.read_only) {
                self.read_record(record, new, me, clocks)?;
            }
        }
        Ok(())
    }

    /// A write of the bytes of `word` in `bytes`, after the data; `same` if it left the values as they were, which two
    /// threads may do.
    #[cold]
    #[inline(never)]
    pub(crate) fn write(
        &self,
        records: &Records,
        (word, bytes): (usize, u32),
        (now, me): (Now, Me),
        same: bool,
        clocks: &Clocks,
    ) -> Result<(), Conflict> {
        let lane = me.thread % 32;
        let new = now.first | lane | if me.atomic { ATOMIC } else { 0 };
        let whole = &records.words[word];
        if bytes == 15 && whole.load(Acquire) != SPLIT {
            return self.write_record(whole, new, me, same, clocks);
        }
        let split = records.split(word).iter().enumerate();
        for (_, record) in split.filter(|(byte, _)| bytes >> byte & 1 == 1) {
            if !me.atomic && now.may_write(record, lane) {
                now.wrote(record, lane);
            } else {
                self.write_record(record, new, me, same, clocks)?;
            }
        }
        if bytes == 15 && !me.atomic && !same {
            // One writer of the whole word again; its readers are all ordered before it.
            whole.store(join(new, 0), Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
