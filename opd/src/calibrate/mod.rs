//! `leeway calibrate`: how much mismatch a student and its teacher can bear. Real trainings at rungs of injected mismatch,
//! paired by seed with trainings without; from their final quality a budget with a lower limit, and a picture.
//!
//! ```text
//! file -> tasks (baselines, growth, rungs) -> runs, side by side -> runs.jsonl -> budget::ladder -> certificate.json, dose_response.svg
//! ```
//!
//! A run depends on nothing but its task and the file, so it does not matter which were made in which process, how many at a
//! time, or on how many threads.

mod conclude;
mod config;
mod picture;
pub mod run;
mod store;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use budget::certificate::{Certificate, Kind, Metric};
use budget::ladder::Verdict;
use engine::engine::Device;
use ptx::Cpu;

use crate::clock::Stopwatch;
use crate::config::Config;
use crate::train::{Origin, Trainer};
use run::{Record, Role, RunError, Task};

pub use conclude::settings;
pub use config::{Calibration, CalibrationError};
pub use picture::draw;
pub use store::{RUNS, Store, StoreError};

/// The certificate's name in the folder.
pub const CERTIFICATE: &str = "certificate.json";
/// The picture's.
pub const PICTURE: &str = "dose_response.svg";

/// Why a calibration cannot go on; what was finished stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// Runs cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A run.
    #[error("{task}: {source}")]
    Run {
        /// Which.
        task: String,
        /// Why.
        source: RunError,
    },
}

/// What is said on the way.
#[derive(Debug)]
pub enum Event<'a> {
    /// So many runs are to be made in all, and of these so many are there already.
    Plan {
        /// All.
        runs: usize,
        /// Made before.
        there: usize,
    },
    /// A run is finished.
    Finished {
        /// Which.
        task: &'a Task,
        /// What came of it.
        record: &'a Record,
        /// Runs that are there.
        done: usize,
        /// Runs in all.
        runs: usize,
        /// Seconds until all are, as long as those of this process took.
        left_s: f64,
    },
    /// Nothing failed in some families, so they get one more rung.
    Extended {
        /// Which.
        families: &'a [Kind],
        /// Its D, nats per token.
        nats: f64,
    },
}

/// A calibration in progress.
#[derive(Debug)]
pub struct Calibrator {
    calibration: Calibration,
    base: Config,
    origin: Origin,
    hash: String,
    store: Store,
    cpus: Vec<Arc<Cpu>>,
}

impl Calibrator {
    /// Opens the folder and the models once, so that what is wrong with them shows before the first run. `cpu` gives
    /// instruction set and threads, which are shared out among runs.
    pub fn open(calibration: Calibration, base: Config, cpu: &Arc<Cpu>) -> Result<Calibrator, CalibrateError> {
        let first = Task { role: Role::Baseline, family: None, target_nats: None, seed: base.seed };
        let failed = |source: RunError| CalibrateError::Run { task: first.name(), source };
        let trainer = Trainer::open(first.config(&base), Device::Cpu(Arc::clone(cpu)), false)
            .map_err(|error| failed(error.into()))?;
        if calibration.metric == Metric::Accuracy && !trainer.judges() {
            return Err(failed(RunError::Unjudged));
        }
        let origin = trainer.origin();
        drop(trainer);
        let hash = conclude::config_hash(&base, &origin);
        let store = Store::open(&calibration.out)?;
        let threads = cpu.threads().max(1);
        let jobs = match calibration.jobs {
            0 => threads,
            jobs => jobs as usize,
        };
        let cpus = (0..jobs).map(|_| Arc::new(Cpu::with_isa((threads / jobs).max(1), cpu.isa()))).collect();
        Ok(Calibrator { calibration, base, origin, hash, store, cpus })
    }

    /// The runs of the folder.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Hash of what all runs have in common.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Runs of the ladder as the file has it, and how many of them are there.
    #[must_use]
    pub fn plan(&self) -> (usize, usize) {
        let tasks = self.tasks(&self.ladder());
        (tasks.len(), tasks.iter().filter(|task| self.store.get(&self.hash, task).is_some()).count())
    }

    fn ladder(&self) -> Vec<(Kind, Vec<f64>)> {
        self.calibration.families.iter().map(|&family| (family, self.calibration.rungs.clone())).collect()
    }

    /// Makes the runs that are missing, then the certificate.
    pub fn run(&mut self, say: &mut dyn FnMut(Event<'_>)) -> Result<Certificate, CalibrateError> {
        let mut rungs = self.ladder();
        self.make(&self.tasks(&rungs), say)?;
        let mut certificate = self.conclude(&rungs);
        let nats = self.calibration.extend;
        let more: Vec<Kind> = certificate
            .families
            .iter()
            .filter(|family| {
                family.verdict == Verdict::AtLeast && nats > self.calibration.rungs[self.calibration.rungs.len() - 1]
            })
            .map(|family| family.family)
            .collect();
        if !more.is_empty() {
            say(Event::Extended { families: &more, nats });
            for (_, rungs) in rungs.iter_mut().filter(|(family, _)| more.contains(family)) {
                rungs.push(nats);
            }
            self.make(&self.tasks(&rungs), say)?;
            certificate = self.conclude(&rungs);
        }
        Ok(certificate)
    }

    fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.base.seed;
        first..first + u64::from(self.calibration.seeds)
    }

    /// In the order in which they begin: what all differences need first, then the least rungs.
    fn tasks(&self, rungs: &[(Kind, Vec<f64>)]) -> Vec<Task> {
        let task = |role, family, target_nats| {
            self.seeds().map(move |seed| Task { role, family, target_nats, seed }).collect::<Vec<_>>()
        };
        let mut tasks = task(Role::Baseline, None, None);
        let most = rungs.iter().map(|(_, rungs)| rungs.len()).max().unwrap_or(0);
        for at in 0..most {
            for (family, rungs) in rungs {
                if let Some(&nats) = rungs.get(at) {
                    tasks.extend(task(Role::Rung, Some(*family), Some(nats)));
                }
            }
        }
        for (family, _) in rungs {
            tasks.extend(task(Role::Growth, Some(*family), Some(self.calibration.growth)));
        }
        tasks
    }

    /// Makes those of `tasks` that are missing.
    fn make(&mut self, tasks: &[Task], say: &mut dyn FnMut(Event<'_>)) -> Result<(), CalibrateError> {
        let Calibrator { store, hash, base, cpus, .. } = self;
        let missing: VecDeque<Task> = tasks.iter().filter(|task| store.get(hash, task).is_none()).copied().collect();
        let (runs, there) = (tasks.len(), tasks.len() - missing.len());
        say(Event::Plan { runs, there });
        let (jobs, watch) = (cpus.len().min(missing.len()).max(1), Stopwatch::start());
        let queue = Mutex::new(missing);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (send, receive) = crossbeam_channel::bounded(jobs);
            for cpu in cpus.iter().take(jobs) {
                let (send, next, stop, base, hash) = (send.clone(), &next, &stop, &*base, &hash[..]);
                scope.spawn(move || {
                    let stopped = || stop.load(Ordering::Relaxed);
                    while let Some(task) = (!stopped()).then(next).flatten() {
                        let made = run::make(cpu, base, hash, &task, &stopped);
                        // Nobody listens after a failure; then there is nothing to tell.
                        if send.send((task, made)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(send);
            let mut result = Ok(());
            let mut made = 0;
            for (task, outcome) in &receive {
                let kept = match outcome {
                    Ok(Some(record)) => store.add(record.clone()).map(|()| Some(record)).map_err(Into::into),
                    Ok(None) => Ok(None),
                    Err(source) => Err(CalibrateError::Run { task: task.name(), source }),
                };
                match kept {
                    Ok(Some(record)) => {
                        made += 1;
                        let done = there + made;
                        #[allow(clippy::cast_precision_loss)] // counts of runs
                        let left_s = watch.elapsed_s() / made as f64 * (runs - done) as f64;
                        say(Event::Finished { task: &task, record: &record, done, runs, left_s });
                    }
                    Ok(None) => {}
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        result = result.and(Err(error));
                    }
                }
            }
            result
        })
    }
}
