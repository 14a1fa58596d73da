//! Events: points in the device's order that the host can wait for and measure between.

use super::driver::Handle;
use super::gpu::Inner;
use super::{CudaError, Gpu};
use cudarc::driver::sys::CUevent_st;
use std::sync::Arc;

/// A point behind everything that the device had been given when it was made.
#[derive(Debug)]
pub struct Event {
    inner: Arc<Inner>,
    event: Handle<CUevent_st>,
}

impl Gpu {
    /// An event behind everything given to the device so far.
    pub fn event(&self) -> Result<Event, CudaError> {
        let inner = self.inner();
        let _turn = inner.order.turn_outside("an event")?;
        inner.bind()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: writes a handle; flags 0 is an event with a time.
        unsafe { inner.driver.cuEventCreate(&raw mut event, 0)? };
        let made = Event { inner: Arc::clone(inner), event: Handle(event) };
        // SAFETY: event and stream are alive.
        unsafe { inner.driver.cuEventRecord(event, inner.stream.0)? };
        Ok(made)
    }
}

impl Event {
    /// Waits until the device has come to this point.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.inner.bind()?;
        // SAFETY: the event is alive and recorded.
        unsafe { self.inner.driver.cuEventSynchronize(self.event.0) }
    }

    /// Time from an earlier event of the same device to this one, in ms, once both have come. The simulated device
    /// answers 0, since its time says nothing.
    pub fn ms_since(&self, earlier: &Event) -> Result<f32, CudaError> {
        self.synchronize()?;
        let mut ms = 0.0;
        // SAFETY: writes a number; both events are alive and recorded.
        unsafe { self.inner.driver.cuEventElapsedTime(&raw mut ms, earlier.event.0, self.event.0)? };
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.inner.bind();
        // SAFETY: made by `Gpu::event`; the driver frees it once it has come.
        let _ = unsafe { self.inner.driver.cuEventDestroy_v2(self.event.0) };
    }
}
