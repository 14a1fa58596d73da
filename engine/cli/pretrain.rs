//! `leeway pretrain`: supervised training on a task.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::checkpoint::Checkpoint;
use engine::recipe::Precision;
use opd::pretrain::{PretrainSettings, Pretrainer};
use opd::tasks::TaskSpec;
use serde_json::json;

use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct PretrainArgs {
    /// Model folder to start from; `leeway init --tasks` makes one.
    #[arg(long)]
    model: PathBuf,
    /// Where the trained model goes.
    #[arg(long)]
    out: PathBuf,
    /// The task as a TOML inline table, e.g. '{ name = "modular-chain", depth = 8 }'.
    #[arg(long, value_parser = task)]
    task: TaskSpec,
    /// Optimizer steps.
    #[arg(long, default_value_t = 1000)]
    updates: u64,
    /// Problems per update.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Peak learning rate.
    #[arg(long, default_value_t = 1e-3)]
    lr: f32,
    /// Updates over which the learning rate rises.
    #[arg(long, default_value_t = 50)]
    warmup: u64,
    /// Let the learning rate fall linearly to nothing over the run.
    #[arg(long)]
    decay: bool,
    /// Decoupled weight decay of matrices.
    #[arg(long, default_value_t = 0.01)]
    weight_decay: f32,
    /// Largest norm of the gradient.
    #[arg(long, default_value_t = 1.0)]
    clip: f32,
    /// f32 or bf16: precision of the forward pass and of the saved weights.
    #[arg(long, default_value = "bf16", value_parser = precision)]
    precision: Precision,
    /// Seed of the problems.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Held-out problems of an evaluation.
    #[arg(long, default_value_t = 256)]
    problems: usize,
    /// Updates between evaluations; 0 evaluates at the end alone.
    #[arg(long, default_value_t = 0)]
    eval_every: u64,
    /// Stop at the first evaluation with at least this accuracy.
    #[arg(long)]
    until: Option<f64>,
}

/// A task from a TOML inline table.
pub fn task(text: &str) -> Result<TaskSpec, String> {
    let text = text.trim();
    let table = if text.starts_with('{') { text.to_owned() } else { format!("{{ name = {text:?} }}") };
    let table: toml::Table = format!("task = {table}").parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
    let spec: TaskSpec = table["task"].clone().try_into().map_err(|e: toml::de::Error| e.message().to_owned())?;
    spec.check().map_err(|e| e.to_string())?;
    Ok(spec)
}

/// A training precision by its name.
pub fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "f32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        other => Err(format!("{other:?} is no training precision; use bf16 or f32")),
    }
}

pub fn run(args: &PretrainArgs, global: &Global) -> Result<ExitCode, Failure> {
    if args.updates == 0 || args.batch == 0 {
        return Err("--updates and --batch must be at least 1".into());
    }
    if args.until.is_some() && args.eval_every == 0 {
        return Err("--until looks at evaluations on the way: give --eval-every too".into());
    }
    if args.out.exists() {
        return Err(format!("{} exists already; pretrain never overwrites a model", args.out.display()).into());
    }
    for (option, value, ok) in [
        ("--lr", args.lr, args.lr > 0.0 && args.lr.is_finite()),
        ("--clip", args.clip, args.clip > 0.0),
        ("--weight-decay", args.weight_decay, args.weight_decay >= 0.0 && args.weight_decay.is_finite()),
    ] {
        if !ok {
            return Err(format!("{option} is {value}; it must be a positive number").into());
        }
    }
    if args.problems == 0 {
        return Err("--problems must be at least 1".into());
    }
    if let Some(until) = args.until.filter(|until| !(0.0..=1.0).contains(until)) {
        return Err(format!("--until is {until}; an accuracy is between 0 and 1").into());
    }
    let cpu = global.cpu()?;
    let start = Checkpoint::open(&args.model)?;
    let settings = PretrainSettings {
        task: args.task.clone(),
        seed: args.seed,
        updates: args.updates,
        batch: args.batch,
        lr: args.lr,
        warmup: args.warmup,
        decay: args.decay,
        weight_decay: args.weight_decay,
        clip: args.clip,
        precision: args.precision,
        problems: args.problems,
    };
    let watch = opd::clock::Stopwatch::start();
    let device = cpu.to_string();
    let mut run = Pretrainer::open(cpu, &start, settings)?;
    let bar = global.bar(args.updates, "updates");
    bar.set_message("pretrain");
    let (mut loss, mut tokens, mut accuracy) = (f64::NAN, 0, None);
    while run.updates() < args.updates {
        let (now, seen, norm) = run.update()?;
        loss = now;
        tokens += seen;
        bar.inc(1);
        let shown = accuracy.map_or(String::new(), |a: f64| format!("  accuracy {:.1}%", 100.0 * a));
        bar.set_prefix(format!("loss {loss:.4}  norm {norm:.2}{shown}"));
        if args.eval_every > 0 && run.updates() % args.eval_every == 0 {
            let now = run.evaluate()?.accuracy().unwrap_or(0.0);
            accuracy = Some(now);
            bar.suspend(|| eprintln!("update {}: loss {loss:.4}, accuracy {:.2}%", run.updates(), 100.0 * now));
            if args.until.is_some_and(|until| now >= until) {
                break;
            }
        }
    }
    let result = run.evaluate()?;
    bar.finish_and_clear();
    run.save(&args.out, &args.model)?;
    let (accuracy, wall_s) = (result.accuracy().unwrap_or(0.0), watch.elapsed_s());
    let ci = budget::stats::wilson(result.correct, result.judged);
    let hash = Checkpoint::open(&args.out)?.model_hash();
    if !global.json {
        let mut table = Table::new(["pretrain", ""]);
        table.row(["updates".into(), run.updates().to_string()]);
        table.row(["loss, nats/token".into(), format!("{loss:.5}")]);
        table.row([
            "accuracy".into(),
            format!("{:.2}% ({:.2} to {:.2})", 100.0 * accuracy, 100.0 * ci.low, 100.0 * ci.high),
        ]);
        table.row(["tokens/s".into(), format!("{:.0}", tokens as f64 / wall_s)]);
        table.row(["model".into(), args.out.display().to_string()]);
        super::print(format_args!("{table}"))?;
    }
    global.print_json(&json!({
        "accuracy": accuracy, "ci95": [ci.low, ci.high], "n": result.judged, "loss": loss, "updates": run.updates(),
        "tokens": tokens, "wall_s": wall_s, "model": hash, "seed": args.seed,
        "weights_version": run.updates(), "recipe_hash": run.recipe_hash(), "device": device,
    }))?;
    Ok(ExitCode::SUCCESS)
}
