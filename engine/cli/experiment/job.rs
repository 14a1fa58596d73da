//! One run of an experiment: a command of this program in a process of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use engine::checkpoint::Checkpoint;
use opd::calibrate::Calibration;
use opd::clock::Stopwatch;
use opd::config::Config;
use serde_json::{Value, json};

use super::super::DIVERGED;
use super::Failure;
use super::file::{Arm, Experiment};
use super::results::Line;

/// How often a running process is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What to run.
#[derive(Clone, Debug)]
pub struct Job {
    pub key: String,
    pub experiment: String,
    pub arm: String,
    pub seed: u64,
    pub command: String,
    words: Vec<String>,
    out: PathBuf,
    may_fail: bool,
}

/// How it ended.
pub enum Ended {
    /// With a result.
    Result(Box<Line>),
    /// Somebody wants to stop.
    Stopped,
}

/// Hashes of folders and files that runs name, each taken once.
#[derive(Debug, Default)]
pub struct Hashes(BTreeMap<PathBuf, String>);

impl Hashes {
    /// Those of models that may have to be made yet, by folder.
    pub fn of_models(models: impl Iterator<Item = (PathBuf, String)>) -> Hashes {
        Hashes(models.collect())
    }

    /// The hash of what `word` names, where it is a model's folder or a file.
    fn of(&mut self, word: &str) -> Result<Option<String>, Failure> {
        let path = Path::new(word);
        if let Some(hash) = self.0.get(path) {
            return Ok(Some(hash.clone()));
        }
        // A configuration has whole paths.
        let whole = std::path::absolute(path).map(|path| normal(&path)).unwrap_or_else(|_| path.to_owned());
        if let Some(hash) = self.0.get(&whole) {
            return Ok(Some(hash.clone()));
        }
        let hash = if path.join("config.json").is_file() {
            Checkpoint::open(path)?.model_hash()
        } else if path.is_file() {
            let mut bytes = fs::read(path)?;
            bytes.extend(calibration(path, &bytes)?);
            blake3::hash(&bytes).to_hex().to_string()
        } else {
            return Ok(None);
        };
        self.0.insert(path.to_owned(), hash.clone());
        Ok(Some(hash))
    }

    /// `value` with every path replaced by the hash of what is there. In the words of a command a path may be relative, and
    /// stand behind its option; the paths of a resolved run file are whole, and its other words name no file.
    fn replaced(&mut self, value: Value, words: bool) -> Result<Value, Failure> {
        Ok(match value {
            Value::String(word) if words => {
                let (option, path) = match word.split_once('=') {
                    Some((option, path)) if word.starts_with("--") => (format!("{option}="), path),
                    _ => (String::new(), &word[..]),
                };
                Value::String(self.of(path)?.map_or(word.clone(), |hash| option + &hash))
            }
            Value::String(word) if Path::new(&word).is_absolute() => Value::String(self.of(&word)?.unwrap_or(word)),
            Value::Array(all) => all.into_iter().map(|value| self.replaced(value, words)).collect::<Result<_, _>>()?,
            Value::Object(all) => Value::Object(
                all.into_iter()
                    .map(|(key, value)| Ok((key, self.replaced(value, words)?)))
                    .collect::<Result<_, Failure>>()?,
            ),
            other => other,
        })
    }

    fn key(&mut self, command: &str, of: Value) -> Result<String, Failure> {
        let words = of.as_array().is_some_and(|all| all.iter().all(Value::is_string));
        let of = self.replaced(of, words)?;
        Ok(blake3::hash(json!([command, of]).to_string().as_bytes()).to_hex()[..32].to_owned())
    }
}

/// What the file of ids holds that a recipe file calibrates on; nothing for other files.
fn calibration(path: &Path, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let table: Option<toml::Table> = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    let ids = table.as_ref().and_then(|table| table.get("calibration")?.get("ids")?.as_str());
    let Some(ids) = ids.filter(|_| path.extension().is_some_and(|extension| extension == "toml")) else {
        return Ok(Vec::new());
    };
    let ids = path.parent().unwrap_or(Path::new("")).join(ids);
    fs::read(&ids).map_err(|e| format!("{}: {}: {e}", path.display(), ids.display()).into())
}

/// Without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(parts.pop()),
            std::path::Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

/// The runs of an experiment, in the order in which they begin: every seed of all arms before the next seed, so that what
/// is stopped half way has whole pairs.
pub fn jobs(name: &str, experiment: &Experiment, folder: &Path, hashes: &mut Hashes) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    let most = experiment.arms.iter().map(|arm| experiment.seeds_of(arm).end).max().unwrap_or(0);
    for seed in experiment.first_seed..most {
        for arm in experiment.arms.iter().filter(|arm| experiment.seeds_of(arm).contains(&seed)) {
            jobs.push(job(name, experiment, arm, seed, folder, hashes)?);
        }
    }
    if let Some(certificate) = &experiment.certificate {
        for arm in experiment.arms.iter().filter(|arm| arm.admit && arm.command.is_empty()) {
            jobs.extend(admission(name, experiment, arm, certificate, folder, hashes)?);
        }
    }
    Ok(jobs)
}

/// How many there will be, checks of a certificate that is not there yet included.
pub fn count(experiment: &Experiment) -> usize {
    let runs: usize = experiment.arms.iter().map(|arm| experiment.seeds_of(arm).count()).sum();
    let checks = experiment.arms.iter().filter(|arm| arm.admit && arm.command.is_empty()).count();
    runs + if experiment.certificate.is_some() { checks } else { 0 }
}

/// Where it writes; by its key, since two arms may have names that differ in signs alone.
fn out_of(name: &str, arm: &str, seed: u64, command: &str, key: &str) -> PathBuf {
    let safe: String = arm.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    PathBuf::from("runs/experiments").join(name).join(format!("{safe}-{seed}-{command}-{}", &key[..8]))
}

fn job(
    name: &str,
    experiment: &Experiment,
    arm: &Arm,
    seed: u64,
    folder: &Path,
    hashes: &mut Hashes,
) -> Result<Job, Failure> {
    let (command, words, key) = if arm.command.is_empty() {
        let set = overrides(experiment, arm, seed);
        let (run, key) = trained(experiment, &set, folder, "train", hashes)?;
        let mut words = vec!["train".to_owned(), run];
        words.extend(set.into_iter().flat_map(|set| ["--set".to_owned(), set]));
        ("train".to_owned(), words, key)
    } else {
        let seeded: Vec<String> = arm.command.iter().map(|word| word.replace("{seed}", &seed.to_string())).collect();
        let key = match (&seeded[0][..], seeded.get(1)) {
            ("calibrate", Some(file)) => calibrated(file, hashes)?,
            _ => hashes.key(&seeded[0], json!(seeded))?,
        };
        (seeded[0].clone(), seeded, key)
    };
    let out = out_of(name, &arm.name, seed, &command, &key);
    let words = words.iter().map(|word| word.replace("{out}", &out.to_string_lossy())).collect();
    let (experiment, arm, may_fail) = (name.to_owned(), arm.name.clone(), arm.may_fail);
    Ok(Job { key, experiment, arm, seed, command, words, out, may_fail })
}

/// What a calibration is known by: its file, and the run that this names.
fn calibrated(file: &str, hashes: &mut Hashes) -> Result<String, Failure> {
    let (calibration, run) = Calibration::load(Path::new(file))?;
    let mut table = serde_json::to_value(calibration)?;
    for key in ["run", "set", "out", "jobs"] {
        table.as_object_mut().map(|table| table.remove(key));
    }
    hashes.key("calibrate", json!([table, serde_json::to_value(run.known_by())?]))
}

/// The check of an arm; none while there is no certificate.
fn admission(
    name: &str,
    experiment: &Experiment,
    arm: &Arm,
    certificate: &Path,
    folder: &Path,
    hashes: &mut Hashes,
) -> Result<Option<Job>, Failure> {
    let text = certificate.to_string_lossy().into_owned();
    let Some(hash) = hashes.of(&text)? else { return Ok(None) };
    let seed = experiment.first_seed;
    let set = overrides(experiment, arm, seed);
    let (run, key) = trained(experiment, &set, folder, &format!("admit {hash}"), hashes)?;
    let mut words = vec!["admit".to_owned(), run, "--certificate".to_owned(), text];
    words.extend(set.into_iter().flat_map(|set| ["--set".to_owned(), set]));
    let (experiment, command) = (name.to_owned(), "admit".to_owned());
    let out = out_of(name, &arm.name, seed, &command, &key);
    Ok(Some(Job { key, experiment, arm: arm.name.clone(), seed, command, words, out, may_fail: false }))
}

fn overrides(experiment: &Experiment, arm: &Arm, seed: u64) -> Vec<String> {
    experiment.set.iter().chain(&arm.set).cloned().chain([format!("seed={seed}")]).collect()
}

/// The run file, and what a run of it is known by: the resolved file with hashes in place of paths.
fn trained(
    experiment: &Experiment,
    set: &[String],
    folder: &Path,
    command: &str,
    hashes: &mut Hashes,
) -> Result<(String, String), Failure> {
    let run = folder.join(experiment.run.as_ref().expect("checked when it was opened"));
    let config = Config::load(&run, set)?;
    let key = hashes.key(command, serde_json::to_value(config.known_by())?)?;
    Ok((run.to_string_lossy().into_owned(), key))
}

impl Job {
    /// In words.
    pub fn name(&self) -> String {
        let command = if self.command == "train" { String::new() } else { format!(", {}", self.command) };
        format!("{} {}{command}, seed {}", self.experiment, self.arm, self.seed)
    }

    /// Whether `line` is a result of it.
    pub fn is(&self, line: &Line, series: &[String]) -> bool {
        let all = self.command != "train" || series.iter().all(|key| line.series.contains_key(key));
        line.key == self.key && all && (self.may_fail || line.error.is_none())
    }

    /// The line of a run that was made for another arm or experiment, as this one's.
    pub fn taken_over(&self, line: &Line) -> Line {
        let (experiment, arm) = (self.experiment.clone(), self.arm.clone());
        Line { experiment, arm, seed: self.seed, ..line.clone() }
    }

    /// Whether `line` stands in the results of its own experiment as its own.
    pub fn owns(&self, line: &Line) -> bool {
        (&line.experiment, &line.arm, &line.command, line.seed)
            == (&self.experiment, &self.arm, &self.command, self.seed)
    }

    /// Runs it to its end, one of `at_a_time` side by side, or until `stopped`.
    pub fn run(
        &self,
        threads: usize,
        at_a_time: usize,
        series: &[String],
        stopped: &dyn Fn() -> bool,
    ) -> Result<Ended, Failure> {
        let watch = Stopwatch::start();
        let trains = self.command == "train";
        let named = |path: &Path, e: std::io::Error| format!("{}: {}: {e}", self.name(), path.display());
        let parent = self.out.parent().expect("in a folder");
        fs::create_dir_all(parent).map_err(|e| named(parent, e))?;
        // Another folder of experiments may come to the same run.
        let lock = self.out.with_extension("lock");
        let held = File::create(&lock).map_err(|e| named(&lock, e))?;
        held.lock().map_err(|e| named(&lock, e))?;
        if self.out.exists() {
            fs::remove_dir_all(&self.out).map_err(|e| named(&self.out, e))?;
        }
        let (stdout, stderr) = (self.out.with_extension("stdout"), self.out.with_extension("stderr"));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.words).args(["--json", "--quiet", "--threads", &threads.to_string()]);
        if trains {
            command.args(["--set", &format!("out={}", self.out.display())]);
        }
        command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        let mut child = command.spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if stopped() {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Stopped);
            }
            std::thread::sleep(LOOK);
        };
        if stopped() {
            return Ok(Ended::Stopped); // the same signal may have reached the child
        }
        let said = fs::read_to_string(&stderr)?;
        let error = said.lines().rev().find(|line| line.starts_with("error: ")).map(str::to_owned);
        let exit = status.code().unwrap_or(-1);
        let good = exit == 0 || (self.command == "admit" && matches!(exit, 3 | 4));
        if !(good || self.may_fail && exit == i32::from(DIVERGED)) {
            let error = match exit {
                3 if trains => {
                    "its budget rejects it: arms are trained with budget = \"off\", and judged with `certificate`"
                        .to_owned()
                }
                _ => error.unwrap_or_else(|| format!("{status}; {}", stderr.display())),
            };
            return Err(format!("{}: {error}", self.name()).into());
        }
        let text = fs::read_to_string(&stdout)?;
        let result = match text.lines().last() {
            Some(line) if good => serde_json::from_str(line).map_err(|e| format!("{}: {e}", stdout.display()))?,
            _ => Value::Null,
        };
        let (curve, series) =
            if trains { curve(&self.out.join("metrics.jsonl"), series)? } else { (Vec::new(), BTreeMap::new()) };
        let line = Line {
            key: self.key.clone(),
            experiment: self.experiment.clone(),
            arm: self.arm.clone(),
            seed: self.seed,
            command: self.command.clone(),
            result: without_paths(result),
            curve,
            series,
            exit,
            error: if good { None } else { error },
            wall_s: thousandths(watch.elapsed_s()),
            threads,
            at_a_time,
            leeway: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if self.out.exists() {
            fs::remove_dir_all(&self.out).map_err(|e| named(&self.out, e))?;
        }
        for path in [&stdout, &stderr] {
            fs::remove_file(path).map_err(|e| named(path, e))?;
        }
        Ok(Ended::Result(Box::new(line)))
    }
}

/// Where a run lay on this machine says nothing to others.
fn without_paths(result: Value) -> Value {
    match result {
        Value::Object(all) => {
            let stays = |(key, value): &(String, Value)| {
                key != "out" && !value.as_str().is_some_and(|text| Path::new(text).is_absolute())
            };
            Value::Object(all.into_iter().filter(stays).map(|(key, value)| (key, without_paths(value))).collect())
        }
        Value::Array(all) => Value::Array(all.into_iter().map(without_paths).collect()),
        other => other,
    }
}

fn thousandths(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// Five digits are more than any evaluation is worth, and keep a line short.
fn short(value: &Value) -> Value {
    match value.as_f64() {
        Some(x) if value.is_f64() => format!("{x:.5e}").parse::<f64>().map_or(Value::Null, Value::from),
        _ => value.clone(),
    }
}

/// Evaluations, `[update, accuracy, kl_teacher, seconds in updates, operations]`, and values by update, of a run's log.
#[allow(clippy::type_complexity)] // said above
fn curve(path: &Path, wanted: &[String]) -> Result<(Vec<Value>, BTreeMap<String, Vec<Value>>), Failure> {
    let mut curve = Vec::new();
    // A key that no update has was asked for all the same.
    let mut series: BTreeMap<String, Vec<Value>> = wanted.iter().map(|key| (key.clone(), Vec::new())).collect();
    let (mut seconds, mut flop) = (0.0, 0.0);
    for text in fs::read_to_string(path).unwrap_or_default().lines() {
        let line: Value = serde_json::from_str(text)?;
        if let Some(eval) = line.get("eval") {
            let at = [&eval["update"], &eval["accuracy"], &eval["kl_teacher"], &json!(seconds), &json!(flop)];
            curve.push(Value::Array(at.into_iter().map(short).collect()));
            continue;
        }
        seconds += line["wall_s"].as_f64().unwrap_or(0.0);
        flop += ["rollout", "teacher", "train"].iter().filter_map(|part| line["flop"][part].as_f64()).sum::<f64>();
        for key in wanted {
            if let Some(value) = line.pointer(&format!("/{key}")) {
                series.entry(key.clone()).or_default().push(short(value));
            }
        }
    }
    Ok((curve, series))
}
