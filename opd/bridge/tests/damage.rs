//! Whatever happens to the file's bytes: a typed error, or a block counted as corrupt. Never a panic, and never a block
//! that is not the one that was written.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]

mod common;

use bridge::{BlockError, Consumer, Dtype, Kind, Meta, OpenError, Patience, Producer, ReceiveError};
use common::{Numbers, expected, leased, meta, publish, ring};
use std::path::{Path, PathBuf};

const SLOTS: u64 = 4;

/// A ring of four slots with a block of each kind, and its bytes.
struct Ring {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    metas: Vec<Meta>,
    slot_bytes: usize,
}

impl Ring {
    fn new() -> Ring {
        let metas = vec![
            meta(Kind::Hidden, Dtype::Bf16, 5, 37, 1),
            meta(Kind::TopK, Dtype::F32, 7, 6, 3),
            meta(Kind::Sampled, Dtype::F32, 9, 1, 0),
            meta(Kind::Logits, Dtype::F32, 3, 33, 1),
        ];
        let bytes_of = |meta: &Meta| meta.payload_bytes().expect("it can be");
        let (folder, path) = ring(4, metas.iter().max_by_key(|meta| bytes_of(meta)).expect("four"));
        let mut producer = Producer::attach(&path).expect("a ring");
        for (seed, meta) in (0..).zip(&metas) {
            publish(&mut producer, meta, seed);
        }
        drop(producer);
        let bytes = std::fs::read(&path).expect("read");
        let slot_bytes = (bytes.len() - 4096) / 4;
        Ring { _folder: folder, path, bytes, metas, slot_bytes }
    }

    fn slot(&self, number: usize) -> usize {
        4096 + number * self.slot_bytes
    }

    fn payload_bytes(&self, number: usize) -> usize {
        usize::try_from(self.metas[number].payload_bytes().expect("it can be")).expect("small")
    }

    /// What a consumer gets of the file after a change of its bytes: numbers delivered whole, and errors of blocks.
    fn read(&self, change: impl FnOnce(&mut Vec<u8>)) -> Result<(Vec<u64>, Vec<BlockError>), String> {
        self.read_but(None, change)
    }

    /// The same, but for one block, which may come as any block that its slot can hold.
    fn read_but(
        &self,
        any: Option<usize>,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(Vec<u64>, Vec<BlockError>), String> {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        std::fs::write(&self.path, bytes).expect("written");
        let mut consumer = Consumer::attach(&self.path).map_err(|error| error.to_string())?;
        let (mut delivered, mut corrupt) = (Vec::new(), Vec::new());
        for _ in 0..2 * SLOTS {
            match consumer.receive(Patience::NONE) {
                Ok(Some(lease)) => {
                    let number = lease.number();
                    let meta = self.metas.get(number as usize).expect("a block that was written");
                    let found = leased(&lease);
                    if any == Some(number as usize) {
                        assert!(found.len() < self.slot_bytes + 1000, "the meta as text, and no more than the slot");
                    } else {
                        assert!(found == expected(meta, number), "block {number}");
                    }
                    delivered.push(number);
                }
                Ok(None) => break,
                Err(ReceiveError::Corrupt { why, .. }) => corrupt.push(why),
                Err(error @ ReceiveError::Wait(_)) => {
                    let _ = error.to_string();
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(consumer.counters().corrupt, corrupt.len() as u64);
        Ok((delivered, corrupt))
    }
}

fn without(number: usize) -> Vec<u64> {
    (0..SLOTS).filter(|&other| other != number as u64).collect()
}

#[test]
fn an_untouched_ring_is_whole() {
    assert_eq!(Ring::new().read(|_| ()), Ok((vec![0, 1, 2, 3], vec![])));
}

#[test]
fn every_byte_of_the_file_header_counts() {
    let ring = Ring::new();
    for at in 0..64 {
        for flip in [1, 0x80, 0xff] {
            let read = ring.read(|bytes| bytes[at] ^= flip);
            assert!(read.is_err(), "byte {at} ^ {flip:#x}: {read:?}");
        }
    }
}

#[test]
fn nothing_depends_on_records_and_signals() {
    let (ring, mut numbers) = (Ring::new(), Numbers(1));
    for _ in 0..200 {
        let read = ring.read(|bytes| {
            for _ in 0..1 + numbers.below(20) {
                let at = 64 + numbers.below(320) as usize;
                bytes[at] = numbers.next() as u8;
            }
            // The consumer's counter of corrupt blocks is asserted by `read`.
            bytes[176..184].fill(0);
        });
        assert_eq!(read, Ok((vec![0, 1, 2, 3], vec![])));
    }
}

#[test]
fn every_byte_of_a_block_header_counts() {
    let ring = Ring::new();
    for number in 0..4 {
        for at in 8..128 {
            for flip in [1, 0x80, 0xff] {
                let read = ring.read(|bytes| bytes[ring.slot(number) + at] ^= flip);
                let (delivered, corrupt) = read.expect("the ring is sound");
                assert_eq!(delivered, without(number), "byte {at}");
                assert!(matches!(corrupt[..], [BlockError::HeaderChecksum { .. }]), "byte {at}: {corrupt:?}");
            }
        }
    }
}

#[test]
fn every_bit_of_a_payload_counts() {
    let (ring, mut numbers) = (Ring::new(), Numbers(2));
    for _ in 0..1000 {
        let number = numbers.below(SLOTS) as usize;
        let at = ring.slot(number) + 128 + numbers.below(ring.payload_bytes(number) as u64) as usize;
        let bit = 1 << numbers.below(8);
        let (delivered, corrupt) = ring.read(|bytes| bytes[at] ^= bit).expect("the ring is sound");
        assert_eq!(delivered, without(number));
        assert!(matches!(corrupt[..], [BlockError::PayloadChecksum { .. }]), "{corrupt:?}");
    }
}

/// A block whose end did not reach the memory, or is what an earlier block left there.
#[test]
fn torn_writes_are_found() {
    let (ring, mut numbers) = (Ring::new(), Numbers(3));
    for _ in 0..500 {
        let number = numbers.below(SLOTS) as usize;
        let (start, length) = (ring.slot(number) + 8, 120 + ring.payload_bytes(number));
        let cut = numbers.below(length as u64) as usize;
        let other = ring.slot((number + 1) % 4) + 8;
        let mut torn = |bytes: &mut Vec<u8>| {
            if numbers.below(2) == 0 {
                bytes[start + cut..start + length].fill(0);
            } else {
                bytes.copy_within(other + cut..other + length.min(ring.slot_bytes - 8), start + cut);
            }
        };
        let mut same = false;
        let read = ring.read(|bytes| {
            torn(bytes);
            same = bytes == &ring.bytes;
        });
        let (delivered, corrupt) = read.expect("the ring is sound");
        if !same {
            assert_eq!((delivered, corrupt.len()), (without(number), 1));
        }
    }
}

/// State words have no checksum: what they say wrongly may lose a block, and never delivers another one.
#[test]
fn state_words_never_deliver_what_was_not_written() {
    let (ring, mut numbers) = (Ring::new(), Numbers(4));
    let mut refused = 0;
    for round in 0..2000_usize {
        let at = ring.slot(round % 4);
        let read = ring.read(|bytes| {
            if round < 256 {
                bytes[at + round / 32] ^= 1 << (round / 4 % 8);
            } else {
                let word = numbers.next() >> numbers.below(64);
                bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            }
        });
        refused += usize::from(read.is_err());
        // The producer's side of the same file.
        if let Ok(mut producer) = Producer::attach(&ring.path) {
            let _ = producer.claim(&ring.metas[2], Patience::NONE).map(drop);
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Headers whose checksum is right and whose fields are not: from a peer that is wrong rather than torn. What makes sense
/// is taken for a block, and lies within its slot.
#[test]
fn a_header_that_lies_is_refused() {
    let (ring, mut numbers) = (Ring::new(), Numbers(5));
    let mut reasons = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..3000 {
        let number = numbers.below(SLOTS) as usize;
        let start = ring.slot(number);
        // Fields that say how the rest is to be read; number and epoch too. Not uid, hashes, versions, temperature.
        let fields = [(8, 8), (16, 4), (24, 1), (25, 1), (26, 2), (28, 4), (32, 4), (36, 4), (88, 8), (96, 4)];
        let (at, length) = fields[numbers.below(10) as usize];
        let value = numbers.next() >> numbers.below(64);
        let read = ring.read_but(Some(number), |bytes| {
            bytes[start + at..start + at + length].copy_from_slice(&value.to_le_bytes()[..length]);
            let crc = crc32c::crc32c(&bytes[start + 8..start + 124]);
            bytes[start + 124..start + 128].copy_from_slice(&crc.to_ne_bytes());
        });
        let (delivered, corrupt) = read.expect("the ring is sound");
        assert_eq!(delivered.len() + corrupt.len(), 4, "field {at}: {value:#x}");
        let reason = corrupt.first().map_or("none".to_owned(), |why| format!("{why:?}"));
        *reasons.entry(reason.split([' ', '(']).next().expect("a name").to_owned()).or_default() += 1;
    }
    for reason in ["Number", "Field", "PayloadBytes", "PayloadChecksum", "Meta", "none"] {
        assert!(reasons.contains_key(reason), "{reason} was never the reason: {reasons:?}");
    }
}

/// A mask of another value than 0 and 1, under right checksums.
#[test]
fn a_mask_is_zero_or_one() {
    let ring = Ring::new();
    let (start, length) = (ring.slot(2), ring.payload_bytes(2));
    let read = ring.read(|bytes| {
        bytes[start + 128 + 128 + 4] = 2;
        let crc = crc32c::crc32c(&bytes[start + 128..start + 128 + length]);
        bytes[start + 96..start + 100].copy_from_slice(&crc.to_ne_bytes());
        let crc = crc32c::crc32c(&bytes[start + 8..start + 124]);
        bytes[start + 124..start + 128].copy_from_slice(&crc.to_ne_bytes());
    });
    assert_eq!(read, Ok((without(2), vec![BlockError::Mask { row: 4, found: 2 }])));
}

#[test]
fn a_file_of_another_kind_is_named() {
    let ring = Ring::new();
    let open = |bytes: &[u8]| -> OpenError {
        std::fs::write(&ring.path, bytes).expect("written");
        Producer::attach(&ring.path).map(drop).expect_err("refused")
    };
    let change = |at: usize, with: &[u8]| {
        let mut bytes = ring.bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    assert!(matches!(open(b""), OpenError::Length { found: 0, .. }));
    assert!(matches!(open(&ring.bytes[..ring.bytes.len() - 1]), OpenError::Length { .. }));
    assert!(matches!(open(&[&ring.bytes[..], &[0]].concat()), OpenError::Length { .. }));
    assert!(matches!(open(&change(0, b"X")), OpenError::Magic { .. }));
    assert!(matches!(open(&change(8, &2_u32.to_ne_bytes())), OpenError::Version { found: 2, expected: 1, .. }));
    assert!(matches!(open(&change(12, &0x0403_0201_u32.to_ne_bytes())), OpenError::ByteOrder { .. }));
    assert!(matches!(open(&change(20, &8_u32.to_ne_bytes())), OpenError::Checksum { .. }));
    assert!(matches!(Producer::attach(Path::new("/dev/null")), Err(OpenError::Length { .. })));
}
