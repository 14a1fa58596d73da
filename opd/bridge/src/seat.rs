//! A role in a ring: who holds it, whether the other one is there, counters and signals.

use crate::clock::now_ns;
use crate::error::OpenError;
use crate::file;
use crate::layout::{PEER_LINES, peer};
use crate::slot::Mapping;
use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Which side of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Fills slots.
    Producer = 0,
    /// Takes blocks.
    Consumer = 1,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if *self == Role::Producer { "producer" } else { "consumer" })
    }
}

/// What a peer last said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Never attached.
    Never = 0,
    /// Attached; ended without a word if it does not hold its role any more.
    Attached = 1,
    /// Left; may come back.
    Left = 2,
    /// A producer that has no further block.
    Finished = 3,
}

/// What one side sees of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which side it is.
    pub role: Role,
    /// How often the role was taken.
    pub epoch: u32,
    /// Of the latest process.
    pub pid: u32,
    /// What it last said.
    pub presence: Presence,
    /// Whether a process holds the role now.
    pub holds_role: bool,
    /// Since its last sign of life; zero where it was never there.
    pub silent: Duration,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Peer { role, epoch, pid, presence, silent, .. } = self;
        match (presence, self.holds_role) {
            (Presence::Never, false) => return write!(f, "no {role} has attached yet"),
            (Presence::Attached, false) => write!(f, "the {role} (process {pid}, epoch {epoch}) is gone")?,
            (_, false) => write!(f, "the {role} (process {pid}, epoch {epoch}) has left")?,
            (_, true) => write!(f, "the {role} (process {pid}, epoch {epoch}) is there")?,
        }
        write!(f, " and last gave a sign {silent:?} ago")
    }
}

/// What one side has counted since the ring was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks published, or acknowledged.
    pub blocks: u64,
    /// Their bytes, without block headers.
    pub bytes: u64,
    /// Bytes copied beyond the one write in place (producer), or out of the view (consumer).
    pub bytes_copied: u64,
    /// Blocks dropped as corrupt (consumer).
    pub corrupt: u64,
}

/// How long a probe of the other side may keep an attachment out.
const PROBE_NS: u64 = 200_000_000;

/// A role that this process holds, until the last slot that came of it is dropped.
#[derive(Debug)]
pub struct Seat {
    map: Mapping,
    role: Role,
    epoch: u32,
    /// The lock is what holding the role is; the system lets go of it however the process ends.
    _lock: File,
    other: File,
}

fn lock_file(ring: &Path, role: Role) -> Result<File, OpenError> {
    let mut path = ring.as_os_str().to_owned();
    path.push(format!(".{role}"));
    let path = PathBuf::from(path);
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    opened.map_err(|source| OpenError::Io { path, source })
}

impl Seat {
    /// Takes the role, with all that `repair` does before the other side may see it.
    pub fn take(
        path: &Path,
        role: Role,
        repair: impl FnOnce(&Mapping) -> Result<(), OpenError>,
    ) -> Result<Seat, OpenError> {
        // Before the lock files are made, so that none appear beside what is no ring.
        let before = file::open(path)?;
        let (lock, other) = (
            lock_file(path, role)?,
            lock_file(path, if role == Role::Producer { Role::Consumer } else { Role::Producer })?,
        );
        let since = now_ns();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // The other side may be probing this very moment.
                Err(TryLockError::WouldBlock) if now_ns() - since < PROBE_NS => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => {
                    let pid = before.word32(PEER_LINES[role as usize] + peer::PID).load(Ordering::Relaxed);
                    return Err(OpenError::RoleTaken { path: path.to_owned(), role, pid });
                }
                Err(TryLockError::Error(source)) => return Err(OpenError::Io { path: path.to_owned(), source }),
            }
        }
        // Again under the lock: the ring may have been made anew meanwhile.
        let map = file::open(path)?;
        repair(&map)?;
        let mut seat = Seat { map, role, epoch: 0, _lock: lock, other };
        seat.beat();
        seat.half(peer::PID).store(std::process::id(), Ordering::Relaxed);
        seat.epoch = seat.half(peer::EPOCH).fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        seat.say(Presence::Attached);
        Ok(seat)
    }

    pub fn map(&self) -> &Mapping {
        &self.map
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    fn half(&self, field: u64) -> &AtomicU32 {
        self.map.word32(PEER_LINES[self.role as usize] + field)
    }

    /// A field of this side's record.
    pub fn whole(&self, field: u64) -> &AtomicU64 {
        self.map.word64(PEER_LINES[self.role as usize] + field)
    }

    /// A sign of life.
    pub fn beat(&self) {
        self.whole(peer::HEARTBEAT).store(now_ns(), Ordering::Relaxed);
    }

    /// Says how this side is.
    pub fn say(&self, presence: Presence) {
        self.half(peer::PRESENCE).store(presence as u32, Ordering::Release);
    }

    /// What this side has counted.
    pub fn counters(&self) -> Counters {
        let get = |field| self.whole(field).load(Ordering::Relaxed);
        Counters {
            blocks: get(peer::BLOCKS),
            bytes: get(peer::BYTES),
            bytes_copied: get(peer::COPIED),
            corrupt: get(peer::CORRUPT),
        }
    }

    /// What the other side last said.
    pub fn other_presence(&self) -> Presence {
        match self.map.word32(PEER_LINES[1 - self.role as usize] + peer::PRESENCE).load(Ordering::Acquire) {
            0 => Presence::Never,
            1 => Presence::Attached,
            3 => Presence::Finished,
            _ => Presence::Left,
        }
    }

    /// The other side, as it is now.
    pub fn peer(&self) -> Peer {
        let (line, role) = match self.role {
            Role::Producer => (PEER_LINES[1], Role::Consumer),
            Role::Consumer => (PEER_LINES[0], Role::Producer),
        };
        // Whoever gets the lock knows that nobody holds it; it is given back at once. A failure proves nothing.
        let free = self.other.try_lock_shared().is_ok();
        if free {
            let _ = self.other.unlock();
        }
        let epoch = self.map.word32(line + peer::EPOCH).load(Ordering::Acquire);
        let heartbeat = self.map.word64(line + peer::HEARTBEAT).load(Ordering::Relaxed);
        let silent = if heartbeat == 0 { 0 } else { now_ns().saturating_sub(heartbeat) };
        Peer {
            role,
            epoch,
            pid: self.map.word32(line + peer::PID).load(Ordering::Relaxed),
            presence: self.other_presence(),
            holds_role: !free,
            silent: Duration::from_nanos(silent),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.half(peer::PRESENCE).load(Ordering::Relaxed) != Presence::Finished as u32 {
            self.say(Presence::Left);
        }
    }
}
