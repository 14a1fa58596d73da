//! What a producer writes is what a consumer sees: every kind, element format and flag, any shape, where it lies.

mod common;

use bridge::{Consumer, Dtype, Geometry, Kind, Meta, MetaError, Patience, Producer, Scores};
use common::{expected, leased, meta, publish, ring};
use proptest::prelude::*;

const KINDS: [Kind; 4] = [Kind::Hidden, Kind::Logits, Kind::TopK, Kind::Sampled];
const DTYPES: [Dtype; 2] = [Dtype::Bf16, Dtype::F32];

fn any_meta() -> impl Strategy<Value = Meta> {
    let shape = (0..4_usize, 0..2_usize, 1..70_u32, 1..90_u32, 0..8_u32);
    let words = (any::<[u64; 4]>(), any::<u32>(), any::<f32>());
    (shape, words).prop_map(|((kind, dtype, rows, width, flags), (words, head, temperature))| Meta {
        sequence_uid: words[0],
        first_position: words[1],
        prompt_hash: words[2],
        teacher_hash: words[3],
        head_descriptor: head,
        temperature,
        ..meta(KINDS[kind], DTYPES[dtype], rows, width, flags)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Blocks of any shapes, one behind the other through two slots, so that each lies on what another left.
    #[test]
    fn any_block_arrives(metas in prop::collection::vec(any_meta(), 1..6), seed: u64) {
        let bytes = |meta: &Meta| meta.payload_bytes().expect("it can be");
        let (_folder, path) = ring(2, metas.iter().max_by_key(|meta| bytes(meta)).expect("one"));
        let mut producer = Producer::attach(&path).expect("a ring");
        let mut consumer = Consumer::attach(&path).expect("a ring");
        for (number, meta) in (0..).zip(&metas) {
            prop_assert_eq!(publish(&mut producer, meta, seed ^ number), number);
            let lease = consumer.receive(Patience::NONE).expect("there").expect("not finished");
            prop_assert_eq!((lease.number(), lease.producer_epoch()), (number, 1));
            prop_assert_eq!(leased(&lease), expected(meta, seed ^ number));
        }
        let (count, bytes) = (metas.len() as u64, metas.iter().map(bytes).sum());
        for counters in [producer.counters(), consumer.counters()] {
            prop_assert_eq!((counters.blocks, counters.bytes, counters.bytes_copied, counters.corrupt), (count, bytes, 0, 0));
        }
    }
}

#[test]
fn every_kind_format_and_flag() {
    for kind in KINDS {
        for dtype in DTYPES {
            for flags in 0..8 {
                let meta = meta(kind, dtype, 3, 5, flags);
                let (_folder, path) = ring(2, &meta);
                publish(&mut Producer::attach(&path).expect("a ring"), &meta, 9);
                let lease = Consumer::attach(&path).expect("a ring").receive(Patience::NONE).expect("there");
                let lease = lease.expect("not finished");
                assert_eq!(leased(&lease), expected(&meta, 9), "{meta:?}");
                assert_eq!(matches!(lease.arrays().scores, Scores::Missing), flags & 4 != 0);
                assert_eq!(lease.arrays().lse.len(), if flags & 1 == 0 { 0 } else { 3 });
            }
        }
    }
}

#[test]
fn copies_are_counted_and_right() {
    let meta = Meta { rows: 3, width: 5, ..Meta::new(Kind::Hidden) };
    let (_folder, path) = ring(2, &meta);
    let mut producer = Producer::attach(&path).expect("a ring");
    let rows: Vec<u8> = (0..30).collect();
    let mut draft = producer.claim(&meta, Patience::NONE).expect("free");
    common::fill(draft.arrays_mut(), 1);
    draft.copy_rows(&rows);
    draft.publish().expect("sound");
    let mut consumer = Consumer::attach(&path).expect("a ring");
    let lease = consumer.receive(Patience::NONE).expect("there").expect("not finished");
    assert_eq!(lease.copy_rows(), rows);
    assert_eq!((producer.counters().bytes_copied, consumer.counters().bytes_copied), (30, 30));
}

/// The offsets of the format's page, read from the file without this crate.
#[test]
fn the_file_is_as_documented() {
    let meta = Meta {
        rows: 3,
        width: 5,
        tail: true,
        lse: true,
        sequence_uid: 0x1122_3344_5566_7788,
        first_position: 7,
        prompt_hash: 8,
        teacher_hash: 9,
        temperature: 0.75,
        head_descriptor: 10,
        ..Meta::new(Kind::TopK)
    };
    let (_folder, path) = ring(4, &meta);
    let mut producer = Producer::attach(&path).expect("a ring");
    let nonce = producer.nonce();
    publish(&mut producer, &meta, 5);
    let file = std::fs::read(&path).expect("read");
    let u16_at = |at: usize| u16::from_ne_bytes(file[at..at + 2].try_into().expect("two"));
    let u32_at = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().expect("four"));
    let u64_at = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().expect("eight"));
    assert_eq!(&file[..8], b"LEEWRING");
    assert_eq!([8, 12, 16, 20].map(u32_at), [1, 0x0102_0304, 4096, 4]);
    let slot_bytes = u64_at(24);
    assert_eq!((file.len() as u64, u64_at(32)), (4096 + 4 * slot_bytes, nonce));
    assert_eq!(u32_at(60), crc32c::crc32c(&file[..60]));
    // The producer's record and the two signals.
    assert!(u64_at(64) > 0, "a heartbeat");
    assert_eq!([72, 76, 80].map(u32_at), [1, std::process::id(), 1]);
    assert_eq!([88, 96, 104].map(u64_at), [1, 460, 0]);
    assert_eq!([192, 256].map(u32_at), [1, 0]);
    // The state words: block 0 is ready, the others wait for their numbers.
    let slot = |index: usize| 4096 + index * usize::try_from(slot_bytes).expect("small");
    assert_eq!([0, 1, 2, 3].map(|index| u64_at(slot(index))), [2, 4, 8, 12]);
    let at = slot(0);
    assert_eq!((u64_at(at + 8), u32_at(at + 16), u32_at(at + 20)), (0, 0x4b4c_424c, 1));
    assert_eq!((file[at + 24], file[at + 25], u16_at(at + 26)), (3, 2, 3));
    assert_eq!([28, 32, 36].map(|field| u32_at(at + field)), [3, 5, 0]);
    assert_eq!([40, 48, 56, 64].map(|field| u64_at(at + field)), [0x1122_3344_5566_7788, 7, 8, 9]);
    assert_eq!((f32::from_bits(u32_at(at + 80)).to_bits(), u32_at(at + 84)), (0.75_f32.to_bits(), 10));
    // Five arrays by rows at 0, 64, .. 256, then ids and ln q of 60 bytes each, then the tail of 12 bytes at 448.
    assert_eq!(u64_at(at + 88), 448 + 12);
    assert_eq!(u32_at(at + 96), crc32c::crc32c(&file[at + 128..at + 128 + 460]));
    assert_eq!(u32_at(at + 124), crc32c::crc32c(&file[at + 8..at + 124]));
    assert!(file[at + 100..at + 124].iter().all(|&byte| byte == 0));
    let mut arrays = expected(&meta, 5);
    let arrays = arrays.split_off(arrays.len() - (12 + 12 + 12 + 3 + 12 + 60 + 60 + 12));
    let mut from = 0;
    for (offset, bytes) in [(0, 12), (64, 12), (128, 12), (192, 3), (256, 12), (320, 60), (384, 60), (448, 12)] {
        assert_eq!(file[at + 128 + offset..][..bytes], arrays[from..][..bytes], "array at {offset}");
        from += bytes;
    }
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let plain = Meta { rows: 2, width: 4, ..Meta::new(Kind::Hidden) };
    let (_folder, path) = ring(2, &plain);
    let mut producer = Producer::attach(&path).expect("a ring");
    let mut refused = |meta: Meta| producer.claim(&meta, Patience::NONE).map(drop).expect_err("refused").to_string();
    let has = |message: String, words: &str| assert!(message.contains(words), "{message}");
    has(refused(Meta { rows: 0, ..plain }), "0 rows");
    has(refused(Meta { width: 0, ..plain }), "width 0");
    has(refused(Meta { rows: 3, width: 400, ..plain }), "send fewer rows");
    has(refused(Meta { rows: u32::MAX, width: u32::MAX, dtype: Dtype::F32, ..plain }), "send fewer rows");
    has(refused(Meta { width: 2, ..Meta::new(Kind::Sampled) }), "width 1");
    has(refused(Meta { dtype: Dtype::Bf16, ..Meta::new(Kind::TopK) }), "f32");
    has(refused(Meta { tail: true, ..plain }), "tail");
    // Nothing of that took a slot.
    assert_eq!(producer.credits(), 2);
    let largest = Meta { rows: u32::MAX, width: u32::MAX / 8, dtype: Dtype::F32, ..plain };
    assert!(matches!(largest.payload_bytes(), Ok(bytes) if bytes > 1 << 60));
    let geometry = Geometry::for_blocks(2, &Meta { rows: 0, ..plain });
    assert_eq!(geometry, Err(MetaError::Empty { rows: 0, width: 4 }));
}
