//! What a person sees of a run: the event file agrees with the metrics, and the page with the rollouts.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// CRC32C bit by bit, masked as TensorBoard stores it.
fn masked(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protocol buffer's fields: number, then a number or bytes (fixed ones too).
fn fields(mut data: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(data: &mut &[u8]) -> u64 {
        let (mut x, mut shift) = (0, 0);
        loop {
            let byte = data[0];
            *data = &data[1..];
            x |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return x;
            }
        }
    }
    let mut out = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let length = match key & 7 {
            0 => {
                out.push((key >> 3, varint(&mut data), &[][..]));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut data)).expect("a length"),
            5 => 4,
            wire => panic!("wire type {wire}"),
        };
        let (value, rest) = data.split_at(length);
        out.push((key >> 3, 0, value));
        data = rest;
    }
    out
}

#[derive(Debug, Default)]
struct Event {
    step: u64,
    version: Option<String>,
    start: bool,
    scalars: Vec<(String, f32)>,
}

fn events(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).expect("there");
    let (mut rest, mut out) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let length = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes"));
        let end = 12 + usize::try_from(length).expect("a length");
        assert_eq!((number(8), number(end)), (masked(&rest[..8]), masked(&rest[12..end])));
        let mut event = Event::default();
        for (field, x, value) in fields(&rest[12..end]) {
            match field {
                1 => assert!(f64::from_le_bytes(value.try_into().expect("a double")) > 1.7e9, "a time since 1970"),
                2 => event.step = x,
                3 => event.version = Some(String::from_utf8(value.to_vec()).expect("text")),
                5 => {
                    for (_, _, value) in fields(value) {
                        let inner = fields(value);
                        let tag = String::from_utf8(inner[0].2.to_vec()).expect("text");
                        event.scalars.push((tag, f32::from_le_bytes(inner[1].2.try_into().expect("a float"))));
                    }
                }
                7 => event.start = fields(value)[0].1 == 1,
                other => panic!("field {other}"),
            }
        }
        out.push(event);
        rest = &rest[end + 4..];
    }
    out
}

fn event_files(out: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(out.join("events")).expect("there").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("there");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Every element is closed, in order, but for the two that have no end.
fn balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in html.split('<').skip(1) {
        let tag = part.split('>').next().expect("a tag");
        let name = tag.split([' ', '\n']).next().expect("a name");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "closed out of order"),
            None if name == "meta" || name == "!DOCTYPE" => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
#[allow(clippy::cast_possible_truncation)] // events hold f32
fn a_runs_views_say_what_its_logs_say() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path();
    common::task_model(&dir.join("student"), 1);
    common::task_model(&dir.join("teacher"), 2);
    let out = dir.join("run");
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nupdates = 3\nout = {out:?}\n\
         task = {{ name = \"sort\", len_min = 2, len_max = 3 }}\nrollout = {{ recipe = \"fp8\", n = 2 }}\n\
         train = {{ batch = 6 }}\neval = {{ problems = 2, every = 2 }}\n"
    );
    let file = dir.join("run.toml");
    fs::write(&file, text).expect("written");
    common::run_json(["train".as_ref(), file.as_os_str()]);

    let files = event_files(&out);
    assert_eq!(files.len(), 1, "{files:?}");
    let mut events = events(&files[0]).into_iter();
    assert_eq!(events.next().expect("a first event").version.as_deref(), Some("brain.Event:2"));
    let metrics = lines(&out.join("metrics.jsonl"));
    assert_eq!((metrics.len(), events.len()), (3 + 3, 3 + 3));
    for (line, event) in metrics.iter().zip(events) {
        let (group, report) = if line["eval"].is_object() { ("eval", &line["eval"]) } else { ("update", line) };
        assert_eq!(Some(event.step), report["update"].as_u64());
        let scalar = |tag: &str| {
            event.scalars.iter().find(|(t, _)| t == tag).unwrap_or_else(|| panic!("{tag} of {:?}", event.scalars)).1
        };
        for key in ["kl_teacher", "accuracy", "loss", "entropy", "mismatch_nats", "grad_norm", "lr"] {
            if let Some(value) = report[key].as_f64() {
                assert_eq!(scalar(&format!("{group}/{key}")), value as f32, "{key}");
            }
        }
        if group == "update" {
            assert_eq!(scalar("by_source/numerics"), report["by_source"]["numerics"].as_f64().expect("there") as f32);
            let number = |key: &str| report[key].as_f64().expect("there");
            assert_eq!(scalar("tokens_per_s/rollout"), (number("tokens") / number("rollout_s")) as f32);
            assert_eq!(scalar("update/length"), (number("tokens") / number("rollouts")) as f32);
        }
    }

    let samples = lines(&out.join("samples.jsonl"));
    assert_eq!(samples.len(), 2 * 8, "eight of twelve, at two evaluations");
    let rollouts = lines(&out.join("rollouts.jsonl"));
    let html = fs::read_to_string(out.join("samples.html")).expect("there");
    balanced(&html);
    assert!(!out.join("samples.html.part").exists());
    assert!(!html.contains("http") && !html.contains("src="), "it loads nothing");
    let mut tokens = 0;
    for sample in &samples {
        let of = |r: &&Value| r["sample"] == sample["sample"] && r["versions"] == sample["versions"];
        let rollout = rollouts.iter().find(of).expect("a sample is a rollout");
        assert_eq!((&rollout["ids"], &rollout["logprobs_rollout"]), (&sample["ids"], &sample["logprobs_rollout"]));
        let (ids, kl) = (sample["ids"].as_array().expect("ids"), sample["kl_teacher"].as_array().expect("KL"));
        assert_eq!(ids.len(), kl.len());
        assert!(sample["correct"].is_boolean());
        for (id, kl) in ids.iter().zip(kl) {
            let title = format!("(id {id})&#10;KL {:.4} nats", kl.as_f64().expect("a number"));
            assert!(html.contains(&title), "{title}");
        }
        tokens += ids.len();
    }
    assert_eq!(html.matches("class=\"t ").count(), tokens);
    let hash = samples[0]["model"].as_str().expect("a hash");
    assert!(html.contains(hash) && html.contains("Update 2<") && html.contains("Update 3<"));

    // Going on begins another file, which voids what it does again.
    common::run_json(
        ["train", "--resume", "--set", "updates=4"].map(AsRef::as_ref).into_iter().chain([file.as_os_str()]),
    );
    let files = event_files(&out);
    assert_eq!(files.len(), 2, "{files:?}");
    let again = self::events(&files[1]);
    assert!(again[1].start && again[1].step == 4, "{:?}", again[1]);
    assert!(again[2..].iter().all(|event| event.step == 4));
}

#[test]
fn a_folder_that_takes_no_views_still_takes_the_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path();
    common::task_model(&dir.join("student"), 1);
    common::task_model(&dir.join("teacher"), 2);
    let out = dir.join("run");
    // Where the views would go there is something else already.
    fs::create_dir_all(out.join("samples.html.part")).expect("made");
    fs::write(out.join("events"), "no folder").expect("written");
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nupdates = 2\nout = {out:?}\ntask = \"sort\"\n\
         rollout = {{ n = 1 }}\ntrain = {{ batch = 2 }}\neval = {{ problems = 2, every = 1 }}\n"
    )
    .replace("task = \"sort\"", "task = { name = \"sort\", len_min = 2, len_max = 3 }");
    let file = dir.join("run.toml");
    fs::write(&file, text).expect("written");
    let output = common::run(["train".as_ref(), file.as_os_str()]);
    let said = common::stderr(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!((said.matches("no more events").count(), said.matches("no more samples").count()), (1, 1), "{said}");
    assert_eq!(lines(&out.join("metrics.jsonl")).len(), 2 + 3);
}
