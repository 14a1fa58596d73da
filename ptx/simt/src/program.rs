//! A kernel as the executor runs it: a dense list of operations on numbered slots.

use crate::counters::Class as Counted;
use crate::exec::ExecFn;
use crate::parse::Param;
use crate::stores::Origin;
use crate::types::Special;

/// A guard of no operation.
pub(crate) const UNGUARDED: u16 = u16::MAX;
/// In a guard: the operation runs where the predicate is false.
pub(crate) const NEGATED: u16 = 1 << 15;
/// No place in the program.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// One operation. What `imm`, `r` and `x` mean is known to `exec` and to who lowered it.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) exec: ExecFn,
    pub(crate) imm: i64,
    /// Destinations, then sources, where there are at most five in all.
    pub(crate) r: [u16; 5],
    /// Predicate slot, `NEGATED` or `UNGUARDED`.
    pub(crate) guard: u16,
    /// Index into a side table of the program.
    pub(crate) x: u32,
}

/// Where a branch leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    pub(crate) target: u32,
    pub(crate) next: u32,
    /// Where both sides meet again, or `NOWHERE`.
    pub(crate) join: u32,
    /// A later place where they may meet as well: before the next operation that needs the lanes together.
    pub(crate) late_join: u32,
    /// Written `.uni`: the program promises that all lanes agree.
    pub(crate) uniform: bool,
}

/// What a load, store, atomic or copy touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mem {
    pub(crate) space: Space,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub(crate) width: u8,
    /// Elements: 1, 2 or 4.
    pub(crate) count: u8,
    /// Sign-extends a loaded element narrower than its register.
    pub(crate) signed: bool,
    /// The registers are 64 bits wide.
    pub(crate) wide: bool,
    /// `.nc`: the program promises that nothing writes there during the launch.
    pub(crate) read_only: bool,
    /// The address register is 64 bits wide.
    pub(crate) wide_address: bool,
    pub(crate) offset: i64,
    /// First of its slots in `args`: the address, then the values.
    pub(crate) args: u32,
    /// Number of this access among those of the program.
    pub(crate) site: u32,
    /// Number of the opcode within its family: which atomic, which matrix load.
    pub(crate) variant: u8,
}

/// State spaces of memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// A basic block: how many operations of each class it holds, without guarded ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) counts: Vec<(Counted, u32)>,
}

/// A kernel, ready to run.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    pub(crate) max_threads: Option<u32>,
    pub(crate) static_shared: usize,
    /// Where dynamic shared memory begins.
    pub(crate) dynamic_shared: usize,
    pub(crate) local_bytes: usize,
    pub(crate) ops: Vec<Op>,
    /// Line of each operation, and what it counts as.
    pub(crate) notes: Vec<(u32, Option<Counted>)>,
    pub(crate) args: Vec<u16>,
    pub(crate) branches: Vec<Branch>,
    pub(crate) mems: Vec<Mem>,
    pub(crate) blocks: Vec<Block>,
    /// What the addresses of its stores are made from.
    pub(crate) stores: Vec<Origin>,
    /// It has fences, or accesses that acquire or release.
    pub(crate) fences: bool,
    /// Slots of each register file.
    pub(crate) words: usize,
    pub(crate) wides: usize,
    pub(crate) preds: usize,
    /// Slots with the same value in every lane of every warp.
    pub(crate) word_constants: Vec<(u16, u32)>,
    pub(crate) wide_constants: Vec<(u16, u64)>,
    pub(crate) pred_constants: Vec<(u16, bool)>,
    pub(crate) specials: Vec<(u16, Special)>,
    /// Slots that hold addresses in the module's own global memory.
    pub(crate) globals: Vec<(u16, u64)>,
}
