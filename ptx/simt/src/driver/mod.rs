//! The face of a CUDA driver: the functions of `libcuda.so.1` that programs of the driver API call, over [`Device`].
//!
//! What a GPU does late is done at once: streams run in the order of the calls, copies and launches are over when their
//! function returns, an event has come when it is recorded, and the time between two events is 0. Graphs run their nodes in
//! the order of the capture. What no simulated device has is refused with `CUDA_ERROR_NOT_SUPPORTED` and a line on standard
//! error: managed memory, host memory mapped to the device, memory pools, cooperative launches, textures, linking.
//!
//! A fault of a kernel fails its launch and everything after it in that context, with the code that a GPU would give; its
//! text goes to standard error and can be read with `leeway_simt_fault` (`hooks`).
//!
//! Variables of the environment, read at the first call:
//!
//! | variable | values | default |
//! |---|---|---|
//! | `LEEWAY_SIMT_MODE` | `fast`, `checked`, `perturbed:SEED`, `pessimistic` | `checked` |
//! | `LEEWAY_SIMT_THREADS` | threads of the host for a launch | `1` |
//! | `LEEWAY_SIMT_MEMORY` | bytes of each context | 4 GiB |
//! | `LEEWAY_SIMT_CAPABILITY` | compute capability of each device, by commas | `8.9,8.0` |
//! | `LEEWAY_SIMT_CUDA` | the CUDA version that the driver claims | `12.4` |
//! | `LEEWAY_SIMT_FAILS` | a function and the code that it answers, as in `cuInit:803` | none |
//!
//! [`Device`]: crate::Device

// Every function here is the driver's: what its pointers must be is in the driver's manual, and a caller that breaks it
// breaks it with any driver.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments, missing_docs)]

pub mod api_context;
pub mod api_graph;
pub mod api_launch;
pub mod api_lookup;
pub mod api_memory;
pub mod api_module;
pub mod api_stream;
mod context;
mod counters;
mod graph;
mod handle;
pub mod hooks;
mod refusal;
mod settings;
mod state;

use refusal::{Code, Refusal};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one function of the driver: a refusal becomes its code, and a panic, which must not cross into C, a code too.
fn call(function: &str, body: impl FnOnce() -> Result<(), Refusal>) -> u32 {
    if let Some((fails, code)) = state::settings().ok().and_then(|settings| settings.fails.as_ref())
        && fails == function
    {
        return *code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(refusal)) => {
            // Running out of memory, or asking for what is not there, is a question more often than a mistake.
            let question = matches!(refusal.code, Code::ERROR_OUT_OF_MEMORY | Code::ERROR_NOT_FOUND);
            if !question && !refusal.text.is_empty() {
                eprintln!("leeway simt: {function}: {}", refusal.text);
            }
            refusal.code.0
        }
        Err(_) => {
            eprintln!("leeway simt: {function}: the simulator itself failed, see the panic above");
            Code::ERROR_UNKNOWN.0
        }
    }
}

/// Element `i` of an array of the caller's.
///
/// # Safety
/// The array has more than `i` elements.
unsafe fn element<T: Copy>(array: *const T, i: usize) -> T {
    // SAFETY: the caller's promise.
    let place = unsafe { array.add(i) };
    // SAFETY: the caller's promise.
    unsafe { place.read() }
}

/// Stores an answer where the caller wants it.
///
/// # Safety
/// `to` is null or writable.
unsafe fn answer<T>(to: *mut T, value: T) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(Refusal::value("a null pointer for an answer"));
    }
    // SAFETY: the caller's promise, and not null.
    unsafe { to.write(value) };
    Ok(())
}
