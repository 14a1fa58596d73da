//! Initialisation, devices, contexts and names of errors.

use super::context::{MAX_BLOCK, MAX_GRID, MAX_THREADS, PLAIN_SHARED, shared_limit};
use super::handle::Handle;
use super::refusal::{Code, Refusal};
use super::state::{self, capability, in_current, initialised, settings};
use super::{answer, call};
use std::ffi::{c_char, c_void};

/// Multiprocessors of a simulated device: few, so that kernels that spread over all of them stay small.
const MULTIPROCESSORS: u32 = 8;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    call("cuInit", || {
        if flags != 0 {
            return Err(Refusal::value("cuInit takes no flags"));
        }
        if settings()?.capabilities.iter().flatten().next().is_none() {
            return Err(Refusal::new(Code::ERROR_NO_DEVICE, "LEEWAY_SIMT_CAPABILITY names no device"));
        }
        state::state().initialised = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    call("cuDriverGetVersion", || {
        let (major, minor) = settings()?.cuda;
        // SAFETY: the caller's pointer.
        unsafe { answer(version, i32::try_from(major * 1000 + minor * 10).expect("checked when it was read")) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> u32 {
    call("cuDeviceGetCount", || {
        drop(initialised()?);
        let devices = settings()?.capabilities.iter().flatten().count();
        // SAFETY: the caller's pointer.
        unsafe { answer(count, i32::try_from(devices).expect("a handful")) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> u32 {
    call("cuDeviceGet", || {
        drop(initialised()?);
        capability(ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { answer(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) -> u32 {
    call("cuDeviceGetName", || {
        let (major, minor) = capability(device)?;
        let text = format!("leeway simt (simulated, not a GPU), sm_{major}{minor}");
        let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).filter(|_| !name.is_null());
        let room = room.ok_or_else(|| Refusal::value("no room for a name"))?;
        let bytes = &text.as_bytes()[..text.len().min(room)];
        let to: *mut u8 = name.cast();
        // SAFETY: the caller has `len` bytes at `name`, more than are written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        // SAFETY: the byte behind them is within `len` too.
        let end = unsafe { to.add(bytes.len()) };
        // SAFETY: as above.
        unsafe { answer(end, 0) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) -> u32 {
    call("cuDeviceGetUuid_v2", || {
        capability(device)?;
        let mut bytes = *b"leeway simt    0";
        bytes[15] += u8::try_from(device).expect("a handful");
        // SAFETY: the caller's pointer.
        unsafe { answer(uuid, bytes) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> u32 {
    call("cuDeviceTotalMem_v2", || {
        capability(device)?;
        let all = usize::try_from(settings()?.memory_bytes).unwrap_or(usize::MAX);
        // SAFETY: the caller's pointer.
        unsafe { answer(bytes, all) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) -> u32 {
    call("cuDeviceGetAttribute", || {
        let (major, minor) = capability(device)?;
        let number = match attribute {
            1 => MAX_THREADS,
            2..=4 => MAX_BLOCK[attribute as usize - 2],
            5..=7 => MAX_GRID[attribute as usize - 5],
            8 => PLAIN_SHARED,
            9 => 64 << 10,
            10 => 32,
            12 | 82 => 64 << 10,
            13 | 36 => 0, // clock rates: nothing here has one
            16 => MULTIPROCESSORS,
            38 => 4 << 20,
            39 => 2048,
            75 => major,
            76 => minor,
            81 | 97 => shared_limit((major, minor)),
            106 => 32,
            111 => 1 << 10,
            // Mapped host memory, managed memory, cooperative launches, memory pools, virtual memory, ..: none of it.
            14..=115 => 0,
            _ => return Err(Refusal::value(format!("attribute {attribute}"))),
        };
        // SAFETY: the caller's pointer.
        unsafe { answer(value, i32::try_from(number).expect("all limits are below 2^31")) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32 {
    call("cuDevicePrimaryCtxRetain", || {
        let handle = state::retain_primary(device)?;
        // SAFETY: the caller's pointer.
        unsafe { answer(context, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2", || state::release_primary(device))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut Handle, flags: u32, device: i32) -> u32 {
    call("cuCtxCreate_v2", || {
        // Scheduling flags say how the host waits, which it never does here.
        if flags & !7 != 0 {
            return Err(Refusal::value(format!("flags {flags:#x}")));
        }
        let handle = state::create_context(device)?;
        // SAFETY: the caller's pointer.
        unsafe { answer(context, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut Handle,
    affinity: *mut c_void,
    affinities: i32,
    flags: u32,
    device: i32,
) -> u32 {
    if !affinity.is_null() || affinities != 0 {
        return call("cuCtxCreate_v3", || Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, "execution affinity")));
    }
    // SAFETY: the caller's pointer.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Handle) -> u32 {
    call("cuCtxDestroy_v2", || state::destroy_context(context))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> u32 {
    call("cuCtxSetCurrent", || state::set_current(context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> u32 {
    call("cuCtxGetCurrent", || {
        drop(initialised()?);
        // SAFETY: the caller's pointer.
        unsafe { answer(context, state::current_handle()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> u32 {
    call("cuCtxPushCurrent_v2", || state::push_current(context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> u32 {
    call("cuCtxPopCurrent_v2", || {
        let popped = state::pop_current()?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's pointer.
        unsafe { answer(context, popped) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> u32 {
    call("cuCtxGetDevice", || {
        let of = in_current(|context| Ok(context.device))?;
        // SAFETY: the caller's pointer.
        unsafe { answer(device, of) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    call("cuCtxSynchronize", || {
        in_current(|context| context.not_in_capture(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "waiting for a context"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> u32 {
    call("cuCtxGetStreamPriorityRange", || {
        // Either may be null: then it is not wanted.
        for to in [least, greatest].into_iter().filter(|to| !to.is_null()) {
            // SAFETY: the caller's pointer.
            unsafe { answer(to, 0)? };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    let found = Code(code).names();
    // SAFETY: the caller's pointer.
    unsafe { text(name, found.map(|(name, _)| name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: u32, string: *mut *const c_char) -> u32 {
    let found = Code(code).names();
    // SAFETY: the caller's pointer.
    unsafe { text(string, found.map(|(_, text)| text)) }
}

/// # Safety
/// `to` is null or writable.
unsafe fn text(to: *mut *const c_char, text: Option<&'static std::ffi::CStr>) -> u32 {
    let text_or_null = text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: the caller's promise.
    let stored = unsafe { answer(to, text_or_null) };
    if stored.is_ok() && text.is_some() { Code::SUCCESS.0 } else { Code::ERROR_INVALID_VALUE.0 }
}
