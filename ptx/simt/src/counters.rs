//! What a launch did, counted. Every figure is a count of the program's own actions, none an estimate of time.

/// Classes of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Integer arithmetic.
    Integer,
    /// Bits, shifts, comparisons, selections and predicates.
    Logic,
    /// f32 arithmetic.
    Float,
    /// f16 and bf16 arithmetic.
    Half,
    /// f64 arithmetic.
    Double,
    /// `.approx` functions.
    Special,
    /// Conversions between types and address spaces.
    Convert,
    /// Moves between registers.
    Move,
    /// Loads of parameters.
    Param,
    /// Loads and stores of global memory, and generic ones.
    Global,
    /// Loads and stores of shared memory, matrix loads among them.
    Shared,
    /// Loads and stores of a thread's local memory.
    Local,
    /// Atomic operations.
    Atomic,
    /// `cp.async` and its groups.
    Async,
    /// Matrix multiply-accumulate.
    Mma,
    /// Shuffles, votes, matches and reductions in a warp.
    Shuffle,
    /// Barriers and fences.
    Barrier,
    /// Branches and exits.
    Control,
}

/// Number of classes.
pub const CLASSES: usize = Class::Control as usize + 1;

/// Every class, in order.
pub const ALL_CLASSES: [Class; CLASSES] = [
    Class::Integer,
    Class::Logic,
    Class::Float,
    Class::Half,
    Class::Double,
    Class::Special,
    Class::Convert,
    Class::Move,
    Class::Param,
    Class::Global,
    Class::Shared,
    Class::Local,
    Class::Atomic,
    Class::Async,
    Class::Mma,
    Class::Shuffle,
    Class::Barrier,
    Class::Control,
];

/// Instructions of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// Times a warp executed one with at least one lane.
    pub warp: u64,
    /// Lanes that executed one: lanes on the path whose guard holds.
    pub lane: u64,
}

/// Global memory traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes asked for: lanes times the size of the access, lanes with equal addresses counted each.
    pub bytes: u64,
    /// 32-byte sectors asked of the first cache: for each instruction of a warp, the different sectors its lanes touch.
    pub sectors: u64,
    /// Different sectors touched during the launch: what main memory moves at least.
    pub unique_sectors: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, other: &Traffic) {
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.unique_sectors += other.unique_sectors;
    }
}

/// Traffic of one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationTraffic {
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Loads, copies to shared memory and the reading half of atomics.
    pub load: Traffic,
    /// Stores and the writing half of atomics.
    pub store: Traffic,
}

/// Counts of one launch. Nothing is counted in the mode [`crate::Mode::Fast`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By [`Class`], in the order of [`ALL_CLASSES`].
    pub instructions: [Issued; CLASSES],
    /// Lanes that executed an instruction, over all classes.
    pub lane_instructions: u64,
    /// Instructions executed by a warp, over all classes.
    pub warp_instructions: u64,
    /// Global loads.
    pub load: Traffic,
    /// Global stores.
    pub store: Traffic,
    /// The same for each allocation that the launch touched, in the order of their addresses.
    pub allocations: Vec<AllocationTraffic>,
    /// Accesses of a warp to shared memory; `cp.async` counts as one, a matrix load too.
    pub shared_accesses: u64,
    /// Passes they take: lanes are served in phases of 32 (up to 4 bytes each), 16 (8 bytes) or 8 lanes (16 bytes), and a
    /// phase takes as many passes as the bank with most different words in it has.
    pub shared_wavefronts: u64,
    /// The passes if no two words of a phase shared a bank: its phases with any lane in them.
    pub shared_wavefronts_least: u64,
    /// Floating-point operations of matrix instructions: 2 m n k each.
    pub mma_flops: u64,
    /// Block barriers passed, counted once for each warp.
    pub barriers: u64,
    /// Conditional branches on which the lanes of a warp disagreed.
    pub divergent_branches: u64,
}

impl Stats {
    /// Instructions of one class.
    #[must_use]
    pub fn issued(&self, class: Class) -> Issued {
        self.instructions[class as usize]
    }
}

/// What one worker counts; addition makes the whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Entries of each basic block, by warps and by lanes.
    pub(crate) blocks: Vec<Issued>,
    /// Guarded instructions, counted one by one.
    pub(crate) guarded: [Issued; CLASSES],
    /// By position in device memory: load and store.
    pub(crate) allocations: Vec<[Traffic; 2]>,
    pub(crate) shared_accesses: u64,
    pub(crate) shared_wavefronts: u64,
    pub(crate) shared_wavefronts_least: u64,
    pub(crate) mma_flops: u64,
    pub(crate) barriers: u64,
    pub(crate) divergent_branches: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        let issued = |to: &mut [Issued], from: &[Issued]| {
            for (to, from) in to.iter_mut().zip(from) {
                to.warp += from.warp;
                to.lane += from.lane;
            }
        };
        issued(&mut self.blocks, &other.blocks);
        issued(&mut self.guarded, &other.guarded);
        for (to, from) in self.allocations.iter_mut().zip(&other.allocations) {
            to[0].add(&from[0]);
            to[1].add(&from[1]);
        }
        self.shared_accesses += other.shared_accesses;
        self.shared_wavefronts += other.shared_wavefronts;
        self.shared_wavefronts_least += other.shared_wavefronts_least;
        self.mma_flops += other.mma_flops;
        self.barriers += other.barriers;
        self.divergent_branches += other.divergent_branches;
    }
}
