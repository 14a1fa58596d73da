//! Waiting for the other side: a short spin, then a futex (Linux) or a sleep that doubles, always with a deadline.

use crate::clock::now_ns;
use crate::error::WaitError;
use crate::seat::{Presence, Seat};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a wait may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this the wait ends with an error.
    pub deadline: Duration,
    /// Ends the wait earlier where the other side was there and is gone, or has been silent for so long. None waits
    /// for its restart.
    pub silence: Option<Duration>,
}

impl Patience {
    /// Does not wait.
    pub const NONE: Patience = Patience { deadline: Duration::ZERO, silence: None };

    /// Waits so long, whatever becomes of the other side.
    #[must_use]
    pub const fn until(deadline: Duration) -> Patience {
        Patience { deadline, silence: None }
    }

    /// The same, but not for a side that is gone or has been silent for so long.
    #[must_use]
    pub const fn unless_silent(self, silence: Duration) -> Patience {
        Patience { silence: Some(silence), ..self }
    }
}

/// A peer that cannot wake a futex is noticed after this, and a heartbeat is written as often.
const SLICE: Duration = Duration::from_millis(20);
const SPINS: u32 = 200;

impl Seat {
    /// Tells a waiting peer that a slot changed.
    pub fn signal(&self, signal: u64) {
        let (count, waiting) = (self.map().word32(signal), self.map().word32(signal + 4));
        count.fetch_add(1, Ordering::SeqCst);
        if waiting.load(Ordering::SeqCst) != 0 {
            wake(count);
        }
    }

    /// Asks `ready` until it has something. `what` names that in the error.
    pub fn wait<T, E: From<WaitError>>(
        &self,
        signal: u64,
        what: &'static str,
        patience: Patience,
        mut ready: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.beat();
        if let Some(found) = ready()? {
            return Ok(found);
        }
        let start = now_ns();
        let (count, waiting) = (self.map().word32(signal), self.map().word32(signal + 4));
        if !patience.deadline.is_zero() {
            for _ in 0..SPINS {
                std::hint::spin_loop();
                if let Some(found) = ready()? {
                    return Ok(found);
                }
            }
        }
        for turn in 0_u32.. {
            waiting.store(1, Ordering::SeqCst);
            let seen = count.load(Ordering::SeqCst);
            // Asked before the slot: what the other side did before it went is then seen.
            let lost = self.lost(patience);
            let found = ready();
            let waited = Duration::from_nanos(now_ns() - start);
            let left = patience.deadline.saturating_sub(waited);
            if matches!(found, Ok(None)) && !left.is_zero() && !lost {
                sleep(count, seen, left.min(SLICE), turn);
                self.beat();
                continue;
            }
            waiting.store(0, Ordering::SeqCst);
            if let Some(found) = found? {
                return Ok(found);
            }
            let peer = self.peer();
            return Err(E::from(if left.is_zero() {
                WaitError::Deadline { what, waited, peer }
            } else {
                WaitError::PeerLost { what, waited, peer }
            }));
        }
        unreachable!("every wait has a deadline")
    }

    fn lost(&self, patience: Patience) -> bool {
        let Some(limit) = patience.silence else { return false };
        let peer = self.peer();
        peer.presence != Presence::Never && (!peer.holds_role || peer.silent > limit)
    }
}

#[cfg(target_os = "linux")]
fn wake(count: &std::sync::atomic::AtomicU32) {
    // Failing to wake costs the peer a slice of its wait.
    let _ = rustix::thread::futex::wake(count, rustix::thread::futex::Flags::empty(), 1);
}

#[cfg(target_os = "linux")]
fn sleep(count: &std::sync::atomic::AtomicU32, seen: u32, time: Duration, _turn: u32) {
    let time = rustix::thread::futex::Timespec {
        tv_sec: i64::try_from(time.as_secs()).expect("a slice"),
        tv_nsec: time.subsec_nanos().into(),
    };
    // A changed count, a signal and a time-out all lead to another look at the slot.
    let _ = rustix::thread::futex::wait(count, rustix::thread::futex::Flags::empty(), seen, Some(&time));
}

#[cfg(not(target_os = "linux"))]
fn wake(_count: &std::sync::atomic::AtomicU32) {}

#[cfg(not(target_os = "linux"))]
fn sleep(_count: &std::sync::atomic::AtomicU32, _seen: u32, time: Duration, turn: u32) {
    std::thread::sleep(time.min(Duration::from_micros(50 << turn.min(7))).min(Duration::from_millis(5)));
}
