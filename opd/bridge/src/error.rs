//! What can be wrong with a ring, a block or a wait: what, where, and what to do about it.

use crate::seat::{Peer, Role};
use crate::states::Word;
use std::path::PathBuf;
use std::time::Duration;

/// A slot's state word is none that the protocol leads to: the file was written to by something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} of the ring is {found:?} where {expected:?} was due: the file is damaged; make a new one")]
pub struct Broken {
    /// Which slot.
    pub slot: u64,
    /// What was due.
    pub expected: Word,
    /// What was there.
    pub found: Word,
}

/// Why a ring cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum OpenError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} exists; remove it, with no process attached, to make a new ring there")]
    Exists { path: PathBuf },
    #[error("a ring of {slot_count} slots of {slot_bytes} bytes: {reason}")]
    Geometry { slot_count: u32, slot_bytes: u64, reason: &'static str },
    #[error("{path} is no ring: it does not begin with the magic {:?}", crate::layout::MAGIC)]
    Magic { path: PathBuf },
    #[error("{path} has layout version {found}; this program reads version {expected}")]
    Version { path: PathBuf, found: u32, expected: u32 },
    #[error("{path} was made on a machine of another byte order; both peers have to run on one machine")]
    ByteOrder { path: PathBuf },
    #[error("{path} has {found} bytes and should have {expected}: it was cut or is not written yet")]
    Length { path: PathBuf, found: u64, expected: u64 },
    #[error("{path}: the file header's checksum is {found:#010x} and should be {expected:#010x}; make a new ring")]
    Checksum { path: PathBuf, found: u32, expected: u32 },
    #[error("{path} has a {role} already, process {pid}; end it first")]
    RoleTaken { path: PathBuf, role: Role, pid: u32 },
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a block cannot be described so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum MetaError {
    #[error("a block needs rows and width of at least 1; it has {rows} rows of width {width}")]
    Empty { rows: u32, width: u32 },
    #[error("sampled scores have width 1, not {width}")]
    SampledWidth { width: u32 },
    #[error("top-k and sampled scores are f32")]
    Dtype,
    #[error("only top-k scores have a tail")]
    Tail,
    #[error("a block of {rows} rows of width {width} takes {needs} bytes and a slot has {slot_bytes}: send fewer rows")]
    TooLarge { rows: u32, width: u32, needs: u64, slot_bytes: u64 },
}

/// What is wrong with a block's bytes. None of them are given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum BlockError {
    #[error("its header's checksum is {found:#010x} and should be {expected:#010x}")]
    HeaderChecksum { found: u32, expected: u32 },
    #[error("its payload's checksum is {found:#010x} and should be {expected:#010x}")]
    PayloadChecksum { found: u32, expected: u32 },
    #[error("its header says block {found}")]
    Number { found: u64 },
    #[error("its header has {field} {found}, which this version does not know")]
    Field { field: &'static str, found: u64 },
    #[error("its header has payload bytes {found} where its shape makes {expected}")]
    PayloadBytes { found: u64, expected: u64 },
    #[error("its row {row} has mask {found}; a mask is 0 or 1")]
    Mask { row: usize, found: u8 },
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Why a wait ended without what it was for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum WaitError {
    #[error("waited {waited:?} for {what}; {peer}")]
    Deadline { what: &'static str, waited: Duration, peer: Peer },
    #[error("no use waiting for {what}, after {waited:?}: {peer}; restart it")]
    PeerLost { what: &'static str, waited: Duration, peer: Peer },
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a producer got no slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The wait for a free slot ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The block cannot be.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Why a consumer got no block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum ReceiveError {
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error("block {number} is corrupt: {why}; it was dropped and counted, and its rows need scoring again")]
    Corrupt { number: u64, why: BlockError },
}
