//! Buffers that a thread keeps between ops, so that a warmed step allocates nothing.

use std::cell::RefCell;

/// A cache line of f32, so that scratch starts on one.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

const SLOTS: usize = 8;

thread_local! {
    static BUFFERS: RefCell<[Vec<Line>; SLOTS]> = const { RefCell::new([const { Vec::new() }; SLOTS]) };
}

/// Lends this thread's buffer number `SLOT` with room for `len` floats, 64-byte aligned, contents unspecified.
/// Slots let one op hold several buffers; a nested use of the same slot gets a fresh one.
pub(crate) fn with<const SLOT: usize, R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut lines = BUFFERS.with_borrow_mut(|buffers| std::mem::take(&mut buffers[SLOT]));
    let want = len.div_ceil(16);
    if lines.len() < want {
        lines.resize(want, Line([0.0; 16]));
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut lines)[..len]);
    BUFFERS.with_borrow_mut(|buffers| buffers[SLOT] = lines);
    result
}
