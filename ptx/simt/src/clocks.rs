//! Which accesses of a block's threads are ordered by barriers.
//!
//! Each warp has a clock that ticks at every barrier it passes. What happened before the last barrier of the whole block is
//! ordered with everything: its clock lies below `floor`. Lanes of one warp are ordered only by a barrier as well, be it of
//! the block or `bar.warp.sync`: that they run in lock-step here is nothing hardware promises. Of barriers for a part of the
//! block the order between warps is kept exactly.

/// The clocks of a block.
pub(crate) struct Clocks {
    /// Clocks below are ordered with everything.
    floor: u32,
    /// By warp.
    clocks: Vec<u32>,
    /// By warp and warp: accesses of the second with a smaller clock are ordered before the first.
    seen: Vec<u32>,
    /// By warp: the clock after its last barrier of all lanes.
    full: Vec<u32>,
    /// By warp: barriers of some lanes since then, with the clock before each.
    partial: Vec<Vec<(u32, u32)>>,
}

impl Clocks {
    pub(crate) fn new(warps: usize) -> Clocks {
        Clocks {
            floor: 1,
            clocks: vec![1; warps],
            seen: vec![0; warps * warps],
            full: vec![1; warps],
            partial: vec![Vec::new(); warps],
        }
    }

    /// Nothing has happened.
    pub(crate) fn restart(&mut self) {
        self.floor = 1;
        self.clocks.fill(1);
        self.seen.fill(0);
        self.full.fill(1);
        self.partial.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn floor(&self) -> u32 {
        self.floor
    }

    pub(crate) fn of(&self, warp: u32) -> u32 {
        self.clocks[warp as usize]
    }

    /// All warps that still run have passed a barrier. False, and no clock moves, if the next one is not below `limit`.
    pub(crate) fn block_barrier(&mut self, limit: u32) -> bool {
        let clock = self.clocks.iter().max().copied().unwrap_or(0) + 1;
        if clock >= limit {
            return false;
        }
        self.floor = clock;
        self.clocks.fill(clock);
        self.full.fill(clock);
        self.partial.iter_mut().for_each(Vec::clear);
        true
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

    /// Whether what a lane of a warp did at a clock, or some lane of it, is ordered before what another thread does now.
    pub(crate) fn ordered(&self, clock: u32, warp: u32, lane: Option<u32>, thread: u32) -> bool {
        if clock < self.floor {
            return true;
        }
        let (mine, theirs) = ((thread / 32) as usize, warp as usize);
        if theirs != mine {
            return self.seen[mine * self.clocks.len() + theirs] > clock;
        }
        if clock < self.full[mine] {
            return true;
        }
        let Some(lane) = lane else { return false };
        let (mut reached, target) = (1_u32 << lane, 1_u32 << (thread % 32));
        for &(before, lanes) in &self.partial[mine] {
            if before >= clock && lanes & reached != 0 {
                reached |= lanes;
            }
        }
        reached & target != 0
    }
}
