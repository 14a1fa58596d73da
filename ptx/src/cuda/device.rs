//! What the driver says of a device before it is opened, and the context and stream it is opened with.

use super::CudaError;
use super::driver::{Driver, Handle};
use super::error::code;
use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream_st};
use std::ffi::c_char;

/// Which of an op's two PTX texts a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Sm80,
    Sm89,
}

impl Target {
    /// The one for a compute capability.
    fn of(capability: (u32, u32)) -> Option<Target> {
        match capability {
            (8, 0..=8) => Some(Target::Sm80),
            (8.., _) => Some(Target::Sm89),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm89 => "sm_89",
        }
    }

    /// The first CUDA version whose driver compiles the texts: they are PTX 8.0 and 8.4.
    fn cuda(self) -> (u32, u32) {
        match self {
            Target::Sm80 => (12, 0),
            Target::Sm89 => (12, 4),
        }
    }
}

/// Whose context to run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// The one that a process has for a device, as CUDA advises.
    Primary,
    /// One of its own, so that a fault and the counters of one test are not another's.
    Own,
}

/// What a launch may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    /// Bytes of a block, once a kernel has been allowed more than the usual 48 KiB.
    pub(super) shared_bytes: u32,
}

/// A device that can be opened.
pub(super) struct Found {
    pub(super) device: CUdevice,
    pub(super) name: String,
    pub(super) capability: (u32, u32),
    pub(super) target: Target,
    pub(super) multiprocessors: u32,
    pub(super) limits: Limits,
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CUdevice_attribute`.
mod attribute {
    pub const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub const MAX_GRID: [u32; 3] = [5, 6, 7];
    pub const MULTIPROCESSORS: u32 = 16;
    pub const CAPABILITY: [u32; 2] = [75, 76];
    pub const MAX_SHARED_OPT_IN: u32 = 97;
}

/// Finds the device of that number and refuses a driver or a device that is too old.
pub(super) fn find(driver: &Driver, ordinal: usize) -> Result<Found, CudaError> {
    look(driver, ordinal).map_err(|error| at_start(driver, ordinal, error))
}

/// What a failure of a call means while a device is being opened. Any call may be the first to tell: a stub answers all of
/// them so, a driver that cannot start its `cuInit` or its first context.
pub(super) fn at_start(driver: &Driver, ordinal: usize, error: CudaError) -> CudaError {
    match error {
        CudaError::Driver { code: code::NO_DEVICE, .. } => CudaError::NoDevice { ordinal, count: 0 },
        CudaError::Driver { code, .. } => match code::remedy(code) {
            Some((name, remedy)) => {
                CudaError::Unusable { library: driver.path().display().to_string(), code, name, remedy }
            }
            None => error,
        },
        other => other,
    }
}

fn look(driver: &Driver, ordinal: usize) -> Result<Found, CudaError> {
    let found = version(driver)?;
    // Told before anything else: an old driver may not even know the device.
    let too_old = |target: Target| CudaError::DriverTooOld { found, needed: target.cuda(), target: target.name() };
    if found < Target::Sm80.cuda() {
        return Err(too_old(Target::Sm80));
    }
    let device = by_number(driver, ordinal)?;
    let name = device_name(driver, device)?;
    let number = |attribute| device_number(driver, device, attribute);
    let [major, minor] = attribute::CAPABILITY;
    let capability = (number(major)?, number(minor)?);
    let Some(target) = Target::of(capability) else {
        return Err(CudaError::Capability { ordinal, name, capability });
    };
    if found < target.cuda() {
        return Err(too_old(target));
    }
    let [x, y, z] = attribute::MAX_GRID;
    let limits = Limits {
        grid: [number(x)?, number(y)?, number(z)?],
        threads: number(attribute::MAX_THREADS_PER_BLOCK)?,
        shared_bytes: number(attribute::MAX_SHARED_OPT_IN)?,
    };
    let multiprocessors = number(attribute::MULTIPROCESSORS)?;
    Ok(Found { device, name, capability, target, multiprocessors, limits })
}

/// The CUDA version of the driver.
fn version(driver: &Driver) -> Result<(u32, u32), CudaError> {
    let mut version = 0;
    // SAFETY: writes a number.
    unsafe { driver.cuDriverGetVersion(&raw mut version)? };
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

/// The device of that number.
fn by_number(driver: &Driver, ordinal: usize) -> Result<CUdevice, CudaError> {
    // SAFETY: takes no address.
    unsafe { driver.cuInit(0)? };
    let mut count = 0;
    // SAFETY: writes a number.
    unsafe { driver.cuDeviceGetCount(&raw mut count)? };
    let count = usize::try_from(count).unwrap_or(0);
    let wanted = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
    let wanted = wanted.ok_or(CudaError::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: writes a number.
    unsafe { driver.cuDeviceGet(&raw mut device, wanted)? };
    Ok(device)
}

fn device_name(driver: &Driver, device: CUdevice) -> Result<String, CudaError> {
    let mut name = [0_u8; 256];
    // SAFETY: writes at most 256 bytes, the last of them zero.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 256, device)? };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

fn device_number(driver: &Driver, device: CUdevice, attribute: u32) -> Result<u32, CudaError> {
    let mut value = 0;
    // SAFETY: writes a number.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device)? };
    Ok(u32::try_from(value).unwrap_or(0))
}

pub(super) fn make_context(driver: &Driver, device: CUdevice, sharing: Sharing) -> Result<Handle<CUctx_st>, CudaError> {
    let mut context = std::ptr::null_mut();
    match sharing {
        // SAFETY: writes a handle.
        Sharing::Primary => unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device)? },
        // SAFETY: writes a handle.
        Sharing::Own => unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, device)? },
    }
    Ok(Handle(context))
}

pub(super) fn leave_context(driver: &Driver, device: CUdevice, sharing: Sharing, context: Handle<CUctx_st>) {
    // A failure leaves nothing to do.
    let _ = match sharing {
        // SAFETY: retained once, by `make_context`.
        Sharing::Primary => unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) },
        // SAFETY: made by `make_context`, and not used again.
        Sharing::Own => unsafe { driver.cuCtxDestroy_v2(context.0) },
    };
}

pub(super) fn make_stream(driver: &Driver, context: Handle<CUctx_st>) -> Result<Handle<CUstream_st>, CudaError> {
    // SAFETY: the context was made just now.
    unsafe { driver.cuCtxSetCurrent(context.0)? };
    let mut stream = std::ptr::null_mut();
    // SAFETY: writes a handle.
    unsafe { driver.cuStreamCreate(&raw mut stream, NON_BLOCKING)? };
    Ok(Handle(stream))
}
