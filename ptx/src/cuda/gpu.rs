//! An open device: its context, stream, modules and memory.

use super::arena::{ALIGN, Arena};
use super::device::{self, Found, Limits, Sharing, Target, find};
use super::driver::{self, Driver, Handle};
use super::error::code;
use super::modules::Modules;
use super::order::Order;
use super::staging::Staging;
use super::{CudaError, Mem, Module, View};
use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream_st};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open CUDA device with one stream: everything given to it runs in that order. A clone is the same device.
///
/// Several threads may use it; what they ask for is done in the order in which it comes. While one of them captures a
/// graph, whatever another asks of the stream waits until the capture has ended, so that it is no part of the graph.
#[derive(Clone, Debug)]
pub struct Gpu {
    inner: Arc<Inner>,
}

/// What a device's memory is taken up by, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free on the device, to all processes.
    pub free: u64,
    /// All that the device has.
    pub total: u64,
    /// Held by this [`Gpu`]: allocated, or free for its later allocations.
    pub reserved: u64,
    /// Allocated.
    pub used: u64,
}

/// How memory comes from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocation {
    /// Large ones each by the driver and used again, small ones cut from big ones: the driver's own allocations are slow
    /// and wait for the device.
    Arena,
    /// Each by the driver, to the byte, so that the simulator knows where each one ends.
    Exact,
}

/// What clones, allocations and graphs of one device share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) driver: &'static Driver,
    device: CUdevice,
    sharing: Sharing,
    context: Handle<CUctx_st>,
    pub(super) stream: Handle<CUstream_st>,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    pub(super) target: Target,
    pub(super) limits: Limits,
    allocation: Allocation,
    memory: Mutex<Arena>,
    /// Bytes of allocations that are not the arena's.
    exact: Mutex<u64>,
    staging: Mutex<Option<Staging>>,
    modules: Mutex<Modules>,
    pub(super) order: Order,
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that are no part of a graph may be made while it is captured.
const RELAXED: u32 = 2;

impl Gpu {
    /// Opens device `ordinal`. Its kernels are compiled as they are used.
    pub fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        match driver::get()?.hooks() {
            None => Gpu::open_as(ordinal, Sharing::Primary, Allocation::Arena),
            Some(_) => Gpu::open_as(ordinal, Sharing::Own, Allocation::Exact),
        }
    }

    pub(super) fn open_as(ordinal: usize, sharing: Sharing, allocation: Allocation) -> Result<Gpu, CudaError> {
        let driver = driver::get()?;
        let Found { device, name, capability, target, multiprocessors, limits } = find(driver, ordinal)?;
        let context = device::make_context(driver, device, sharing);
        let context = context.map_err(|error| device::at_start(driver, ordinal, error))?;
        let stream = device::make_stream(driver, context)
            .inspect_err(|_| device::leave_context(driver, device, sharing, context))?;
        let inner = Inner {
            driver,
            device,
            sharing,
            context,
            stream,
            name,
            capability,
            multiprocessors,
            target,
            limits,
            allocation,
            memory: Mutex::default(),
            exact: Mutex::default(),
            staging: Mutex::default(),
            modules: Mutex::default(),
            order: Order::default(),
        };
        Ok(Gpu { inner: Arc::new(inner) })
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Its name, as the driver gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// True for the device of `ptx/simt`.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.inner.driver.hooks().is_some()
    }

    /// Compute capability: major and minor.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.inner.capability
    }

    /// Whether kernels for 8.9 are in use, which alone have the e4m3 matrix instruction.
    #[must_use]
    pub fn has_fp8(&self) -> bool {
        self.inner.target == Target::Sm89
    }

    /// Multiprocessors, over which the blocks of a launch are spread.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    /// What the memory is taken up by.
    pub fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        self.inner.bind()?;
        let (free, total) = self.inner.free_and_total()?;
        let (arena, exact) = (lock(&self.inner.memory), *lock(&self.inner.exact));
        Ok(MemoryInfo { free, total, reserved: arena.reserved() + exact, used: arena.used() + exact })
    }

    /// Bytes that allocations of so many bytes each take of the device, one after the other and with nothing else there:
    /// what [`MemoryInfo::reserved`] is then.
    #[must_use]
    pub fn footprint(&self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let sizes = sizes.into_iter().filter(|&bytes| bytes > 0);
        match self.inner.allocation {
            Allocation::Arena => Arena::footprint(sizes),
            Allocation::Exact => sizes.sum(),
        }
    }

    /// Memory for `len` elements, not initialised.
    pub fn alloc<T: bytemuck::Pod>(&self, len: usize) -> Result<Mem<T>, CudaError> {
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64).filter(|&bytes| bytes < 1 << 62);
        let bytes = bytes.expect("an allocation of less than 2^62 bytes");
        let (address, bytes) = self.inner.allocate(bytes)?;
        Ok(Mem::new(Arc::clone(&self.inner), address, len, bytes))
    }

    /// Memory with these elements.
    pub fn upload<T: bytemuck::Pod>(&self, from: &[T]) -> Result<Mem<T>, CudaError> {
        let to = self.alloc(from.len())?;
        self.write(to.view(), from)?;
        Ok(to)
    }

    /// Copies elements to the beginning of a view; ordered with launches. The slice may be changed when this returns.
    ///
    /// # Panics
    /// When the view is shorter.
    pub fn write<T: bytemuck::Pod>(&self, to: View<T>, from: &[T]) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "{} elements into a view of {}", from.len(), to.len());
        let _turn = self.inner.order.turn_outside("a copy from the host")?;
        self.inner.bind()?;
        self.inner.staging(|staging| staging.write(to.address(), bytemuck::cast_slice(from)))
    }

    /// Waits for all before it and copies the first elements of a view back.
    ///
    /// # Panics
    /// When the view is shorter.
    pub fn read<T: bytemuck::Pod>(&self, from: View<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(to.len() <= from.len(), "{} elements out of a view of {}", to.len(), from.len());
        let _turn = self.inner.order.turn_outside("a copy to the host")?;
        self.inner.bind()?;
        self.inner.staging(|staging| staging.read(from.address(), bytemuck::cast_slice_mut(to)))
    }

    /// All elements of a view, copied back as [`read`](Gpu::read) does.
    pub fn download<T: bytemuck::Pod>(&self, from: View<T>) -> Result<Vec<T>, CudaError> {
        let mut to = vec![T::zeroed(); from.len()];
        self.read(from, &mut to)?;
        Ok(to)
    }

    /// Copies within the device to the beginning of a view that does not overlap; ordered with launches.
    ///
    /// # Panics
    /// When the view is shorter.
    pub fn copy<T: bytemuck::Pod>(&self, to: View<T>, from: View<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "{} elements into a view of {}", from.len(), to.len());
        let _turn = self.inner.order.turn();
        self.inner.bind()?;
        let bytes = from.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the stream is alive; the driver checks the addresses of what runs on it.
        unsafe { self.inner.driver.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, self.inner.stream.0) }
    }

    /// Sets every byte of a view; ordered with launches.
    pub fn fill<T: bytemuck::Pod>(&self, to: View<T>, byte: u8) -> Result<(), CudaError> {
        let _turn = self.inner.order.turn();
        self.inner.bind()?;
        let bytes = to.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the stream is alive; the driver checks the address.
        unsafe { self.inner.driver.cuMemsetD8Async(to.address(), byte, bytes, self.inner.stream.0) }
    }

    /// Waits for everything and says what went wrong, if anything did.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _turn = self.inner.order.turn_outside("waiting for the device")?;
        self.inner.bind()?;
        // SAFETY: the stream is alive.
        unsafe { self.inner.driver.cuStreamSynchronize(self.inner.stream.0) }
    }

    /// Makes an op's kernels known that are not in [`MODULES`](super::MODULES): those of a test or a bench.
    pub fn add_module(&self, module: &'static Module) {
        self.inner.modules().add(module);
    }
}

impl Inner {
    /// Makes the context the calling thread's.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is alive as long as `self`.
        unsafe { self.driver.cuCtxSetCurrent(self.context.0) }
    }

    pub(super) fn modules(&self) -> MutexGuard<'_, Modules> {
        lock(&self.modules)
    }

    fn staging<R>(&self, f: impl FnOnce(&mut Staging) -> Result<R, CudaError>) -> Result<R, CudaError> {
        let mut staging = lock(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new(self.driver, self.stream)?);
        }
        f(staging.as_mut().expect("made above"))
    }

    /// Runs calls of the driver that are no part of a graph, though this thread may be capturing one.
    pub(super) fn outside_capture<R>(&self, f: impl FnOnce() -> Result<R, CudaError>) -> Result<R, CudaError> {
        let mut mode = RELAXED;
        // SAFETY: exchanges a number of this thread's with `mode`.
        unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode)? };
        let result = f();
        // SAFETY: as above; puts the former mode back.
        unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode)? };
        result
    }

    /// Free bytes and all bytes of the device.
    fn free_and_total(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { self.driver.cuMemGetInfo_v2(&raw mut free, &raw mut total)? };
        Ok((free as u64, total as u64))
    }

    /// An address and what to give back for it.
    fn allocate(&self, bytes: u64) -> Result<(u64, u64), CudaError> {
        if bytes == 0 {
            return Ok((0, 0));
        }
        self.bind()?;
        if self.allocation == Allocation::Exact {
            let address = self.outside_capture(|| self.driver_alloc(bytes))?;
            *lock(&self.exact) += bytes;
            return Ok((address, bytes));
        }
        let bytes = bytes.next_multiple_of(ALIGN);
        if let Some(address) = lock(&self.memory).take(bytes) {
            return Ok((address, bytes));
        }
        // Before the memory is locked again: what a thread that captures allocates must not wait for this.
        let turn = self.order.turn();
        let mut memory = lock(&self.memory);
        if let Some(address) = memory.take(bytes) {
            return Ok((address, bytes));
        }
        if !turn.captures() {
            self.give_back(&mut memory)?;
        }
        let chunk = Arena::chunk_for(bytes);
        let (address, len) = self.outside_capture(|| match self.driver_alloc(chunk) {
            Err(CudaError::OutOfMemory { .. }) if bytes < chunk => Ok((self.driver_alloc(bytes)?, bytes)),
            other => Ok((other?, chunk)),
        })?;
        memory.add(address, len, bytes);
        Ok((memory.take(bytes).expect("the new chunk is large enough"), bytes))
    }

    /// Gives chunks of which nothing is allocated back to the driver: they do not serve what is asked for now, and what
    /// has outgrown them would hold its memory twice.
    fn give_back(&self, memory: &mut Arena) -> Result<(), CudaError> {
        let free = memory.shed();
        if free.is_empty() {
            return Ok(());
        }
        // What was allocated there may still be in use by what the device has been given.
        // SAFETY: the stream is alive.
        let idle = unsafe { self.driver.cuStreamSynchronize(self.stream.0) };
        for address in free {
            // SAFETY: the driver gave this address, nothing is allocated there, and the device has come to the end of
            // what it was given.
            unsafe { self.driver.cuMemFree_v2(address)? };
        }
        idle
    }

    fn driver_alloc(&self, bytes: u64) -> Result<u64, CudaError> {
        let mut address = 0;
        let size = usize::try_from(bytes).expect("devices have 64-bit hosts");
        // SAFETY: writes an address.
        match unsafe { self.driver.cuMemAlloc_v2(&raw mut address, size) } {
            Ok(()) => Ok(address),
            Err(CudaError::Driver { code: code::OUT_OF_MEMORY, .. }) => {
                let (free, total) = self.free_and_total()?;
                Err(CudaError::OutOfMemory { asked: bytes, free, total })
            }
            Err(other) => Err(other),
        }
    }

    /// Takes back what [`allocate`](Inner::allocate) gave.
    pub(super) fn release(&self, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if self.allocation == Allocation::Arena {
            lock(&self.memory).give(address, bytes);
            return;
        }
        *lock(&self.exact) -= bytes;
        // A failure says that the context is lost, and the memory with it.
        let _ = self.bind();
        // SAFETY: the driver gave this address, and its only owner is being dropped.
        let _ = self.outside_capture(|| unsafe { self.driver.cuMemFree_v2(address) });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // After a fault each of these fails too, and there is nothing to be done about it.
        let _ = self.bind();
        // SAFETY: the stream is alive.
        let _ = unsafe { self.driver.cuStreamSynchronize(self.stream.0) };
        if let Some(staging) = lock(&self.staging).as_mut() {
            staging.free();
        }
        self.modules().clear(self.driver);
        for address in lock(&self.memory).clear() {
            // SAFETY: the driver gave this address, and every allocation cut from it is gone, since each holds `self`.
            let _ = unsafe { self.driver.cuMemFree_v2(address) };
        }
        // SAFETY: nothing uses the stream any more.
        let _ = unsafe { self.driver.cuStreamDestroy_v2(self.stream.0) };
        device::leave_context(self.driver, self.device, self.sharing, self.context);
    }
}

/// The lock, whose data are whole between any two statements that could panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
