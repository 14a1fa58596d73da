//! A warmed decode step of the scheduler allocates nothing, also when it takes pages from the prefix index for it. One
//! test, so that nothing else allocates meanwhile.

#[path = "scheduler/toy.rs"]
#[allow(dead_code)] // the simulation uses the rest
mod toy;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::scheduler::{Job, Limits, Plan, Reservation, Scheduler};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator as it came. Growing goes through `alloc` and so counts too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn warm_decode_steps_allocate_nothing() {
    for reservation in [Reservation::Lifetime, Reservation::Optimistic] {
        // The pool is full of what earlier jobs left in the index; one more job waits for pages all the while.
        let mut cache = toy::cache(64);
        let limits = Limits { batch: 5, step_tokens: 64, reservation, ..Limits::default() };
        let (mut scheduler, mut plan) = (Scheduler::new(limits, 0), Plan::default());
        for first in 0..20 {
            let job = Job { prompt: vec![first; 16], samples: 1, max_tokens: 1, first_wanted: 15 };
            scheduler.submit(&cache, job).expect("fits");
        }
        let mut step = |scheduler: &mut Scheduler, plan: &mut Plan| {
            let worked = scheduler.plan(&mut cache, plan);
            scheduler.advance(&mut cache, plan);
            let mut draws = 0;
            while let Some(&(_, sample)) = scheduler.draws().first() {
                scheduler.push(&mut cache, sample, 1, false);
                draws += 1;
            }
            (worked, draws, cache.prefix_stats())
        };
        for _ in 0..4 {
            step(&mut scheduler, &mut plan);
        }
        let fresh = toy::cache(64);
        let job = Job { prompt: vec![50; 9], samples: 4, max_tokens: 55, first_wanted: 8 };
        scheduler.submit(&fresh, job).expect("fits");
        scheduler
            .submit(&fresh, Job { prompt: vec![51; 240], samples: 1, max_tokens: 10, first_wanted: 239 })
            .expect("fits");
        for _ in 0..3 {
            step(&mut scheduler, &mut plan);
        }
        let evicted = step(&mut scheduler, &mut plan).2.evicted;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut last = (false, 0, Default::default());
        for _ in 0..40 {
            last = step(&mut scheduler, &mut plan);
        }
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!((last.0, last.1, scheduler.stats().preempted), (true, 4, 0), "four samples decode");
        assert!(last.2.evicted > evicted, "{reservation:?}: pages were taken from the index");
        assert_eq!(count, 0, "{reservation:?}: decode steps allocate");
    }
}
