//! A device: memory and launches.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::block::Worker;
use crate::counters::{AllocationTraffic, Stats, Tally};
use crate::fault::{Fault, FaultKind};
use crate::memory::{Memory, MemoryError};
use crate::module::Entry;
use crate::order::Order;
use crate::program::Program;
use crate::races::Ledger;
use crate::stores;

/// Bytes of shared memory of a block without an opt-in.
const SHARED_DEFAULT: usize = 48 << 10;
/// Threads of a block at most.
const THREADS: u64 = 1024;

/// What a launch is checked for, and how it runs. Results of a correct kernel are the same bits in all but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bounds and alignment only, nothing counted.
    Fast,
    /// Every check and every counter.
    Checked,
    /// Checked, with the order of blocks and of warps, which side of a branch runs first and where lanes meet again drawn
    /// from a seed.
    Perturbed(u64),
    /// Checked, with the error that PTX permits of `.approx` functions, and with every addend of a matrix instruction and
    /// its result cut off below 24 bits, or 13 for 8-bit inputs, of the largest addend.
    Pessimistic,
}

/// A device to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How it runs.
    pub mode: Mode,
    /// Host threads that share the blocks of a launch.
    pub threads: usize,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Compute capability, which limits shared memory.
    pub capability: (u32, u32),
}

impl Default for Config {
    /// Checked, one thread, 1 GiB, capability 8.0.
    fn default() -> Config {
        Config { mode: Mode::Checked, threads: 1, memory_bytes: 1 << 30, capability: (8, 0) }
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// A simulated device. All calls run to their end.
pub struct Device {
    config: Config,
    memory: Memory,
    /// By module: where its variables lie.
    images: HashMap<u64, u64>,
    launches: u32,
    /// The first moment of the next launch's accesses.
    moments: u32,
    /// By kernel, module and name: dynamic shared memory that was opted in to.
    opt_in: HashMap<(u64, String), u32>,
}

/// A launch as the workers see it.
pub(crate) struct Job<'a> {
    pub(crate) program: &'a Program,
    pub(crate) memory: &'a Memory,
    pub(crate) params: &'a [u32],
    pub(crate) launch: Launch,
    /// Address of the module's variables.
    pub(crate) image: u64,
    pub(crate) number: u32,
    pub(crate) checks: bool,
    pub(crate) ledger: &'a Ledger,
    pub(crate) counts: bool,
    pub(crate) pessimistic: bool,
    pub(crate) seed: Option<u64>,
}

impl Program {
    /// Bytes of shared memory of a block with `dynamic` of them asked for.
    pub(crate) fn shared_bytes(&self, dynamic: usize) -> usize {
        if dynamic == 0 { self.static_shared } else { self.dynamic_shared + dynamic }
    }
}

impl Device {
    /// A device with nothing in its memory.
    #[must_use]
    pub fn new(config: Config) -> Device {
        let fast = config.mode == Mode::Fast;
        let memory = Memory::new(config.memory_bytes, !fast, !fast);
        Device { config, memory, images: HashMap::new(), launches: 0, moments: Ledger::START, opt_in: HashMap::new() }
    }

    /// What it was made of.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Changes how later launches run. To and from [`Mode::Fast`] only while nothing is allocated: the checks would not know
    /// what fast launches write.
    pub fn set_mode(&mut self, mode: Mode) -> Result<(), MemoryError> {
        let fast = mode == Mode::Fast;
        if fast != (self.config.mode == Mode::Fast) {
            self.memory.set_checked(!fast)?;
        }
        self.config.mode = mode;
        Ok(())
    }

    /// Changes how many host threads share the blocks of a launch.
    pub fn set_threads(&mut self, threads: usize) {
        self.config.threads = threads;
    }

    /// Memory of `bytes` bytes, not initialised; its address is never given out again.
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        self.memory.alloc(bytes)
    }

    /// Frees what [`Device::alloc`] gave.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        self.memory.free(address)
    }

    /// Reads bytes, initialised or not.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, out)
    }

    /// Writes bytes.
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(address, from)
    }

    /// Fills `bytes` bytes with a pattern of one or more bytes, repeated from the beginning.
    ///
    /// # Panics
    /// When the pattern is empty.
    pub fn fill(&mut self, address: u64, pattern: &[u8], bytes: u64) -> Result<(), MemoryError> {
        assert!(!pattern.is_empty(), "a pattern of no bytes");
        self.memory.fill(address, pattern, bytes)
    }

    /// Copies `bytes` bytes within the device; what was not initialised is not afterwards.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        self.memory.copy(to, from, bytes)
    }

    /// Address and bytes of the allocation that holds an address.
    #[must_use]
    pub fn range(&self, address: u64) -> Option<(u64, u64)> {
        self.memory.range(address)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.memory.used()
    }

    /// Bytes in all.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.memory.total()
    }

    /// Bytes of shared memory that a block can have at most, with an opt-in.
    #[must_use]
    pub fn shared_limit(&self) -> usize {
        let kib = match self.config.capability {
            (8, 6 | 9) | (12, _) => 99,
            (8, _) => 163,
            (9.., _) => 227,
            (7, 5) => 64,
            _ => 96,
        };
        kib << 10
    }

    /// Opts a kernel in to `bytes` bytes of dynamic shared memory, as `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
    /// does: launches beyond 48 KiB need it.
    pub fn opt_in_shared(&mut self, entry: &Entry, bytes: u32) -> Result<(), Fault> {
        let total = entry.static_shared() + bytes as usize;
        if total > self.shared_limit() {
            let detail = format!("{total} bytes of shared memory, at most {} on this device", self.shared_limit());
            return Err(refuse(entry, FaultKind::SharedMemory, detail));
        }
        self.opt_in.insert((entry.image.id, entry.name().to_string()), bytes);
        Ok(())
    }

    fn check_launch(&self, entry: &Entry, launch: Launch, params: &[u8]) -> Result<(), Fault> {
        let threads: u64 = launch.block.iter().map(|&n| u64::from(n)).product();
        let [x, y, z] = launch.grid;
        let bad = |detail| Err(refuse(entry, FaultKind::Launch, detail));
        if threads == 0 || threads > THREADS || launch.block[2] > 64 {
            return bad(format!("a block of {:?} threads; at most {THREADS} in all, 64 along z", launch.block));
        }
        if let Some(max) = entry.max_threads().filter(|&max| threads > u64::from(max)) {
            return bad(format!("a block of {threads} threads; the kernel is compiled for {max} at most"));
        }
        if x == 0 || y == 0 || z == 0 || x > i32::MAX.unsigned_abs() || y > 65535 || z > 65535 {
            return bad(format!("a grid of {:?} blocks; 1 to 2147483647 along x, to 65535 along y and z", launch.grid));
        }
        if params.len() != entry.param_bytes() {
            return bad(format!("{} bytes of parameters; the kernel takes {}", params.len(), entry.param_bytes()));
        }
        let shared = entry.program.shared_bytes(launch.shared_bytes as usize);
        let opted = self.opt_in.get(&(entry.image.id, entry.name().to_string())).copied().unwrap_or(0);
        let limit = SHARED_DEFAULT.max(entry.program.shared_bytes(opted as usize)).min(self.shared_limit());
        if shared > limit {
            let detail = format!(
                "{shared} bytes of shared memory, at most {limit} with what was opted in to ({} on this device)",
                self.shared_limit()
            );
            return Err(refuse(entry, FaultKind::SharedMemory, detail));
        }
        Ok(())
    }

    /// Runs a kernel to its end. `params` is the parameter buffer, laid out as [`Entry::params`] says.
    ///
    /// Blocks run in the order of their numbers, x fastest, in [`Mode::Perturbed`] in one drawn from the seed, or share the
    /// device's threads; results and counts are the same either way. A fault is that of the first block in that order that
    /// has one: at any number of threads the same one, unless it depends on what another block of the launch did.
    pub fn launch(&mut self, entry: &Entry, launch: Launch, params: &[u8]) -> Result<Stats, Fault> {
        self.check_launch(entry, launch, params)?;
        let image = self.image(entry)?;
        // Numbers fit the 28 bits of the shadow; after 2^28 launches they begin again.
        self.launches = self.launches % ((1 << 28) - 1) + 1;
        let words: Vec<u32> = params
            .chunks(4)
            .map(|c| {
                let mut bytes = [0; 4];
                bytes[..c.len()].copy_from_slice(c);
                u32::from_le_bytes(bytes)
            })
            .collect();
        let fast = self.config.mode == Mode::Fast;
        if !fast {
            self.track(&entry.program, &words, image);
        }
        let ledger = Ledger::new(self.moments);
        let job = Job {
            program: &entry.program,
            memory: &self.memory,
            params: &words,
            launch,
            image,
            number: self.launches,
            checks: !fast,
            ledger: &ledger,
            counts: !fast,
            pessimistic: self.config.mode == Mode::Pessimistic,
            seed: match self.config.mode {
                Mode::Perturbed(seed) => Some(seed),
                _ => None,
            },
        };
        let ran = run(&job, self.config.threads);
        self.moments = ledger.end().unwrap_or_else(|| {
            self.memory.forget_races();
            Ledger::START
        });
        let tally = ran?;
        Ok(if fast { Stats::default() } else { self.stats(&entry.program, &tally) })
    }

    /// Begins to record accesses of what the launch may store to.
    fn track(&self, program: &Program, params: &[u32], image: u64) {
        let param = |i: usize| {
            let word = |i: usize| u64::from(params.get(i).copied().unwrap_or(0));
            word(2 * i) | word(2 * i + 1) << 32
        };
        let count = params.len().div_ceil(2);
        for &origin in &program.stores {
            let of = |i: &usize| origin & stores::ANY != 0 || (*i < stores::PARAMETERS && origin >> i & 1 == 1);
            let known = (0..count).filter(of);
            let variables = (origin & stores::VARIABLES != 0).then_some(image);
            let mut found = false;
            for at in known.map(param).chain(variables).filter_map(|address| self.memory.find(address)) {
                self.memory.live[at].track(self.launches);
                found = true;
            }
            if !found && origin & stores::LOADED != 0 {
                self.memory.live.iter().for_each(|a| a.track(self.launches));
            }
        }
    }

    /// Puts the module's variables into memory, once.
    fn image(&mut self, entry: &Entry) -> Result<u64, Fault> {
        if entry.image.bytes.is_empty() {
            return Ok(0);
        }
        if let Some(&address) = self.images.get(&entry.image.id) {
            return Ok(address);
        }
        let full = |e: MemoryError| refuse(entry, FaultKind::Launch, format!("the module's variables: {e}"));
        let address = self.memory.alloc(entry.image.bytes.len() as u64).map_err(full)?;
        self.memory.write(address, &entry.image.bytes).map_err(full)?;
        self.images.insert(entry.image.id, address);
        Ok(address)
    }

    fn stats(&self, program: &Program, tally: &Tally) -> Stats {
        let mut stats = Stats {
            instructions: tally.guarded,
            shared_accesses: tally.shared_accesses,
            shared_wavefronts: tally.shared_wavefronts,
            shared_wavefronts_least: tally.shared_wavefronts_least,
            mma_flops: tally.mma_flops,
            barriers: tally.barriers,
            divergent_branches: tally.divergent_branches,
            ..Stats::default()
        };
        for (block, entered) in program.blocks.iter().zip(&tally.blocks) {
            for &(class, n) in &block.counts {
                let issued = &mut stats.instructions[class as usize];
                issued.warp += entered.warp * u64::from(n);
                issued.lane += entered.lane * u64::from(n);
            }
        }
        stats.warp_instructions = stats.instructions.iter().map(|i| i.warp).sum();
        stats.lane_instructions = stats.instructions.iter().map(|i| i.lane).sum();
        for (a, [load, store]) in self.memory.live.iter().zip(&tally.allocations) {
            if load.bytes + store.bytes > 0 {
                stats.load.add(load);
                stats.store.add(store);
                let traffic = AllocationTraffic { address: a.base, bytes: a.bytes, load: *load, store: *store };
                stats.allocations.push(traffic);
            }
        }
        stats
    }
}

/// A launch refused before anything ran.
fn refuse(entry: &Entry, kind: FaultKind, detail: String) -> Fault {
    let kernel = entry.name().to_string();
    Fault { kind, kernel, line: 0, block: [0; 3], thread: [0; 3], address: None, detail }
}

/// Runs all blocks, on this thread or on several.
fn run(job: &Job<'_>, threads: usize) -> Result<Tally, Fault> {
    let blocks: u64 = job.launch.grid.iter().map(|&n| u64::from(n)).product();
    let order = Order::new(blocks, job.seed, job.number);
    let workers = u64::try_from(threads.max(1)).unwrap_or(u64::MAX).min(blocks);
    if workers == 1 {
        let mut worker = Worker::new(job);
        for turn in 0..blocks {
            worker.run(order.block(turn))?;
        }
        return Ok(worker.cx.tally);
    }
    // Turns are taken in order, so all before one that failed have been taken and run to their end.
    let next = AtomicU64::new(0);
    let first_bad = Mutex::new((u64::MAX, None));
    let total = Mutex::new(None::<Tally>);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut worker = Worker::new(job);
                loop {
                    let turn = next.fetch_add(1, SeqCst);
                    if turn >= blocks || turn > lock(&first_bad).0 {
                        break;
                    }
                    if let Err(fault) = worker.run(order.block(turn)) {
                        let mut bad = lock(&first_bad);
                        if turn < bad.0 {
                            *bad = (turn, Some(fault));
                        }
                        break;
                    }
                }
                let mut total = lock(&total);
                match &mut *total {
                    Some(sum) => sum.add(&worker.cx.tally),
                    None => *total = Some(worker.cx.tally),
                }
            });
        }
    });
    match lock(&first_bad).1.take() {
        Some(fault) => Err(fault),
        None => Ok(lock(&total).take().unwrap_or_default()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
