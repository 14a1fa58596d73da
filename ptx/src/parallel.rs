//! Hands disjoint parts of one slice to the tasks of a parallel op.

use std::marker::PhantomData;

/// A mutable slice that tasks take disjoint ranges of.
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the ranges given out are disjoint by the contract of `range`, so sharing it is sharing `&mut` parts.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The elements `at .. at + len`.
    ///
    /// # Safety
    /// No two live results overlap: each task takes ranges that belong to it alone.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {}", self.len);
        // SAFETY: in bounds by the assert above.
        let start = unsafe { self.start.add(at) };
        // SAFETY: in bounds, and exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
