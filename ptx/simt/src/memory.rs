//! Device memory: allocations at addresses that are never used twice, each with its shadow.
//!
//! Data is kept in atomic words, so that blocks may run on several threads without undefined behaviour even where a kernel
//! races; plain relaxed loads and stores of words cost nothing extra. The shadow holds, for each word, which of its bytes
//! were written, and during which launch last. Records of who writes and reads lie beside what launches store to:
//! [`crate::races`].

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::races::Records;
use crate::types::GLOBAL_BASE;

/// Allocations begin at multiples of this, as on hardware.
const ALIGN: u64 = 256;
/// Addresses between two allocations that belong to neither.
const GAP: u64 = 256;
/// What fresh memory holds: a NaN in every float format.
const FRESH: u32 = u32::MAX;

/// Why memory cannot be given, freed, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// More than the device has left.
    #[error("{asked} bytes asked for, {left} of {total} left")]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes not allocated.
        left: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// A change that needs empty memory.
    #[error("{used} bytes are allocated; this needs empty memory")]
    InUse {
        /// Bytes allocated.
        used: u64,
    },
    /// More than one allocation can have.
    #[error("an allocation of {asked} bytes; at most 4 GiB each")]
    TooLarge {
        /// Bytes asked for.
        asked: u64,
    },
    /// Zero bytes, which no allocation has.
    #[error("an allocation of zero bytes")]
    Empty,
    /// An address that is no beginning of an allocation.
    #[error("{address:#x} is not the beginning of an allocation")]
    NotAllocated {
        /// The address.
        address: u64,
    },
    /// A range that does not lie in one allocation.
    #[error("{bytes} bytes at {address:#x}: {what}")]
    OutOfBounds {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Where that is.
        what: String,
    },
}

/// One live allocation.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) words: Vec<AtomicU32>,
    /// By word: launch of the last write in the upper 28 bits, written bytes in the lower 4. Empty without checks.
    pub(crate) shadow: Vec<AtomicU32>,
    /// By 32-byte sector: the last launch that loaded from it, and that stored to it. Empty without counters.
    pub(crate) stamps: [Vec<AtomicU32>; 2],
    /// The host wrote every byte: no load need look at the shadow for that.
    pub(crate) whole: bool,
    /// Bytes that the host has not written.
    fresh: u64,
    /// The last launch that wrote here.
    pub(crate) last_write: AtomicU32,
    /// The last launch that was known to store here.
    pub(crate) tracked: AtomicU32,
    /// Of the launches that store here.
    records: OnceLock<Records>,
}

impl Allocation {
    #[inline(always)]
    pub(crate) fn contains(&self, first: u64, end: u64) -> bool {
        first >= self.base && end <= self.base + self.bytes
    }

    /// From now on accesses of this launch are recorded.
    #[cold]
    pub(crate) fn track(&self, launch: u32) {
        self.records.get_or_init(|| Records::new(self.words.len()));
        self.tracked.store(launch, Relaxed);
    }

    /// The records of an allocation that is tracked.
    #[inline(always)]
    pub(crate) fn records(&self) -> &Records {
        self.records.get().expect("made when tracking began")
    }

    fn written_by_host(&mut self, offset: u64, len: u64) {
        if self.shadow.is_empty() || len == 0 {
            return;
        }
        let (first, end) = (offset, offset + len);
        for word in first / 4..end.div_ceil(4) {
            let at = &mut self.shadow[index(word)];
            let old = *at.get_mut();
            let mut bits = 0;
            for byte in 0..4 {
                let here = word * 4 + byte;
                bits |= u32::from(here >= first && here < end) << byte;
            }
            self.fresh -= u64::from((bits & !old).count_ones());
            // Launch 0 never runs: what the host wrote is no write of any launch.
            *at.get_mut() = old & 15 | bits;
        }
        self.whole = self.fresh == 0;
    }
}

/// All memory of a device.
pub(crate) struct Memory {
    pub(crate) live: Vec<Allocation>,
    /// Freed ranges, by address: never given out again, so that a later use is known for what it is.
    freed: Vec<(u64, u64)>,
    next: u64,
    used: u64,
    total: u64,
    checks: bool,
    counts: bool,
    /// Held by an atomic of 64 bits.
    pub(crate) wide_atomics: Mutex<()>,
}

fn index(x: u64) -> usize {
    usize::try_from(x).expect("device memory is addressable on the host")
}

fn atomics(count: u64, value: u32) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(value)).collect()
}

impl Memory {
    pub(crate) fn new(total: u64, checks: bool, counts: bool) -> Memory {
        Memory {
            live: Vec::new(),
            freed: Vec::new(),
            next: GLOBAL_BASE,
            used: 0,
            total,
            checks,
            counts,
            wide_atomics: Mutex::new(()),
        }
    }

    /// Turns checks and counters on or off, for the allocations to come: there must be none.
    pub(crate) fn set_checked(&mut self, checked: bool) -> Result<(), MemoryError> {
        if self.used > 0 {
            return Err(MemoryError::InUse { used: self.used });
        }
        (self.checks, self.counts) = (checked, checked);
        Ok(())
    }

    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        // Offsets within an allocation are kept in 32 bits.
        if bytes > 1 << 32 {
            return Err(MemoryError::TooLarge { asked: bytes });
        }
        if bytes > self.total - self.used {
            return Err(MemoryError::Full { asked: bytes, left: self.total - self.used, total: self.total });
        }
        let base = self.next;
        self.next = (base + bytes).next_multiple_of(ALIGN) + GAP;
        self.used += bytes;
        let words = bytes.div_ceil(4);
        let sectors = if self.counts { bytes.div_ceil(32) } else { 0 };
        self.live.push(Allocation {
            base,
            bytes,
            words: atomics(words, FRESH),
            shadow: atomics(if self.checks { words } else { 0 }, 0),
            stamps: [atomics(sectors, 0), atomics(sectors, 0)],
            whole: !self.checks,
            fresh: bytes,
            last_write: AtomicU32::new(0),
            tracked: AtomicU32::new(0),
            records: OnceLock::new(),
        });
        Ok(base)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let at =
            self.live.binary_search_by_key(&address, |a| a.base).map_err(|_| MemoryError::NotAllocated { address })?;
        let gone = self.live.remove(at);
        self.used -= gone.bytes;
        let place = self.freed.partition_point(|f| f.0 < gone.base);
        self.freed.insert(place, (gone.base, gone.bytes));
        Ok(())
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The position of the allocation that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<usize> {
        let at = self.live.partition_point(|a| a.base <= address).checked_sub(1)?;
        (address < self.live[at].base + self.live[at].bytes).then_some(at)
    }

    /// The allocation that begins at or holds `address`: its address and bytes.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, u64)> {
        self.find(address).map(|at| (self.live[at].base, self.live[at].bytes))
    }

    /// Nothing is known of the accesses of any launch.
    pub(crate) fn forget_races(&mut self) {
        for a in &mut self.live {
            a.records = OnceLock::new();
            *a.tracked.get_mut() = 0;
        }
    }

    /// Whether an address lies in memory that was freed.
    pub(crate) fn is_freed(&self, address: u64) -> bool {
        let at = self.freed.partition_point(|f| f.0 <= address);
        at > 0 && address < self.freed[at - 1].0 + self.freed[at - 1].1
    }

    /// Where an address is that no allocation holds, in words.
    pub(crate) fn describe(&self, address: u64) -> String {
        let at = self.freed.partition_point(|f| f.0 <= address);
        if at > 0 && address < self.freed[at - 1].0 + self.freed[at - 1].1 {
            let (base, bytes) = self.freed[at - 1];
            return format!("{} bytes into the freed allocation {base:#x} of {bytes} bytes", address - base);
        }
        let at = self.live.partition_point(|a| a.base <= address);
        if at > 0 {
            let a = &self.live[at - 1];
            if address < a.base + a.bytes {
                return format!("{} bytes into the allocation {:#x} of {} bytes", address - a.base, a.base, a.bytes);
            }
            return format!(
                "{} bytes past the end of the allocation {:#x} of {} bytes",
                address - a.base - a.bytes,
                a.base,
                a.bytes
            );
        }
        match self.live.first() {
            Some(a) => {
                format!("{} bytes before the allocation {:#x} of {} bytes", a.base - address, a.base, a.bytes)
            }
            None => "nothing is allocated".to_string(),
        }
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(usize, u64), MemoryError> {
        let fail = |what| MemoryError::OutOfBounds { address, bytes, what };
        let at = self.find(address).ok_or_else(|| fail(self.describe(address)))?;
        let a = &self.live[at];
        if bytes > a.base + a.bytes - address {
            return Err(fail(self.describe(a.base + a.bytes)));
        }
        Ok((at, address - a.base))
    }

    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        if out.is_empty() {
            return Ok(());
        }
        let (at, offset) = self.locate(address, out.len() as u64)?;
        let words = &self.live[at].words;
        let mut done = 0;
        while done < out.len() {
            let here = index(offset) + done;
            let bytes = words[here / 4].load(Relaxed).to_le_bytes();
            let part = &bytes[here % 4..];
            let n = part.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&part[..n]);
            done += n;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, address: u64, from: &[u8]) -> Result<(), MemoryError> {
        if from.is_empty() {
            return Ok(());
        }
        let (at, offset) = self.locate(address, from.len() as u64)?;
        let a = &mut self.live[at];
        let mut done = 0;
        while done < from.len() {
            let here = index(offset) + done;
            let word = a.words[here / 4].get_mut();
            let mut bytes = word.to_le_bytes();
            let part = &mut bytes[here % 4..];
            let n = part.len().min(from.len() - done);
            part[..n].copy_from_slice(&from[done..done + n]);
            *word = u32::from_le_bytes(bytes);
            done += n;
        }
        a.written_by_host(offset, from.len() as u64);
        Ok(())
    }

    /// Fills `bytes` bytes with a pattern that repeats from the beginning of the range.
    pub(crate) fn fill(&mut self, address: u64, pattern: &[u8], bytes: u64) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        self.locate(address, bytes)?;
        const CHUNK: usize = 1 << 16;
        let chunk: Vec<u8> = pattern.iter().copied().cycle().take(CHUNK.min(index(bytes))).collect();
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(CHUNK as u64);
            self.write(address + done, &chunk[..index(n)])?;
            done += n;
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        self.locate(to, bytes)?;
        self.locate(from, bytes)?;
        let mut data = vec![0; index(bytes)];
        self.read(from, &mut data)?;
        let unwritten: Vec<u64> = self.unwritten(from, bytes);
        self.write(to, &data)?;
        self.forget(to, &unwritten);
        Ok(())
    }

    /// Offsets in a range of bytes that nothing wrote: copying them does not make them written.
    fn unwritten(&self, address: u64, bytes: u64) -> Vec<u64> {
        let Some(at) = self.find(address) else { return Vec::new() };
        let a = &self.live[at];
        if a.whole {
            return Vec::new();
        }
        let offset = address - a.base;
        (0..bytes).filter(|i| a.shadow[index((offset + i) / 4)].load(Relaxed) >> ((offset + i) % 4) & 1 == 0).collect()
    }

    fn forget(&mut self, address: u64, offsets: &[u64]) {
        let Some(at) = self.find(address) else { return };
        let a = &mut self.live[at];
        for i in offsets {
            let byte = address - a.base + i;
            *a.shadow[index(byte / 4)].get_mut() &= !(1 << (byte % 4));
            a.fresh += 1;
            a.whole = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_apart_and_never_used_again() {
        let mut m = Memory::new(1000, true, true);
        let a = m.alloc(10).unwrap();
        let b = m.alloc(300).unwrap();
        assert!(a.is_multiple_of(ALIGN) && b.is_multiple_of(ALIGN) && b >= a + 10 + GAP);
        assert!(matches!(m.alloc(691), Err(MemoryError::Full { left: 690, .. })));
        m.free(a).unwrap();
        assert_eq!(m.free(a), Err(MemoryError::NotAllocated { address: a }));
        assert!(m.is_freed(a + 9) && !m.is_freed(a + 10));
        assert!(m.alloc(700).unwrap() > b);
        assert_eq!(m.used(), 1000);
    }

    #[test]
    fn bytes_go_in_and_out_at_any_offset() {
        let mut m = Memory::new(1000, true, false);
        let a = m.alloc(11).unwrap();
        m.write(a + 3, &[1, 2, 3, 4, 5, 6]).unwrap();
        m.fill(a, &[9], 3).unwrap();
        assert!(!m.live[0].whole);
        m.fill(a + 9, &[7, 8], 2).unwrap();
        assert!(m.live[0].whole);
        let mut out = [0; 11];
        m.read(a, &mut out).unwrap();
        assert_eq!(out, [9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(matches!(m.read(a + 1, &mut out), Err(MemoryError::OutOfBounds { .. })));
        let b = m.alloc(8).unwrap();
        m.copy(b, a + 4, 7).unwrap();
        assert_eq!(m.unwritten(b, 8), [7]);
        let c = m.alloc(8).unwrap();
        m.copy(c, b, 8).unwrap();
        assert_eq!(m.unwritten(c, 8), [7]);
    }
}
