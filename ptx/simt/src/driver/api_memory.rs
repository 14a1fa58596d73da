//! Memory of the device, pinned memory of the host, and copies between them.

use super::context::Context;
use super::graph::{Host, Node};
use super::handle::Handle;
use super::refusal::{Code, Refusal};
use super::state::{in_context, in_current, initialised};
use super::{answer, call, context};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;

/// `CU_MEMHOSTALLOC_DEVICEMAP`.
const DEVICE_MAPPED: u32 = 2;
/// Alignment of pinned memory, in bytes.
const PAGE: usize = 4096;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    call("cuMemAlloc_v2", || {
        if bytes == 0 {
            return Err(Refusal::value("an allocation of no bytes"));
        }
        let at = in_current(|context| {
            context.not_in_capture(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "an allocation")?;
            let at = context.memory.alloc(bytes as u64);
            at.map_err(|why| Refusal::new(Code::ERROR_OUT_OF_MEMORY, why.to_string()))
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(address, at) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    call("cuMemFree_v2", || {
        if address == 0 {
            return Ok(());
        }
        in_current(|context| {
            context.not_in_capture(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "freeing memory")?;
            context.memory.free(address).map_err(|why| Refusal::value(why.to_string()))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    call("cuMemGetInfo_v2", || {
        let (used, all) = in_current(|context| Ok((context.memory.used_bytes(), context.memory.total_bytes())))?;
        // SAFETY: the caller's pointer.
        unsafe { answer(free, usize::try_from(all - used).unwrap_or(usize::MAX))? };
        // SAFETY: the caller's pointer.
        unsafe { answer(total, usize::try_from(all).unwrap_or(usize::MAX)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: u32) -> u32 {
    call("cuMemHostAlloc", || {
        if flags & DEVICE_MAPPED != 0 {
            return Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, "host memory mapped to the device"));
        }
        in_current(|context| context.not_in_capture(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "an allocation"))?;
        let layout = Layout::from_size_align(bytes, PAGE).ok().filter(|_| bytes > 0);
        let layout = layout.ok_or_else(|| Refusal::value(format!("{bytes} bytes of host memory")))?;
        let mut state = initialised()?;
        // SAFETY: not of no bytes.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(Refusal::new(Code::ERROR_OUT_OF_MEMORY, format!("the host has no {bytes} bytes left")));
        }
        state.host.insert(memory.addr(), layout);
        // SAFETY: the caller's pointer.
        unsafe { answer(to, memory.cast()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(to: *mut *mut c_void, bytes: usize) -> u32 {
    // SAFETY: the caller's pointer.
    unsafe { cuMemHostAlloc(to, bytes, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> u32 {
    call("cuMemFreeHost", || {
        let layout = initialised()?.host.remove(&memory.addr());
        let layout = layout.ok_or_else(|| Refusal::value(format!("{memory:?} is no pinned memory")))?;
        // SAFETY: allocated with this layout, and just taken off the list.
        unsafe { dealloc(memory.cast(), layout) };
        Ok(())
    })
}

/// Does it now in the current context, which no capture may be under way for.
fn blocking(node: Node) -> Result<(), Refusal> {
    in_current(|context| {
        context.not_in_capture(Code::ERROR_STREAM_CAPTURE_IMPLICIT, "a blocking copy")?;
        context.run(&node)
    })
}

/// Gives it to a stream.
fn on(stream: Handle, node: Node) -> Result<(), Refusal> {
    let submit = |context: &mut Context| context.submit(stream, node);
    if context::is_default(stream) { in_current(submit) } else { in_context(stream, submit) }
}

/// A pointer of the caller's to `bytes` bytes.
fn host(memory: *const c_void, bytes: usize) -> Result<Host, Refusal> {
    if memory.is_null() && bytes > 0 {
        return Err(Refusal::value("a null pointer on the host"));
    }
    Ok(Host(memory.cast_mut()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32 {
    call("cuMemcpyHtoD_v2", || blocking(Node::FromHost { to, from: host(from, bytes)?, bytes }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> u32 {
    call("cuMemcpyHtoDAsync_v2", || on(stream, Node::FromHost { to, from: host(from, bytes)?, bytes }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32 {
    call("cuMemcpyDtoH_v2", || blocking(Node::ToHost { to: host(to, bytes)?, from, bytes }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> u32 {
    call("cuMemcpyDtoHAsync_v2", || on(stream, Node::ToHost { to: host(to, bytes)?, from, bytes }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    call("cuMemcpyDtoD_v2", || blocking(Node::Copy { to, from, bytes: bytes as u64 }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> u32 {
    call("cuMemcpyDtoDAsync_v2", || on(stream, Node::Copy { to, from, bytes: bytes as u64 }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, byte: u8, count: usize) -> u32 {
    call("cuMemsetD8_v2", || blocking(words(to, &[byte], count)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, byte: u8, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD8Async", || on(stream, words(to, &[byte], count)?))
}

/// `count` words of 1, 2 or 4 bytes, which must lie aligned.
fn words(to: u64, word: &[u8], count: usize) -> Result<Node, Refusal> {
    if !to.is_multiple_of(word.len() as u64) {
        return Err(Refusal::value(format!("{to:#x} is not aligned to {} bytes", word.len())));
    }
    Ok(Node::Fill { to, pattern: word.to_vec(), bytes: (count * word.len()) as u64 })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(to: u64, word: u16, count: usize) -> u32 {
    call("cuMemsetD16_v2", || blocking(words(to, &word.to_le_bytes(), count)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(to: u64, word: u16, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD16Async", || on(stream, words(to, &word.to_le_bytes(), count)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, word: u32, count: usize) -> u32 {
    call("cuMemsetD32_v2", || blocking(words(to, &word.to_le_bytes(), count)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, word: u32, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD32Async", || on(stream, words(to, &word.to_le_bytes(), count)?))
}
