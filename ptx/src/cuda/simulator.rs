//! The simulated device of `ptx/simt`, for tests: where its library is, and what it tells beyond a driver's functions.
//!
//! A test opens it with [`open`] or [`open_sm80`]; the crate of the test has `simt` among its `dev-dependencies`, so that
//! cargo builds the library beside the test's executable. Each opened device is on its own: a fault on one is not
//! another's, nor are the counters.

use super::{CudaError, Gpu, View, load_driver};
use libloading::Library;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How the simulator executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No checks but those of addresses.
    Fast,
    /// All checks: uninitialised reads, races in shared and in global memory, barriers.
    Checked,
    /// All checks, blocks and warps in an order drawn from a seed: bits must not depend on it.
    Perturbed(u64),
    /// All checks, and approximate instructions and matrix sums as wrong as the hardware may be: products and accumulator
    /// of a matrix instruction are aligned to the largest of them and each, like the result, is cut off below 24 bits of it
    /// for 16-bit inputs, below 13 for 8-bit ones.
    Pessimistic,
}

/// The functions that `ptx/simt` has and no driver.
#[derive(Clone, Copy)]
pub(super) struct Hooks {
    set_mode: unsafe extern "C" fn(u32, u64) -> u32,
    set_threads: unsafe extern "C" fn(u32) -> u32,
    fault: unsafe extern "C" fn(*mut u8, usize) -> usize,
    counters: unsafe extern "C" fn(*mut u8, usize) -> usize,
    reset_counters: unsafe extern "C" fn() -> u32,
}

/// The hooks of a library, if it is the simulator.
pub(super) fn hooks(library: &'static Library) -> Option<Hooks> {
    macro_rules! find {
        ($name:literal) => {{
            // SAFETY: a library with a function of this name is `ptx/simt`, which gives it this type.
            let symbol = unsafe { library.get($name.as_bytes()) };
            *symbol.ok()?
        }};
    }
    Some(Hooks {
        set_mode: find!("leeway_simt_set_mode\0"),
        set_threads: find!("leeway_simt_set_threads\0"),
        fault: find!("leeway_simt_fault\0"),
        counters: find!("leeway_simt_counters\0"),
        reset_counters: find!("leeway_simt_reset_counters\0"),
    })
}

impl Hooks {
    /// The text of the fault that the current context has met, if it has.
    pub(super) fn fault(&self) -> Option<String> {
        Some(text(self.fault)).filter(|text| !text.is_empty())
    }
}

/// Asks for the length of a text, then for the text.
fn text(get: unsafe extern "C" fn(*mut u8, usize) -> usize) -> String {
    // SAFETY: writes nothing into no bytes and answers how many there are.
    let len = unsafe { get(std::ptr::null_mut(), 0) };
    let mut bytes = vec![0; len];
    // SAFETY: writes at most `len` bytes.
    let written = unsafe { get(bytes.as_mut_ptr(), len) };
    bytes.truncate(written);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where the simulator's library is: beside the running executable, where cargo puts it.
pub fn driver_path() -> Result<PathBuf, CudaError> {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    let file = format!("{DLL_PREFIX}simt{DLL_SUFFIX}");
    let missing = |detail: String| CudaError::NoDriver { detail };
    let executable =
        std::env::current_exe().map_err(|e| missing(format!("the running executable is not known: {e}")))?;
    let folder = executable.parent().map(PathBuf::from).unwrap_or_default();
    // Tests lie in `deps`, examples and binaries beside it.
    let places = [folder.clone(), folder.join("deps"), folder.join("../deps")];
    let found = places.iter().map(|place| place.join(&file)).find(|path| path.is_file());
    found.ok_or_else(|| missing(format!("no {file} near {}: build the package leeway-simt", executable.display())))
}

/// Opens a simulated device of compute capability 8.9.
pub fn open() -> Result<Gpu, CudaError> {
    load_driver(&driver_path()?)?;
    Gpu::open(0)
}

/// Opens a simulated device of compute capability 8.0, which takes an op's other PTX and has no e4m3 instructions.
pub fn open_sm80() -> Result<Gpu, CudaError> {
    load_driver(&driver_path()?)?;
    Gpu::open(1)
}

/// What a simulated device tells and can be told.
#[derive(Clone, Copy)]
pub struct Simulator<'a> {
    gpu: &'a Gpu,
    hooks: &'a Hooks,
}

/// Counters of a simulated device, by name. Counts of the programs' own actions, none an estimate of time:
///
/// * `launches`
/// * `warp instructions`, `lane instructions`, and both of each class: `float lane instructions`, `mma warp instructions`
/// * `load bytes`: asked for by lanes; `load sectors`: 32-byte sectors asked of the first cache, instruction by
///   instruction; `load unique sectors`: those that a launch touched at all; the same for `store`
/// * `shared accesses`, `shared wavefronts` and `shared wavefronts least`, which there would be without bank conflicts
/// * `mma flops`, `barriers`, `divergent branches`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    sums: BTreeMap<String, u64>,
}

/// The counter that counts nothing.
const DIGEST: &str = "digest of reads";

impl Counters {
    /// What stands for all bits that the host has read from the device, one copy after the other: equal for equal reads.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.get(DIGEST)
    }

    /// One of the counters above; 0 before the first launch.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.sums.get(name).copied().unwrap_or(0)
    }

    /// Traffic of one allocation, of which the view is all or the beginning: `load bytes` to `store unique sectors`.
    #[must_use]
    pub fn of<T>(&self, allocation: View<T>, name: &str) -> u64 {
        self.get(&format!("{:#x} {name}", allocation.address()))
    }

    /// All of them but those of single allocations and the digest, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let of_all = |name: &str| !name.starts_with("0x") && name != DIGEST;
        self.sums.iter().filter(move |(name, _)| of_all(name)).map(|(name, value)| (name.as_str(), *value))
    }
}

impl Gpu {
    /// The simulator behind this device; `None` for a real one.
    #[must_use]
    pub fn simulator(&self) -> Option<Simulator<'_>> {
        Some(Simulator { gpu: self, hooks: self.inner().driver.hooks()? })
    }
}

impl Simulator<'_> {
    /// Sets how launches are executed from now on: to [`Mode::Fast`] and back only while nothing is allocated, since what
    /// fast launches write is not known to the checks.
    pub fn set_mode(&self, mode: Mode) -> Result<(), CudaError> {
        let (number, seed) = match mode {
            Mode::Fast => (0, 0),
            Mode::Checked => (1, 0),
            Mode::Perturbed(seed) => (2, seed),
            Mode::Pessimistic => (3, 0),
        };
        self.gpu.inner().bind()?;
        // SAFETY: takes no address; the context is current.
        let answer = unsafe { (self.hooks.set_mode)(number, seed) };
        self.gpu.inner().driver.check("leeway_simt_set_mode", answer)
    }

    /// Sets how many threads of the host execute a launch; results do not depend on it.
    pub fn set_threads(&self, threads: u32) -> Result<(), CudaError> {
        self.gpu.inner().bind()?;
        // SAFETY: takes no address; the context is current.
        let answer = unsafe { (self.hooks.set_threads)(threads) };
        self.gpu.inner().driver.check("leeway_simt_set_threads", answer)
    }

    /// The fault that this device has met, if it has.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.gpu.inner().bind().ok()?;
        self.hooks.fault()
    }

    /// What the launches since the last [`reset_counters`](Simulator::reset_counters) did. In [`Mode::Fast`] nothing but
    /// launches and the digest is kept.
    pub fn counters(&self) -> Result<Counters, CudaError> {
        self.gpu.inner().bind()?;
        let lines = text(self.hooks.counters);
        let pairs = lines.lines().filter_map(|line| line.rsplit_once(' '));
        let pairs = pairs.filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?)));
        Ok(Counters { sums: pairs.collect() })
    }

    /// Sets all counters to 0.
    pub fn reset_counters(&self) -> Result<(), CudaError> {
        self.gpu.inner().bind()?;
        // SAFETY: takes no address; the context is current.
        let answer = unsafe { (self.hooks.reset_counters)() };
        self.gpu.inner().driver.check("leeway_simt_reset_counters", answer)
    }
}
