//! Handles: numbers that say what they stand for, in which context, and whether it is alive.

use super::refusal::{Code, Refusal};
use std::collections::HashMap;
use std::ffi::c_void;

/// A handle as the caller holds it.
pub type Handle = *mut c_void;

/// What a handle stands for. Its number is the handle's top byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
}

const KIND: u32 = 56;
const CONTEXT: u32 = 32;

/// The context in which a handle was made.
pub fn context_of(handle: Handle) -> u64 {
    (handle.addr() as u64 >> CONTEXT) & 0xff_ffff
}

/// The handle of a context.
pub fn context_handle(context: u64) -> Handle {
    make(Kind::Context, context, 0)
}

/// The context of a handle of one.
pub fn context_number(handle: Handle) -> Result<u64, Refusal> {
    let context = context_of(handle);
    if handle != context_handle(context) {
        return Err(Refusal::new(Code::ERROR_INVALID_CONTEXT, format!("{handle:?} is no context")));
    }
    Ok(context)
}

fn make(kind: Kind, context: u64, index: u32) -> Handle {
    let number = (kind as u64) << KIND | context << CONTEXT | u64::from(index) << 4;
    std::ptr::without_provenance_mut(usize::try_from(number).expect("drivers have 64-bit hosts"))
}

/// Everything of one kind that is alive in one context.
#[derive(Debug)]
pub struct Table<T> {
    kind: Kind,
    context: u64,
    made: u32,
    alive: HashMap<usize, T>,
}

impl<T> Table<T> {
    pub fn new(kind: Kind, context: u64) -> Table<T> {
        Table { kind, context, made: 0, alive: HashMap::new() }
    }

    /// Handles are never used twice, so that one that is kept too long is noticed.
    pub fn insert(&mut self, item: T) -> Handle {
        self.made += 1;
        assert!(self.made < 1 << 28, "more handles than numbers for them");
        let handle = make(self.kind, self.context, self.made);
        self.alive.insert(handle.addr(), item);
        handle
    }

    fn dead(&self, handle: Handle) -> Refusal {
        Refusal::new(Code::ERROR_INVALID_HANDLE, format!("{handle:?} is no {:?} that is alive", self.kind))
    }

    pub fn get(&self, handle: Handle) -> Result<&T, Refusal> {
        self.alive.get(&handle.addr()).ok_or_else(|| self.dead(handle))
    }

    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut T, Refusal> {
        let dead = self.dead(handle);
        self.alive.get_mut(&handle.addr()).ok_or(dead)
    }

    pub fn remove(&mut self, handle: Handle) -> Result<T, Refusal> {
        let dead = self.dead(handle);
        self.alive.remove(&handle.addr()).ok_or(dead)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.alive.values_mut()
    }

    pub fn retain(&mut self, keep: impl FnMut(&usize, &mut T) -> bool) {
        self.alive.retain(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Table, context_handle, context_number, context_of};

    #[test]
    fn a_handle_is_of_one_kind_one_context_and_one_life() {
        let mut streams = Table::new(Kind::Stream, 3);
        let mut events = Table::new(Kind::Event, 3);
        let (stream, event) = (streams.insert('s'), events.insert('e'));
        assert_eq!((context_of(stream), streams.get(stream).unwrap()), (3, &'s'));
        assert!(streams.get(event).is_err() && events.get(stream).is_err());
        assert_eq!(streams.remove(stream).unwrap(), 's');
        assert!(streams.remove(stream).is_err(), "removed twice");
        assert_ne!(streams.insert('t'), stream, "a handle came twice");
        assert_eq!(context_number(context_handle(5)).unwrap(), 5);
        assert!(context_number(event).is_err());
    }
}
