//! Pinned host memory between a caller's slices and the device, so that copies are asynchronous and a slice may be changed
//! or freed as soon as the call returns.
//!
//! Two halves: one is filled while the copies out of the other run. A half is written again only after the event behind
//! its last copy.

use super::CudaError;
use super::driver::{Driver, Handle};
use cudarc::driver::sys::{CUevent_st, CUstream_st};
use std::ffi::c_void;

/// Bytes of a half: some 160 us over PCIe 4.0, far above the cost of one copy's start.
const HALF: usize = 4 << 20;
/// Where a copy may begin within a half, in bytes.
const STEP: usize = 64;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;

#[derive(Debug)]
pub(super) struct Staging {
    driver: &'static Driver,
    stream: Handle<CUstream_st>,
    memory: Handle<c_void>,
    /// The half being filled, and how much of it is.
    half: usize,
    filled: usize,
    /// Behind the last copy out of each half, once it was left.
    left: [Option<Handle<CUevent_st>>; 2],
}

impl Staging {
    pub(super) fn new(driver: &'static Driver, stream: Handle<CUstream_st>) -> Result<Staging, CudaError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: writes an address to `memory`; flags 0 is plain pinned memory.
        unsafe { driver.cuMemHostAlloc(&raw mut memory, 2 * HALF, 0)? };
        Ok(Staging { driver, stream, memory: Handle(memory), half: 0, filled: 0, left: [None; 2] })
    }

    /// Copies bytes to the device, in the stream's order.
    pub(super) fn write(&mut self, mut address: u64, from: &[u8]) -> Result<(), CudaError> {
        let mut rest = from;
        while !rest.is_empty() {
            if self.filled == HALF {
                self.turn()?;
            }
            let (now, later) = rest.split_at(rest.len().min(HALF - self.filled));
            // SAFETY: `half` is 0 or 1 and `filled` below HALF, so the offset lies in the 2 HALF bytes.
            let place = unsafe { self.memory.0.byte_add(self.half * HALF + self.filled) };
            // SAFETY: `now.len()` bytes are left in the half, no copy reads them (`turn`), and host memory of the driver
            // does not overlap a slice of the caller's.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place.cast(), now.len()) };
            // SAFETY: the bytes stay as they are until the event behind this copy has come. The driver checks the address.
            unsafe { self.driver.cuMemcpyHtoDAsync_v2(address, place, now.len(), self.stream.0)? };
            self.filled = (self.filled + now.len().next_multiple_of(STEP)).min(HALF);
            address += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Leaves the full half and waits until the copies out of the other are done.
    fn turn(&mut self) -> Result<(), CudaError> {
        let event = match self.left[self.half] {
            Some(event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: writes a handle to `event`.
                unsafe { self.driver.cuEventCreate(&raw mut event, NO_TIMING)? };
                Handle(event)
            }
        };
        self.left[self.half] = Some(event);
        // SAFETY: event and stream are alive.
        unsafe { self.driver.cuEventRecord(event.0, self.stream.0)? };
        (self.half, self.filled) = (1 - self.half, 0);
        if let Some(event) = self.left[self.half] {
            // SAFETY: the event is alive and was recorded when that half was left.
            unsafe { self.driver.cuEventSynchronize(event.0)? };
        }
        Ok(())
    }

    /// Copies bytes back from the device after all work before it.
    pub(super) fn read(&mut self, mut address: u64, to: &mut [u8]) -> Result<(), CudaError> {
        for part in to.chunks_mut(2 * HALF) {
            // SAFETY: the staging memory has 2 HALF bytes; copies out of it come before this one in the stream.
            unsafe { self.driver.cuMemcpyDtoHAsync_v2(self.memory.0, address, part.len(), self.stream.0)? };
            // SAFETY: the stream is alive.
            unsafe { self.driver.cuStreamSynchronize(self.stream.0)? };
            // SAFETY: the copy of `part.len()` bytes is done, and the caller's slice is not the driver's memory.
            unsafe { std::ptr::copy_nonoverlapping(self.memory.0.cast_const().cast(), part.as_mut_ptr(), part.len()) };
            address += part.len() as u64;
        }
        Ok(())
    }

    /// Frees memory and events; the stream has nothing left to do.
    pub(super) fn free(&mut self) {
        for event in self.left.iter_mut().filter_map(Option::take) {
            // SAFETY: made here, and dropped from `left`. A failure leaves nothing to do.
            let _ = unsafe { self.driver.cuEventDestroy_v2(event.0) };
        }
        // SAFETY: made here, and the staging is not used again.
        let _ = unsafe { self.driver.cuMemFreeHost(self.memory.0) };
    }
}
