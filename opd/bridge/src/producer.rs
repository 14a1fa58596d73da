//! The side that fills slots.

use crate::arrays::{ArraysMut, split, split_mut};
use crate::error::{Broken, ClaimError, MetaError, OpenError, WaitError};
use crate::layout::{SIGNAL_FREE, SIGNAL_READY, peer};
use crate::meta::{Meta, encode};
use crate::seat::{Counters, Peer, Presence, Role, Seat};
use crate::slot::Filling;
use crate::states;
use crate::wait::Patience;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Fills blocks in order. There is one for a ring, in all processes together.
#[derive(Debug)]
pub struct Producer {
    seat: Arc<Seat>,
    next: u64,
}

impl Producer {
    /// Takes the role in a ring, frees what a dead producer was filling, and goes on behind the last accepted block.
    ///
    /// # Errors
    /// The file is no ring of this version, or has a producer.
    pub fn attach(path: &Path) -> Result<Producer, OpenError> {
        let mut next = 0;
        let seat = Seat::take(path, Role::Producer, |map| {
            next = states::producer_attaches(map)?;
            Ok(())
        })?;
        Ok(Producer { seat: Arc::new(seat), next })
    }

    /// Number of the next block.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// How many times a producer attached to this ring, this one included.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.seat.epoch()
    }

    /// Tells this ring from another that had the same name.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.seat.map().nonce
    }

    /// Blocks that can be filled without waiting. Where they run out, stop admitting rollouts rather than wait here.
    #[must_use]
    pub fn credits(&self) -> u64 {
        states::credits(self.seat.map(), self.next)
    }

    /// Whether a block can be: its size is one that a slot holds.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn fits(&self, meta: &Meta) -> Result<(), MetaError> {
        meta.fits(self.seat.map().slot_bytes).map(drop)
    }

    /// A slot to fill in place, once one is free.
    ///
    /// # Errors
    /// The block cannot be, or no slot became free in time.
    pub fn claim(&mut self, meta: &Meta, patience: Patience) -> Result<Draft<'_>, ClaimError> {
        let payload_bytes = meta.fits(self.seat.map().slot_bytes)?;
        let filling = self.seat.wait(SIGNAL_FREE, "a free slot", patience, || {
            Filling::claim(&self.seat, self.next).map_err(WaitError::from)
        })?;
        Ok(Draft { filling, meta: *meta, payload_bytes, next: &mut self.next })
    }

    /// A sign of life in a long computation. Every other operation gives one too.
    pub fn beat(&self) {
        self.seat.beat();
    }

    /// The consumer, as it is now.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.seat.peer()
    }

    /// What the producers of this ring have counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.seat.counters()
    }

    /// No further block will come: the consumer gets what is there and then the end.
    pub fn finish(self) {
        self.seat.say(Presence::Finished);
        self.seat.signal(SIGNAL_READY);
    }
}

/// A block being filled. Dropping it gives the slot back, and the number to the next block.
#[derive(Debug)]
pub struct Draft<'a> {
    filling: Filling,
    meta: Meta,
    payload_bytes: u64,
    next: &'a mut u64,
}

impl Draft<'_> {
    /// Number of the block.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.filling.number()
    }

    /// The arrays, to fill whole.
    pub fn arrays_mut(&mut self) -> ArraysMut<'_> {
        split_mut(&self.meta, self.filling.bytes_mut())
    }

    /// Copies hidden rows or logits from `rows`, `[rows, width]` without gaps, and counts the bytes as copied: for
    /// scores that could not be computed into the slot. Panics for another kind or length.
    pub fn copy_rows(&mut self, rows: &[u8]) {
        let row_bytes = usize::try_from(self.meta.row_bytes()).expect("fits the slot");
        let count = self.meta.rows as usize;
        assert_eq!(rows.len(), count * row_bytes, "rows without gaps");
        let mut into = self.arrays_mut().scores.dense_mut();
        for (at, row) in rows.chunks_exact(row_bytes).enumerate() {
            into.row_mut(at).copy_from_slice(row);
        }
        self.filling.seat().whole(peer::COPIED).fetch_add(rows.len() as u64, Ordering::Relaxed);
    }

    /// Checksums the block and hands it over: from here on it is accepted. Panics where the mask has other than 0 and 1.
    ///
    /// # Errors
    /// The file was damaged.
    pub fn publish(mut self) -> Result<u64, Broken> {
        let arrays = split(&self.meta, self.filling.bytes());
        assert!(arrays.mask.iter().all(|&mask| mask <= 1), "a mask is 0 or 1");
        let (least, most) = (arrays.versions.iter().min(), arrays.versions.iter().max());
        self.meta.versions = (*least.expect("rows"), *most.expect("rows"));
        let (number, epoch) = (self.filling.number(), self.filling.seat().epoch());
        encode(&self.meta, number, epoch, self.payload_bytes, self.filling.bytes_mut());
        let Draft { filling, payload_bytes, next, .. } = self;
        let seat = Arc::clone(filling.seat());
        filling.publish()?;
        *next = number + 1;
        seat.whole(peer::BLOCKS).fetch_add(1, Ordering::Relaxed);
        seat.whole(peer::BYTES).fetch_add(payload_bytes, Ordering::Relaxed);
        seat.beat();
        seat.signal(SIGNAL_READY);
        Ok(number)
    }
}
