//! Buffers that a thread keeps between ops, so that a warmed step allocates nothing.

use std::cell::RefCell;

/// A cache line of f32, so that scratch starts on one.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

const SLOTS: usize = 8;

/// What ops keep per thread once they are warm, by slot, in f32. Ops with the same slot share its buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    caller: [usize; SLOTS],
    worker: [usize; SLOTS],
}

impl Scratch {
    /// `len` floats in `slot` of the thread that calls the op.
    pub(crate) fn caller(mut self, slot: usize, len: usize) -> Scratch {
        self.caller[slot] = self.caller[slot].max(len);
        self
    }

    /// `len` floats in `slot` of every thread.
    pub(crate) fn every(mut self, slot: usize, len: usize) -> Scratch {
        self.worker[slot] = self.worker[slot].max(len);
        self.caller(slot, len)
    }

    /// What a thread keeps that runs both.
    #[must_use]
    pub fn and(mut self, other: Scratch) -> Scratch {
        for slot in 0..SLOTS {
            self.caller[slot] = self.caller[slot].max(other.caller[slot]);
            self.worker[slot] = self.worker[slot].max(other.worker[slot]);
        }
        self
    }

    /// Bytes on `threads` threads, the caller's included: no more than this is ever kept.
    #[must_use]
    pub fn bytes(&self, threads: usize) -> usize {
        // Shapes far beyond any machine must not wrap to little memory.
        let bytes = |len: &usize| len.div_ceil(16).saturating_mul(size_of::<Line>());
        let of = |slots: &[usize; SLOTS]| slots.iter().map(bytes).fold(0, usize::saturating_add);
        of(&self.caller).saturating_add(threads.saturating_sub(1).saturating_mul(of(&self.worker)))
    }
}

thread_local! {
    static BUFFERS: RefCell<[Vec<Line>; SLOTS]> = const { RefCell::new([const { Vec::new() }; SLOTS]) };
}

/// Lends this thread's buffer number `SLOT` with room for `len` floats, 64-byte aligned, contents unspecified.
/// Slots let one op hold several buffers; a nested use of the same slot gets a fresh one.
pub(crate) fn with<const SLOT: usize, R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut lines = BUFFERS.with_borrow_mut(|buffers| std::mem::take(&mut buffers[SLOT]));
    let want = len.div_ceil(16);
    if lines.len() < want {
        // Exactly as much as is needed, and never old and new side by side: `Scratch` says how much memory this takes.
        lines = Vec::new();
        lines.reserve_exact(want);
        lines.resize(want, Line([0.0; 16]));
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut lines)[..len]);
    BUFFERS.with_borrow_mut(|buffers| buffers[SLOT] = lines);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_exactly_as_large_as_the_largest_use() {
        for len in [100, 17, 1000, 1001, 16, 1024] {
            with::<3, _>(len, |buffer| assert_eq!(buffer.len(), len));
        }
        let held = BUFFERS.with_borrow(|buffers| buffers[3].capacity()) * size_of::<Line>();
        let planned = Scratch::default().caller(3, 100).and(Scratch::default().caller(3, 1024));
        assert_eq!((planned.bytes(1), planned.bytes(4)), (held, held));
        let everywhere = planned.and(Scratch::default().every(3, 17));
        assert_eq!((everywhere.bytes(1), everywhere.bytes(4)), (held, held + 3 * 128));
    }
}
