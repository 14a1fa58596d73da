//! What streams run, and graphs: the same, kept for later.

use super::context::Function;
use crate::Launch;
use std::ffi::c_void;

/// One thing for a stream to do.
#[derive(Clone)]
pub enum Node {
    Kernel { function: Function, launch: Launch, params: Vec<u8> },
    FromHost { to: u64, from: Host, bytes: usize },
    ToHost { to: Host, from: u64, bytes: usize },
    Copy { to: u64, from: u64, bytes: u64 },
    Fill { to: u64, pattern: Vec<u8>, bytes: u64 },
}

/// Nodes in order: the one in which they were captured, which keeps every dependency.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// An address of the host that a copy reads or writes when it runs.
#[derive(Clone, Copy, Debug)]
pub struct Host(pub *mut c_void);

// SAFETY: whoever gives a copy to a driver promises that the memory is there for whichever thread runs it.
unsafe impl Send for Host {}

impl Host {
    /// # Safety
    /// `bytes` bytes at the address are readable and nobody writes them during `'a`.
    pub unsafe fn slice<'a>(self, bytes: usize) -> &'a [u8] {
        if bytes == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.cast_const().cast(), bytes) }
    }

    /// # Safety
    /// `bytes` bytes at the address are writable and nobody else uses them during `'a`.
    pub unsafe fn slice_mut<'a>(self, bytes: usize) -> &'a mut [u8] {
        if bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), bytes) }
    }
}
