//! How fast do a teacher's hidden rows pass the ring? Blocks of 256 rows of width 4096 in bf16, written once into the slot by
//! one thread and taken by another, through two mappings as two processes have them. Beside it, measured in the same
//! turns: copying memory, and the checksum that both sides compute.

mod common;

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use bridge::{Consumer, Counters, Geometry, Kind, Meta, Patience, Producer};
use common::{Record, table::Table};
use criterion::SamplingMode;
use opd::bench::Spread;
use opd::clock::Stopwatch;

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

fn timed(work: impl FnOnce()) -> f64 {
    let watch = Stopwatch::start();
    work();
    watch.elapsed_s()
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
    if samples.is_empty() {
        return;
    }
    let median = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of)).median;
    let all = (bytes * case.blocks) as f64;
    let (ring, copy, crc) = (median(|s| s.ring), median(|s| s.copy), median(|s| s.crc));
    let mut record = Record::new("bridge", &std::sync::Arc::new(ptx::Cpu::new(0)));
    let mut table =
        Table::new(["blocks", "GB/s", "blocks/s", "of memcpy", "memcpy, GB/s", "CRC32C, GB/s", "its share, each side"]);
    table.row([
        case.name.into(),
        format!("{:.2}", all / ring / 1e9),
        format!("{:.0}", case.blocks as f64 / ring),
        format!("{:.0}%", 100.0 * copy / ring),
        format!("{:.2}", all / copy / 1e9),
        format!("{:.2}", all / crc / 1e9),
        format!("{:.0}%", 100.0 * crc / ring),
    ]);
    record.say(&table);
    for (key, value) in [("gb_s", all / ring), ("memcpy_gb_s", all / copy), ("crc_gb_s", all / crc)] {
        record.put(key, value / 1e9);
    }
    record.put("bytes_copied", sent.bytes_copied + taken.bytes_copied);
    record.put("rounds", samples.len());
    record.finish();
}
