//! Who holds a role, who waits for whom and for how long, and what an end of the wait says.

mod common;

use bridge::{
    ClaimError, Consumer, Geometry, Kind, Meta, OpenError, Patience, Presence, Producer, ReceiveError, WaitError,
};
use common::{expected, leased, publish, ring};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(30);

fn small() -> Meta {
    Meta { rows: 2, ..Meta::new(Kind::Sampled) }
}

#[test]
fn a_role_is_held_once_and_comes_back() {
    let (_folder, path) = ring(2, &small());
    let producer = Producer::attach(&path).expect("a ring");
    let taken = Producer::attach(&path).expect_err("held");
    assert!(matches!(taken, OpenError::RoleTaken { pid, .. } if pid == std::process::id()), "{taken}");
    assert!(taken.to_string().contains("has a producer already"), "{taken}");
    let nonce = producer.nonce();
    drop(producer);
    let producer = Producer::attach(&path).expect("free again");
    assert_eq!((producer.epoch(), producer.nonce()), (2, nonce));
    let peer = producer.peer();
    assert_eq!((peer.presence, peer.holds_role, peer.epoch), (Presence::Never, false, 0));
    let consumer = Consumer::attach(&path).expect("a ring");
    let peer = producer.peer();
    assert_eq!((peer.presence, peer.holds_role, peer.pid), (Presence::Attached, true, std::process::id()));
    drop(consumer);
    assert_eq!((producer.peer().presence, producer.peer().holds_role), (Presence::Left, false));
}

#[test]
fn a_lease_keeps_the_role_and_its_slot() {
    let (_folder, path) = ring(2, &small());
    let mut producer = Producer::attach(&path).expect("a ring");
    publish(&mut producer, &small(), 0);
    publish(&mut producer, &small(), 1);
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let first = consumer.receive(Patience::NONE).expect("there").expect("not finished");
    let second = consumer.receive(Patience::NONE).expect("there").expect("not finished");
    drop(consumer);
    assert!(matches!(Consumer::attach(&path), Err(OpenError::RoleTaken { .. })));
    // Out of order: slots are filled in order, so the first lease keeps the producer waiting.
    drop(second);
    assert_eq!(producer.credits(), 0);
    drop(first);
    assert_eq!(producer.credits(), 2);
    Consumer::attach(&path).expect("free");
}

#[test]
fn a_full_ring_keeps_the_producer_waiting_and_says_so() {
    let (_folder, path) = ring(2, &small());
    let mut producer = Producer::attach(&path).expect("a ring");
    assert_eq!(producer.credits(), 2);
    publish(&mut producer, &small(), 0);
    publish(&mut producer, &small(), 1);
    assert_eq!(producer.credits(), 0);
    let error = producer.claim(&small(), Patience::until(SHORT)).map(drop).expect_err("full");
    let ClaimError::Wait(WaitError::Deadline { what: "a free slot", waited, .. }) = &error else { panic!("{error}") };
    assert!(*waited >= SHORT, "{waited:?}");
    assert!(error.to_string().contains("no consumer has attached yet"), "{error}");
    // A draft that is dropped gives its slot and its number back.
    let mut consumer = Consumer::attach(&path).expect("a ring");
    drop(consumer.receive(Patience::NONE).expect("there"));
    drop(producer.claim(&small(), Patience::NONE).expect("free"));
    assert_eq!((producer.next(), producer.credits()), (2, 1));
}

#[test]
fn an_empty_ring_keeps_the_consumer_waiting_until_it_is_told() {
    let (_folder, path) = ring(2, &small());
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let error = consumer.receive(Patience::until(SHORT).unless_silent(Duration::ZERO)).expect_err("nothing");
    // One that never was is waited for, whatever the patience.
    assert!(matches!(error, ReceiveError::Wait(WaitError::Deadline { what: "the next block", .. })), "{error}");
    let producer = Producer::attach(&path).expect("a ring");
    let silent = Patience::until(LONG).unless_silent(SHORT);
    let error = consumer.receive(silent).expect_err("it hangs");
    assert!(matches!(error, ReceiveError::Wait(WaitError::PeerLost { peer, .. }) if peer.holds_role), "{error}");
    drop(producer);
    let error = consumer.receive(Patience::until(LONG).unless_silent(LONG)).expect_err("it is gone");
    let text = error.to_string();
    assert!(matches!(error, ReceiveError::Wait(WaitError::PeerLost { peer, .. }) if !peer.holds_role), "{text}");
    assert!(text.contains(&format!("process {}, epoch 1", std::process::id())) && text.contains("has left"), "{text}");
    // What a producer published before it went is delivered first, and a finished one ends the stream.
    let mut producer = Producer::attach(&path).expect("a ring");
    publish(&mut producer, &small(), 4);
    producer.finish();
    let lease = consumer.receive(Patience::until(LONG).unless_silent(SHORT)).expect("there").expect("a block");
    assert_eq!((leased(&lease), lease.producer_epoch()), (expected(&small(), 4), 2));
    assert!(consumer.receive(Patience::until(LONG)).expect("the end").is_none());
    // Another one goes on.
    let mut producer = Producer::attach(&path).expect("a ring");
    assert_eq!(publish(&mut producer, &small(), 5), 1);
    assert_eq!(consumer.receive(Patience::NONE).expect("there").expect("a block").number(), 1);
}

/// Both sides wait for the other in turns through a ring of two slots.
#[test]
fn threads_hand_blocks_over() {
    let meta = Meta { rows: 9, width: 100, ..Meta::new(Kind::Logits) };
    let (_folder, path) = ring(2, &meta);
    let mut producer = Producer::attach(&path).expect("a ring");
    let writer = std::thread::spawn(move || {
        for number in 0..2000 {
            let mut draft = producer.claim(&meta, Patience::until(LONG)).expect("the consumer goes on");
            common::fill(draft.arrays_mut(), number);
            draft.publish().expect("sound");
        }
        producer.finish();
    });
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let mut number = 0;
    while let Some(lease) = consumer.receive(Patience::until(LONG)).expect("the producer goes on") {
        assert_eq!((lease.number(), leased(&lease)), (number, expected(&meta, number)));
        number += 1;
    }
    writer.join().expect("it ends");
    assert_eq!(number, 2000);
}

#[test]
fn a_consumer_that_comes_back_gets_what_it_had_not_acknowledged() {
    let (_folder, path) = ring(4, &small());
    let mut producer = Producer::attach(&path).expect("a ring");
    for seed in 0..4 {
        publish(&mut producer, &small(), seed);
    }
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let mut leases: Vec<_> =
        (0..4).map(|_| consumer.receive(Patience::NONE).expect("there").expect("a block")).collect();
    // 0 and 2 are acknowledged; of 1 and 3 the consumer dies, as far as the file can tell.
    leases.remove(2);
    leases.remove(0);
    drop(consumer);
    let copy = path.with_file_name("copy");
    std::fs::copy(&path, &copy).expect("copied");
    let mut consumer = Consumer::attach(&copy).expect("a ring");
    let mut producer = Producer::attach(&copy).expect("a ring");
    assert_eq!((producer.next(), producer.credits()), (4, 1));
    assert_eq!(publish(&mut producer, &small(), 4), 4);
    for number in [1, 3, 4] {
        let lease = consumer.receive(Patience::NONE).expect("there").expect("a block");
        assert_eq!((lease.number(), leased(&lease)), (number, expected(&small(), number)));
    }
    assert!(consumer.receive(Patience::NONE).is_err());
}

#[test]
fn a_ring_is_made_once_and_whole() {
    let (folder, path) = ring(2, &small());
    let geometry = Geometry::for_blocks(2, &small()).expect("it can be");
    assert!(matches!(bridge::create(&path, geometry), Err(OpenError::Exists { .. })));
    for (slot_count, slot_bytes) in [(3, 192), (1, 192), (1 << 21, 192), (2, 128), (2, 200), (2, u64::MAX - 63)] {
        let error = bridge::create(&folder.path().join("other"), Geometry { slot_count, slot_bytes });
        assert!(matches!(error, Err(OpenError::Geometry { .. })), "{slot_count} {slot_bytes}");
    }
    let nowhere = folder.path().join("no/such/folder");
    assert!(matches!(bridge::create(&nowhere, geometry), Err(OpenError::Io { .. })));
    assert!(matches!(Producer::attach(&folder.path().join("none")), Err(OpenError::Io { .. })));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(names, ["ring"], "nothing is left of what failed");
}
