//! `leeway experiment`: the runs of an experiment that are not there yet, as many at a time as there are threads.

pub mod analysis;
pub mod file;
pub mod job;
pub mod models;
pub mod results;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use opd::clock::Stopwatch;
use serde_json::json;

use super::table::Table;
use super::{Failure, Global};
use file::{Experiment, Folder};
use job::{Ended, Hashes, Job};
use results::{Line, Writer};

/// What a process that Ctrl-C stopped returns.
const STOPPED: u8 = 130;

#[derive(Debug, Args)]
pub struct ExperimentArgs {
    /// Experiments by name; without one, what there is and how much of it was run.
    names: Vec<String>,
    /// Every experiment, in order.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// The folder of experiments.
    #[arg(long, value_name = "FOLDER", default_value = "experiments")]
    experiments: PathBuf,
    /// Runs at a time, in place of the file's.
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Make at most so many runs, and stop.
    #[arg(long, value_name = "N")]
    at_most: Option<usize>,
}

pub fn run(args: &ExperimentArgs, global: &Global) -> Result<ExitCode, Failure> {
    let folder = Folder(args.experiments.clone());
    let names = if args.all { in_order(&folder)? } else { args.names.clone() };
    if names.is_empty() {
        return list(&folder, global);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    ctrlc::set_handler(move || told.store(true, Ordering::Relaxed))?;
    let mut left = args.at_most.unwrap_or(usize::MAX);
    let mut made = 0;
    for name in &names {
        let experiment = folder.open(name)?;
        let done = run_one(name, &experiment, &folder, args, left, &stop, global)?;
        left -= done;
        made += done;
        if stop.load(Ordering::Relaxed) || left == 0 {
            break;
        }
    }
    let stopped = stop.load(Ordering::Relaxed);
    if stopped {
        eprintln!("stopped; what is finished is kept, and the same command goes on");
    }
    global.print_json(&json!({"experiments": names, "made": made, "stopped": stopped}))?;
    Ok(if stopped { ExitCode::from(STOPPED) } else { ExitCode::SUCCESS })
}

/// All experiments, those first whose certificate others are checked against.
fn in_order(folder: &Folder) -> Result<Vec<String>, Failure> {
    let opened = |name: String| Ok((folder.open(&name)?, name));
    let mut all = folder.names()?.into_iter().map(opened).collect::<Result<Vec<_>, Failure>>()?;
    all.sort_by_key(|(experiment, _)| !matches!(experiment.analysis, analysis::Analysis::Ladder { .. }));
    Ok(all.into_iter().map(|(_, name)| name).collect())
}

/// What there is.
fn list(folder: &Folder, global: &Global) -> Result<ExitCode, Failure> {
    let mut table = Table::new(["experiment", "runs", "there", "hours", "title"]);
    let (mut all, mut objects) = (0, Vec::new());
    let mut hashes = Hashes::of_models(models::Models::open(&folder.0)?.hashes()?);
    for name in folder.names()? {
        let experiment = folder.open(&name)?;
        let (mut runs, mut made, mut hours) = (0, 0, 0.0);
        if experiment.arms_of.is_none() {
            let own = results::read(&folder.results(&name))?;
            let jobs = job::jobs(&name, &experiment, &folder.0, &mut hashes)?;
            runs = job::count(&experiment);
            let there = |job: &&Job| own.iter().any(|line| job.owns(line) && job.is(line, &experiment.series));
            made = jobs.iter().filter(there).count();
            hours = own.iter().fold(0.0, |sum, line| sum + line.wall_s) / 3600.0;
        }
        all += runs;
        objects.push(json!({"experiment": name, "runs": runs, "made": made, "hours": hours}));
        table.row([name, runs.to_string(), made.to_string(), format!("{hours:.2}"), experiment.title]);
    }
    if !global.json {
        super::print(format_args!("{table}{all} runs in all\n"))?;
    }
    global.print_json(&json!({"experiments": objects, "runs": all}))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes what is missing of an experiment, at most `most` runs; how many were made.
fn run_one(
    name: &str,
    experiment: &Experiment,
    folder: &Folder,
    args: &ExperimentArgs,
    most: usize,
    stop: &AtomicBool,
    global: &Global,
) -> Result<usize, Failure> {
    if experiment.arms_of.is_some() {
        eprintln!("{name}: looks at the runs of {}", experiment.arms_of.as_deref().unwrap_or_default());
        return Ok(0);
    }
    let models = models::Models::open(&folder.0)?;
    let jobs = job::jobs(name, experiment, &folder.0, &mut Hashes::of_models(models.hashes()?))?;
    let mut writer = Writer::open(&folder.results(name))?;
    let there = results::all(&folder.0)?;
    let own = |job: &Job| there.iter().any(|line| job.owns(line) && job.is(line, &experiment.series));
    let mut missing: VecDeque<Job> = VecDeque::new();
    let mut taken = 0;
    for job in jobs.iter().filter(|job| !own(job)) {
        // A run that was made for another arm or experiment is taken over.
        match there.iter().find(|line| job.is(line, &experiment.series)) {
            Some(line) => writer.add(&job.taken_over(line))?,
            None if missing.iter().any(|other| other.key == job.key) => continue,
            None => {
                missing.push_back(job.clone());
                continue;
            }
        }
        taken += 1;
    }
    let lacking = job::count(experiment) - jobs.len();
    let count = jobs.iter().filter(|job| own(job)).count() + taken;
    eprintln!("{name}: {} runs, {count} of them there", jobs.len() + lacking);
    if lacking > 0 {
        eprintln!("{name}: {lacking} checks have to wait: there is no certificate yet; another experiment calibrates");
    }
    missing.truncate(most);
    if missing.is_empty() {
        return Ok(0);
    }
    models.make(&experiment.models, stop)?;
    let threads = global.cpu()?.threads().max(1);
    let at_a_time = match args.jobs.unwrap_or(experiment.jobs) {
        0 => threads,
        n => n as usize,
    }
    .min(missing.len());
    let each = match experiment.threads {
        0 => (threads / at_a_time).max(1),
        n => n as usize,
    };
    let (total, watch) = (missing.len(), Stopwatch::start());
    let queue = Mutex::new(missing);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let failed = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
    let mut made = 0;
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        for _ in 0..at_a_time {
            let (send, next, stopped) = (send.clone(), &next, &stopped);
            scope.spawn(move || {
                while let Some(job) = (!stopped()).then(next).flatten() {
                    let ended = job.run(each, at_a_time, &experiment.series, stopped);
                    if send.send((job, ended)).is_err() {
                        break; // nobody listens after a failure
                    }
                }
            });
        }
        drop(send);
        let mut result = Ok(());
        for (job, ended) in receive {
            let kept = ended.and_then(|ended| match ended {
                Ended::Result(line) => {
                    // Arms that come to the same run share it.
                    let mut same = jobs.iter().filter(|other| other.key == job.key);
                    same.try_for_each(|other| writer.add(&other.taken_over(&line))).map(|()| Some(line))
                }
                Ended::Stopped => Ok(None),
            });
            match kept {
                Ok(Some(line)) => {
                    made += 1;
                    #[allow(clippy::cast_precision_loss)] // counts of runs
                    let left = watch.elapsed_s() / made as f64 * (total - made) as f64;
                    let left = super::train::clock(left);
                    eprintln!("{made}/{total}  {}: {}; left {left}", job.name(), brief(&line));
                }
                Ok(None) => {}
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    result = result.and(Err(error));
                }
            }
        }
        result.map(|()| made)
    })
}

/// A run in a few words.
fn brief(line: &Line) -> String {
    if let Some(error) = &line.error {
        return error.clone();
    }
    let number = |key: &str| line.result[key].as_f64();
    let parts = [
        number("accuracy_after").map(|x| format!("accuracy {:.1}%", 100.0 * x)),
        number("kl_teacher_after").map(|x| format!("KL {x:.4}")),
        number("mismatch_nats").map(|x| format!("D {x:.2e}")),
        line.result["verdict"].as_str().map(str::to_owned),
        Some(format!("{:.1} s", line.wall_s)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
