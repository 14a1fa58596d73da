//! The CPU as a device: which instruction set its kernels use and the threads they run on.

use crate::threads::Threads;

/// Instruction set of the CPU kernels. Bits do not depend on it; speed does.
///
/// Other crates cannot name the vector ones as values: they come from detection alone, since running them elsewhere
/// would be undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: any architecture.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512,
}

impl Isa {
    /// Every instruction set that this machine can run, slowest first.
    #[must_use]
    pub fn available() -> Vec<Isa> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut all = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 {
                all.push(Isa::Avx2);
            }
            if avx512 {
                all.push(Isa::Avx512);
            }
        }
        all
    }

    /// The fastest of [`Isa::available`].
    #[must_use]
    pub fn detect() -> Isa {
        Isa::available()[Isa::available().len() - 1]
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }
}

/// Why a device cannot be opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The name is not a device's.
    #[error(
        "unknown device {name:?}; devices are cpu, cuda, cuda:N (the N-th, from 0) and auto (a CUDA device if there is one)"
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The instruction set is unknown or this machine lacks it.
    #[error("instruction set {name:?} is not available here; available: {available}")]
    NoIsa {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
}

/// The CPU device: kernels take it as their first argument.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    threads: Threads,
}

impl Cpu {
    /// A device with the fastest instruction set and `threads` threads; 0 takes what the machine offers.
    #[must_use]
    pub fn new(threads: usize) -> Cpu {
        Cpu::with_isa(threads, Isa::detect())
    }

    /// As [`Cpu::new`] with a given instruction set.
    #[must_use]
    pub fn with_isa(threads: usize, isa: Isa) -> Cpu {
        let threads =
            if threads == 0 { std::thread::available_parallelism().map_or(1, std::num::NonZero::get) } else { threads };
        Cpu { isa, threads: Threads::new(threads) }
    }

    /// The instruction set called `name` here.
    pub fn isa_by_name(name: &str) -> Result<Isa, DeviceError> {
        let all = Isa::available();
        all.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| DeviceError::NoIsa {
            name: name.to_owned(),
            available: all.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that kernels run on, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Runs `task(i)` for every `i` in `0..count`, on all threads, in no fixed order, and returns when all are done.
    /// Which thread runs which task never changes a bit: tasks own disjoint outputs.
    pub fn for_each(&self, count: usize, task: impl Fn(usize) + Sync) {
        self.threads.for_each(count, &task);
    }

    /// As [`Cpu::for_each`], on the calling thread alone when the work is too small to be worth sharing.
    pub fn for_each_if(&self, worth_sharing: bool, count: usize, task: impl Fn(usize) + Sync) {
        if worth_sharing {
            self.threads.for_each(count, &task);
        } else {
            (0..count).for_each(task);
        }
    }
}

impl std::fmt::Display for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cpu ({}, {} threads)", self.isa.name(), self.threads())
    }
}
