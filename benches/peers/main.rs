//! How fast is leeway beside its peers? llama.cpp for inference, JAX and PyTorch for training, on one machine in turns:
//! `cargo bench --bench peers`. See README.md beside this file.

#![forbid(unsafe_code)]

mod install;
mod models;
mod outcome;
mod plan;
mod record;
mod report;
mod run;
mod smoke;
mod stats;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;

use install::Environment;
use outcome::Entry;
use plan::{Job, Setup};
use record::{Record, Version};

/// The binary that cargo built beside this bench.
const LEEWAY: &str = env!("CARGO_BIN_EXE_leeway");
/// The repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The folder of drivers and requirements, below the repository.
const SCRIPTS: &str = "benches/peers";

/// Runs leeway and its peers in turns and prints one table.
#[derive(Debug, Parser)]
#[command(name = "peers", bin_name = "cargo bench --bench peers --")]
struct Options {
    /// Where peers and models are, and are installed if they are missing [default: target/peers].
    #[arg(long)]
    env: Option<PathBuf>,
    /// One kind of job.
    #[arg(long, value_parser = ["infer", "train"])]
    only: Option<String>,
    /// One model, or several; without it 0.6b for inference, 107m and 3.3m for training.
    #[arg(long, value_parser = ["0.6b", "107m", "3.3m"])]
    model: Vec<String>,
    /// A peer to leave out.
    #[arg(long, value_parser = ["llama.cpp", "jax", "torch"])]
    skip: Vec<String>,
    /// How often everyone has its turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Threads of everyone.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Another leeway than the one that cargo built.
    #[arg(long, default_value = LEEWAY, hide_default_value = true)]
    leeway: PathBuf,
    /// Also print the record as JSON, as the last line.
    #[arg(long)]
    json: bool,
    /// Keep the record in benches/record/, in the machine's folder.
    #[arg(long)]
    record: bool,
    /// Only install peers and make models.
    #[arg(long)]
    install: bool,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if !std::env::args().any(|arg| arg == "--bench") {
        smoke::run();
        return ExitCode::SUCCESS;
    }
    match full(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn full(options: &Options) -> Result<(), String> {
    let root = Path::new(ROOT);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers");
    let environment = Environment::open(options.env.as_deref().unwrap_or(&target))?;
    let version = run::output(Command::new(&options.leeway).arg("--version"))?;
    let scripts = root.join(SCRIPTS);
    let setup = Setup {
        environment: &environment,
        leeway: &options.leeway,
        version: version.trim(),
        scripts: &scripts,
        threads: options.threads.into(),
        skip: &options.skip,
        first: true,
    };
    let jobs = plan::jobs(options.only.as_deref(), &options.model);
    if jobs.is_empty() {
        return Err("no job fits --only and --model; 3.3m is trained, 0.6b is not".to_owned());
    }
    // All of them before the first is timed: nothing is compiled or unpacked between two turns.
    let start = |job: &Job| Ok((*job, plan::contestants(&setup, *job)?.into_iter().map(|c| (c, Vec::new())).collect()));
    let started: Vec<(Job, Vec<Entry>)> = jobs.iter().map(start).collect::<Result<_, String>>()?;
    if options.install {
        return Ok(());
    }
    let mut record: Option<Record> = None;
    for (job, mut entries) in started {
        take_turns(&setup, job, options.rounds, &mut entries)?;
        outcome::same_model(&entries)?;
        let record = record.get_or_insert_with(|| Record::new(root, setup.threads, options.rounds.into()));
        add(record, job, &entries)?;
    }
    let record = record.ok_or("there was no job")?;
    print!("{}", record.text());
    if options.record {
        let words = ["peers".to_owned()].into_iter().chain(options.only.clone()).chain(options.model.clone());
        let folder = record.write(&root.join("benches/record"), &words.collect::<Vec<_>>().join("-"))?;
        eprintln!("peers: recorded in {}", folder.display());
    }
    if options.json {
        println!("{}", serde_json::to_string(&record).map_err(|e| e.to_string())?);
    }
    Ok(())
}

/// A B C A B C: whatever else the machine does meets all of them.
fn take_turns(setup: &Setup, job: Job, rounds: u16, entries: &mut [Entry]) -> Result<(), String> {
    for round in 1..=rounds {
        for (contestant, reports) in &mut *entries {
            eprintln!(
                "peers: {} {}, round {round} of {rounds}: {}",
                job.shape.name,
                job.kind.name(),
                contestant.name()
            );
            reports.push(contestant.run(setup)?);
        }
    }
    Ok(())
}

/// A job's rows, limits and contestants.
fn add(record: &mut Record, job: Job, entries: &[Entry]) -> Result<(), String> {
    let (rows, limits) = outcome::of_job(job, entries)?;
    record.rows.extend(rows);
    record.limits.push(limits);
    for (contestant, reports) in entries {
        let (version, settings) = (reports[0].version.clone(), reports[0].settings.clone());
        let version = Version { name: contestant.name(), version, settings };
        if !record.contestants.iter().any(|known| known.name == version.name) {
            record.contestants.push(version);
        }
    }
    Ok(())
}
