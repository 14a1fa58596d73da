//! Functions by name, and the ones that are refused.

use super::refusal::{Code, Refusal};
use super::{answer, call};
use super::{api_context, api_graph, api_launch, api_memory, api_module, api_stream};
use std::ffi::{CStr, c_char, c_void};

/// Declares functions that answer with `CUDA_ERROR_NOT_SUPPORTED` whatever they are given, and a table of them.
macro_rules! refused {
    ($($name:ident)*) => {
        $(
            /// Refused. It reads no argument, so it may be called with the driver's own ones.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> u32 {
                let text = "the simulator does not support this function";
                call(stringify!($name), || Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, text)))
            }
        )*

        const REFUSED: &[(&str, extern "C" fn() -> u32)] = &[$((stringify!($name), $name)),*];
    };
}

// What cudarc calls beyond what is here, and the ways to memory that is not an allocation of the device.
refused! {
    cuArray3DCreate_v2 cuArrayCreate_v2 cuArrayDestroy
    cuCtxCreate_v4 cuCtxGetCacheConfig cuCtxGetLimit cuCtxSetCacheConfig cuCtxSetFlags cuCtxSetLimit
    cuDestroyExternalMemory cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool
    cuExternalMemoryGetMappedBuffer cuImportExternalMemory
    cuGraphInstantiateWithParams cuGraphInstantiate_v2 cuGraphAddKernelNode_v2 cuGraphCreate
    cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernelEx cuStreamAddCallback cuStreamAttachMemAsync
    cuLibraryLoadData cuLinkCreate_v2
    cuMemAdvise_v2 cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged cuMemFreeAsync
    cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2 cuMemHostUnregister
    cuMemAddressReserve cuMemCreate cuMemMap
    cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemPrefetchAsync_v2 cuMemcpy2D_v2 cuMemcpy2DAsync_v2 cuMemcpy3D_v2 cuMemcpyPeer cuMemcpyPeerAsync
    cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadFatBinary
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxPotentialBlockSize
    cuOccupancyMaxPotentialBlockSizeWithFlags
}

macro_rules! table {
    ($($file:ident: $($name:ident)*;)*) => {
        &[$($((stringify!($name), Address($file::$name as *const ()))),*),*]
    };
}

struct Address(*const ());

// SAFETY: the address of a function, the same for every thread.
unsafe impl Sync for Address {}

/// Every function that does something.
static FUNCTIONS: &[(&str, Address)] = table! {
    api_context: cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetUuid_v2
        cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxCreate_v2
        cuCtxCreate_v3 cuCtxDestroy_v2 cuCtxSetCurrent cuCtxGetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2
        cuCtxGetDevice cuCtxSynchronize cuCtxGetStreamPriorityRange cuGetErrorName cuGetErrorString;
    api_memory: cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemAllocHost_v2 cuMemFreeHost
        cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2
        cuMemsetD8_v2 cuMemsetD8Async cuMemsetD16_v2 cuMemsetD16Async cuMemsetD32_v2 cuMemsetD32Async;
    api_module: cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuFuncGetAttribute
        cuFuncSetAttribute cuFuncSetCacheConfig;
    api_launch: cuLaunchKernel;
    api_stream: cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery
        cuStreamWaitEvent cuStreamBeginCapture_v2 cuStreamEndCapture cuStreamIsCapturing
        cuThreadExchangeStreamCaptureMode cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery cuEventSynchronize
        cuEventElapsedTime;
    api_graph: cuGraphGetNodes cuGraphInstantiateWithFlags cuGraphUpload cuGraphLaunch cuGraphExecDestroy cuGraphDestroy;
};

/// The function of a name, which may leave out the version that the headers add to it.
fn find(name: &str) -> Option<*const ()> {
    let is = |full: &str| full.strip_prefix(name).is_some_and(|rest| matches!(rest, "" | "_v2" | "_v3" | "_v4"));
    if is("cuGetProcAddress_v2") {
        return Some(cuGetProcAddress_v2 as *const ());
    }
    let known = FUNCTIONS.iter().find(|(full, _)| is(full)).map(|(_, address)| address.0);
    known.or_else(|| REFUSED.iter().find(|(full, _)| is(full)).map(|(_, function)| *function as *const ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *const c_void,
    _version: i32,
    _flags: u64,
    status: *mut u32,
) -> u32 {
    call("cuGetProcAddress_v2", || {
        if name.is_null() {
            return Err(Refusal::value("no name"));
        }
        // SAFETY: the caller's text with its zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let found = find(&name);
        if !status.is_null() {
            // `CU_GET_PROC_ADDRESS_SUCCESS` or `.._SYMBOL_NOT_FOUND`.
            // SAFETY: the caller's pointer.
            unsafe { answer(status, u32::from(found.is_none()))? };
        }
        // SAFETY: the caller's pointer.
        unsafe { answer(function, found.map_or(std::ptr::null(), <*const ()>::cast))? };
        found.map(|_| ()).ok_or_else(|| Refusal::new(Code::ERROR_NOT_FOUND, format!("no {name}")))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *const c_void,
    version: i32,
    flags: u64,
) -> u32 {
    // SAFETY: the caller's pointers.
    unsafe { cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut()) }
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS, REFUSED, find};

    #[test]
    fn names_with_and_without_their_version() {
        assert_eq!(find("cuMemAlloc"), find("cuMemAlloc_v2"));
        assert_eq!(find("cuCtxCreate"), find("cuCtxCreate_v2"));
        assert_eq!(find("cuCtxCreate_v4"), Some(super::cuCtxCreate_v4 as *const ()));
        assert_ne!(find("cuMemcpyHtoD"), find("cuMemcpyHtoDAsync"));
        assert_eq!((find("cuMemAllo"), find("cuTexRefCreate")), (None, None));
        let names: std::collections::BTreeSet<_> =
            FUNCTIONS.iter().map(|f| f.0).chain(REFUSED.iter().map(|f| f.0)).collect();
        assert_eq!(names.len(), FUNCTIONS.len() + REFUSED.len(), "a name stands twice");
    }
}
