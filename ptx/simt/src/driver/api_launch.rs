//! Launches.

use super::api_module::static_shared;
use super::context::{Context, Function, MAX_BLOCK, MAX_GRID, MAX_THREADS};
use super::graph::Node;
use super::handle::Handle;
use super::refusal::Refusal;
use super::state::in_context;
use super::{call, element};
use crate::Launch;
use std::ffi::c_void;

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_BYTES: usize = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    call("cuLaunchKernel", || {
        let launch = Launch { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        in_context(function, |context: &mut Context| {
            let function = context.functions.get(function)?.clone();
            let wrong = |what: String| Refusal::value(format!("{}: {what}", function.entry.name()));
            check(&function, &launch).map_err(wrong)?;
            // SAFETY: the caller's arrays, as the driver documents them.
            let params = unsafe { gather(&function, params, extra) }.map_err(wrong)?;
            context.submit(stream, Node::Kernel { function, launch, params })
        })
    })
}

/// What is wrong with the shape, if anything is.
fn check(function: &Function, launch: &Launch) -> Result<(), String> {
    for axis in 0..3 {
        let (blocks, threads) = (launch.grid[axis], launch.block[axis]);
        if !(1..=MAX_GRID[axis]).contains(&blocks) || !(1..=MAX_BLOCK[axis]).contains(&threads) {
            return Err(format!("a grid of {:?} blocks of {:?} threads", launch.grid, launch.block));
        }
    }
    let threads: u64 = launch.block.iter().map(|&threads| u64::from(threads)).product();
    let most = function.entry.max_threads().unwrap_or(MAX_THREADS).min(MAX_THREADS);
    if threads > u64::from(most) {
        return Err(format!("{threads} threads in a block of at most {most}"));
    }
    if launch.shared_bytes > function.dynamic_shared {
        return Err(format!(
            "{} bytes of dynamic shared memory beside {} static ones, and the function was allowed {}",
            launch.shared_bytes,
            static_shared(&function.entry),
            function.dynamic_shared
        ));
    }
    Ok(())
}

/// The parameters' bytes in their layout: from a pointer for each, or from one buffer whose size must be right.
///
/// # Safety
/// `params` has a pointer for each parameter to as many bytes as it has; or `extra` is a list with its end.
unsafe fn gather(
    function: &Function,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Vec<u8>, String> {
    let entry = &function.entry;
    let mut bytes = vec![0; entry.param_bytes()];
    if entry.params().is_empty() {
        return Ok(bytes);
    }
    match (params.is_null(), extra.is_null()) {
        (false, true) => {
            for (i, param) in entry.params().iter().enumerate() {
                // SAFETY: one pointer for each parameter.
                let from = unsafe { element(params, i) };
                if from.is_null() {
                    return Err(format!("parameter {i} is a null pointer"));
                }
                let to = &mut bytes[param.offset..param.offset + param.size];
                // SAFETY: `from` has the parameter's bytes, as does `to`.
                unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), param.size) };
            }
        }
        (true, false) => {
            // SAFETY: the caller's list.
            let (buffer, size) = unsafe { buffer(extra) }?;
            if size != bytes.len() || buffer.is_null() {
                return Err(format!("{size} bytes of parameters where there are {}", bytes.len()));
            }
            // SAFETY: the buffer has `size` bytes.
            unsafe { std::ptr::copy_nonoverlapping(buffer.cast(), bytes.as_mut_ptr(), size) };
        }
        _ => return Err("parameters come as an array of pointers or as a buffer".to_string()),
    }
    Ok(bytes)
}

/// # Safety
/// `extra` is a list of names and values with `CU_LAUNCH_PARAM_END` behind them.
unsafe fn buffer(extra: *const *const c_void) -> Result<(*const c_void, usize), String> {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    for i in 0..2 {
        // SAFETY: before the list's end.
        let name = unsafe { element(extra, 2 * i) }.addr();
        if name == END {
            break;
        }
        // SAFETY: a name has a value.
        let value = unsafe { element(extra, 2 * i + 1) };
        match name {
            BUFFER => buffer = value,
            // SAFETY: this name's value is the address of a size.
            BUFFER_BYTES => size = unsafe { value.cast::<usize>().read() },
            _ => return Err(format!("an extra of name {name}")),
        }
    }
    Ok((buffer, size))
}
