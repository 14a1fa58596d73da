//! What this library tells and can be told beyond a driver's functions. All of it is about the current context.

use super::call;
use super::refusal::Refusal;
use super::state::{in_current, in_current_even_failed};
use crate::Mode;

/// Sets how launches are executed from now on: 0 fast, 1 checked, 2 perturbed by `seed`, 3 pessimistic. To fast and back
/// only while nothing is allocated.
#[unsafe(no_mangle)]
pub extern "C" fn leeway_simt_set_mode(mode: u32, seed: u64) -> u32 {
    call("leeway_simt_set_mode", || {
        let mode = match mode {
            0 => Mode::Fast,
            1 => Mode::Checked,
            2 => Mode::Perturbed(seed),
            3 => Mode::Pessimistic,
            _ => return Err(Refusal::value(format!("{mode} is no mode"))),
        };
        in_current(|context| context.memory.set_mode(mode).map_err(|why| Refusal::value(why.to_string())))
    })
}

/// Sets how many threads of the host execute a launch.
#[unsafe(no_mangle)]
pub extern "C" fn leeway_simt_set_threads(threads: u32) -> u32 {
    call("leeway_simt_set_threads", || {
        if !(1..=1024).contains(&threads) {
            return Err(Refusal::value(format!("{threads} threads")));
        }
        in_current(|context| {
            context.memory.set_threads(threads as usize);
            Ok(())
        })
    })
}

/// The text of the fault that the context has met, empty without one: writes as much of it as has room and answers with
/// the bytes there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leeway_simt_fault(to: *mut u8, room: usize) -> usize {
    let text = in_current_even_failed(|context| Ok(context.failed.clone())).ok().flatten();
    // SAFETY: the caller has `room` bytes at `to`.
    unsafe { give(&text.map_or_else(String::new, |fault| fault.text), to, room) }
}

/// What the launches of the context did since the last reset, a line for each counter: its name, a space, its value.
/// Writes as much as has room and answers with the bytes there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leeway_simt_counters(to: *mut u8, room: usize) -> usize {
    let text = in_current_even_failed(|context| Ok(context.counters.text())).unwrap_or_default();
    // SAFETY: the caller has `room` bytes at `to`.
    unsafe { give(&text, to, room) }
}

/// Sets all counters of the context to 0.
#[unsafe(no_mangle)]
pub extern "C" fn leeway_simt_reset_counters() -> u32 {
    call("leeway_simt_reset_counters", || {
        in_current_even_failed(|context| {
            context.counters = Default::default();
            Ok(())
        })
    })
}

/// # Safety
/// `to` has room for `room` bytes.
unsafe fn give(text: &str, to: *mut u8, room: usize) -> usize {
    let written = text.len().min(room);
    if written > 0 {
        // SAFETY: `written` is within both, and a caller's buffer is not this text.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, written) };
    }
    text.len()
}
