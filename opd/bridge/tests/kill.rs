//! A producer's and a consumer's process, killed in turns at random moments and started again: no block is lost and none
//! acts twice. A test without a harness, since its processes are itself with other words.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]
#![cfg(unix)]

mod common;

use bridge::{Consumer, Kind, Meta, Patience, Producer};
use common::{Numbers, expected, fill, leased, ring};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const KILLS: u64 = 160;
const LONG: Patience = Patience::until(Duration::from_secs(60));

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("produce") => produce(Path::new(&words[2])),
        Some("consume") => consume(Path::new(&words[2])),
        Some("--list") => println!("kills_lose_and_double_nothing: test"),
        _ => kills_lose_and_double_nothing(),
    }
}

/// Of a shape and with contents that follow from its number, as nobody can know before attaching which is next.
fn meta(number: u64) -> Meta {
    let mut numbers = Numbers(number);
    let (rows, width) = (1 + numbers.below(24) as u32, 1 + numbers.below(300) as u32);
    Meta { rows, width, sequence_uid: number, ..Meta::new(Kind::Hidden) }
}

/// Publishes blocks until a file `stop` lies beside the ring.
fn produce(path: &Path) {
    let mut producer = Producer::attach(path).expect("the last one is dead");
    while !path.with_file_name("stop").exists() {
        let number = producer.next();
        let mut draft = producer.claim(&meta(number), LONG).expect("the consumer comes back");
        fill(draft.arrays_mut(), number);
        draft.publish().expect("sound");
    }
    producer.finish();
}

/// Acts on every block by a line in a file, and records by the same write that it did.
fn consume(path: &Path) {
    let effects = path.with_file_name("effects");
    let mut acted = std::fs::read(&effects).map_or(0, |all| all.len() as u64 / 16);
    let mut effects = File::options().append(true).create(true).open(effects).expect("opened");
    let mut again = File::options().append(true).create(true).open(path.with_file_name("again")).expect("opened");
    let mut consumer = Consumer::attach(path).expect("the last one is dead");
    while let Some(lease) = consumer.receive(LONG).expect("the producer comes back, and no block is corrupt") {
        let number = lease.number();
        assert_eq!(leased(&lease), expected(&meta(number), number));
        if number < acted {
            again.write_all(b".").expect("written");
            continue;
        }
        assert_eq!(number, acted, "a block was lost");
        let crc = u64::from(crc32c::crc32c(&leased(&lease)));
        effects.write_all(bytemuck::cast_slice(&[number, crc])).expect("written");
        acted += 1;
        // Until it is acknowledged it stays as it is.
        assert_eq!(leased(&lease), expected(&meta(number), number));
    }
    println!("done");
}

fn start(role: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.arg(role).arg(path).stdout(Stdio::piped()).spawn().expect("it starts")
}

fn kills_lose_and_double_nothing() {
    let largest = Meta { rows: 24, width: 300, ..Meta::new(Kind::Hidden) };
    let (_folder, path): (_, PathBuf) = ring(4, &largest);
    let mut numbers = Numbers(7);
    let roles = ["produce", "consume"];
    let mut children = roles.map(|role| start(role, &path));
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_micros(500 + numbers.below(12_000)));
        let side = (kill % 2) as usize;
        let early = children[side].try_wait().expect("asked");
        assert!(early.is_none(), "{} ended by itself: {early:?}", roles[side]);
        children[side].kill().expect("killed");
        children[side].wait().expect("dead");
        children[side] = start(roles[side], &path);
    }
    std::fs::write(path.with_file_name("stop"), "").expect("written");
    for (role, child) in roles.iter().zip(&mut children) {
        assert!(child.wait().expect("it ends").success(), "{role} failed");
    }
    let mut said = String::new();
    children[1].stdout.as_mut().expect("piped").read_to_string(&mut said).expect("read");
    assert_eq!(said, "done\n");

    let effects = std::fs::read(path.with_file_name("effects")).expect("written");
    let published = Producer::attach(&path).expect("nobody holds it").next();
    assert_eq!(effects.len() as u64, 16 * published, "as many effects as accepted blocks");
    for (number, effect) in (0..).zip(effects.chunks_exact(16)) {
        let crc = u64::from(crc32c::crc32c(&expected(&meta(number), number)));
        assert_eq!(effect, bytemuck::cast_slice::<u64, u8>(&[number, crc]));
    }
    assert!(published > KILLS, "too few blocks to mean anything: {published}");
    let again = std::fs::metadata(path.with_file_name("again")).map_or(0, |file| file.len());
    let counters = Consumer::attach(&path).expect("nobody holds it").counters();
    assert_eq!((counters.corrupt, counters.bytes_copied), (0, 0));
    println!("{KILLS} kills, {published} blocks, {again} of them delivered again: none lost, none doubled ... ok");
}
