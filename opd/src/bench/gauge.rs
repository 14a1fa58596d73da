//! What the machine can do at most: reading memory and multiply-adds, measured where and when they are needed.

use std::sync::Arc;

use ptx::{Cpu, limits};

use super::Spread;
use crate::clock::Stopwatch;

/// Bytes read to measure the memory: far beyond any cache.
const READ_BYTES: usize = 512 << 20;
/// Tasks of multiply-adds for each thread: some 10 ms.
const FMA_TASKS: usize = 64;

/// What the machine did at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes read in a second, on all threads.
    pub read: f64,
    /// The same on one.
    pub read_one: f64,
    /// Flops of f32 multiply-adds in a second, on all threads; a multiply-add is two.
    pub fma: f64,
    /// The same on one.
    pub fma_one: f64,
}

/// [`Limits`] over several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitsSpread {
    /// As in [`Limits`], and so those below.
    pub read: Spread,
    /// See there.
    pub read_one: Spread,
    /// See there.
    pub fma: Spread,
    /// See there.
    pub fma_one: Spread,
}

impl LimitsSpread {
    /// That of some rounds.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn of<'a>(rounds: impl Iterator<Item = &'a Limits> + Clone) -> LimitsSpread {
        let of = |one: fn(&Limits) -> f64| Spread::of(rounds.clone().map(one));
        LimitsSpread {
            read: of(|l| l.read),
            read_one: of(|l| l.read_one),
            fma: of(|l| l.fma),
            fma_one: of(|l| l.fma_one),
        }
    }

    /// The middle of each.
    #[must_use]
    pub fn median(&self) -> Limits {
        Limits {
            read: self.read.median,
            read_one: self.read_one.median,
            fma: self.fma.median,
            fma_one: self.fma_one.median,
        }
    }
}

/// What measures [`Limits`], with the threads and the instruction set of a device.
#[derive(Debug)]
pub struct Gauge {
    cpu: Arc<Cpu>,
    one: Cpu,
    buffer: Vec<u64>,
    /// Of each thread.
    tasks: usize,
}

impl Gauge {
    /// One that reads 512 MiB.
    #[must_use]
    pub fn new(cpu: Arc<Cpu>) -> Gauge {
        Gauge::with(cpu, READ_BYTES, FMA_TASKS)
    }

    /// One that only shows that it runs: what it reads stays in the caches.
    #[must_use]
    pub fn small(cpu: Arc<Cpu>) -> Gauge {
        Gauge::with(cpu, 1 << 20, 1)
    }

    fn with(cpu: Arc<Cpu>, bytes: usize, tasks: usize) -> Gauge {
        let one = Cpu::with_isa(1, cpu.isa());
        // Every page is written, or all of them would be one page of zeros.
        Gauge { cpu, one, buffer: (0..bytes as u64 / 8).collect(), tasks }
    }

    /// The device whose limits these are.
    #[must_use]
    pub fn cpu(&self) -> &Arc<Cpu> {
        &self.cpu
    }

    /// Takes the limits now: some 100 ms.
    #[must_use]
    pub fn measure(&self) -> Limits {
        let read = |cpu: &Cpu| {
            let watch = Stopwatch::start();
            std::hint::black_box(limits::read(cpu, &self.buffer));
            (8 * self.buffer.len()) as f64 / watch.elapsed_s()
        };
        let fma = |cpu: &Cpu| {
            let watch = Stopwatch::start();
            let flops = limits::multiply_add(cpu, self.tasks * cpu.threads());
            flops / watch.elapsed_s()
        };
        Limits { read_one: read(&self.one), read: read(&self.cpu), fma_one: fma(&self.one), fma: fma(&self.cpu) }
    }
}
