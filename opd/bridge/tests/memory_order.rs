//! The state words order what is written into a slot: loom tries every interleaving and every value that a weak memory
//! may show. The orders are those of the mapped file's board; what a slot holds is relaxed, so that nothing else orders it.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]

use bridge::states::{self, Board, State, Take, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

struct Ring {
    words: Vec<AtomicU64>,
    cells: Vec<AtomicU64>,
}

impl Board for Ring {
    fn slot_count(&self) -> u64 {
        self.words.len() as u64
    }
    fn load(&self, slot: u64) -> u64 {
        self.words[slot as usize].load(Ordering::Acquire)
    }
    fn replace(&self, slot: u64, from: u64, to: u64) -> bool {
        self.words[slot as usize].compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

fn ring() -> Arc<Ring> {
    let words = (0..2).map(|slot| AtomicU64::new(Word::new(slot, State::Free).code())).collect();
    Arc::new(Ring { words, cells: (0..2).map(|_| AtomicU64::new(0)).collect() })
}

fn produce(ring: &Ring, blocks: u64) {
    let next = states::producer_attaches(ring).expect("sound");
    for number in next..blocks {
        while !states::claim(ring, number).expect("sound") {
            thread::yield_now();
        }
        ring.cells[(number % 2) as usize].store(100 + number, Ordering::Relaxed);
        states::publish(ring, number).expect("sound");
    }
}

fn consume(ring: &Ring, blocks: u64) {
    let mut due = states::consumer_attaches(ring).expect("sound");
    while due.number < blocks {
        match states::take(ring, due).expect("sound") {
            Take::NotYet => thread::yield_now(),
            Take::Passed => panic!("nothing was acknowledged before"),
            Take::Taken => {
                assert_eq!(ring.cells[(due.number % 2) as usize].load(Ordering::Relaxed), 100 + due.number);
                states::release(ring, due.number).expect("sound");
                due.number += 1;
            }
        }
    }
}

#[test]
fn a_block_is_seen_whole_while_both_attach() {
    loom::model(|| {
        let ring = ring();
        let other = Arc::clone(&ring);
        let producer = thread::spawn(move || produce(&other, 2));
        consume(&ring, 2);
        producer.join().expect("it ends");
    });
}

#[test]
fn a_slot_is_filled_again_only_after_its_reader() {
    loom::model(|| {
        let ring = ring();
        let other = Arc::clone(&ring);
        produce(&ring, 2);
        let producer = thread::spawn(move || produce(&other, 3));
        consume(&ring, 3);
        producer.join().expect("it ends");
    });
}
