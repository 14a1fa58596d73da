//! Row and element ops, those on logits and those on pages allocate nothing once their threads are warm. One test, so that nothing else allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx::kv_tile::{KvCounts, KvPages, KvPagesMut, KvScale, KvShape, Span};
use ptx::ops::divergence::{self, Kind, RowStats};
use ptx::ops::head_divergence::{self, Kind as Fused};
use ptx::ops::linear::{Packed, WeightScale};
use ptx::ops::sample::{self, Params};
use ptx::ops::{
    adamw, attention, embedding, grad_norm, kv_append, log_softmax, residual, rmsnorm, rope, round, swiglu,
};
use ptx::{Cpu, DType};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator as it came.
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
fn warm_ops_allocate_nothing() {
    const ROWS: usize = 80;
    const DIM: usize = 512;
    const LEN: usize = ROWS * DIM;
    let cpu = Cpu::new(2);
    let (a, b) = (vec![0.5_f32; LEN], vec![0.25_f32; LEN]);
    let [mut x, mut y, mut z] = [a.clone(), a.clone(), a.clone()];
    let (mut inv, mut dgain) = (vec![0.0; ROWS], vec![0.0; DIM]);
    let (mut cos, mut sin) = (vec![0.0; LEN / 2], vec![0.0; LEN / 2]);
    let (ids, frequencies) = (vec![3_u32; ROWS], vec![0.01_f32; DIM / 2]);
    let hyper = adamw::AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };
    let alone = Cpu::new(1); // these keep scratch by thread, and on two it is chance which of them warms up
    let (mut picked, mut largest, mut nll) = (vec![0_u32; 8 * ROWS], vec![0.0; 8 * ROWS], vec![0.0; ROWS]);
    let mut head = Packed::new(DType::F32, WeightScale::Channel, 4 * DIM, DIM);
    head.set_rows(&alone, 0, &vec![0.01; 4 * DIM * DIM]);
    let (mut dhead, mut ws) = (vec![0.0; 4 * DIM * DIM], head_divergence::Workspace::default());
    let mut of_rows = vec![head_divergence::RowStats::default(); ROWS];
    let mut codes = vec![0; LEN];
    let mut stats = vec![RowStats::default(); ROWS];
    let scale = KvScale::Token;
    let shape = KvShape { kv_heads: 4, head_dim: 64, page_len: 16, k: DType::E4m3, v: DType::E5m2, scale };
    let (mut pages, mut counts) = (vec![0; 10 * shape.page_bytes()], vec![KvCounts::default(); 4]);
    let table: Vec<u32> = (0..10).collect();
    let mut all = || {
        // One token after 100, and 100 at once: pages read in place and widened.
        for (first_position, row_count) in [(0, 100), (100, 1)] {
            let span = Span { first_row: 0, row_count, first_position, block_table: &table };
            let (bytes, rows) = (&mut pages[..], &a[..row_count * 256]);
            let counts = Some(&mut counts[..]);
            let mut write = KvPagesMut { shape, bytes, k_scales: &[], v_scales: &[], counts };
            kv_append::forward(&alone, &mut write, &[span], rows, rows);
            let read = KvPages { shape, bytes: write.bytes, k_scales: &[], v_scales: &[] };
            let ask = attention::Shape { heads: 4, softmax_scale: 0.125 };
            attention::forward(&alone, ask, read, &[span], rows, &mut x[..row_count * 256], None);
        }
        log_softmax::top_k(&alone, ROWS, DIM, DIM, 1.0, &a, 8, &mut picked, &mut largest).unwrap();
        log_softmax::gather(&alone, ROWS, DIM, DIM, 1.0, &a, &ids, &mut inv).unwrap();
        divergence::kl(&alone, ROWS, DIM, DIM, 1.0, &a, &b, &mut nll).unwrap();
        divergence::cross_entropy(&alone, ROWS, DIM, DIM, &mut x, &ids, &inv, &mut nll).unwrap();
        x.copy_from_slice(&a);
        divergence::dense(&alone, Kind::ReverseKl, ROWS, DIM, DIM, 1.0, &mut x, &b, &inv, &mut stats).unwrap();
        for kind in [Fused::Reverse, Fused::Jsd { beta: 0.5 }, Fused::CrossEntropy] {
            let side = |hidden| head_divergence::Head { weights: &head, hidden };
            let input = head_divergence::Input {
                student: side(&a),
                teacher: Some(head_divergence::Side::Head(side(&b))),
                rollout: Some(head_divergence::Side::Head(side(&a))),
                targets: &ids,
                weights: &inv,
                valid: 4 * DIM - 3,
                inv_temp: 1.0,
            };
            let gradients = Some(head_divergence::Gradients { hidden: &mut x, head: &mut dhead });
            let tile = head_divergence::Tile { rows: 32, columns: 1024 };
            head_divergence::run(&alone, kind, tile, input, gradients, &mut of_rows, &mut ws).unwrap();
        }
        for (temperature, top_k, top_p, min_p) in
            [(0.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.0, 9, 0.9, 0.0), (1.0, 0, 0.9, 0.1)]
        {
            sample::draw(alone.isa(), &Params { temperature, top_k, top_p, min_p }, &a[..DIM], 0.5).unwrap();
        }
        rmsnorm::forward(&cpu, DIM, &a, &b[..DIM], 1e-6, &mut x, Some(&mut inv));
        rmsnorm::forward_in_place(&cpu, DIM, &mut x, &b[..DIM], 1e-6, None);
        rmsnorm::backward(&cpu, DIM, &a, &b[..DIM], &inv, &b, &mut x, true, &mut dgain);
        rope::tables(&cpu, &ids, &frequencies, 1.0, &mut cos, &mut sin);
        rope::forward(&cpu, 1, DIM, &mut x, &cos, &sin);
        rope::backward(&cpu, 1, DIM, &mut x, &cos, &sin);
        swiglu::forward(&cpu, &a, &b, &mut x);
        swiglu::backward(&cpu, &a, &b, &x, &mut y, &mut z);
        round::bf16(&cpu, &mut x);
        round::e4m3_rows(&cpu, DIM, &x, &mut codes, &mut inv);
        residual::add(&cpu, &mut x, &a);
        embedding::forward(&cpu, |_, row| row.fill(1.0), DIM, &ids, &mut x);
        embedding::backward(&cpu, DIM, &ids, &a, &mut x);
        adamw::step(&cpu, hyper, 1, 1.0, &mut x, &a, &mut y, &mut z);
        assert!(grad_norm::sum_of_squares(&cpu, &x) > 0.0 && grad_norm::all_finite(&cpu, &x).is_none());
    };
    all();
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
    // The fewest of some runs: which thread first takes part in an op when is chance, and so is what the test harness
    // does meanwhile, but what an op itself allocates it allocates every time.
    let once = |_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        all();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    assert_eq!((0..12).map(once).min(), Some(0));
}
