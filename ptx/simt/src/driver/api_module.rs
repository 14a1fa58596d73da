//! Modules of PTX text, and their functions.

use super::context::{Context, Function, MAX_THREADS, PLAIN_SHARED};
use super::handle::Handle;
use super::refusal::{Code, Refusal};
use super::state::{in_context, in_context_even_failed, in_current, settings};
use super::{answer, call, element};
use crate::Module;
use std::ffi::{CStr, c_char, c_void};

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`; the two before them are the informational log's.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32 {
    call("cuModuleLoadData", || {
        // SAFETY: the caller's text and pointer.
        unsafe { load(module, image) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    options: u32,
    names: *const u32,
    values: *const *mut c_void,
) -> u32 {
    call("cuModuleLoadDataEx", || {
        // SAFETY: the caller's text and pointer.
        let loaded = unsafe { load(module, image) };
        if let Err(refusal) = &loaded {
            let (mut log, mut room) = (std::ptr::null_mut::<u8>(), 0);
            for i in 0..options as usize {
                // SAFETY: the caller has that many names and values.
                let name = unsafe { element(names, i) };
                // SAFETY: as above.
                let value = unsafe { element(values, i) };
                match name {
                    ERROR_LOG => log = value.cast(),
                    ERROR_LOG_BYTES => room = value.addr(),
                    _ => {}
                }
            }
            if !log.is_null() && room > 0 {
                let text = &refusal.text.as_bytes()[..refusal.text.len().min(room - 1)];
                // SAFETY: the caller's log has room for `room` bytes, more than are written.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), log, text.len()) };
                // SAFETY: the byte behind them has room too.
                let end = unsafe { log.add(text.len()) };
                // SAFETY: as above.
                unsafe { answer(end, 0)? };
            }
        }
        loaded
    })
}

/// # Safety
/// `image` is a text with its zero byte, `module` writable.
unsafe fn load(module: *mut Handle, image: *const c_void) -> Result<(), Refusal> {
    if image.is_null() {
        return Err(Refusal::value("no text"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let text = text.to_str().ok().filter(|text| text.contains(".version"));
    let text = text.ok_or_else(|| Refusal::new(Code::ERROR_INVALID_IMAGE, "not a PTX text: cubins cannot run here"))?;
    let handle = in_current(|context| {
        context.not_in_capture(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "loading a module")?;
        suits(text, context.capability)?;
        let module = Module::load(text).map_err(|why| Refusal::new(Code::ERROR_INVALID_PTX, why.to_string()))?;
        Ok(context.modules.insert(module))
    })?;
    // SAFETY: the caller's pointer.
    unsafe { answer(module, handle) }
}

/// Whether driver and device take the text: its PTX version must not be newer than the driver, its target not newer than
/// the device.
fn suits(text: &str, capability: (u32, u32)) -> Result<(), Refusal> {
    let directive = |name: &str| {
        let line = text.lines().map(str::trim_start).find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.split([',', '/']).next().unwrap_or_default().trim().to_string())
    };
    let unclear = |what: &str| Refusal::new(Code::ERROR_INVALID_PTX, format!("no {what} that is understood"));
    let version = directive(".version").and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    let version = version.ok_or_else(|| unclear(".version"))?;
    let cuda = settings()?.cuda;
    if version > newest_ptx(cuda) {
        let text =
            format!("PTX {}.{} is newer than a driver for CUDA {}.{} knows", version.0, version.1, cuda.0, cuda.1);
        return Err(Refusal::new(Code::ERROR_UNSUPPORTED_PTX_VERSION, text));
    }
    let target = directive(".target").and_then(|target| {
        let digits: String = target.strip_prefix("sm_")?.chars().take_while(char::is_ascii_digit).collect();
        let number: u32 = digits.parse().ok()?;
        Some((number / 10, number % 10))
    });
    let target = target.ok_or_else(|| unclear(".target"))?;
    if target > capability {
        let text =
            format!("the text is for sm_{}{}, the device is sm_{}{}", target.0, target.1, capability.0, capability.1);
        return Err(Refusal::new(Code::ERROR_INVALID_PTX, text));
    }
    Ok(())
}

/// The newest PTX that a driver for this CUDA version compiles.
fn newest_ptx(cuda: (u32, u32)) -> (u32, u32) {
    match cuda {
        (..=11, minor) => (7, minor.min(8)),
        (12, minor @ ..=5) => (8, minor),
        (12, minor) => (8, minor - 1),
        _ => (9, cuda.1),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> u32 {
    call("cuModuleUnload", || {
        in_context_even_failed(module, |context| {
            context.modules.remove(module)?;
            context.functions.retain(|_, function| function.of != module);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32 {
    call("cuModuleGetFunction", || {
        if name.is_null() {
            return Err(Refusal::value("no name"));
        }
        // SAFETY: the caller's text with its zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let handle = in_context(module, |context| {
            let entry = context.modules.get(module)?.entry(&name).cloned();
            let entry = entry.ok_or_else(|| Refusal::new(Code::ERROR_NOT_FOUND, format!("no entry {name}")))?;
            let dynamic_shared = PLAIN_SHARED.saturating_sub(static_shared(&entry));
            Ok(context.functions.insert(Function { entry, of: module, dynamic_shared }))
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(function, handle) }
    })
}

pub(super) fn static_shared(entry: &crate::Entry) -> u32 {
    u32::try_from(entry.static_shared()).unwrap_or(u32::MAX)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut i32, attribute: u32, function: Handle) -> u32 {
    call("cuFuncGetAttribute", || {
        let number = in_context(function, |context: &mut Context| {
            let found = context.functions.get(function)?;
            match attribute {
                0 => Ok(found.entry.max_threads().unwrap_or(MAX_THREADS).min(MAX_THREADS)),
                1 => Ok(static_shared(&found.entry)),
                8 => Ok(found.dynamic_shared),
                // Registers, local memory, the code's version: the assembler's to say, and there is none.
                _ => Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, format!("attribute {attribute} of a function"))),
            }
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(value, i32::try_from(number).unwrap_or(i32::MAX)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) -> u32 {
    call("cuFuncSetAttribute", || {
        in_context(function, |context| {
            let found = context.functions.get_mut(function)?;
            match attribute {
                8 => {
                    let wanted = u32::try_from(value).map_err(|_| Refusal::value(format!("{value} bytes")))?;
                    let opted = context.memory.opt_in_shared(&found.entry, wanted);
                    opted.map_err(|why| Refusal::value(why.to_string()))?;
                    found.dynamic_shared = wanted;
                    Ok(())
                }
                9 => Ok(()), // the share of shared memory in a multiprocessor's cache: a hint
                _ => {
                    Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, format!("setting attribute {attribute} of a function")))
                }
            }
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: u32) -> u32 {
    call("cuFuncSetCacheConfig", || in_context(function, |context| context.functions.get(function).map(|_| ())))
}
