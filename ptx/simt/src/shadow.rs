//! What is known of every byte of a block's shared memory: whether it was written, by whom last, and who read it since.
//!
//! Two accesses are ordered if a barrier that both threads pass lies between them. Each warp has a clock that ticks at every
//! barrier it passes; an access is recorded as (clock, thread). An access recorded before the last barrier of the whole
//! block is ordered with everything: one comparison. Lanes of one warp are ordered only by a barrier as well, be it of the
//! block or `bar.warp.sync`: that they run in lock-step here is nothing hardware promises.
//!
//! Readers are remembered one by one up to one; more become "several of a warp" or "several", ordered like the latest.
//! Of barriers for a part of the block the order between warps is kept exactly, but "several" readers of unlike warps are
//! ordered only by a barrier of the whole block.

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

/// What is known of a word.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: u32,
    read: u32,
    /// Written bytes, and `PENDING`.
    init: u32,
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
    cells: Vec<Cell>,
    /// Records of single bytes, of words that were accessed in parts; empty until the first such access.
    byte_write: Vec<[u32; 4]>,
    byte_read: Vec<[u32; 4]>,
    /// Words whose records are by byte.
    split: Vec<bool>,
    /// Records below are ordered with everything.
    floor: u32,
    clocks: Vec<u32>,
    /// By warp and warp: accesses of the second with a smaller clock are ordered before the first.
    seen: Vec<u32>,
    /// By warp: the clock after its last barrier of all lanes.
    full: Vec<u32>,
    /// By warp: barriers of some lanes since then, with the clock before each.
    partial: Vec<Vec<(u32, u32)>>,
}

impl Shadow {
    pub(crate) fn new(words: usize, warps: usize) -> Shadow {
        Shadow {
            cells: vec![Cell::default(); words],
            byte_write: Vec::new(),
            byte_read: Vec::new(),
            split: Vec::new(),
            floor: 1 << CLOCK,
            clocks: vec![1; warps],
            seen: vec![0; warps * warps],
            full: vec![1; warps],
            partial: vec![Vec::new(); warps],
        }
    }

    /// Nothing is written, nobody has read.
    pub(crate) fn restart(&mut self) {
        self.cells.fill(Cell::default());
        self.clear_records();
    }

    fn clear_records(&mut self) {
        for cell in &mut self.cells {
            (cell.write, cell.read) = (0, 0);
        }
        self.byte_write.clear();
        self.byte_read.clear();
        self.split.clear();
        self.floor = 1 << CLOCK;
        self.clocks.fill(1);
        self.seen.fill(0);
        self.full.fill(1);
        self.partial.iter_mut().for_each(Vec::clear);
    }

    /// All warps that still run have passed a barrier.
    pub(crate) fn block_barrier(&mut self) {
        let clock = self.clocks.iter().max().copied().unwrap_or(0) + 1;
        if clock >= (1 << (32 - CLOCK)) - 1 {
            // All earlier accesses are ordered: forgetting them loses nothing.
            self.clear_records();
            return;
        }
        self.floor = clock << CLOCK;
        self.clocks.fill(clock);
        self.full.fill(clock);
        self.partial.iter_mut().for_each(Vec::clear);
    }

    /// Some warps have passed a barrier together.
    pub(crate) fn warps_barrier(&mut self, warps: &[usize]) {
        let count = self.clocks.len();
        let mut joined = vec![0; count];
        for &w in warps {
            for (v, joined) in joined.iter_mut().enumerate() {
                *joined = self.seen[w * count + v].max(*joined);
            }
        }
        for &w in warps {
            joined[w] = self.clocks[w] + 1;
        }
        for &w in warps {
            self.seen[w * count..][..count].copy_from_slice(&joined);
            self.clocks[w] += 1;
            self.full[w] = self.clocks[w];
            self.partial[w].clear();
        }
    }

    /// Lanes of a warp have passed `bar.warp.sync`; `all` of those that still run.
    pub(crate) fn warp_barrier(&mut self, warp: usize, lanes: u32, all: bool) {
        if all {
            self.full[warp] = self.clocks[warp] + 1;
            self.partial[warp].clear();
        } else {
            self.partial[warp].push((self.clocks[warp], lanes));
        }
        self.clocks[warp] += 1;
    }

    /// Whether an access recorded as `record` is ordered before what `thread` does now.
    fn ordered(&self, record: u32, me: Actor) -> bool {
        if record < self.floor {
            return true;
        }
        let (clock, who) = (record >> CLOCK, record & WHO);
        if who == me.thread || (record & ATOMIC != 0 && me.atomic) {
            return true;
        }
        if who == MANY {
            return false;
        }
        let mine = (me.thread / 32) as usize;
        let theirs = if who >= WARP { who - WARP } else { who / 32 } as usize;
        if theirs != mine {
            return self.seen[mine * self.clocks.len() + theirs] > clock;
        }
        if clock < self.full[mine] {
            return true;
        }
        if who >= WARP {
            return false;
        }
        let (mut reached, target) = (1_u32 << (who % 32), 1_u32 << (me.thread % 32));
        for &(before, lanes) in &self.partial[mine] {
            if before >= clock && lanes & reached != 0 {
                reached |= lanes;
            }
        }
        reached & target != 0
    }

    fn record(&self, me: Actor) -> u32 {
        let clock = self.clocks[(me.thread / 32) as usize];
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
            self.split = vec![false; self.cells.len()];
            self.byte_write = vec![[0; 4]; self.cells.len()];
            self.byte_read = vec![[0; 4]; self.cells.len()];
        }
        if !self.split[word] {
            self.split[word] = true;
            self.byte_write[word] = [self.cells[word].write; 4];
            self.byte_read[word] = [self.cells[word].read; 4];
            // A record that no fast comparison takes for ordered.
            self.cells[word].write = u32::MAX;
            self.cells[word].read = u32::MAX;
        }
    }

    fn is_split(&self, word: usize) -> bool {
        self.split.get(word).copied().unwrap_or(false)
    }

    /// What the fast paths of a warp compare with.
    pub(crate) fn now(&self, warp: u32) -> Now {
        let clock = self.clocks[warp as usize] << CLOCK;
        Now { floor: self.floor, first: clock | (warp * 32), warp: clock | (WARP + warp), many: clock | MANY }
    }

    /// A read of a whole word by a lane, where one look shows that it is in order.
    #[inline(always)]
    pub(crate) fn read_fast(&mut self, word: usize, now: Now, lane: u32) -> bool {
        let cell = &mut self.cells[word];
        let new = now.first + lane;
        if cell.read < now.floor {
            cell.read = new;
        }
        // Who read before in this interval is remembered already, unless as another single thread.
        let known = cell.read == new || cell.read == now.warp || cell.read == now.many;
        cell.init == 15 && cell.write < now.floor && known
    }

    /// A read of a whole word by two or more lanes of a warp, where one look shows that it is in order.
    #[inline(always)]
    pub(crate) fn read_together(&mut self, word: usize, now: Now) -> bool {
        let cell = &mut self.cells[word];
        if cell.read < now.floor {
            cell.read = now.warp;
        }
        let known = cell.read == now.warp || cell.read == now.many;
        cell.init == 15 && cell.write < now.floor && known
    }

    /// A write of a whole word by a lane, where one look shows that it is in order.
    #[inline(always)]
    pub(crate) fn write_fast(&mut self, word: usize, now: Now, lane: u32) -> bool {
        let cell = &mut self.cells[word];
        let ordered = cell.write < now.floor && cell.read < now.floor && cell.init & PENDING == 0;
        if ordered {
            (cell.write, cell.init) = (now.first + lane, 15);
        }
        ordered
    }

    /// A read of the bytes of `word` in `bytes`.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(&mut self, word: usize, bytes: u32, me: Actor) -> Result<(), Problem> {
        if self.cells[word].init & PENDING != 0 {
            return Err(Problem::Pending);
        }
        if self.cells[word].init & bytes != bytes {
            return Err(Problem::Uninitialized);
        }
        if bytes == 15 && !self.is_split(word) {
            if !self.ordered(self.cells[word].write, me) {
                return Err(Problem::Write(Self::known(self.cells[word].write)));
            }
            self.cells[word].read = self.merged(self.cells[word].read, me);
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
        if self.cells[word].init & PENDING != 0 {
            return Err(Problem::Pending);
        }
        let new = self.record(me);
        let same = same && self.cells[word].init & bytes == bytes;
        if bytes == 15 && !self.is_split(word) {
            if !same && !self.ordered(self.cells[word].write, me) {
                return Err(Problem::Write(Self::known(self.cells[word].write)));
            }
            if !self.ordered(self.cells[word].read, me) {
                return Err(Problem::Read(Self::known(self.cells[word].read)));
            }
            self.cells[word].write = new;
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
                self.cells[word].write = new;
                self.cells[word].read = 0;
            }
        }
        self.cells[word].init |= bytes;
        Ok(())
    }

    /// An atomic operation on `word`, which both reads and writes it, at once.
    pub(crate) fn atomic(&mut self, word: usize, thread: u32) -> Result<(), Problem> {
        match self.cells[word].init {
            15 => self.write(word, 15, Actor { thread, atomic: true }, false),
            init if init & PENDING != 0 => Err(Problem::Pending),
            _ => Err(Problem::Uninitialized),
        }
    }

    /// A copy to `word` begins: a write whose data nobody may read before it is waited for.
    pub(crate) fn begin_copy(&mut self, word: usize, me: Actor) -> Result<(), Problem> {
        self.write(word, 15, me, false)?;
        self.cells[word].init = PENDING;
        Ok(())
    }

    /// A copy to `word` is complete.
    pub(crate) fn end_copy(&mut self, word: usize, me: Actor) {
        self.cells[word].init = 15;
        self.cells[word].write = self.record(me);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(thread: u32) -> Actor {
        Actor { thread, atomic: false }
    }

    #[test]
    fn a_barrier_of_the_block_orders_everything() {
        let mut s = Shadow::new(4, 2);
        assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Uninitialized));
        s.write(0, 15, actor(0), false).unwrap();
        s.read(0, 15, actor(0)).unwrap();
        assert_eq!(s.read(0, 15, actor(40)), Err(Problem::Write(Some(0))));
        assert_eq!(s.read(0, 15, actor(1)), Err(Problem::Write(Some(0))));
        s.block_barrier();
        s.read(0, 15, actor(40)).unwrap();
        assert_eq!(s.write(0, 15, actor(0), false), Err(Problem::Read(Some(40))));
        s.read(0, 15, actor(41)).unwrap();
        assert_eq!(s.write(0, 15, actor(41), false), Err(Problem::Read(None)));
        s.block_barrier();
        s.write(0, 15, actor(0), false).unwrap();
    }

    #[test]
    fn a_warp_barrier_orders_its_lanes_only() {
        let mut s = Shadow::new(4, 2);
        s.write(0, 15, actor(0), false).unwrap();
        s.warp_barrier(0, u32::MAX, true);
        s.read(0, 15, actor(1)).unwrap();
        s.read(0, 15, actor(2)).unwrap();
        assert_eq!(s.read(0, 15, actor(33)), Err(Problem::Write(Some(0))));
        s.warp_barrier(0, u32::MAX, true);
        s.write(0, 15, actor(3), false).unwrap();
    }

    #[test]
    fn barriers_of_some_lanes_chain() {
        let mut s = Shadow::new(4, 1);
        s.write(0, 15, actor(0), false).unwrap();
        s.warp_barrier(0, 0b011, false);
        s.read(0, 15, actor(1)).unwrap();
        assert_eq!(s.read(0, 15, actor(2)), Err(Problem::Write(Some(0))));
        s.warp_barrier(0, 0b110, false);
        s.read(0, 15, actor(2)).unwrap();
    }

    #[test]
    fn a_barrier_of_some_warps_orders_them_only() {
        let mut s = Shadow::new(4, 3);
        s.write(0, 15, actor(0), false).unwrap();
        s.warps_barrier(&[0, 1]);
        s.read(0, 15, actor(32)).unwrap();
        assert_eq!(s.read(0, 15, actor(64)), Err(Problem::Write(Some(0))));
        s.warps_barrier(&[1, 2]);
        s.read(0, 15, actor(64)).unwrap();
    }

    #[test]
    fn bytes_of_a_word_are_apart() {
        let mut s = Shadow::new(4, 1);
        s.write(0, 0b0011, actor(0), false).unwrap();
        s.write(0, 0b1100, actor(1), false).unwrap();
        s.read(0, 0b0011, actor(0)).unwrap();
        assert_eq!(s.read(0, 0b1100, actor(0)), Err(Problem::Write(Some(1))));
        s.block_barrier();
        s.read(0, 15, actor(5)).unwrap();
        s.block_barrier();
        s.write(0, 15, actor(6), false).unwrap();
        s.read(0, 15, actor(6)).unwrap();
    }

    #[test]
    fn equal_writes_and_atomics_do_not_race() {
        let mut s = Shadow::new(4, 1);
        s.write(0, 15, actor(0), false).unwrap();
        s.write(0, 15, actor(1), true).unwrap();
        assert_eq!(s.write(0, 15, actor(0), false), Err(Problem::Write(Some(1))));
        s.block_barrier();
        s.atomic(0, 0).unwrap();
        s.atomic(0, 1).unwrap();
        assert_eq!(s.atomic(1, 1), Err(Problem::Uninitialized));
        assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Write(Some(1))));
    }

    #[test]
    fn copies_are_unreadable_until_they_end() {
        let mut s = Shadow::new(4, 1);
        s.begin_copy(0, actor(0)).unwrap();
        assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Pending));
        s.end_copy(0, actor(0));
        s.read(0, 15, actor(0)).unwrap();
        assert_eq!(s.read(0, 15, actor(1)), Err(Problem::Write(Some(0))));
    }
}
