//! What is known of every byte of a block's shared memory: whether it was written, by whom last, and who read it since.
//!
//! Two accesses are ordered if a barrier that both threads pass lies between them: [`crate::clocks`]. An access is recorded
//! as (clock, thread). An access recorded before the last barrier of the whole block is ordered with everything: one
//! comparison.
//!
//! Readers are remembered one by one up to one; more become "several of a warp" or "several", ordered like the latest.
//! "Several" readers of unlike warps are ordered only by a barrier of the whole block.

use crate::clocks::Clocks;

/// Bits of a record below the clock: the atomic mark and the thread.
const CLOCK: u32 = 12;
const ATOMIC: u32 = 1 << 11;
const WHO: u32 = ATOMIC - 1;
/// From here on, `who` is several lanes of warp `who - WARP`.
const WARP: u32 = 1024;
/// Several threads of several warps.
const MANY: u32 = WHO;
/// In `init`: a copy to this word is under way.
const PENDING: u32 = 1 << 4;

/// A thread at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Actor {
    pub(crate) thread: u32,
    pub(crate) atomic: bool,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Uninitialized,
    Pending,
    /// With the thread that wrote, where it is known.
    Write(Option<u32>),
    /// With a thread that read.
    Read(Option<u32>),
}

/// Threads of a warp at a moment: what its fast paths compare with.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    floor: u32,
    /// The record of its first thread; those of the others follow.
    first: u32,
    /// The records of several lanes of the warp, and of several threads.
    warp: u32,
    many: u32,
}

/// The shadow of a block's shared memory.
pub(crate) struct Shadow {
    /// By word: the record of its last writer; zero if never written, all ones if one look is not enough to judge it.
    write: Vec<u32>,
    /// By word: the record of its readers since.
    read: Vec<u32>,
    /// By word: written bytes, and `PENDING`.
    init: Vec<u32>,
    /// Records of single bytes, of words that were accessed in parts; empty until the first such access.
    byte_write: Vec<[u32; 4]>,
    byte_read: Vec<[u32; 4]>,
    /// Words whose records are by byte.
    split: Vec<bool>,
    pub(crate) clocks: Clocks,
}

impl Shadow {
    pub(crate) fn new(words: usize, warps: usize) -> Shadow {
        Shadow {
            write: vec![0; words],
            read: vec![0; words],
            init: vec![0; words],
            byte_write: Vec::new(),
            byte_read: Vec::new(),
            split: Vec::new(),
            clocks: Clocks::new(warps),
        }
    }

    /// Nothing is written, nobody has read.
    pub(crate) fn restart(&mut self) {
        self.init.fill(0);
        self.clear_records();
    }

    fn clear_records(&mut self) {
        // What is written stays known as such, by a record that is ordered with everything.
        for (write, init) in self.write.iter_mut().zip(&self.init) {
            *write = u32::from(*init == 15);
        }
        self.read.fill(0);
        self.byte_write.clear();
        self.byte_read.clear();
        self.split.clear();
        self.clocks.restart();
    }

    /// All warps that still run have passed a barrier.
    pub(crate) fn block_barrier(&mut self) {
        if !self.clocks.block_barrier((1 << (32 - CLOCK)) - 1) {
            // All earlier accesses are ordered: forgetting them loses nothing.
            self.clear_records();
        }
    }

    /// Whether an access recorded as `record` is ordered before what `thread` does now.
    fn ordered(&self, record: u32, me: Actor) -> bool {
        let (clock, who) = (record >> CLOCK, record & WHO);
        if clock < self.clocks.floor() || who == me.thread || (record & ATOMIC != 0 && me.atomic) {
            return true;
        }
        if who == MANY {
            return false;
        }
        let (warp, lane) = if who >= WARP { (who - WARP, None) } else { (who / 32, Some(who % 32)) };
        self.clocks.ordered(clock, warp, lane, me.thread)
    }

    fn record(&self, me: Actor) -> u32 {
        let clock = self.clocks.of(me.thread / 32);
        clock << CLOCK | if me.atomic { ATOMIC } else { 0 } | me.thread
    }

    /// The record of readers after one more.
    fn merged(&self, old: u32, me: Actor) -> u32 {
        let new = self.record(me);
        if self.ordered(old, Actor { atomic: false, ..me }) {
            return new;
        }
        let warp = me.thread / 32;
        let who = old & WHO;
        let same = if who >= WARP { who == WARP + warp } else { who / 32 == warp };
        new & !(WHO | ATOMIC) | if same { WARP + warp } else { MANY }
    }

    fn known(record: u32) -> Option<u32> {
        (record & WHO < WARP).then_some(record & WHO)
    }

    /// Records single bytes of `word` from now on.
    fn split(&mut self, word: usize) {
        if self.split.is_empty() {
            self.split = vec![false; self.init.len()];
            self.byte_write = vec![[0; 4]; self.init.len()];
            self.byte_read = vec![[0; 4]; self.init.len()];
        }
        if !self.split[word] {
            self.split[word] = true;
            self.byte_write[word] = [self.write[word]; 4];
            self.byte_read[word] = [self.read[word]; 4];
            // A record that no fast comparison takes for ordered.
            self.write[word] = u32::MAX;
            self.read[word] = u32::MAX;
        }
    }

    fn is_split(&self, word: usize) -> bool {
        self.split.get(word).copied().unwrap_or(false)
    }

    /// What the fast paths of a warp compare with.
    pub(crate) fn now(&self, warp: u32) -> Now {
        let clock = self.clocks.of(warp) << CLOCK;
        Now {
            floor: self.clocks.floor() << CLOCK,
            first: clock | (warp * 32),
            warp: clock | (WARP + warp),
            many: clock | MANY,
        }
    }

    /// A read of `LANES` lanes, N whole words each, one after the other, where one look at each shows that it is in order.
    #[inline(always)]
    pub(crate) fn read_fast<const N: usize, const LANES: u32>(&mut self, word: usize, now: Now, lane: u32) -> bool {
        let words = N * LANES as usize;
        let writes = &self.write[word..][..words];
        let reads = &mut self.read[word..][..words];
        // Plain loops without early exits: the compiler makes vectors of them.
        let mut bad = false;
        for i in 0..words {
            let new = now.first + lane + step(i / N);
            let old = if reads[i] < now.floor { new } else { reads[i] };
            reads[i] = old;
            // Who read before in this interval is remembered already, unless as another single thread.
            let unknown = (old != new) & (old != now.warp) & (old != now.many);
            bad |= unknown | (writes[i].wrapping_sub(1) >= now.floor - 1);
        }
        !bad
    }

    /// A read of a whole word by two or more lanes of a warp, where one look shows that it is in order.
    #[inline(always)]
    pub(crate) fn read_together(&mut self, word: usize, now: Now) -> bool {
        let read = &mut self.read[word];
        if *read < now.floor {
            *read = now.warp;
        }
        self.write[word].wrapping_sub(1) < now.floor - 1 && (*read == now.warp || *read == now.many)
    }

    /// A write of `LANES` lanes, N whole words each, one after the other, where one look at each shows that it is in order;
    /// nothing is recorded otherwise.
    #[inline(always)]
    pub(crate) fn write_fast<const N: usize, const LANES: u32>(&mut self, word: usize, now: Now, lane: u32) -> bool {
        let words = N * LANES as usize;
        let writes = &mut self.write[word..][..words];
        let reads = &self.read[word..][..words];
        let mut bad = false;
        for i in 0..words {
            bad |= (writes[i] >= now.floor) | (reads[i] >= now.floor);
        }
        if bad {
            return false;
        }
        let init = &mut self.init[word..][..words];
        for i in 0..words {
            writes[i] = now.first + lane + step(i / N);
            init[i] = 15;
        }
        true
    }

    /// A read of the bytes of `word` in `bytes`.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(&mut self, word: usize, bytes: u32, me: Actor) -> Result<(), Problem> {
        if self.init[word] & PENDING != 0 {
            return Err(Problem::Pending);
        }
        if self.init[word] & bytes != bytes {
            return Err(Problem::Uninitialized);
        }
        if bytes == 15 && !self.is_split(word) {
            if !self.ordered(self.write[word], me) {
                return Err(Problem::Write(Self::known(self.write[word])));
            }
            self.read[word] = self.merged(self.read[word], me);
            return Ok(());
        }
        self.split(word);
        for byte in (0..4).filter(|b| bytes >> b & 1 == 1) {
            if !self.ordered(self.byte_write[word][byte], me) {
                return Err(Problem::Write(Self::known(self.byte_write[word][byte])));
            }
            self.byte_read[word][byte] = self.merged(self.byte_read[word][byte], me);
        }
        Ok(())
    }

    /// A write of the bytes of `word` in `bytes`; `same` if it leaves the values as they are, which two threads may do.
    #[cold]
    #[inline(never)]
    pub(crate) fn write(&mut self, word: usize, bytes: u32, me: Actor, same: bool) -> Result<(), Problem> {
        if self.init[word] & PENDING != 0 {
            return Err(Problem::Pending);
        }
        let new = self.record(me);
        let same = same && self.init[word] & bytes == bytes;
        if bytes == 15 && !self.is_split(word) {
            if !same && !self.ordered(self.write[word], me) {
                return Err(Problem::Write(Self::known(self.write[word])));
            }
            if !self.ordered(self.read[word], me) {
                return Err(Problem::Read(Self::known(self.read[word])));
            }
            self.write[word] = new;
        } else {
            self.split(word);
            for byte in (0..4).filter(|b| bytes >> b & 1 == 1) {
                let (write, read) = (self.byte_write[word][byte], self.byte_read[word][byte]);
                if !same && !self.ordered(write, me) {
                    return Err(Problem::Write(Self::known(write)));
                }
                if !self.ordered(read, me) {
                    return Err(Problem::Read(Self::known(read)));
                }
                self.byte_write[word][byte] = new;
            }
            if bytes == 15 {
                // One writer of the whole word again; its readers are all ordered before it.
                self.split[word] = false;
                self.write[word] = new;
                self.read[word] = 0;
            }
        }
        self.init[word] |= bytes;
        Ok(())
    }

    /// An atomic operation on `word`, which both reads and writes it, at once.
    pub(crate) fn atomic(&mut self, word: usize, thread: u32) -> Result<(), Problem> {
        match self.init[word] {
            15 => self.write(word, 15, Actor { thread, atomic: true }, false),
            init if init & PENDING != 0 => Err(Problem::Pending),
            _ => Err(Problem::Uninitialized),
        }
    }

    /// A copy to `word` begins: a write whose data nobody may read before it is waited for.
    pub(crate) fn begin_copy(&mut self, word: usize, me: Actor) -> Result<(), Problem> {
        self.write(word, 15, me, false)?;
        self.init[word] = PENDING;
        self.write[word] = u32::MAX;
        Ok(())
    }

    /// A copy to `word` is complete.
    pub(crate) fn end_copy(&mut self, word: usize, me: Actor) {
        self.init[word] = 15;
        self.write[word] = self.record(me);
    }
}

/// A lane's distance from the first.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn step(lane: usize) -> u32 {
    lane as u32
}

#[cfg(test)]
mod tests;
