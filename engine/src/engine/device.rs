//! Where an engine computes.

use std::fmt;
use std::sync::Arc;

use ptx::Cpu;
use ptx::cuda::{CudaError, Gpu};

/// Where an engine computes.
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU.
    Cpu(Arc<Cpu>),
    /// A CUDA device. The CPU reads, rounds and packs its weights.
    Cuda {
        /// Its number, as the driver counts.
        ordinal: usize,
        /// The device.
        gpu: Gpu,
        /// The CPU beside it.
        cpu: Arc<Cpu>,
    },
}

impl Device {
    /// Opens a CUDA device.
    pub fn open_cuda(ordinal: usize, cpu: Arc<Cpu>) -> Result<Device, CudaError> {
        Ok(Device::Cuda { ordinal, gpu: Gpu::open(ordinal)?, cpu })
    }

    /// Whether it is the CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        matches!(self, Device::Cpu(_))
    }

    /// The CPU: itself, or the one that prepares its weights.
    #[must_use]
    pub fn cpu(&self) -> &Arc<Cpu> {
        match self {
            Device::Cpu(cpu) | Device::Cuda { cpu, .. } => cpu,
        }
    }

    /// What bits depend on: the CPU, whatever its threads and instruction set, or the kind of CUDA device.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Device::Cpu(_) => "cpu".to_owned(),
            Device::Cuda { gpu, .. } => {
                let (major, minor) = gpu.capability();
                format!("{}, compute capability {major}.{minor}", gpu.name())
            }
        }
    }

    /// The CUDA device, if it is one.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Device::Cpu(_) => None,
            Device::Cuda { gpu, .. } => Some(gpu),
        }
    }
}

impl From<Arc<Cpu>> for Device {
    fn from(cpu: Arc<Cpu>) -> Device {
        Device::Cpu(cpu)
    }
}

/// What stands in results: name, compute capability, and whether it is simulated.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu(cpu) => cpu.fmt(f),
            Device::Cuda { ordinal, gpu, .. } => {
                write!(f, "cuda:{ordinal} ({}", self.kind())?;
                f.write_str(if gpu.is_simulated() { ", simulated by ptx/simt)" } else { ")" })
            }
        }
    }
}
