//! Fork and join on a fixed set of threads, without allocation and without waiting for a worker that is asleep.
//!
//! A call opens a gate, works through the tasks itself, closes the gate and waits only for the workers that came in.
//! So a small op costs its own work even when the other cores are busy or parked.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Gate word: epoch in the upper half, this bit while workers may come in, workers inside in the low bits.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
/// Spins before a waiting worker parks: some 50 us, longer than the gaps between ops of a step.
const SPINS: u32 = 4_000;

#[derive(Clone, Copy)]
struct Job {
    task: *const (),
    call: unsafe fn(*const (), usize),
    count: usize,
}

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    parked: Vec<AtomicBool>,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by the caller that holds the lock, while the gate is closed and nobody is inside,
// and read only by workers inside; all else is atomic. The task behind the pointer is `Sync` (see `for_each`).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is dereferenced only while the call that owns the task is waiting.
unsafe impl Send for Shared {}

/// A set of threads; the caller of [`Threads::for_each`] is one of them.
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    caller: Mutex<()>,
}

thread_local! {
    /// Set while this thread runs a task, so that a nested call runs in place.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

impl Threads {
    /// `count` threads in all, at least one.
    ///
    /// # Panics
    /// When the system refuses a thread.
    #[must_use]
    pub fn new(count: usize) -> Threads {
        fn nothing(_: *const (), _: usize) {}
        let helpers = count.saturating_sub(1);
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { task: std::ptr::null(), call: nothing, count: 0 }),
            parked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let workers = (0..helpers)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("leeway-{index}"))
                    .spawn(move || work(&shared, index))
                    .expect("the system refused a thread")
            })
            .collect();
        Threads { shared, workers, caller: Mutex::new(()) }
    }

    /// Threads in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i)` for `i` in `0..count`. A nested call runs in place. A panic in a task is raised again here.
    ///
    /// # Panics
    /// When a task panicked on another thread.
    pub fn for_each<F: Fn(usize) + Sync>(&self, count: usize, task: &F) {
        unsafe fn call<F: Fn(usize)>(task: *const (), index: usize) {
            // SAFETY: `task` came from `&F` in the call below, which outlives every worker inside the gate.
            let task = unsafe { &*task.cast::<F>() };
            task(index);
        }
        if count <= 1 || self.workers.is_empty() || BUSY.get() {
            (0..count).for_each(task);
            return;
        }
        let _caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: the gate is closed and nobody is inside (the end of the previous call), and we hold the lock.
        unsafe { *shared.job.get() = Job { task: std::ptr::from_ref(task).cast(), call: call::<F>, count } };
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.gate.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared.gate.store(epoch << 32 | OPEN, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        BUSY.set(true);
        let mine = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = shared.next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                task(index);
            }
        }));
        BUSY.set(false);
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        if let Err(panic) = mine {
            shared.panicked.store(false, Ordering::Relaxed);
            resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a kernel task panicked on a worker thread");
    }
}

fn work(shared: &Shared, index: usize) {
    BUSY.set(true);
    let mut seen = 0_u64;
    loop {
        let mut spins = 0_u32;
        let gate = loop {
            let gate = shared.gate.load(Ordering::Acquire);
            if gate >> 32 != seen {
                break gate;
            }
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                shared.parked[index].store(true, Ordering::SeqCst);
                let unchanged = shared.gate.load(Ordering::SeqCst) >> 32 == seen;
                if unchanged && !shared.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                shared.parked[index].store(false, Ordering::SeqCst);
            }
        };
        seen = gate >> 32;
        let mut gate = gate;
        let inside = loop {
            if gate >> 32 != seen || gate & OPEN == 0 {
                break false;
            }
            match shared.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break true,
                Err(now) => gate = now,
            }
        };
        if !inside {
            continue;
        }
        // SAFETY: we are inside the gate, so the job is not written until we leave.
        let job = unsafe { *shared.job.get() };
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = shared.next.fetch_add(1, Ordering::Relaxed);
                if index >= job.count {
                    break;
                }
                // SAFETY: the caller waits until we leave the gate, so its task is alive.
                unsafe { (job.call)(job.task, index) };
            }
        }));
        if done.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.gate.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already raised in the call that caused it.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 5] {
            let pool = Threads::new(threads);
            for count in [0, 1, 2, 3, 64, 1000] {
                let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(count, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{threads} threads, {count} tasks");
            }
        }
    }

    #[test]
    fn many_small_calls_and_parked_workers() {
        let pool = Threads::new(3);
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            if round % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5)); // lets the workers park
            }
            pool.for_each(7, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.load(Ordering::Relaxed), 2000 * 21);
    }

    #[test]
    fn nested_calls_run_in_place() {
        let pool = Threads::new(2);
        let sum = AtomicUsize::new(0);
        pool.for_each(4, &|_| {
            pool.for_each(4, &|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.load(Ordering::Relaxed), 16);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Threads::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(64, &|i| assert_ne!(i, 33, "planted"));
        }));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.for_each(64, &|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 64);
    }
}
