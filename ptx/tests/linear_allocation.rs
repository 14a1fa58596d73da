//! Once warmed, the linear op allocates nothing: forward on both paths from f32 and from codes, gradients, and packing
//! in place.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx::ops::linear::{
    Codes8, Job, Packed, WeightScale, amax, backward_bias, backward_input, backward_weight, forward, forward_e4m3,
};
use ptx::ops::round;
use ptx::{Cpu, DType, Isa};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same as ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same as ours.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_warmed_step_allocates_nothing() {
    let (m, n, k) = (40, 70, 300);
    let rows = vec![0.5; n * k];
    for isa in Isa::available() {
        // One thread: which tasks a second one takes, and so when it is warm, is up to the system.
        let cpu = Cpu::with_isa(1, isa);
        let mut ws = [
            (DType::F32, WeightScale::Channel),
            (DType::Bf16, WeightScale::Channel),
            (DType::E4m3, WeightScale::Tensor),
            (DType::E4m3, WeightScale::Channel),
            (DType::E4m3, WeightScale::Block128),
        ]
        .map(|(dtype, scale)| Packed::new(dtype, scale, n, k));
        let (x, dy, bias) = (vec![0.25; m * k], vec![0.5; m * n], vec![1.0; n]);
        let mut ys = [(); 5].map(|()| vec![0.0; m * n]);
        let (mut codes, mut scales) = (vec![0; m * k], vec![0.0; m]);
        let (mut dx, mut dw, mut db) = (vec![0.0; m * k], vec![0.0; n * k], vec![0.0; n]);
        let mut step = || {
            for w in &mut ws {
                if w.granularity() == Some(WeightScale::Tensor) {
                    w.set_amax(amax(&cpu, &rows));
                }
                w.set_rows(&cpu, 0, &rows);
            }
            round::e4m3_rows(&cpu, k, &x, &mut codes, &mut scales);
            for m in [1, 5, m] {
                let [a, b, c, d, e] = &mut ys;
                let mut jobs = [
                    Job { w: &ws[0], bias: None, y: &mut a[..m * n] },
                    Job { w: &ws[1], bias: Some(&bias), y: &mut b[..m * n] },
                    Job { w: &ws[2], bias: None, y: &mut c[..m * n] },
                    Job { w: &ws[3], bias: None, y: &mut d[..m * n] },
                    Job { w: &ws[4], bias: Some(&bias), y: &mut e[..m * n] },
                ];
                forward(&cpu, m, &x[..m * k], &mut jobs);
                forward_e4m3(&cpu, m, Codes8 { codes: &codes[..m * k], scales: &scales[..m] }, &mut jobs);
            }
            for w in &ws {
                backward_input(&cpu, m, &dy, w, &mut dx, true);
            }
            backward_weight(&cpu, m, n, k, &x, &dy, &mut dw);
            backward_bias(&cpu, m, n, &dy, &mut db);
        };
        step();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        step();
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "allocations on {}", isa.name());
    }
}
