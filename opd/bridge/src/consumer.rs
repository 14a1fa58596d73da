//! The side that takes blocks.

use crate::arrays::{Arrays, Scores, split};
use crate::error::{OpenError, ReceiveError, WaitError};
use crate::layout::{SIGNAL_READY, peer};
use crate::meta::{Meta, decode};
use crate::seat::{Counters, Peer, Presence, Role, Seat};
use crate::slot::Held;
use crate::states::{self, Due, Take};
use crate::wait::Patience;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Takes blocks in order. There is one for a ring, in all processes together.
#[derive(Debug)]
pub struct Consumer {
    seat: Arc<Seat>,
    due: Due,
}

impl Consumer {
    /// Takes the role in a ring, and begins at the first block that was not acknowledged: what a dead consumer had
    /// taken comes again, with the same number.
    ///
    /// # Errors
    /// The file is no ring of this version, or has a consumer.
    pub fn attach(path: &Path) -> Result<Consumer, OpenError> {
        let mut due = Due { number: 0, fresh: 0 };
        let seat = Seat::take(path, Role::Consumer, |map| {
            due = states::consumer_attaches(map)?;
            Ok(())
        })?;
        Ok(Consumer { seat: Arc::new(seat), due })
    }

    /// The next block, once it is there, checked; none where the producer has finished and nothing is left. Several
    /// leases may be held, and dropped in any order; slots are filled again in order.
    ///
    /// # Errors
    /// Nothing came in time, or a block was corrupt: it is dropped, and the next call goes on behind it.
    pub fn receive(&mut self, patience: Patience) -> Result<Option<Lease>, ReceiveError> {
        let (seat, due) = (&self.seat, &mut self.due);
        let held = seat.wait(SIGNAL_READY, "the next block", patience, || {
            // Asked before the slot: what was published before the end is then seen.
            let finished = seat.other_presence() == Presence::Finished;
            loop {
                match Held::take(seat, *due).map_err(WaitError::from)? {
                    (Take::Passed, _) => due.number += 1,
                    (Take::NotYet, _) => return Ok::<_, WaitError>(finished.then_some(None)),
                    (Take::Taken, held) => return Ok(Some(held)),
                }
            }
        })?;
        let Some(held) = held else { return Ok(None) };
        self.due.number += 1;
        match decode(held.bytes(), held.number(), self.seat.map().slot_bytes) {
            Ok((meta, epoch)) => Ok(Some(Lease { held, meta, epoch })),
            Err(why) => {
                self.seat.whole(peer::CORRUPT).fetch_add(1, Ordering::Relaxed);
                Err(ReceiveError::Corrupt { number: held.number(), why })
            }
        }
    }

    /// Number of the block that is due.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.due.number
    }

    /// Bytes of a slot, as [`crate::Geometry`] counts them.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.seat.map().slot_bytes
    }

    /// How many times a consumer attached to this ring, this one included.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.seat.epoch()
    }

    /// Tells this ring from another that had the same name.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.seat.map().nonce
    }

    /// A sign of life in a long computation. Every other operation gives one too.
    pub fn beat(&self) {
        self.seat.beat();
    }

    /// The producer, as it is now.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.seat.peer()
    }

    /// What the consumers of this ring have counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.seat.counters()
    }
}

/// A block that this consumer holds: a view of it where it lies. Dropping it acknowledges the block; the role stays
/// taken until the last lease is dropped.
#[derive(Debug)]
pub struct Lease {
    held: Held,
    meta: Meta,
    epoch: u32,
}

impl Lease {
    /// Number of the block; the same when it is delivered again.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.held.number()
    }

    /// Epoch of the producer that published it.
    #[must_use]
    pub fn producer_epoch(&self) -> u32 {
        self.epoch
    }

    /// What the block says about itself.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The arrays, where they lie.
    #[must_use]
    pub fn arrays(&self) -> Arrays<'_> {
        split(&self.meta, self.held.bytes())
    }

    /// Copies hidden rows or logits out, `[rows, width]` without gaps, and counts the bytes as copied. Panics for
    /// another kind.
    #[must_use]
    pub fn copy_rows(&self) -> Vec<u8> {
        let Scores::Dense(rows) = self.arrays().scores else { panic!("no dense rows: {:?}", self.meta.kind) };
        let copied = (0..self.meta.rows as usize).flat_map(|row| rows.row(row)).copied().collect::<Vec<u8>>();
        self.held.seat().whole(peer::COPIED).fetch_add(copied.len() as u64, Ordering::Relaxed);
        copied
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let bytes = self.meta.payload_bytes().expect("checked when received");
        self.held.seat().whole(peer::BLOCKS).fetch_add(1, Ordering::Relaxed);
        self.held.seat().whole(peer::BYTES).fetch_add(bytes, Ordering::Relaxed);
    }
}
