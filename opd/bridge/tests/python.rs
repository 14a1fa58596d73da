//! `examples/read_ring.py` reads what this crate writes: the format's page is enough to write a consumer.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]

mod common;

use bridge::{ArraysMut, Consumer, Kind, Meta, Patience, Producer, ScoresMut};
use common::{Numbers, meta, ring};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const BLOCKS: u64 = 24;
const CORRUPT: u64 = 1;

/// Whether Python and numpy are there. Where `REQUIRE` names numpy, as in .ci/run, it has to be.
fn has_numpy() -> bool {
    let found = Command::new("python3").args(["-c", "import numpy"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    #[allow(clippy::disallowed_methods, reason = "whether a test may skip, which is no setting of the product")]
    let required = std::env::var("REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "numpy"));
    assert!(found || !required, "REQUIRE names numpy, and python3 cannot import it");
    found
}

fn meta_of(number: u64) -> Meta {
    let mut numbers = Numbers(number);
    let kind = [Kind::Hidden, Kind::Logits, Kind::TopK, Kind::Sampled][(number % 4) as usize];
    let dtype = if number % 8 < 4 { bridge::Dtype::Bf16 } else { bridge::Dtype::F32 };
    let (rows, width) = (1 + numbers.below(6) as u32, 1 + numbers.below(50) as u32);
    Meta {
        sequence_uid: numbers.below(1 << 50),
        first_position: number,
        teacher_hash: numbers.below(1 << 60),
        temperature: 0.75,
        ..meta(kind, dtype, rows, width, (number / 4 % 8) as u32)
    }
}

/// Fills a block with numbers that JSON can carry, and says what the reader should say.
fn fill(number: u64, meta: &Meta, arrays: ArraysMut<'_>) -> Value {
    let mut numbers = Numbers(number ^ 0xabc);
    // Eighths up to 16: values of bf16 too.
    let mut value = || numbers.below(256) as f32 / 8.0 - 16.0;
    let kind = ["hidden", "logits", "top-k", "sampled"][meta.kind as usize - 1];
    arrays.tokens.fill_with(|| value().abs() as u32);
    arrays.logprobs.fill_with(&mut value);
    arrays.lse.fill_with(&mut value);
    arrays.mask.fill_with(|| u8::from(value() > 0.0));
    arrays.versions.fill_with(|| value().abs() as u32);
    let mut said = json!({
        "number": number, "kind": kind, "epoch": 1, "uid": meta.sequence_uid, "position": meta.first_position,
        "teacher": meta.teacher_hash, "temperature": meta.temperature, "missing": meta.missing,
        "tokens": arrays.tokens, "logprobs": arrays.logprobs, "lse": arrays.lse, "mask": arrays.mask,
        "versions": arrays.versions,
    });
    let width = meta.width as usize;
    match arrays.scores {
        ScoresMut::Missing => return said,
        ScoresMut::Dense(mut rows) => {
            let mut all = Vec::new();
            for row in 0..meta.rows as usize {
                let values: Vec<f32> = (0..width).map(|_| value()).collect();
                for (bytes, value) in rows
                    .row_mut(row)
                    .chunks_exact_mut(if meta.dtype == bridge::Dtype::Bf16 { 2 } else { 4 })
                    .zip(&values)
                {
                    let bits = value.to_bits();
                    if bytes.len() == 2 {
                        bytes.copy_from_slice(&u16::try_from(bits >> 16).expect("16 bits").to_ne_bytes());
                    } else {
                        bytes.copy_from_slice(&bits.to_ne_bytes());
                    }
                }
                all.push(values);
            }
            said["scores"] = json!(all);
        }
        ScoresMut::TopK { ids, ln_q, tail } => {
            ids.fill_with(|| value().abs() as u32);
            ln_q.fill_with(&mut value);
            tail.fill_with(&mut value);
            said["ids"] = json!(ids.chunks(width).collect::<Vec<_>>());
            said["scores"] = json!(ln_q.chunks(width).collect::<Vec<_>>());
            said["tail"] = json!(tail);
        }
        ScoresMut::Sampled(logprobs) => {
            logprobs.fill_with(&mut value);
            said["scores"] = json!(logprobs.chunks(1).collect::<Vec<_>>());
            said["tail"] = json!([]);
        }
    }
    said
}

#[test]
fn python_reads_the_ring() {
    if !has_numpy() {
        println!("skipped: python3 with numpy is not here");
        return;
    }
    let largest = Meta { rows: 6, width: 50, dtype: bridge::Dtype::F32, ..Meta::new(Kind::Hidden) };
    let (_folder, path) = ring(4, &largest);
    let mut producer = Producer::attach(&path).expect("a ring");
    let mut expected = Vec::new();
    let mut publish = |number: u64| {
        let meta = meta_of(number);
        let mut draft = producer.claim(&meta, Patience::until(Duration::from_secs(60))).expect("the reader goes on");
        expected.push(fill(number, &meta, draft.arrays_mut()));
        draft.publish().expect("sound");
    };
    // What lies there before the reader begins: a block that a dead consumer had taken, one that is damaged, one that is ready.
    (0..3).for_each(&mut publish);
    let bytes = std::fs::read(&path).expect("read");
    let slot_bytes = (bytes.len() as u64 - 4096) / 4;
    let file = std::fs::File::options().write(true).open(&path).expect("opened");
    file.write_all_at(&[3], 4096).expect("written");
    let damaged = 4096 + CORRUPT * slot_bytes + 129;
    file.write_all_at(&[bytes[usize::try_from(damaged).expect("small")] ^ 1], damaged).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/read_ring.py");
    let mut child =
        Command::new("python3").arg(script).arg(&path).stdout(Stdio::piped()).spawn().expect("python3 starts");
    (3..BLOCKS).for_each(&mut publish);
    producer.finish();
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.expect("read")).expect("a line of JSON")).collect();
    assert!(child.wait().expect("it ends").success());
    expected[CORRUPT as usize] = json!({"number": CORRUPT, "corrupt": true});
    assert_eq!(said.len(), expected.len());
    for (said, expected) in said.iter().zip(&expected) {
        assert_eq!(said, expected);
    }
    // It left the ring as a consumer does.
    let consumer = Consumer::attach(&path).expect("nobody holds it");
    assert_eq!((consumer.next(), consumer.epoch(), consumer.counters().corrupt), (BLOCKS, 2, 1));
}
