//! Where everything lies in the file: `docs/bridge-format.md` as constants. Offsets and lengths in bytes.

/// The first bytes of a ring.
pub const MAGIC: &str = "LEEWRING";
/// The layout that this crate writes and reads.
pub const VERSION: u32 = 1;
/// Reads as another number on a machine of another byte order.
pub const BYTE_ORDER: u32 = 0x0102_0304;
/// Length of the file header: a page, so that slots can be pinned.
pub const FILE_HEADER: u64 = 4096;
/// Length of what the file header's checksum covers.
pub const FILE_CHECKED: usize = 60;
/// Everything of a slot begins at a multiple of this.
pub const ALIGN: u64 = 64;
/// Length of a block's header, and offset of its first array.
pub const BLOCK_HEADER: u64 = 128;
/// In every block's header.
pub const BLOCK_MAGIC: u32 = 0x4b4c_424c;
/// Most slots of a ring.
pub const SLOT_COUNT_MAX: u32 = 1 << 20;

/// The producer's and the consumer's line.
pub const PEER_LINES: [u64; 2] = [64, 128];
/// Count of the signal of ready blocks; the waiting word follows it.
pub const SIGNAL_READY: u64 = 192;
/// Count of the signal of free slots; the waiting word follows it.
pub const SIGNAL_FREE: u64 = 256;

/// Fields of a peer's line.
pub mod peer {
    pub const HEARTBEAT: u64 = 0;
    pub const EPOCH: u64 = 8;
    pub const PID: u64 = 12;
    pub const PRESENCE: u64 = 16;
    pub const BLOCKS: u64 = 24;
    pub const BYTES: u64 = 32;
    pub const COPIED: u64 = 40;
    pub const CORRUPT: u64 = 48;
}

/// Up to the next multiple of [`ALIGN`]; none where that is past u64.
pub fn aligned(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGN)
}

/// The u32 at an offset, in the machine's byte order.
pub fn get_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// The u64 at an offset, in the machine's byte order.
pub fn get_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// Writes bytes at an offset.
pub fn put<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&value);
}
