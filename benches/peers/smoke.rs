//! What `cargo test` runs: the parsers on what every driver once printed, the statistics, the table, and leeway itself on a
//! tiny model. Nothing is installed.

use std::path::Path;

use crate::install::{self, Environment};
use crate::models::TINY;
use crate::outcome::{self, Entry};
use crate::plan::{self, Contestant, JOBS, Job, Kind, Setup};
use crate::record::Record;
use crate::report::{self, Amount, Report};
use crate::stats::Spread;
use crate::table;
use crate::{LEEWAY, ROOT, SCRIPTS};

const OURS: &str = include_str!("samples/leeway.json");
const LLAMA: &str = include_str!("samples/llama.json");
const JAX: &str = include_str!("samples/jax.json");
const TORCH: &str = include_str!("samples/torch.json");

/// Panics at the first thing that is wrong.
pub fn run() {
    spreads();
    choices();
    versions();
    peers_speak();
    ours_speaks();
    shares_and_ratios();
    other_models_are_noticed();
    whole_record();
    leeway_runs();
    println!("peers: ok");
}

fn spreads() {
    assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { low: 1.0, median: 2.0, high: 3.0 });
    assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Spread { low: 1.0, median: 2.5, high: 4.0 });
    assert_eq!(Spread::of(&[7.0]), Spread { low: 7.0, median: 7.0, high: 7.0 });
    // A machine that halves its speed between two rounds changes no ratio.
    assert_eq!(Spread::of_ratios(&[2.0, 4.0], &[1.0, 2.0]), Spread { low: 2.0, median: 2.0, high: 2.0 });
}

fn choices() {
    let named = |only, models: &[&str]| {
        let models: Vec<String> = models.iter().map(|&name| name.to_owned()).collect();
        let jobs = plan::jobs(only, &models).into_iter();
        jobs.map(|job| format!("{} {}", job.shape.name, job.kind.name())).collect::<Vec<_>>()
    };
    assert_eq!(named(None, &[]), ["0.6b infer", "107m train", "3.3m train"]);
    assert_eq!(named(Some("infer"), &[]), ["0.6b infer"]);
    assert_eq!(named(Some("train"), &[]), ["107m train", "3.3m train"]);
    assert_eq!(named(None, &["107m"]), ["107m infer", "107m train"]);
    assert_eq!(named(Some("infer"), &["3.3m"]), Vec::<String>::new());
}

fn versions() {
    assert_eq!(install::pin("# jax==1\njax==0.10.2\njaxlib==0.10.1\n", "jaxlib"), Ok("0.10.1"));
    assert!(install::pin("jax\n", "jax").is_err());
    for requirements in ["llama.txt", "sdist.txt", "jax.txt", "torch.txt"] {
        let path = Path::new(ROOT).join(SCRIPTS).join("requirements").join(requirements);
        let text = std::fs::read_to_string(&path).expect("a list of requirements");
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.for_each(|line| assert!(line.contains("=="), "{requirements}: {line} is not pinned"));
    }
}

fn peers_speak() {
    let llama = report::of_peer(LLAMA).expect("what the driver printed");
    let kinds: Vec<(&str, u32)> = llama.figures.iter().map(|f| (f.what.as_str(), f.tokens)).collect();
    assert_eq!(kinds, [("decode", 1), ("decode", 8), ("decode", 32), ("prefill", 512)]);
    assert!(llama.version.contains("ggml") && llama.settings.contains("flash attention"));
    for sample in [JAX, TORCH] {
        let report = report::of_peer(&format!("a warning\n{sample}\n")).expect("what the driver printed");
        assert_eq!((report.figures.len(), report.figures[0].tokens), (1, 1024));
        assert_eq!(report.check, Some(6.276_689));
    }
    assert_eq!(report::of_peer(TORCH).expect("as above").figures[0].seconds, 0.496);
    assert!(report::of_peer("").expect_err("nothing").contains("nothing"));
    assert!(report::of_peer("killed").expect_err("no JSON").contains("killed"));
    let empty =
        r#"{"peer":"jax","version":"","settings":"","check":1,"figures":[{"what":"train","tokens":1,"seconds":[]}]}"#;
    assert!(report::of_peer(empty).expect_err("no seconds").contains("without a repetition"));
}

fn ours_speaks() {
    let ours = report::of_ours(OURS, "leeway 0.1.0").expect("what leeway printed");
    let kinds: Vec<(&str, u32)> = ours.figures.iter().map(|f| (f.what.as_str(), f.tokens)).collect();
    assert_eq!(kinds, [("decode", 1), ("decode", 8), ("decode", 32), ("prefill", 512)]);
    assert!(ours.figures.iter().all(|f| f.seconds > 0.0 && f.amount.is_some_and(|amount| amount.flops > 0.0)));
    let limits = ours.limits[0];
    assert!(limits.read_gb_s > 0.0 && limits.fma_gflop_s > limits.fma_one_gflop_s);
    assert!(report::of_ours(LLAMA, "").is_err());
}

/// A contestant that ran once, and took `seconds` for each thing of the sample.
fn entry(who: &'static str, weights: &'static str, sample: &str, seconds: &[f64]) -> Entry {
    let report = if who == "leeway" { report::of_ours(sample, "leeway") } else { report::of_peer(sample) };
    let report = report.expect("a sample");
    let timed = |&seconds: &f64| {
        let figures = report.figures.iter().cloned().map(|mut figure| {
            let amount = Amount { bytes: 1e9, flops: 10e9 * f64::from(figure.tokens) };
            (figure.seconds, figure.amount) = (seconds, figure.amount.map(|_| amount));
            figure
        });
        let mut report = Report { figures: figures.collect(), ..report.clone() };
        for limits in &mut report.limits {
            (limits.read_gb_s, limits.fma_gflop_s) = (20.0, 200.0);
        }
        report
    };
    let weight_bytes = (who == "llama.cpp").then_some(2e9);
    let contestant = Contestant { who, weights, weight_bytes, program: who.into(), turns: Vec::new() };
    (contestant, seconds.iter().map(timed).collect())
}

fn shares_and_ratios() {
    let entries = [
        entry("leeway", "bf16", OURS, &[0.1, 0.2, 0.1]),
        entry("llama.cpp", "q8_0", LLAMA, &[0.2, 0.4, 0.3]),
        entry("leeway", "e4m3", OURS, &[0.1, 0.1, 0.1]),
    ];
    let (rows, limits) = outcome::of_job(JOBS[0], &entries).expect("all measured the same");
    assert_eq!((rows.len(), limits.fma_gflop_s.median), (12, 200.0));
    let [ours, peer, other] = [&rows[0], &rows[1], &rows[2]];
    assert_eq!((ours.what.as_str(), ours.batch, ours.length), ("decode", 1, 128));
    // One gigabyte at 20 GB/s and 10 GFLOP at 200 GFLOP/s take 0.05 s each; the peer reads twice as much and its cache.
    assert!((ours.share.median - 0.5).abs() < 1e-9 && ours.bound == "fma", "{ours:?}");
    assert!((peer.share.median - 0.1007 / 0.3).abs() < 1e-3 && peer.bound == "read", "{peer:?}");
    assert!(ours.ratios.is_empty() && other.ratios.is_empty());
    let ratios: Vec<(&str, Spread)> = peer.ratios.iter().map(|r| (r.ours.as_str(), r.over)).collect();
    assert_eq!(ratios[0].0, "leeway bf16");
    assert_eq!((ratios[0].1.low, ratios[0].1.median), (2.0, 2.0));
    assert_eq!((ratios[1].0, ratios[1].1.high), ("leeway e4m3", 4.0));
    let text = table::text(&rows);
    assert!(text.contains("0.6b, decode, batch 8, after 128 tokens\n"), "{text}");
    assert!(text.contains("0.6b, prefill, 512 tokens\n"), "{text}");
    let line = text.lines().find(|line| line.contains("llama.cpp q8_0")).expect("its row");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..7], ["llama.cpp", "q8_0", "3.33", "2.50", "to", "5.00", "34%"], "{text}");
    assert!(line.ends_with("2.00 (2.00 to 3.00)  3.00 (2.00 to 4.00)"), "{text}");
    let missing = [entry("leeway", "bf16", OURS, &[0.1]), entry("jax", "f32", JAX, &[0.1])];
    assert!(outcome::of_job(JOBS[0], &missing).expect_err("nothing in common").contains("jax f32: no decode"));
}

fn other_models_are_noticed() {
    let mut entries = [entry("jax", "f32", JAX, &[0.1]), entry("torch", "f32", TORCH, &[0.1])];
    assert_eq!(outcome::same_model(&entries), Ok(()));
    entries[1].1[0].check = Some(6.4);
    assert!(outcome::same_model(&entries).expect_err("another loss").contains("torch f32 6.4"));
    entries[1].1[0].check = Some(f64::NAN);
    assert!(outcome::same_model(&entries).is_err());
}

fn whole_record() {
    let mut record = Record::new(Path::new(ROOT), 2, 1);
    let entries = [entry("leeway", "bf16", OURS, &[0.1]), entry("llama.cpp", "f16", LLAMA, &[0.2])];
    crate::add(&mut record, JOBS[0], &entries).expect("all measured the same");
    let folder = tempfile::tempdir().expect("a folder");
    let written = record.write(folder.path(), "peers").expect("room for it");
    let json = std::fs::read_to_string(written.join("peers.json")).expect("it was written");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["rows"][1]["ratios"][0]["over"]["median"], 2.0);
    assert_eq!(json["contestants"][1]["name"], "llama.cpp f16");
    let text = std::fs::read_to_string(written.join("peers.txt")).expect("it was written");
    assert!(text.contains("GGML_NATIVE=ON") && text.contains("limits beside 0.6b infer"), "{text}");
}

/// The real binary on a tiny model, asked as in a whole run.
fn leeway_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::open(folder.path()).expect("a folder");
    let scripts = Path::new(ROOT).join(SCRIPTS);
    let setup = Setup {
        environment: &environment,
        leeway: Path::new(LEEWAY),
        version: "leeway",
        scripts: &scripts,
        threads: 2,
        skip: &["llama.cpp", "jax", "torch"].map(str::to_owned),
        first: false,
    };
    let infer = Kind::Infer { batches: &[1, 3], context: 8, steps: 1, prompt: 16, repeats: 1 };
    for (kind, count, cells) in [(infer, 2, 3), (Kind::Train { rows: 2, len: 8, updates: 1 }, 1, 1)] {
        let job = Job { shape: TINY, kind };
        let contestants = plan::contestants(&setup, job).expect("a tiny model");
        assert_eq!(contestants.len(), count);
        let mut entries: Vec<Entry> = contestants.into_iter().map(|c| (c, Vec::new())).collect();
        crate::take_turns(&setup, job, 1, &mut entries).expect("leeway runs");
        let (rows, limits) = outcome::of_job(job, &entries).expect("it measured what it was asked");
        assert_eq!(rows.len(), count * cells);
        assert!(rows.iter().all(|row| row.seconds.median > 0.0 && row.share.median > 0.0), "{rows:?}");
        assert!(limits.read_gb_s.low > 0.0 && limits.fma_gflop_s.low > 0.0);
    }
}
