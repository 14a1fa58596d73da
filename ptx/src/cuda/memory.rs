//! Device memory with an element type. Views are ranges of it; launchers take views.

use super::gpu::Inner;
use std::marker::PhantomData;
use std::sync::Arc;

/// A device allocation of `len` elements of `T`, given back when dropped: to later allocations of the same device, which
/// runs everything in one order, so that what still uses it ends before what comes next begins.
#[derive(Debug)]
pub struct Mem<T> {
    view: View<T>,
    /// Bytes to give back.
    bytes: u64,
    gpu: Arc<Inner>,
}

/// A range of device memory: address and number of elements. It does not keep the memory alive.
#[derive(Debug)]
pub struct View<T> {
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<T> {}

impl<T> View<T> {
    pub(super) fn new(address: u64, len: usize) -> View<T> {
        View { address, len, of: PhantomData }
    }

    /// Device address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it begins where 16 bytes can be loaded at once.
    #[must_use]
    pub(crate) fn aligned_16(&self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// Elements `first .. first + len`.
    ///
    /// # Panics
    /// When they are not all there.
    #[must_use]
    pub fn part(&self, first: usize, len: usize) -> View<T> {
        let end = first.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "elements {first}+{len} of {}", self.len);
        View::new(self.address + (first * size_of::<T>()) as u64, len)
    }

    /// The same memory as bytes.
    #[must_use]
    pub fn bytes(&self) -> View<u8> {
        View::new(self.address, self.len * size_of::<T>())
    }
}

impl View<u8> {
    /// The same memory as elements of another type.
    ///
    /// # Panics
    /// When the address is not aligned for them, or the length is not a multiple of theirs.
    #[must_use]
    pub fn of<T: bytemuck::Pod>(&self) -> View<T> {
        assert!(self.address.is_multiple_of(align_of::<T>() as u64), "address {:#x} is not aligned", self.address);
        assert!(self.len.is_multiple_of(size_of::<T>()), "{} bytes are no whole number of elements", self.len);
        View::new(self.address, self.len / size_of::<T>())
    }
}

impl<T> Mem<T> {
    pub(super) fn new(gpu: Arc<Inner>, address: u64, len: usize, bytes: u64) -> Mem<T> {
        Mem { view: View::new(address, len), bytes, gpu }
    }

    /// All of it.
    #[must_use]
    pub fn view(&self) -> View<T> {
        self.view
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// True without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }
}

impl<T> Drop for Mem<T> {
    fn drop(&mut self) {
        self.gpu.release(self.view.address, self.bytes);
    }
}
