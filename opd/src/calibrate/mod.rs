//! `leeway calibrate`: how much mismatch a student and its teacher can bear. Real trainings at rungs of injected mismatch,
//! paired by seed with trainings without.
//!
//! ```text
//! file -> tasks (baselines, rungs, growth) -> runs, side by side -> runs.jsonl -> records, from which the binary concludes
//! ```
//!
//! A run depends on nothing but its task and the file, so it does not matter which were made in which process, how many at a
//! time, or on how many threads.

mod config;
mod hashes;
pub mod run;
mod store;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::engine::Device;
use ptx::Cpu;

use crate::clock::Stopwatch;
use crate::config::Config;
use crate::train::{Origin, Trainer};
use run::{Family, Record, Role, RunError, Task};

pub use config::{Calibration, CalibrationError, Metric};
pub use hashes::{loss_hash, task_hash};
pub use store::{RUNS, Store, StoreError};

/// D of the rungs of each family, nats per token, the least first.
pub type Ladder = Vec<(Family, Vec<f64>)>;

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
        source: Box<RunError>,
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
        let failed = |source: RunError| CalibrateError::Run { task: first.name(), source: Box::new(source) };
        let trainer = Trainer::open(first.config(&base), Device::Cpu(Arc::clone(cpu)), false)
            .map_err(|error| failed(error.into()))?;
        if calibration.metric == Metric::Accuracy && !trainer.judges() {
            return Err(failed(RunError::Unjudged));
        }
        let origin = trainer.origin();
        drop(trainer);
        let hash = hashes::config_hash(&base, &origin);
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

    /// The ladder as the file has it.
    #[must_use]
    pub fn ladder(&self) -> Ladder {
        self.calibration.families.iter().map(|&family| (family, self.calibration.rungs.clone())).collect()
    }

    /// Makes those runs of a ladder that are missing: baselines, rungs and growth, for every seed.
    pub fn climb(&mut self, ladder: &Ladder, say: &mut dyn FnMut(Event<'_>)) -> Result<(), CalibrateError> {
        self.make(&self.tasks(ladder), say)
    }

    /// The file.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// What all runs have in common.
    #[must_use]
    pub fn base(&self) -> &Config {
        &self.base
    }

    /// Who takes part in every run.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The runs of one kind by seed.
    ///
    /// # Panics
    /// When one of them was not made.
    #[must_use]
    pub fn records(&self, role: Role, family: Option<Family>, target_nats: Option<f64>) -> Vec<&Record> {
        let record = |seed| {
            let task = Task { role, family, target_nats, seed };
            self.store.get(&self.hash, &task).expect("every run was made")
        };
        self.seeds().map(record).collect()
    }

    /// The seeds, from the run's own on.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.base.seed;
        first..first + u64::from(self.calibration.seeds)
    }

    /// In the order in which they begin: what all differences need first, then the least rungs.
    fn tasks(&self, rungs: &[(Family, Vec<f64>)]) -> Vec<Task> {
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
                    Err(source) => Err(CalibrateError::Run { task: task.name(), source: Box::new(source) }),
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
