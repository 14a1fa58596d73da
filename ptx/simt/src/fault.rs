//! What a launch can do wrong, and where it did.

use std::fmt;

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of every allocation, of shared memory or of the parameters.
    OutOfBounds,
    /// An access to memory that was freed.
    UseAfterFree,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// A read of memory that nothing wrote.
    Uninitialized,
    /// A read or write of a `cp.async` destination before its thread waited for the copy.
    PendingCopy,
    /// Two threads touched the same bytes, one of them writing, with no barrier between that orders them; none does for
    /// threads of two blocks.
    Race,
    /// A read-only load of memory that is written during the same launch, before or after.
    ReadOnlyWritten,
    /// A barrier that some threads of the warp, or of the block, do not reach.
    DivergentBarrier,
    /// A branch marked `.uni` on which lanes disagree, or a warp-wide instruction without all its lanes.
    Divergence,
    /// A shuffle, vote or match that involves a lane which does not take part.
    InactiveLane,
    /// More shared memory than the device gives a block.
    SharedMemory,
    /// A launch with a bad shape or bad parameters.
    Launch,
    /// A loop that went round very often without any effect.
    NoProgress,
    /// A `trap` instruction.
    Trap,
}

impl FaultKind {
    fn words(self) -> &'static str {
        match self {
            FaultKind::OutOfBounds => "access out of bounds",
            FaultKind::UseAfterFree => "use after free",
            FaultKind::Misaligned => "misaligned access",
            FaultKind::Uninitialized => "read of uninitialised memory",
            FaultKind::PendingCopy => "access to the destination of an unfinished cp.async",
            FaultKind::Race => "race",
            FaultKind::ReadOnlyWritten => "read-only load of memory written in this launch",
            FaultKind::DivergentBarrier => "divergent barrier",
            FaultKind::Divergence => "divergence",
            FaultKind::InactiveLane => "a lane that does not take part",
            FaultKind::SharedMemory => "too much shared memory",
            FaultKind::Launch => "bad launch",
            FaultKind::NoProgress => "no progress",
            FaultKind::Trap => "trap",
        }
    }
}

/// The first fault of a launch: that of the first block in the order of blocks, and in it the first in execution order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// Line of the PTX text, from 1; 0 where the launch failed before any instruction.
    pub line: usize,
    /// Block index.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// The address, as the instruction gave it.
    pub address: Option<u64>,
    /// The rest of it, in words.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, kernel, line, block: [bx, by, bz], thread: [tx, ty, tz], address, detail } = self;
        write!(f, "{}: kernel {kernel}", kind.words())?;
        if *line > 0 {
            write!(f, ", line {line}, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})")?;
        }
        if let Some(address) = address {
            write!(f, ", address {address:#x}")?;
        }
        write!(f, ": {detail}")
    }
}

impl std::error::Error for Fault {}

/// A fault as an operation reports it: the run loop knows the rest.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) kind: FaultKind,
    pub(crate) lane: usize,
    pub(crate) address: Option<u64>,
    pub(crate) detail: String,
}
