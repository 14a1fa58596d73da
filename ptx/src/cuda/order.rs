//! Whose turn it is at a device's stream. Threads take turns, one call of the driver after the other; a thread that
//! captures a graph has all turns until it has ended, since the driver would record whatever anyone gives to the stream.

use super::CudaError;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

#[derive(Debug, Default)]
pub(super) struct Order {
    /// The thread that captures.
    capturing: Mutex<Option<ThreadId>>,
    ended: Condvar,
}

/// The stream is this thread's for as long as this lives.
#[derive(Debug)]
pub(super) struct Turn<'a>(MutexGuard<'a, Option<ThreadId>>);

impl Turn<'_> {
    /// Whether what is given to the stream now is recorded and does not run.
    pub(super) fn captures(&self) -> bool {
        self.0.is_some()
    }
}

impl Order {
    /// Waits until no other thread is capturing.
    pub(super) fn turn(&self) -> Turn<'_> {
        let here = thread::current().id();
        let capturing = self.capturing.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.ended.wait_while(capturing, |by| by.is_some_and(|by| by != here));
        Turn(free.unwrap_or_else(PoisonError::into_inner))
    }

    /// The same for what cannot be part of a graph: an error if this thread is capturing one.
    pub(super) fn turn_outside(&self, what: &'static str) -> Result<Turn<'_>, CudaError> {
        let turn = self.turn();
        if turn.captures() { Err(CudaError::Capture { what }) } else { Ok(turn) }
    }

    /// Gives this thread all turns, once `begin` has made the driver capture.
    pub(super) fn capture(&self, begin: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
        let mut turn = self.turn_outside("another capture")?;
        begin()?;
        *turn.0 = Some(thread::current().id());
        Ok(())
    }

    /// Lets the others go on, once `end` has ended the capture.
    pub(super) fn end<R>(&self, end: impl FnOnce() -> R) -> R {
        let mut turn = self.turn();
        let ended = end();
        *turn.0 = None;
        self.ended.notify_all();
        ended
    }
}
