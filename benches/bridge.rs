//! How fast do a teacher's hidden rows pass the ring? Blocks of 256 rows of width 4096 in bf16, written once into the slot by
//! one thread and taken by another, through two mappings as two processes have them. Beside it, measured in the same
//! turns: copying memory, and the checksum that both sides compute.

mod common;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use bridge::{Consumer, Counters, Geometry, Kind, Meta, Patience, Producer};
use criterion::SamplingMode;

const SLOTS: u32 = 8;
const PATIENCE: Patience = Patience::until(Duration::from_secs(60));

struct Case {
    name: &'static str,
    rows: u32,
    width: u32,
    blocks: usize,
}

const FULL: Case = Case { name: "256x4096 bf16", rows: 256, width: 4096, blocks: 1000 };
const SMOKE: Case = Case { name: "smoke", rows: 4, width: 64, blocks: 20 };

/// Seconds of one turn.
#[derive(Clone, Copy)]
struct Sample {
    ring: f64,
    copy: f64,
    crc: f64,
}

#[allow(clippy::disallowed_methods, reason = "a bench exists to read the clock; no result depends on it")]
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Sends blocks whose rows are written straight into the slot: the one write that a kernel would do there.
fn send(producer: &mut Producer, meta: &Meta, blocks: usize, rows: &[u8]) {
    for number in 0..blocks {
        let mut draft = producer.claim(meta, PATIENCE).expect("the consumer goes on");
        let arrays = draft.arrays_mut();
        arrays.tokens.fill(7);
        arrays.logprobs.fill(-1.0);
        arrays.lse.fill(9.0);
        arrays.mask.fill(1);
        arrays.versions.fill(u32::try_from(number).expect("few blocks"));
        arrays.scores.dense_mut().bytes_mut().copy_from_slice(rows);
        draft.publish().expect("the file is sound");
    }
}

/// Takes blocks and looks at them where they lie; the checksum has read every byte.
fn take(consumer: &mut Consumer, blocks: usize) -> u64 {
    let mut sum = 0;
    for _ in 0..blocks {
        let lease = consumer.receive(PATIENCE).expect("the producer goes on").expect("it has not finished");
        sum += u64::from(lease.arrays().tokens[0]);
    }
    sum
}

fn main() {
    let case = if common::is_full() { FULL } else { SMOKE };
    if !common::is_wanted(case.name) {
        return;
    }
    let meta = Meta { rows: case.rows, width: case.width, ..Meta::new(Kind::Hidden) };
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("a folder");
    let path = folder.path().join("ring");
    bridge::create(&path, Geometry::for_blocks(SLOTS, &meta).expect("it can be")).expect("made");
    let mut producer = Producer::attach(&path).expect("a ring");
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let bytes = usize::try_from(meta.row_stride()).expect("small") * case.rows as usize;
    // As many buffers as slots, so that copying finds no more in the caches than the ring does.
    let sources: Vec<Vec<u8>> = (0..SLOTS as usize).map(|seed| vec![u8::try_from(seed).expect("few"); bytes]).collect();
    let mut targets = sources.clone();
    let mut samples = Vec::new();
    let mut one = || {
        let copy = timed(|| {
            for turn in 0..case.blocks {
                let at = turn % targets.len();
                targets[at].copy_from_slice(&sources[at]);
                black_box(&targets[at]);
            }
        });
        let crc = timed(|| {
            for turn in 0..case.blocks {
                black_box(crc32c::crc32c(&sources[turn % sources.len()]));
            }
        });
        let mut sum = 0;
        let ring = timed(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| send(&mut producer, &meta, case.blocks, &sources[0]));
                sum = take(&mut consumer, case.blocks);
            });
        });
        assert_eq!(sum, 7 * case.blocks as u64, "every block came");
        samples.push(Sample { ring, copy, crc });
        Duration::from_secs_f64(ring)
    };
    let mut criterion = common::criterion();
    let mut group = criterion.benchmark_group("bridge");
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function(case.name, |b| b.iter_custom(|iterations| (0..iterations).map(|_| one()).sum()));
    group.finish();
    print(&case, bytes, &samples, producer.counters(), consumer.counters());
}

fn print(case: &Case, bytes: usize, samples: &[Sample], sent: Counters, taken: Counters) {
    assert_eq!((sent.bytes_copied, taken.bytes_copied), (0, 0), "nothing is copied but the one write");
    assert_eq!((sent.blocks, taken.blocks, taken.corrupt), (taken.blocks, sent.blocks, 0));
    let samples = &samples[samples.len().min(1)..]; // the first touches the pages
    if !common::is_full() || samples.len() < 5 {
        return;
    }
    let median = |of: &dyn Fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let all = (bytes * case.blocks) as f64;
    let (ring, copy, crc) = (median(&|s| s.ring), median(&|s| s.copy), median(&|s| s.crc));
    println!(
        "LIMIT bridge/{}: {:.2} GB/s, {:.0} blocks/s; bytes copied {}; machine: memcpy {:.2} GB/s (ring {:.0} % of it), \
         CRC32C {:.2} GB/s on one thread ({:.0} % of the ring's time, on each side) ({} samples)",
        case.name,
        all / ring / 1e9,
        case.blocks as f64 / ring,
        sent.bytes_copied + taken.bytes_copied,
        all / copy / 1e9,
        100.0 * copy / ring,
        all / crc / 1e9,
        100.0 * crc / ring,
        samples.len(),
    );
}
