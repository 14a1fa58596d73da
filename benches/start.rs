//! How long from nothing to a first token, and how much memory at most? `leeway generate` on a folder in bf16, one token, as a process of its
//! own, files in the page cache. Every weight is read and packed once, so reading the stored bytes bounds it; resident memory is
//! the packed weights once, what is touched of the KV pool (of one token next to nothing), and little else.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::{Record, Shape, gauge, is_full, is_wanted, rounds, table::Table};
use engine::plan::Weights;
use engine::recipe::{Precision, Recipe};
use opd::bench::{Cost, Measured, Samples};
use opd::clock::Stopwatch;
use ptx::Cpu;
use serde_json::{Map, json};

const FULL: [(&str, Shape); 2] = [("107m", Shape::M107), ("0.6b", Shape::QWEN3_06B)];
const SMOKE: [(&str, Shape); 1] = [("smoke", Shape::SMOKE)];
const RECIPES: [&str; 2] = ["bf16", "fp8"];
/// Of the pool.
const KV_BYTES: usize = 64 << 20;

/// Seconds of one run, and the most that was resident, where the system tells.
fn start(model: &Path, ids: &Path, recipe: &str) -> (f64, Option<usize>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leeway"));
    command.args([
        "generate",
        "--quiet",
        "--max-tokens",
        "1",
        "--kv-memory",
        &KV_BYTES.to_string(),
        "--recipe",
        recipe,
    ]);
    command.arg("--model").arg(model).arg("--ids").arg(ids).stdout(Stdio::null()).stderr(Stdio::null());
    let watch = Stopwatch::start();
    let mut child = command.spawn().expect("the binary runs");
    let mut most = None;
    let status = loop {
        most = most.max(peak_resident(child.id()));
        if let Some(status) = child.try_wait().expect("the system knows its child") {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    assert!(status.success(), "leeway generate: {status}");
    (watch.elapsed_s(), most)
}

/// Peak resident bytes of a process so far.
fn peak_resident(id: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

fn main() {
    let cpu = Arc::new(Cpu::new(0));
    let (gauge, mut record) = (gauge(&cpu), Record::new("start", &cpu));
    let cases: &[_] = if is_full() { &FULL } else { &SMOKE };
    let mut table = Table::new([
        "case",
        "s",
        "low to high",
        "of read",
        "weights, MiB",
        "KV pool, MiB",
        "peak, MiB",
        "over weights",
        "of weights and pool",
    ]);
    for &(name, shape) in cases.iter().filter(|case| is_wanted(case.0)) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (dir, ids) = (root.path().join("model"), root.path().join("ids.jsonl"));
        common::folder(&dir, shape);
        std::fs::write(&ids, "{\"ids\": [1, 2, 3]}\n").expect("written");
        let stored = std::fs::metadata(dir.join("model.safetensors")).map_or(0, |file| file.len());
        for recipe in RECIPES {
            let mut samples = Samples { seconds: Vec::new(), limits: Vec::new() };
            let mut peak = None;
            for round in 0..rounds(5) + usize::from(is_full()) {
                let limits = gauge.measure();
                let (seconds, most) = start(&dir, &ids, recipe);
                peak = peak.max(most);
                if !is_full() || round > 0 {
                    samples.limits.push(limits);
                    samples.seconds.push(seconds);
                }
            }
            let config = shape.config();
            let formats = Recipe::built_in(recipe, Precision::Bf16, &config).expect("built in");
            let weights = Weights::of(&config, &formats).total();
            let measured = Measured { cost: Cost { flops: 0.0, bytes: stored as f64 }, samples };
            let mib = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
            let seconds = measured.seconds();
            table.row([
                format!("{name}-{recipe}"),
                format!("{:.3}", seconds.median),
                format!("{:.3} to {:.3}", seconds.low, seconds.high),
                measured.share_read().map_or(String::new(), |share| format!("{:.1}%", 100.0 * share)),
                mib(weights),
                mib(KV_BYTES),
                peak.map_or("unknown".into(), mib),
                peak.map_or("unknown".into(), |peak| mib(peak.saturating_sub(weights))),
                peak.map_or("unknown".into(), |peak| {
                    format!("{:.1}%", 100.0 * peak as f64 / (weights + KV_BYTES) as f64)
                }),
            ]);
            let mut object = Map::new();
            object.insert("case".into(), format!("{name}-{recipe}").into());
            for (key, value) in [
                ("stored_bytes", json!(stored)),
                ("weights_bytes", json!(weights)),
                ("kv_bytes", json!(KV_BYTES)),
                ("rss_peak_bytes", json!(peak)),
            ] {
                object.insert(key.into(), value);
            }
            measured.put(&mut object);
            record.push("starts", object.into());
        }
    }
    record.say(&table);
    record.finish();
}
