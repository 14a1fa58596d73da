//! The driver library: found once, its functions looked up once, each call's code checked.
//!
//! Types and library names are cudarc's. The calls are not: cudarc's own wrappers panic when the library or a function is
//! missing, and they read the answer into an enum of the codes of one CUDA version, which a newer driver's codes are not in.

use super::error::code;
use super::simulator::Hooks;
use super::{CudaError, simulator};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUstream,
};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Declares the table of functions: one field and one checked method for each.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions of the driver that are called here.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Driver {
            path: PathBuf,
            hooks: Option<Hooks>,
            /// Not checked as the others are, since what it fails at is naming an error.
            error_name: unsafe extern "C" fn(c_uint, *mut *const c_char) -> u32,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Driver {
            fn resolve(library: &'static Library, path: PathBuf) -> Result<Driver, CudaError> {
                Ok(Driver {
                    path,
                    hooks: simulator::hooks(library),
                    error_name: {
                        // SAFETY: the driver's ABI gives the function of this name this type.
                        let symbol = unsafe { library.get(b"cuGetErrorName\0") };
                        *symbol.map_err(|_| CudaError::NoFunction { symbol: "cuGetErrorName" })?
                    },
                    $($name: {
                        // SAFETY: the driver's ABI gives the function of this name this type.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|_| CudaError::NoFunction { symbol: stringify!($name) })?
                    },)*
                })
            }

            $(
                /// # Safety
                /// As the driver documents the function: pointers valid for what it reads and writes, handles alive.
                #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and parameters")]
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), CudaError> {
                    // SAFETY: the library is never unloaded; the rest is the caller's promise.
                    let answer = unsafe { (self.$name)($($arg),*) };
                    self.check(stringify!($name), answer)
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    cuCtxDestroy_v2(context: CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(exec: CUgraphExec);
    cuGraphDestroy(graph: CUgraph);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
    cuEventDestroy_v2(event: CUevent);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, options: c_uint, names: *mut c_uint, values: *mut *mut c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
    cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
}

/// The library to use instead of the system's, once [`load_driver`] has been given one.
static CHOSEN: Mutex<Option<(PathBuf, &'static Library)>> = Mutex::new(None);
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Loads a driver library by its path, before any device is opened: the one of `ptx/simt`, in tests. Loading the same
/// path again changes nothing.
pub fn load_driver(path: &Path) -> Result<(), CudaError> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = DRIVER.get().map(|driver| &driver.path).or(chosen.as_ref().map(|(path, _)| path));
    if let Some(loaded) = loaded {
        if loaded == path {
            return Ok(());
        }
        return Err(CudaError::OtherDriver { asked: path.display().to_string(), loaded: loaded.display().to_string() });
    }
    // SAFETY: a driver library's initialisers are safe to run, and the caller says that it is one.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|e| CudaError::NoDriver { detail: format!("{}: {}", path.display(), reason(&e)) })?;
    *chosen = Some((path.to_path_buf(), Box::leak(Box::new(library))));
    Ok(())
}

/// The driver, looked for at the first call.
pub(super) fn get() -> Result<&'static Driver, CudaError> {
    let chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let (path, library) = match &*chosen {
        Some((path, library)) => (path.clone(), *library),
        None => system_library()?,
    };
    let driver = Driver::resolve(library, path)?;
    Ok(DRIVER.get_or_init(|| driver))
}

/// The installed driver, by the name that a driver has on Linux and then by those that cudarc knows, of which the first,
/// without a version, is also that of the stub that comes with a toolkit. It stays loaded: a driver's threads do not survive unloading.
fn system_library() -> Result<(PathBuf, &'static Library), CudaError> {
    let mut detail = String::new();
    let first = cfg!(target_os = "linux").then(|| "libcuda.so.1".to_string());
    for name in first.into_iter().chain(["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates)) {
        // SAFETY: the initialisers of an installed driver are safe to run.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok((PathBuf::from(name), Box::leak(Box::new(library)))),
            // What is told is the reason of the first name, by which drivers are installed.
            Err(e) if detail.is_empty() => detail = reason(&e),
            Err(_) => {}
        }
    }
    Err(CudaError::NoDriver { detail })
}

/// What the loader said, which the error itself leaves to its cause.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

impl Driver {
    /// Path or name that it was loaded by.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The hooks of `ptx/simt`, which no other driver has.
    pub(super) fn hooks(&self) -> Option<&Hooks> {
        self.hooks.as_ref()
    }

    pub(super) fn check(&self, call: &'static str, answer: u32) -> Result<(), CudaError> {
        if answer == 0 { Ok(()) } else { Err(self.error(call, answer)) }
    }

    fn error(&self, call: &'static str, answer: u32) -> CudaError {
        let name = self.name(answer);
        if code::is_fault(answer) {
            let text = self.hooks().and_then(Hooks::fault).unwrap_or_else(|| format!("{name} ({answer}) at {call}"));
            return CudaError::Fault { text };
        }
        CudaError::Driver { call, code: answer, name }
    }

    /// The driver's name for a code.
    fn name(&self, answer: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: writes the address of a constant string to `name`, or null for a code that it does not know.
        let known = unsafe { (self.error_name)(answer, &raw mut name) };
        if known != 0 || name.is_null() {
            return "an error code that the driver does not name".to_string();
        }
        // SAFETY: not null, so a constant string with its zero byte.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("path", &self.path).finish_non_exhaustive()
    }
}

/// An opaque handle of the driver.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: a handle is a name for the driver's own object, and the driver allows its use from every thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; nothing is read through the pointer here.
unsafe impl<T> Sync for Handle<T> {}
