//! Launches: the shape, the arguments, and their checks against the kernel and the device.

use super::device::Limits;
use super::driver::Driver;
use super::gpu::Inner;
use super::modules::Function;
use super::{CudaError, Gpu, Kernel, View};
use std::ffi::c_void;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block; blocks are one-dimensional.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

impl std::fmt::Display for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.grid;
        write!(f, "{x}x{y}x{z} blocks of {} threads with {} bytes of shared memory", self.threads, self.shared_bytes)
    }
}

/// One argument of a kernel, in the order of its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// An address.
    Pointer(u64),
    /// A 32-bit integer.
    U32(u32),
    /// A 64-bit integer.
    U64(u64),
    /// A float.
    F32(f32),
}

impl Arg {
    fn size(self) -> usize {
        match self {
            Arg::Pointer(_) | Arg::U64(_) => 8,
            Arg::U32(_) | Arg::F32(_) => 4,
        }
    }

    /// Its bytes as the device reads them, from the first of eight.
    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Arg::Pointer(x) | Arg::U64(x) => bytes = x.to_le_bytes(),
            Arg::U32(x) => bytes[..4].copy_from_slice(&x.to_le_bytes()),
            Arg::F32(x) => bytes[..4].copy_from_slice(&x.to_le_bytes()),
        }
        bytes
    }
}

impl<T> From<View<T>> for Arg {
    fn from(view: View<T>) -> Arg {
        Arg::Pointer(view.address())
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::U32(x)
    }
}

impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg::U64(x)
    }
}

impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x)
    }
}

/// Arguments of a kernel at most; they are gathered without an allocation.
const MAX_ARGS: usize = 48;
/// Shared memory that a block may have without the kernel's being told, in bytes.
const PLAIN_SHARED: u32 = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: u32 = 8;

impl Gpu {
    /// Launches a kernel; `args` must be its parameters in number, order and size. The kernel's op is compiled at the
    /// first use of one of its kernels.
    pub fn launch(&self, kernel: Kernel, launch: Launch, args: &[Arg]) -> Result<(), CudaError> {
        let inner = self.inner();
        let _turn = inner.order.turn();
        inner.bind()?;
        let mut modules = inner.modules();
        let function = match modules.known(kernel) {
            Some(_) => modules.known(kernel).expect("just found"),
            None => inner.outside_capture(|| modules.load(inner.driver, inner.target, kernel))?,
        };
        let refuse = |why| CudaError::Launch { kernel: kernel.to_string(), shape: launch.to_string(), why };
        check(&inner.limits, function, launch, args).map_err(refuse)?;
        opt_in(inner, function, launch)?;
        start(inner.driver, function, launch, args, inner)
    }
}

/// What is wrong with a launch, if anything is.
fn check(limits: &Limits, function: &Function, launch: Launch, args: &[Arg]) -> Result<(), String> {
    for (axis, (blocks, most)) in ["x", "y", "z"].iter().zip(launch.grid.iter().zip(limits.grid)) {
        if !(1..=most).contains(blocks) {
            return Err(format!("the grid must have 1 to {most} blocks along {axis}"));
        }
    }
    let most = function.max_threads.min(limits.threads);
    if !(1..=most).contains(&launch.threads) {
        return Err(format!("a block of this kernel has 1 to {most} threads"));
    }
    let most = limits.shared_bytes.saturating_sub(function.static_shared);
    if launch.shared_bytes > most {
        return Err(format!("a block may have {most} bytes of dynamic shared memory on this device"));
    }
    let params = &function.params;
    if args.len() != params.len() {
        return Err(format!("{} arguments for {} parameters", args.len(), params.len()));
    }
    if args.len() > MAX_ARGS {
        return Err(format!("{} arguments are more than the {MAX_ARGS} there is room for", args.len()));
    }
    for (i, (arg, &size)) in args.iter().zip(params).enumerate() {
        if arg.size() != size {
            return Err(format!("argument {i} has {} bytes, its parameter {size}", arg.size()));
        }
    }
    Ok(())
}

/// Allows the kernel all the shared memory that a block can have, at its first launch with more than 48 KiB.
fn opt_in(inner: &Inner, function: &mut Function, launch: Launch) -> Result<(), CudaError> {
    if function.opted_in || launch.shared_bytes + function.static_shared <= PLAIN_SHARED {
        return Ok(());
    }
    let most = i32::try_from(inner.limits.shared_bytes - function.static_shared).unwrap_or(i32::MAX);
    // SAFETY: the function is loaded.
    unsafe { inner.driver.cuFuncSetAttribute(function.handle.0, MAX_DYNAMIC_SHARED, most)? };
    function.opted_in = true;
    Ok(())
}

fn start(
    driver: &'static Driver,
    function: &Function,
    launch: Launch,
    args: &[Arg],
    inner: &Inner,
) -> Result<(), CudaError> {
    let mut values = [[0_u8; 8]; MAX_ARGS];
    let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
    for ((value, pointer), arg) in values.iter_mut().zip(&mut pointers).zip(args) {
        *value = arg.bytes();
        *pointer = value.as_mut_ptr().cast();
    }
    let ([x, y, z], params) = (launch.grid, pointers.as_mut_ptr());
    let (handle, stream) = (function.handle.0, inner.stream.0);
    // SAFETY: function and stream are alive; there is one pointer per parameter, to as many bytes as it has (`check`), and
    // the driver has read them when the call returns. What the kernel does with addresses is the launchers' contract.
    unsafe {
        driver.cuLaunchKernel(
            handle,
            x,
            y,
            z,
            launch.threads,
            1,
            1,
            launch.shared_bytes,
            stream,
            params,
            std::ptr::null_mut(),
        )
    }
}
