//! What a bench prints, and the record of it.

use std::fmt::{Display, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use opd::bench::{cpu_name, machine_name};
use ptx::Cpu;
use serde_json::{Value, json};

/// Text and numbers of one run. Small runs print nothing.
pub struct Record {
    bench: &'static str,
    machine: String,
    text: String,
    object: Value,
}

impl Record {
    /// Of a bench on a device, with the commit, the options and the machine that it was run with.
    pub fn new(bench: &'static str, cpu: &Arc<Cpu>) -> Record {
        if wanted() && super::filters().next().is_some() {
            eprintln!("error: --record takes all cases of a bench: leave out those that are named");
            std::process::exit(2);
        }
        let flags: Vec<String> = std::env::args().skip(1).collect();
        let (commit, changed) = (git(&["rev-parse", "--short", "HEAD"]), git(&["status", "--porcelain"]));
        let machine = machine_name(cpu);
        let object = json!({
            "bench": bench, "commit": commit, "changed": changed.map(|list| !list.is_empty()), "flags": flags,
            "asserts": cfg!(debug_assertions), "machine": machine, "cpu": cpu_name(), "isa": cpu.isa().name(),
            "threads": cpu.threads(),
        });
        Record { bench, machine, text: String::new(), object }
    }

    /// Prints some lines and keeps them.
    pub fn say(&mut self, text: impl Display) {
        let text = text.to_string();
        if super::is_full() {
            println!("{}", text.trim_end());
        }
        writeln!(self.text, "{}", text.trim_end()).expect("a string takes everything");
    }

    /// A value of the object.
    pub fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.object[key] = value.into();
    }

    /// One more value of a list of the object.
    pub fn push(&mut self, key: &str, value: Value) {
        match &mut self.object[key] {
            Value::Array(list) => list.push(value),
            none => *none = json!([value]),
        }
    }

    /// Prints the object, and writes text and object if that was asked for.
    pub fn finish(self) {
        if !super::is_full() {
            return;
        }
        println!("{}", self.object);
        if !wanted() {
            return;
        }
        let of = |key: &str| self.object[key].to_string();
        let head = format!(
            "commit {}, changed {}, {}, flags {}\n",
            of("commit"),
            of("changed"),
            format_args!("{} on {} threads", of("cpu"), of("threads")),
            of("flags")
        );
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/record").join(&self.machine);
        std::fs::create_dir_all(&folder).expect("the folder of records");
        for (end, content) in [("txt", head + &self.text), ("json", format!("{}\n", self.object))] {
            let path = folder.join(format!("{}.{end}", self.bench));
            std::fs::write(&path, content).expect("a record");
            eprintln!("{}", path.display());
        }
    }
}

/// Whether the command line asks for a record.
pub fn wanted() -> bool {
    std::env::args().any(|arg| arg == "--record")
}

/// What git says, if it is there.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
