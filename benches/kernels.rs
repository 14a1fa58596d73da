//! How near does each kernel of a decoding step come to its limit, on one thread and on all? Products of few rows stream their
//! weights once and are bound by reading, those of many rows by multiply-adds; attention of decoding sequences reads keys
//! and values once; logprobs and draws read logits of 151,936 ids once and take an exponential of each.

mod common;

use common::{Meter, criterion, is_full, is_wanted};
use criterion::Criterion;
use opd::bench::Cost;
use ptx::DType;
use ptx::kv_tile::{KvPages, KvScale, KvShape, Span};
use ptx::ops::linear::{self, Job, Packed, WeightScale};
use ptx::ops::sample::{self, Params, RowDraw};
use ptx::ops::{attention, log_softmax};
use ptx::rng::{Purpose, Stream};

/// Bytes of matrices that are multiplied with in turn: far beyond the caches.
const MATRICES_BYTES: usize = 256 << 20;
/// Ids of the vocabulary, and rows of logits that the engine makes at a time.
const VOCAB: usize = 151_936;
const LOGIT_ROWS: usize = 64;

/// y = x W^T with the gate of Qwen3-0.6B's MLP.
fn linear(c: &mut Criterion, meter: &mut Meter) {
    let (n, k) = if is_full() { (3072, 1024) } else { (64, 32) };
    for (dtype, format) in [(DType::Bf16, "bf16"), (DType::E4m3, "e4m3")] {
        let group = format!("linear-{format}");
        if !is_wanted(&group) {
            continue;
        }
        let count = if is_full() { MATRICES_BYTES / (n * k * dtype.bytes()) } else { 2 };
        // Which values they are does not matter to time; not all alike, so that nothing is saved on them.
        let row: Vec<f32> = (0..k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let rows = row.repeat(n);
        let matrices: Vec<Packed> = (0..count)
            .map(|_| {
                let mut packed = Packed::new(dtype, WeightScale::Channel, n, k);
                packed.set_rows(meter.cpu(), 0, &rows);
                packed
            })
            .collect();
        for rows in [1, 8, 32, 512] {
            // Enough of them to take some 10 ms.
            let taken = if rows > 32 { 2 } else { count };
            let (x, mut y) = (row.repeat(rows), vec![0.0; rows * n]);
            let flops = 2.0 * (taken * rows * n * k) as f64;
            let bytes = matrices[..taken].iter().map(Packed::bytes).sum::<usize>() as f64;
            for cpu in meter.devices() {
                let mut first = 0;
                meter.run(c, &cpu, &group, &format!("{rows}-rows"), Cost { flops, bytes }, |cpu| {
                    for i in 0..taken {
                        let w = &matrices[(first + i) % count];
                        linear::forward(cpu, rows, &x, &mut [Job { w, bias: None, y: &mut y }]);
                    }
                    first = (first + taken) % count;
                });
            }
        }
    }
}

/// Attention of sequences that decode one token each.
fn attend(c: &mut Criterion, meter: &mut Meter) {
    let (heads, kv_heads, head_dim, page_len) = (16, 8, 128, 16);
    let (sequences, context) = if is_full() { (32, 1024) } else { (3, 40) };
    for (dtype, format) in [(DType::Bf16, "bf16"), (DType::E4m3, "e4m3")] {
        let group = format!("attention-{format}");
        if !is_wanted(&group) {
            continue;
        }
        let shape = KvShape { kv_heads, head_dim, page_len, k: dtype, v: dtype, scale: KvScale::Static };
        let each = usize::div_ceil(context, page_len);
        let bytes = vec![0x3c_u8; sequences * each * shape.page_bytes()]; // a small number in both formats
        let ones = vec![1.0; kv_heads];
        let pages = KvPages { shape, bytes: &bytes, k_scales: &ones, v_scales: &ones };
        let tables: Vec<Vec<u32>> = (0..sequences)
            .map(|i| (i * each..(i + 1) * each).map(|page| u32::try_from(page).expect("few pages")).collect())
            .collect();
        let span = |(i, table)| Span { first_row: i, row_count: 1, first_position: context - 1, block_table: table };
        let spans: Vec<Span<'_>> = tables.iter().map(|table| &table[..]).enumerate().map(span).collect();
        let width = sequences * heads * head_dim;
        let (q, mut out) = (vec![0.1; width], vec![0.0; width]);
        let cost = Cost { flops: (4 * width * context) as f64, bytes: bytes.len() as f64 };
        let shape = attention::Shape { heads, softmax_scale: 0.088_388_35 };
        for cpu in meter.devices() {
            meter.run(c, &cpu, &group, &format!("{sequences}x{context}"), cost, |cpu| {
                attention::forward(cpu, shape, pages, &spans, &q, &mut out, None);
            });
        }
    }
}

/// Log-sum-exps, and draws with their logprobs, of one block of logits.
fn logits(c: &mut Criterion, meter: &mut Meter) {
    let (rows, vocab) = if is_full() { (LOGIT_ROWS, VOCAB) } else { (3, 1000) };
    let mut stream = Stream::new(1, Purpose::Data, 0);
    let logits: Vec<f32> = (0..rows * vocab).map(|_| 3.0 * stream.normal()).collect();
    let cost = Cost { flops: 0.0, bytes: (4 * rows * vocab) as f64 };
    for cpu in meter.devices() {
        let mut lse = vec![0.0; rows];
        meter.run(c, &cpu, "log-softmax", &format!("{rows}x{vocab}"), cost, |cpu| {
            log_softmax::lse(cpu, rows, vocab, vocab, 1.0, &logits, &mut lse).expect("logits are numbers");
        });
        for (name, params) in [
            ("untruncated", Params::default()),
            ("top-p-0.9", Params { temperature: 0.7, top_p: 0.9, ..Params::default() }),
        ] {
            let how: Vec<RowDraw> = (0..rows).map(|i| RowDraw { params, uniform: i as f32 / rows as f32 }).collect();
            let mut drawn = vec![None; rows];
            meter.run(c, &cpu, "sample", name, cost, |cpu| {
                sample::draw_rows(cpu, vocab, vocab, &logits, &how, &mut drawn);
            });
        }
    }
}

fn main() {
    let (mut c, mut meter) = (criterion(), Meter::new());
    linear(&mut c, &mut meter);
    attend(&mut c, &mut meter);
    logits(&mut c, &mut meter);
    meter.finish(&mut c, "kernels");
}
