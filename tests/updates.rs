//! A hundred weights updates: memory stays flat, and nothing that an old version computed is ever used for a new one.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::engine::Engine;
use engine::model::WeightSource;
use engine::rollout::{Answer, InFlight, Limits, Request, Session};
use ptx::Cpu;
use ptx::rng::{Purpose, Stream};

static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A folder's weights, every version a little off.
struct Moved<'a>(&'a Checkpoint, u64);

impl WeightSource for Moved<'_> {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.0.read_rows(name, first, rows, out)?;
        let mut noise = Stream::new(self.1, Purpose::Data, first as u64);
        out.iter_mut().for_each(|x| *x *= 1.0 + 0.05 * noise.uniform());
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("there");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("KiB") * 1024
}

/// Weights that cannot be read to the end.
struct Torn<'a>(&'a Checkpoint);

impl WeightSource for Torn<'_> {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        // Its last parameters do not exist.
        let name = if name.contains("layers.1.") { "model.layers.99.nothing" } else { name };
        self.0.read_rows(name, first, rows, out)
    }
}

fn a_failed_update_stops_everything_until_one_succeeds(retained: usize) {
    let dir = common::golden_copy("qwen2", |_| ());
    let checkpoint = Checkpoint::open(dir.path()).expect("opens");
    let cpu = Arc::new(Cpu::new(1));
    let mut engine = Engine::new(Arc::clone(&cpu), common::load(&cpu, dir.path(), "kv8"), 4, 50, 127);
    engine.retain_versions(retained);
    for version in 1..=3 {
        engine.update(version, &mut Moved(&checkpoint, version)).expect("read");
    }
    assert!(engine.update(5, &mut Torn(&checkpoint)).is_err());
    let quiet = |run: &mut dyn FnMut()| {
        std::panic::set_hook(Box::new(|_| ()));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        drop(std::panic::take_hook());
        result.is_err()
    };
    assert!(!engine.usable());
    assert!(quiet(&mut || assert!(engine.step(std::iter::empty()).is_ok())), "weights of a failed update are run");
    assert!(quiet(&mut || drop(engine.update(3, &mut Moved(&checkpoint, 9)))), "a version's number stands for others");
    let switch = engine.update(6, &mut Moved(&checkpoint, 6)).expect("read");
    assert_eq!((switch.version, engine.model().version()), (6, 6));
    assert!(!engine.holds(5), "what failed is no version");
    assert!(engine.usable() && engine.step(std::iter::empty()).is_ok());
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn a_hundred_updates_leave_memory_flat_and_prefixes_apart() {
    for (recipe, policy, retained) in
        [("kv8", InFlight::Drain, 0), ("fp8", InFlight::Keep, 2), ("bf16", InFlight::Recompute, 1)]
    {
        let dir = common::golden_copy("qwen2", |_| ());
        let checkpoint = Checkpoint::open(dir.path()).expect("opens");
        let cpu = Arc::new(Cpu::new(2));
        let model = common::load(&cpu, dir.path(), recipe);
        let mut engine = Engine::new(cpu, model, 4, 200, 127);
        engine.retain_versions(retained);
        let limits = Limits { in_flight: policy, ..Limits::default() };
        let mut session = Session::new(&mut engine, limits);
        let prompts: Vec<Vec<u32>> = (0..5).map(|i| (0..20).map(|t| (i * 17 + t * 5) % 127).collect()).collect();
        let (mut at_ten, mut finished) = (0, 0_usize);
        let mut answer = |answer| {
            assert!(matches!(answer, Answer::Rollout(_)), "{answer:?}");
            finished += 1;
        };
        for version in 1..=100 {
            // Twice the same prompts: the second time they come from the cache, but never from another version.
            for round in 0..2 {
                let before = engine.kv().prefix_stats().hit_tokens;
                for (number, prompt) in prompts.iter().enumerate() {
                    let request = Request { prompt: prompt.clone(), max_tokens: 6, ..Request::default() };
                    session.submit(&engine, number, request).expect("it fits");
                }
                while session.step(&mut engine, &mut answer) {}
                let hits = engine.kv().prefix_stats().hit_tokens - before;
                assert_eq!(hits > 0, round == 1, "{recipe}, version {version}, round {round}: {hits} tokens reused");
            }
            // Some are under way when the weights change, unless the policy is to wait.
            session
                .submit(&engine, 9, Request { prompt: vec![1, 2, 3], max_tokens: 9, ..Request::default() })
                .expect("fits");
            session.step(&mut engine, &mut answer);
            session.request_update();
            while !session.may_update() {
                assert!(session.step(&mut engine, &mut answer), "it drains");
            }
            session.update(&mut engine, version, &mut Moved(&checkpoint, version)).expect("read");
            while session.step(&mut engine, &mut answer) {}
            assert_eq!(engine.kv().available_pages(), engine.kv().pages(), "version {version}: pages came back");
            if version == 10 {
                at_ten = HELD.load(Ordering::Relaxed);
                #[cfg(target_os = "linux")]
                RESIDENT.store(resident(), Ordering::Relaxed);
            }
        }
        let grown = HELD.load(Ordering::Relaxed).saturating_sub(at_ten);
        assert!(grown < 16 << 10, "{recipe}: {grown} more bytes held after a hundred updates than after ten");
        #[cfg(target_os = "linux")]
        {
            let grown = resident().saturating_sub(RESIDENT.load(Ordering::Relaxed));
            assert!(grown < 2 << 20, "{recipe}: {grown} more bytes resident after a hundred updates than after ten");
        }
        assert_eq!(finished, 1100);
    }
    for retained in [0, 2] {
        a_failed_update_stops_everything_until_one_succeeds(retained);
    }
}

#[cfg(target_os = "linux")]
static RESIDENT: AtomicUsize = AtomicUsize::new(0);
