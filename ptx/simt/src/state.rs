//! What a running block consists of: its warps and the context they share.

use crate::counters::Tally;
use crate::exec::Step;
use crate::fault::{FaultKind, Report};
use crate::memory::Memory;
use crate::program::{NOWHERE, Program};
use crate::races::Races;
use crate::shared::Shared;

/// A 32-bit register of a warp.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Words(pub(crate) [u32; 32]);

/// A 64-bit register of a warp.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Wides(pub(crate) [u64; 32]);

/// The register files of a warp.
#[derive(Default)]
pub(crate) struct Regs {
    pub(crate) words: Vec<Words>,
    pub(crate) wides: Vec<Wides>,
    /// Bit i is lane i.
    pub(crate) preds: Vec<u32>,
}

/// Lanes that wait while others run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Where these lanes stop once they run.
    pub(crate) join: u32,
}

/// What a warp waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) barrier: u32,
    /// Threads expected; all of the block where zero.
    pub(crate) threads: u32,
}

/// One `cp.async` of a warp whose data has not arrived.
pub(crate) struct Copy {
    pub(crate) mask: u32,
    /// Group number of the lanes, counted from the thread's first.
    pub(crate) group: u32,
    pub(crate) bytes: u32,
    pub(crate) to: [u32; 32],
    pub(crate) data: Box<[[u32; 4]; 32]>,
}

/// 32 threads that share a program counter.
#[derive(Default)]
pub(crate) struct Warp {
    pub(crate) regs: Regs,
    pub(crate) index: u32,
    /// Lanes that exist: the last warp of a block may have fewer than 32.
    pub(crate) lanes: u32,
    /// Lanes on the current path.
    pub(crate) active: u32,
    /// Lanes for which the current instruction runs.
    pub(crate) mask: u32,
    pub(crate) exited: u32,
    pub(crate) pc: u32,
    pub(crate) join: u32,
    pub(crate) stack: Vec<Path>,
    pub(crate) done: bool,
    pub(crate) waiting: Option<Waiting>,
    /// Back edges taken since the last visible effect, and since the warp's turn began.
    pub(crate) idle: u32,
    pub(crate) turn: u32,
    /// A thread's local memory, word by word, 32 lanes each.
    pub(crate) local: Vec<[u32; 32]>,
    /// Copies under way, oldest first, and each lane's number of committed groups.
    pub(crate) copies: Vec<Copy>,
    pub(crate) groups: [u32; 32],
}

impl Warp {
    /// Lanes that have not exited.
    pub(crate) fn live(&self) -> u32 {
        self.lanes & !self.exited
    }

    /// Back to the first instruction, for a new block.
    pub(crate) fn restart(&mut self) {
        self.active = self.lanes;
        self.mask = self.lanes;
        self.exited = 0;
        self.pc = 0;
        self.join = NOWHERE;
        self.stack.clear();
        self.done = false;
        self.waiting = None;
        self.idle = 0;
        self.turn = 0;
        self.copies.clear();
        self.groups = [0; 32];
    }

    /// Takes the next waiting path whose lanes have not all exited.
    pub(crate) fn pop(&mut self) -> Step {
        while let Some(path) = self.stack.pop() {
            let mask = path.mask & !self.exited;
            if mask != 0 {
                self.pc = path.pc;
                self.active = mask;
                self.join = path.join;
                return Step::Jump;
            }
        }
        self.active = 0;
        self.done = true;
        Step::Done
    }
}

/// What the warps of a block share, and what the launch is.
pub(crate) struct Ctx<'a> {
    pub(crate) program: &'a Program,
    pub(crate) memory: &'a Memory,
    /// The parameter buffer, as words.
    pub(crate) params: &'a [u32],
    pub(crate) shared: Shared,
    /// Who accesses global memory when; with checks only.
    pub(crate) races: Option<Races<'a>>,
    /// Number of this launch on its device, from 1.
    pub(crate) launch: u32,
    pub(crate) checks: bool,
    pub(crate) counts: bool,
    pub(crate) perturb: bool,
    pub(crate) pessimistic: bool,
    /// Which way the next permitted error goes.
    pub(crate) parity: bool,
    pub(crate) random: Random,
    /// By site: the position in device memory of the allocation it touched last.
    pub(crate) sites: Vec<u32>,
    pub(crate) tally: Tally,
    pub(crate) report: Option<Report>,
}

impl Ctx<'_> {
    /// Records a fault of `lane`.
    #[cold]
    pub(crate) fn fault(&mut self, kind: FaultKind, lane: usize, address: Option<u64>, detail: String) -> Step {
        self.report = Some(Report { kind, lane, address, detail });
        Step::Fault
    }
}

/// A small generator for schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        crate::exec::low_word(self.wide()) % n
    }

    /// Any number of 64 bits.
    pub(crate) fn wide(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// The lowest lane of a mask that is not empty.
#[inline(always)]
pub(crate) fn first_lane(mask: u32) -> usize {
    mask.trailing_zeros() as usize & 31
}
