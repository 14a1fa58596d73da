//! The mapped file and who may touch which of its bytes: the one file of this crate with `unsafe` (decision 11).
//!
//! Words that both peers change are atomics. All other bytes of a slot are reached through [`Filling`] or [`Held`]
//! alone, which exist while the slot's state word gives it to that role.

use crate::error::Broken;
use crate::layout::FILE_HEADER;
use crate::seat::Seat;
use crate::states::{self, Board, Due, Take};
use memmap2::MmapRaw;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A ring's file, mapped shared and writable; its header was checked.
#[derive(Debug)]
pub struct Mapping {
    raw: MmapRaw,
    pub slot_count: u64,
    pub slot_bytes: u64,
    pub nonce: u64,
}

impl Mapping {
    /// `raw` is as long as the geometry makes it.
    pub fn new(raw: MmapRaw, slot_count: u64, slot_bytes: u64, nonce: u64) -> Mapping {
        let bytes = FILE_HEADER + slot_count * slot_bytes;
        assert_eq!(raw.len() as u64, bytes, "the file's length was checked");
        assert!(slot_count.is_power_of_two() && slot_bytes.is_multiple_of(64), "the geometry was checked");
        Mapping { raw, slot_count, slot_bytes, nonce }
    }

    fn offset(&self, offset: u64, bytes: u64) -> usize {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.raw.len() as u64), "within the file");
        usize::try_from(offset).expect("the file is mapped")
    }

    fn pointer(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.raw.as_mut_ptr().wrapping_add(self.offset(offset, bytes))
    }

    /// A word of the file header's records and signals.
    pub fn word32(&self, offset: u64) -> &AtomicU32 {
        assert!((64..FILE_HEADER).contains(&offset) && offset.is_multiple_of(4), "a word of the records");
        let pointer = self.pointer(offset, 4).cast::<u32>();
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, as the mapping begins at a page; these
        // bytes are reached as atomics alone.
        unsafe { AtomicU32::from_ptr(pointer) }
    }

    /// A long word of the file header's records, or a slot's state word.
    pub fn word64(&self, offset: u64) -> &AtomicU64 {
        let state = offset >= FILE_HEADER && (offset - FILE_HEADER).is_multiple_of(self.slot_bytes);
        assert!(state || ((64..FILE_HEADER).contains(&offset) && offset.is_multiple_of(8)), "a shared word");
        let pointer = self.pointer(offset, 8).cast::<u64>();
        // SAFETY: as for `word32`; `Filling` and `Held` leave the state word out of the bytes that they show.
        unsafe { AtomicU64::from_ptr(pointer) }
    }

    /// Where the bytes of a slot behind its state word begin, and how many they are.
    fn body(&self, number: u64) -> (*mut u8, usize) {
        let offset = FILE_HEADER + number % self.slot_count * self.slot_bytes + 8;
        (self.pointer(offset, self.slot_bytes - 8), usize::try_from(self.slot_bytes - 8).expect("mapped"))
    }
}

impl Board for Mapping {
    fn slot_count(&self) -> u64 {
        self.slot_count
    }

    fn load(&self, slot: u64) -> u64 {
        self.word64(FILE_HEADER + slot * self.slot_bytes).load(Ordering::Acquire)
    }

    fn replace(&self, slot: u64, from: u64, to: u64) -> bool {
        let word = self.word64(FILE_HEADER + slot * self.slot_bytes);
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A slot that this producer fills. Dropping it gives the slot back unpublished.
#[derive(Debug)]
pub struct Filling {
    seat: Arc<Seat>,
    number: u64,
    published: bool,
}

impl Filling {
    /// The slot of block `number`, where it is free.
    pub fn claim(seat: &Arc<Seat>, number: u64) -> Result<Option<Filling>, Broken> {
        let claimed = states::claim(seat.map(), number)?;
        Ok(claimed.then(|| Filling { seat: Arc::clone(seat), number, published: false }))
    }

    /// Which block it will be.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whose it is.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The slot behind its state word.
    pub fn bytes(&self) -> &[u8] {
        let (pointer, length) = self.seat.map().body(self.number);
        // SAFETY: inside the mapping, which the seat keeps. This value exists once for its slot, because only the change
        // FREE to FILLING makes it, so nobody in this process has another reference; the seat's lock keeps other
        // producers away, and a consumer that keeps the protocol leaves a FILLING slot alone.
        unsafe { std::slice::from_raw_parts(pointer, length) }
    }

    /// The slot behind its state word, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (pointer, length) = self.seat.map().body(self.number);
        // SAFETY: as for `bytes`, and `&mut self` is the one borrow of this value.
        unsafe { std::slice::from_raw_parts_mut(pointer, length) }
    }

    /// Accepts the block.
    pub fn publish(mut self) -> Result<(), Broken> {
        self.published = true;
        states::publish(self.seat.map(), self.number)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.published {
            // A damaged word shows when the slot is claimed next.
            let _ = states::abandon(self.seat.map(), self.number);
        }
    }
}

/// A slot that this consumer holds. Dropping it acknowledges the block.
#[derive(Debug)]
pub struct Held {
    seat: Arc<Seat>,
    number: u64,
}

impl Held {
    /// The slot of the block that is due, if it is ready.
    pub fn take(seat: &Arc<Seat>, due: Due) -> Result<(Take, Option<Held>), Broken> {
        let take = states::take(seat.map(), due)?;
        Ok((take, (take == Take::Taken).then(|| Held { seat: Arc::clone(seat), number: due.number })))
    }

    /// Which block it is.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whose it is.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The slot behind its state word.
    pub fn bytes(&self) -> &[u8] {
        let (pointer, length) = self.seat.map().body(self.number);
        // SAFETY: inside the mapping, which the seat keeps. The slot is IN_USE until this value is dropped; the seat's lock
        // keeps other consumers away, and a producer that keeps the protocol leaves an IN_USE slot alone. All views
        // are shared, and every bit pattern is a value of the integers and floats that they are cast to.
        unsafe { std::slice::from_raw_parts(pointer, length) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A damaged word shows when the producer comes round.
        let _ = states::release(self.seat.map(), self.number);
        self.seat.signal(crate::layout::SIGNAL_FREE);
    }
}
