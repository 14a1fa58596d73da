//! `leeway train`: on-policy distillation as a run file says.

mod guard;
mod live;
mod views;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use opd::clock::Stopwatch;
use opd::config::{Config, Schedule, Task};
use opd::train::{EvalReport, Origin, Summary, Trainer};
use serde_json::{Value, json};

use super::table::Table;
use super::{Failure, Global};
use guard::{Begun, Watch};
use live::Live;
pub use live::clock;
use views::Views;

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The run file (docs/formats.md).
    file: PathBuf,
    /// Override a key of the run file, e.g. --set rollout.recipe=identity. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The teacher: a model folder, or ring:PATH for `leeway teach --ring PATH` in another process (the run file's folder
    /// then gives its head). Short for --set teacher=.. or --set ring=..
    #[arg(long, value_name = "FOLDER|ring:PATH")]
    teacher: Option<String>,
    /// Print the resolved configuration and stop.
    #[arg(long)]
    dry_run: bool,
    /// Go on from the newest checkpoint in the run's folder.
    #[arg(long)]
    resume: bool,
}

pub fn run(args: &TrainArgs, global: &Global) -> Result<ExitCode, Failure> {
    let mut set = args.set.clone();
    match args.teacher.as_deref().map(|teacher| (teacher, teacher.strip_prefix("ring:"))) {
        Some((_, Some(ring))) => set.push(format!("ring={ring}")),
        // A path on the command line is of the current folder, one in the file of the file's.
        Some((folder, None)) => set.push(format!("teacher={}", std::path::absolute(folder)?.display())),
        None => {}
    }
    let config = Config::load(&args.file, &set)?;
    if args.dry_run {
        let text = config.to_toml();
        if global.json {
            global.print_json(&json!({"config": text}))?;
        } else {
            super::print(format_args!("{text}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let out = &config.out;
    let reference = config.loss.reference_dir(&config.student);
    let teachers = config.teachers();
    let models = teachers.iter().map(|&(_, folder)| folder).chain([&config.student]).chain(&reference);
    let models = models.map(PathBuf::as_path);
    if let Some(model) = opd::train::model_inside(out, models).filter(|_| !args.resume) {
        return Err(format!(
            "{} lies in {}, the folder of this run, which would be set aside with it: set `out` to another folder",
            model.display(),
            out.display()
        )
        .into());
    }
    let watch = Stopwatch::start();
    let device = global.device(|| opd::train::fits_cuda(&config))?;
    let gpu = super::open::gpu_json(&device);
    let held = if args.resume { opd::train::hold(&config.out)? } else { None };
    let mut watch_over = match guard::begin(&config, args.resume, &device, global)? {
        Begun::Goes(watch_over) => watch_over,
        Begun::Rejected(checked) => {
            checked.print(global)?;
            return Ok(checked.status());
        }
    };
    let mut trainer = Trainer::open(config.clone(), device, args.resume)?;
    let (_lock, aside) = opd::train::prepare(&config.out, held)?;
    if let Some(aside) = aside {
        eprintln!("{} held a run already; it is in {} now", config.out.display(), aside.display());
    }
    let origin = trainer.origin();
    let resumed = args.resume.then(|| trainer.updates());
    let mut log = Log::open(&config.out, &config.to_toml(), resumed)?;
    let mut views = Views::open(&config.out, &config.student, resumed);
    if let Some(watch_over) = &mut watch_over
        && let Some(line) = watch_over.go_on(&trainer)?
    {
        log.metrics(&line)?;
    }
    let updates = u64::from(config.updates);
    if trainer.updates() >= updates {
        eprintln!("{} has {} updates already; nothing to do", config.out.display(), trainer.updates());
    }
    eprintln!(
        "student {}  teacher {}  recipe {} ({})  {}",
        &origin.student[..12],
        &origin.teacher[..12],
        config.rollout.recipe,
        &origin.recipe_hash[..12],
        origin.device
    );
    let before = match log.eval(|report| report.update == 0)? {
        Some(report) => report,
        None => {
            let report = trainer.evaluate()?;
            let line = json!({"eval": report, "origin": origin});
            log.metrics(&line)?;
            views.metrics(&line);
            report
        }
    };
    say_eval(&before);
    let mut after = log.eval(|_| true)?.unwrap_or_else(|| before.clone());
    // Whose completions the first updates train on, where they are a teacher's.
    let hashes = std::iter::once(&origin.teacher).chain(origin.teachers.values()).cloned();
    let by_teacher: Vec<Origin> = hashes
        .zip(trainer.teacher_recipes())
        .map(|(student, recipe_hash)| Origin { student, recipe_hash, ..origin.clone() })
        .collect();
    let mut lamp = config.loss.lambda.filter(|&lambda| lambda > 1.0);
    let mut live = Live::new(global, trainer.updates(), updates, after.accuracy);
    let mut by_student = Origin { recipe_hash: trainer.recipe_hash(), ..origin.clone() };
    let every = u64::from(config.eval.every);
    let save_every = config.checkpoint.as_ref().map_or(0, |c| u64::from(c.every));
    // Seconds in updates: what evaluation and logs take is not the schedule's.
    let mut updating_s = 0.0;
    while trainer.updates() < updates {
        let sequences = config.sequences();
        let update_watch = Stopwatch::start();
        let (report, rollouts) = trainer.update(&mut |done| live.sampled(done, sequences))?;
        let wall_s = update_watch.elapsed_s();
        updating_s += wall_s;
        let rollout_of = |at: usize| {
            let offline = report.phase.is_some();
            let origin = if offline { &by_teacher[rollouts[at].0.teacher] } else { &by_student };
            rollout_line(report.update, &rollouts[at], &config, origin)
        };
        log.rollouts((0..rollouts.len()).map(rollout_of))?;
        let mut line = json!(report);
        line["wall_s"] = wall_s.into();
        if let Some(watch_over) = &mut watch_over {
            line["guard"] = watch_over.updated(&trainer, &report);
        }
        log.metrics(&line)?;
        views.metrics(&line);
        let oldest = rollouts.iter().flat_map(|(_, r)| &r.versions).map(|&(_, version)| version).min();
        live.updated(&report, oldest);
        let cliff = report.target.as_ref().and_then(|target| target.lambda_star);
        if let (Some(lambda), Some(star)) = (lamp, cliff)
            && lambda > star
        {
            lamp = None;
            live.aside(|| {
                eprintln!(
                    "warning: update {}: loss.lambda = {lambda} is above the 5 % quantile of lambda*, {star:.3}: the \
                     student may lose the output's form; watch accuracy and truncation, or take loss.target = \"bounded\"",
                    report.update
                );
            });
        }
        let last = report.update == updates;
        if last || (every > 0 && report.update % every == 0) {
            views.samples(&trainer, &rollouts, rollout_of);
            after = trainer.evaluate()?;
            let line = json!({"eval": after});
            log.metrics(&line)?;
            views.metrics(&line);
            live.evaluated(&after, || say_eval(&after));
        }
        if let Some(watch_over) = &mut watch_over
            && let Some((line, said)) = watch_over.act(&mut trainer)?
        {
            log.metrics(&line)?;
            live.aside(|| eprintln!("{said}"));
            by_student.recipe_hash = trainer.recipe_hash();
        }
        if last || (save_every > 0 && report.update % save_every == 0) {
            log.sync()?;
            trainer.save()?;
        }
    }
    trainer.finish();
    live.finish();
    let summary = trainer.summary();
    let wall_s = watch.elapsed_s();
    if let Err(error) = opd::curve::write(&config.out) {
        eprintln!("warning: no picture of the run: {error}");
    }
    if !global.json {
        let watch_over = watch_over.as_deref();
        let table = table(&config, trainer.holds_out(), &before, &after, &summary, watch_over, wall_s);
        super::print(format_args!("{table}"))?;
        super::print(format_args!(
            "\n{}: checkpoints, metrics.jsonl, rollouts.jsonl, curve.svg, samples.html, events\n",
            config.out.display()
        ))?;
    }
    // A run with nothing left to do has measured nothing.
    let measured = |value: Value| if summary.tokens == 0 { Value::Null } else { value };
    let (budget, fallbacks) = guard::result(watch_over.as_deref());
    let mut object = json!({
        "accuracy_before": before.accuracy, "accuracy_after": after.accuracy,
        "kl_teacher_before": before.kl_teacher, "kl_teacher_after": after.kl_teacher,
        "mismatch_nats": measured(json!(summary.mismatch_nats)),
        "mismatch_nats_max": measured(json!(summary.mismatch_nats_max)), "by_source": measured(json!(summary.by_source)),
        "updates": trainer.updates(), "tokens": summary.tokens, "wall_s": wall_s,
        "rollout_s": summary.rollout_s, "teacher_s": summary.teacher_s, "behaviour_s": summary.behaviour_s,
        "train_s": summary.train_s, "sync_s": summary.sync_s, "wait_s": summary.wait_s, "updating_s": updating_s,
        "flop": summary.flop, "seed": config.seed,
        "weights_version": trainer.updates(), "student": origin.student, "teacher": origin.teacher,
        "recipe": config.rollout.recipe, "recipe_hash": origin.recipe_hash, "device": origin.device, "out": config.out,
        "budget": budget, "fallbacks": fallbacks,
    });
    super::open::add_gpu(&mut object, gpu.as_ref());
    global.print_json(&object)?;
    Ok(ExitCode::SUCCESS)
}

fn percent(accuracy: Option<f64>) -> String {
    accuracy.map_or("-".to_owned(), |a| format!("{:.1}%", 100.0 * a))
}

fn say_eval(report: &EvalReport) {
    eprintln!(
        "update {:>5}: accuracy {} ({}/{}), KL to teacher {:.4} nats/token",
        report.update,
        percent(report.accuracy),
        report.correct,
        report.judged,
        report.kl_teacher
    );
}

fn table(
    config: &Config,
    held_out: bool,
    before: &EvalReport,
    after: &EvalReport,
    s: &Summary,
    watch_over: Option<&Watch>,
    wall_s: f64,
) -> String {
    let mut quality = Table::new(["", "before", "after"]);
    let prompts = match config.task {
        Task::Procedural(_) => "accuracy, held out",
        Task::Prompts(_) if !held_out => "accuracy, trained prompts", // the file is too small to split
        Task::Prompts(_) => "accuracy, held out",
    };
    quality.row([prompts.into(), percent(before.accuracy), percent(after.accuracy)]);
    quality.row([
        "KL to teacher, nats/token".into(),
        format!("{:.4}", before.kl_teacher),
        format!("{:.4}", after.kl_teacher),
    ]);
    if let (Some(before), Some(after)) = (&before.kl_by_teacher, &after.kl_by_teacher) {
        for (name, kl) in before {
            let now = after.get(name).map_or("-".to_owned(), |kl| format!("{kl:.4}"));
            quality.row([format!("  on prompts of {name}"), format!("{kl:.4}"), now]);
        }
    }
    let mut stages = Table::new(["stage", "seconds", "share", "tokens/s"]);
    let all = s.rollout_s + s.teacher_s + s.behaviour_s + s.train_s + s.sync_s + s.wait_s;
    for (name, seconds) in [
        ("rollout", s.rollout_s),
        ("teacher", s.teacher_s),
        ("mismatch", s.behaviour_s),
        ("update", s.train_s),
        ("weights swap", s.sync_s),
        (WAITING, s.wait_s),
        (if config.schedule == Schedule::Sync { "all" } else { "all, side by side" }, all),
    ] {
        if name == WAITING && seconds == 0.0 {
            continue; // nothing runs beside updates
        }
        let (share, rate) = if all > 0.0 { (100.0 * seconds / all, s.tokens as f64 / seconds) } else { (0.0, 0.0) };
        if name == WAITING {
            stages.row([name.into(), format!("{seconds:.2}"), format!("{share:.1}%"), "-".into()]);
            continue;
        }
        stages.row([name.into(), format!("{seconds:.2}"), format!("{share:.1}%"), format!("{rate:.0}")]);
    }
    let mut mismatch = Table::new(["mismatch D, nats/token", ""]);
    let tokens = s.tokens;
    // Without a token nothing was measured, and an exact zero would be a claim.
    let measured = |d: f64| if tokens == 0 { "-".to_owned() } else { nats(d) };
    mismatch.row([
        if s.updates == u64::from(config.updates) { "whole run" } else { "since resumed" }.into(),
        measured(s.mismatch_nats),
    ]);
    mismatch.row(["largest update".into(), measured(s.mismatch_nats_max)]);
    guard::rows(watch_over, &mut mismatch);
    format!("\n{quality}\n{stages}\n{mismatch}\n{} updates, {tokens} completion tokens, {wall_s:.1} s\n", s.updates)
}

/// The row of seconds in which nothing was computed here.
const WAITING: &str = "waiting for stages";

/// Zero is printed as zero, since it is exact.
fn nats(d: f64) -> String {
    if d.is_nan() {
        "not measured".to_owned()
    } else if d == 0.0 {
        "0.0 (exactly)".to_owned()
    } else {
        format!("{d:.3e}")
    }
}

/// A line of `rollouts.jsonl`.
fn rollout_line(
    update: u64,
    (asked, r): &(opd::source::Asked, engine::rollout::Rollout),
    config: &Config,
    origin: &Origin,
) -> Value {
    let mut line = json!({
        "update": update, "prompt_ids": asked.prompt, "ids": r.ids, "logprobs_rollout": r.logprobs,
        "versions": r.versions, "seed": config.seed, "sample": r.sample,
        "temperature": config.rollout.temperature, "top_p": config.rollout.top_p,
        "recipe": origin.recipe_hash, "model": origin.student, "finish": r.finish.name(),
        "top_k": 0, "min_p": 0.0, "device": origin.device,
    });
    let teachers = config.teachers();
    if teachers.len() > 1 {
        line["teacher"] = teachers[asked.teacher].0.into();
    }
    line
}

/// The run's folder: resolved configuration, metrics, rollouts.
struct Log {
    metrics_path: PathBuf,
    metrics: fs::File,
    rollouts: fs::File,
}

impl Log {
    /// Opens the logs in `out` for a run that goes on after `updates` updates; lines of later ones, written before an
    /// interruption, are dropped, since those updates are done again. A new run starts with empty files.
    fn open(out: &Path, config: &str, updates: Option<u64>) -> Result<Log, Failure> {
        let named = |path: &Path, e: std::io::Error| -> Failure { format!("{}: {e}", path.display()).into() };
        let (metrics_path, rollouts_path) = (out.join("metrics.jsonl"), out.join("rollouts.jsonl"));
        let config_path = out.join("config.toml");
        if fs::read_to_string(&config_path).ok().as_deref() != Some(config) {
            // By renaming, so that a run killed right here can still be resumed.
            let part = out.join("config.toml.part");
            fs::write(&part, config).map_err(|e| named(&part, e))?;
            fs::rename(&part, &config_path).map_err(|e| named(&config_path, e))?;
        }
        for path in [&metrics_path, &rollouts_path, &out.join("samples.jsonl")] {
            match updates {
                Some(updates) => keep_until(path, updates),
                None => fs::write(path, ""),
            }
            .map_err(|e| named(path, e))?;
        }
        let append =
            |path: &Path| fs::OpenOptions::new().create(true).append(true).open(path).map_err(|e| named(path, e));
        Ok(Log { metrics: append(&metrics_path)?, rollouts: append(&rollouts_path)?, metrics_path })
    }

    /// The last evaluation of a kind that is in the log.
    fn eval(&self, wanted: impl Fn(&EvalReport) -> bool) -> Result<Option<EvalReport>, Failure> {
        let text = fs::read_to_string(&self.metrics_path)?;
        let mut found = None;
        for line in text.lines() {
            let value: Value = serde_json::from_str(line)?;
            if let Some(report) = value.get("eval") {
                found = Some(serde_json::from_value(report.clone())?).filter(&wanted).or(found);
            }
        }
        Ok(found)
    }

    fn metrics(&mut self, value: &Value) -> Result<(), Failure> {
        writeln!(self.metrics, "{value}").map_err(|e| format!("{}: {e}", self.metrics_path.display()).into())
    }

    fn rollouts(&mut self, lines: impl Iterator<Item = Value>) -> Result<(), Failure> {
        let mut text = String::new();
        for line in lines {
            text += &line.to_string();
            text.push('\n');
        }
        self.rollouts.write_all(text.as_bytes()).map_err(|e| format!("rollouts.jsonl: {e}").into())
    }

    fn sync(&self) -> Result<(), Failure> {
        self.metrics.sync_data()?;
        self.rollouts.sync_data()?;
        Ok(())
    }
}

/// Keeps the whole lines of a run's log that belong to its first `updates` updates.
fn keep_until(path: &Path, updates: u64) -> std::io::Result<()> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(()) };
    let belongs = |line: &&str| {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return false };
        let inner = ["eval", "budget", "fallback"].iter().find_map(|key| value[key]["update"].as_u64());
        let update = value["update"].as_u64().or(inner);
        // A line of an older run has no update; its version is the number of updates before it.
        let before = value["versions"][0][1].as_u64().map(|version| version + 1);
        update.or(before).is_some_and(|update| update <= updates)
    };
    let kept: String = text.lines().filter(belongs).flat_map(|line| [line, "\n"]).collect();
    if kept.len() == text.len() {
        return Ok(());
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, kept)?;
    fs::rename(&part, path)
}
