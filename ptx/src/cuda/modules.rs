//! Modules as the driver holds them: an op's PTX is compiled at the first use of one of its kernels.

use super::device::Target;
use super::driver::{Driver, Handle};
use super::entries::{self, Entry};
use super::{CudaError, Kernel, MODULES, Module};
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use std::collections::HashMap;
use std::ffi::{CString, c_void};

/// Bytes of the compiler's log that are kept.
const LOG: usize = 4096;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const LOG_OPTIONS: [u32; 2] = [5, 6];
/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK` and `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`.
const MAX_THREADS: u32 = 0;
const STATIC_SHARED: u32 = 1;

/// A kernel ready to be launched.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) handle: Handle<CUfunc_st>,
    /// Bytes of each parameter.
    pub(super) params: Vec<usize>,
    /// Threads of a block at most.
    pub(super) max_threads: u32,
    /// Bytes of shared memory that it has without any from the launch.
    pub(super) static_shared: u32,
    /// Whether more than 48 KiB of shared memory have been asked for.
    pub(super) opted_in: bool,
}

/// All that is loaded so far.
#[derive(Debug, Default)]
pub(super) struct Modules {
    extra: Vec<&'static Module>,
    loaded: HashMap<&'static str, (Handle<CUmod_st>, Vec<Entry>)>,
    functions: HashMap<Kernel, Function>,
}

impl Modules {
    /// Makes a module known that is not in [`MODULES`].
    pub(super) fn add(&mut self, module: &'static Module) {
        self.extra.push(module);
    }

    /// The kernel, if it has been used before.
    pub(super) fn known(&mut self, kernel: Kernel) -> Option<&mut Function> {
        self.functions.get_mut(&kernel)
    }

    /// Loads the kernel's op, if need be, and looks the kernel up.
    pub(super) fn load(
        &mut self,
        driver: &'static Driver,
        target: Target,
        kernel: Kernel,
    ) -> Result<&mut Function, CudaError> {
        if !self.loaded.contains_key(kernel.op) {
            let mut all = self.extra.iter().copied().chain(MODULES);
            let module = all.find(|module| module.op == kernel.op);
            let module = module.ok_or_else(|| CudaError::NoKernel { kernel: kernel.to_string() })?;
            self.loaded.insert(kernel.op, compile(driver, target, module)?);
        }
        let (module, entries) = &self.loaded[kernel.op];
        let entry = entries.iter().find(|entry| entry.name == kernel.entry);
        let entry = entry.ok_or_else(|| CudaError::NoKernel { kernel: kernel.to_string() })?;
        let name = CString::new(kernel.entry).expect("an entry's name has no zero byte");
        let mut function = std::ptr::null_mut();
        // SAFETY: writes a handle; the module is loaded and the name ends with a zero byte.
        unsafe { driver.cuModuleGetFunction(&raw mut function, module.0, name.as_ptr())? };
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes a number; the function is the one just found.
            unsafe { driver.cuFuncGetAttribute(&raw mut value, attribute, function)? };
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let max_threads = attribute(MAX_THREADS)?.min(entry.max_threads.unwrap_or(u32::MAX));
        let function = Function {
            handle: Handle(function),
            params: entry.params.clone(),
            max_threads,
            static_shared: attribute(STATIC_SHARED)?,
            opted_in: false,
        };
        Ok(self.functions.entry(kernel).insert_entry(function).into_mut())
    }

    /// Unloads everything.
    pub(super) fn clear(&mut self, driver: &'static Driver) {
        self.functions.clear();
        for (_, (module, _)) in self.loaded.drain() {
            // SAFETY: loaded here, and none of its functions is used again. A failure leaves nothing to do.
            let _ = unsafe { driver.cuModuleUnload(module.0) };
        }
    }
}

/// Gives an op's PTX to the driver.
fn compile(
    driver: &'static Driver,
    target: Target,
    module: &Module,
) -> Result<(Handle<CUmod_st>, Vec<Entry>), CudaError> {
    let text = match target {
        Target::Sm80 => module.sm80,
        Target::Sm89 => module.sm89,
    };
    let refused = |why: String| CudaError::InvalidPtx { op: module.op.to_string(), target: target.name(), why };
    let entries = entries::parse(text).map_err(refused)?;
    let image = CString::new(text).map_err(|_| refused("a zero byte in the text".to_string()))?;
    let mut log = vec![0_u8; LOG];
    let mut names = LOG_OPTIONS;
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG)];
    let mut handle = std::ptr::null_mut();
    let image = image.as_ptr().cast();
    // SAFETY: the image ends with a zero byte; two options have two values: a buffer of LOG bytes and its size. All of
    // them outlive the call.
    let loaded =
        unsafe { driver.cuModuleLoadDataEx(&raw mut handle, image, 2, names.as_mut_ptr(), values.as_mut_ptr()) };
    match loaded {
        Ok(()) => Ok((Handle(handle), entries)),
        // INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, ..
        Err(CudaError::Driver { code: 200 | 209 | 218 | 221..=223, name, .. }) => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG);
            Err(refused(format!("{name}: {}", String::from_utf8_lossy(&log[..end]).trim())))
        }
        Err(other) => Err(other),
    }
}
