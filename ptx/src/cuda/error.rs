//! What can go wrong with a CUDA device, each with what to do about it.

/// Why a CUDA device cannot be opened or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver library.
    #[error("no CUDA driver: {detail}; install an NVIDIA driver, or use --device cpu")]
    NoDriver {
        /// What the loader said.
        detail: String,
    },
    /// A driver by its path was asked for after another one had been loaded.
    #[error(
        "{asked} cannot be loaded: this process already uses the CUDA driver {loaded}; load it before opening a device"
    )]
    OtherDriver {
        /// The path asked for.
        asked: String,
        /// The driver in use.
        loaded: String,
    },
    /// The library lacks a function.
    #[error(
        "the CUDA driver has no {symbol}; leeway needs a driver for CUDA 12.0 or later: update it, or use --device cpu"
    )]
    NoFunction {
        /// The function's name.
        symbol: &'static str,
    },
    /// The driver cannot compile the kernels' PTX.
    #[error(
        "the CUDA driver is for CUDA {}.{} and kernels for {target} need {}.{}: update the driver, or use --device cpu",
        found.0, found.1, needed.0, needed.1
    )]
    DriverTooOld {
        /// Its CUDA version: major and minor.
        found: (u32, u32),
        /// The version that the kernels' PTX needs.
        needed: (u32, u32),
        /// What the kernels were compiled for.
        target: &'static str,
    },
    /// What was found is no driver of this machine, or it cannot start.
    #[error("the CUDA driver {library} cannot be used: {name} ({code}): {remedy}, or use --device cpu")]
    Unusable {
        /// The library that the loader found.
        library: String,
        /// What it answered.
        code: u32,
        /// The name of that code.
        name: &'static str,
        /// What is wrong then, and what to do about it.
        remedy: &'static str,
    },
    /// There is no device of that number.
    #[error(
        "there is no cuda:{ordinal}; the driver shows {count} device(s), numbered from 0: {}, or use --device cpu",
        if *count == 0 { "let CUDA_VISIBLE_DEVICES name some, or give this container or machine one" } else { "choose one of them" }
    )]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices there are.
        count: usize,
    },
    /// The device is too old for the kernels.
    #[error(
        "cuda:{ordinal} ({name}) has compute capability {}.{}; kernels need 8.0 or later: use another device, or --device cpu",
        capability.0, capability.1
    )]
    Capability {
        /// The device's number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its compute capability: major and minor.
        capability: (u32, u32),
    },
    /// The device has not that much memory left.
    #[error(
        "out of memory on the device: asked for {asked} bytes, {free} of {total} are free: give the KV cache less memory, use a smaller batch, or a recipe of fewer bits"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free then, in all allocations together.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// A launch that the device or the kernel does not allow.
    #[error("{kernel} cannot be launched as {shape}: {why}")]
    Launch {
        /// Op and entry.
        kernel: String,
        /// Grid, threads of a block and bytes of dynamic shared memory.
        shape: String,
        /// The limit or the argument that is wrong.
        why: String,
    },
    /// The driver refused a module.
    #[error("the kernels of {op} for {target} were refused by the driver: {why}")]
    InvalidPtx {
        /// The op's folder.
        op: String,
        /// What the kernels were compiled for.
        target: &'static str,
        /// The code's name and the compiler's log.
        why: String,
    },
    /// No kernel of that name is in this binary.
    #[error("there is no kernel {kernel}")]
    NoKernel {
        /// Op and entry.
        kernel: String,
    },
    /// A kernel failed while it ran. The device's context is lost with it.
    #[error("a kernel failed on the device: {text}; nothing more can run there until it is opened anew")]
    Fault {
        /// What the simulator or the driver says of it.
        text: String,
    },
    /// Something that cannot be part of a graph was asked for while one was being captured.
    #[error("{what} cannot be captured into a graph: do it before or after the capture")]
    Capture {
        /// What was asked for.
        what: &'static str,
    },
    /// Any other failure of a call of the driver.
    #[error("{call} failed: {name} ({code})")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its answer.
        code: u32,
        /// The name of that code.
        name: String,
    },
}

/// Codes of `CUresult` that mean something here. Plain numbers, since a newer driver may answer with others than any list.
pub(super) mod code {
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const NO_DEVICE: u32 = 100;

    /// Answers of a driver that cannot start: their names, and what to do. Names by ourselves, since a stub knows none.
    pub fn remedy(code: u32) -> Option<(&'static str, &'static str)> {
        Some(match code {
            34 => (
                "CUDA_ERROR_STUB_LIBRARY",
                "it is a stub for linking, not a driver; take the toolkit's folder `stubs` out of LD_LIBRARY_PATH",
            ),
            803 => (
                "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                "library and kernel module are of different versions; restart the machine if the driver was just updated, \
                 and in a container use the host's library",
            ),
            804 => (
                "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
                "a library of forward compatibility does not serve this device; take the toolkit's folder `compat` out of \
                 LD_LIBRARY_PATH and update the driver",
            ),
            999 => (
                "CUDA_ERROR_UNKNOWN",
                "it does not say why; see whether nvidia-smi works and the module nvidia_uvm is loaded, and restart the \
                 machine if not",
            ),
            _ => return None,
        })
    }

    /// Whether the code says that a kernel failed while it ran, after which the context is of no use.
    pub fn is_fault(code: u32) -> bool {
        matches!(code, 700 | 702 | 710 | 714..=719)
    }
}
