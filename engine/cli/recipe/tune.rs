//! `leeway recipe tune`: what every unit costs in nats, and the recipe that follows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use engine::config::ModelConfig;
use engine::plan::Weights;
use engine::recipe::{Precision, Recipe};
use opd::tasks::TaskSpec;
use opd::tune::{Tuner, Unit, Which, page_bytes, units, unrounded, with_units};
use serde_json::{Value, json};

use super::super::open::{Folder, bytes};
use super::super::{Failure, Global};
use super::measure::Measure;
use super::report;
use super::sample::rollouts;

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Model folder.
    #[arg(long)]
    pub model: PathBuf,
    /// Folder for the recipe, the table, the picture and the measurements; the same command goes on with what it holds.
    #[arg(long)]
    pub out: PathBuf,
    #[command(flatten)]
    pub goal: Goal,
    #[command(flatten)]
    pub input: Input,
    /// bf16 or f32: the precision trained in, which the recipe is measured against and leaves in place; unless given,
    /// that of the folder.
    #[arg(long, value_parser = super::super::pretrain::precision)]
    pub precision: Option<Precision>,
    /// Prompts to sample a completion of: the first ones of the file; 32 unless given.
    #[arg(long, short = 'n', conflicts_with = "rollouts")]
    pub n_prompts: Option<usize>,
    /// Most tokens of a completion; 64 unless given.
    #[arg(long, conflicts_with = "rollouts")]
    pub max_tokens: Option<usize>,
    /// kv (keys and values), weights (matrices and head) or all.
    #[arg(long, default_value = "all", value_parser = which)]
    pub units: Which,
    /// Random recipes on which it is tested whether costs add up.
    #[arg(long, default_value_t = 8)]
    pub random_recipes: usize,
    /// Seed of completions, intervals and random recipes.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Memory for weights and KV cache that the recipe is meant for, e.g. 16GiB: the KV pages that fit in it weigh bytes
    /// of keys and values against bytes of matrices.
    #[arg(long, default_value = "8GiB", value_parser = bytes)]
    pub memory: usize,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Goal {
    /// Most D, in nats per token, that the recipe may have as a whole: save as many bytes as that buys.
    #[arg(long, value_name = "NATS")]
    pub budget: Option<f64>,
    /// Least tokens in the KV cache, as a multiple of what bf16 holds in the same bytes: reach it at least D.
    #[arg(long, value_name = "RATIO")]
    pub kv_ratio: Option<f64>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Input {
    /// JSONL file of prompts: text, chat messages or ids.
    #[arg(long)]
    pub prompts: Option<PathBuf>,
    /// JSONL file of lines {"ids": [...]}; no tokenizer is needed.
    #[arg(long)]
    pub ids: Option<PathBuf>,
    /// JSONL file of rollout lines to measure on; nothing is sampled.
    #[arg(long)]
    pub rollouts: Option<PathBuf>,
    /// Prompts of a built-in task, as a TOML inline table. A model of the built-in tasks takes all of them unless told.
    #[arg(long, value_parser = super::super::pretrain::task)]
    pub task: Option<TaskSpec>,
}

impl Goal {
    /// What was asked for, in words.
    pub fn words(&self) -> String {
        match (self.kv_ratio, self.budget) {
            (Some(ratio), _) => format!("KV tokens at least {ratio} of bf16's"),
            (None, Some(budget)) => format!("D at most {budget:e}"),
            (None, None) => unreachable!("clap requires one of them"),
        }
    }
}

fn which(name: &str) -> Result<Which, String> {
    match name {
        "kv" => Ok(Which::Kv),
        "weights" => Ok(Which::Weights),
        "all" => Ok(Which::All),
        other => Err(format!("{other:?} is no set of units; use kv, weights or all")),
    }
}

pub fn run(args: &TuneArgs, global: &Global) -> Result<ExitCode, Failure> {
    check(args)?;
    let watch = opd::clock::Stopwatch::start();
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model)?;
    let config = folder.checkpoint.config();
    let base = Recipe::built_in("identity", precision_of(args, &folder), config)?;
    let units = units(config.layers, args.units);
    let want = args.goal.kv_ratio.map(|ratio| page_bytes_to_save(config, &base, &units, ratio)).transpose()?;
    let plain = unrounded(&base);
    let pages = pages(args.memory, Weights::of(config, &plain).total(), page_bytes(config, &base))?;
    let model_hash = folder.checkpoint.model_hash();
    let (rollouts, state) = rollouts(args, global, &cpu, &folder, &base, &model_hash)?;
    let (prompts, tokens) = (rollouts.prompt_count(), rollouts.tokens());
    let valid = folder.valid();

    let bar = global.bar(units.len() as u64 + args.random_recipes as u64 + 2, "recipes");
    bar.set_message("reference");
    bar.tick();
    let tuner = |reference: &Recipe, state| {
        Tuner::new(Arc::clone(&cpu), &folder.checkpoint, reference.clone(), &rollouts, valid, state)
    };
    let alone = tuner(&plain, state)?;
    let mut measure = Measure { tuner: alone, base: &plain, config, bar: &bar, seed: args.seed };
    bar.reset_eta();
    let costs = measure.units(args, &units)?;
    bar.set_message("reference");
    let whole = tuner(&base, measure.tuner.into_state())?;
    let mut measure = Measure { tuner: whole, base: &base, config, bar: &bar, seed: args.seed };
    let outcome = measure.wholes(args, &units, costs, want, pages)?;
    bar.finish_and_clear();

    let set = report::Set { prompts, tokens, model_hash: &model_hash, model_type: config.arch.model_type() };
    report::write_files(args, &outcome, &set)?;
    if !global.json {
        super::super::print(format_args!("{}", report::tables(args, &outcome, &set)))?;
    }
    let mut object = report::object(&outcome);
    for (key, value) in [
        ("prompts", json!(prompts)),
        ("tokens", json!(tokens)),
        ("rollouts", json!(rollouts.hash())),
        ("memory_bytes", json!(args.memory)),
        ("model", json!(model_hash)),
        ("seed", json!(args.seed)),
        ("device", json!(cpu.to_string())),
        ("out", json!(args.out)),
        ("wall_s", json!(watch.elapsed_s())),
    ] {
        object.insert(key.into(), value);
    }
    global.print_json(&Value::Object(object))?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &TuneArgs) -> Result<(), Failure> {
    if let Some(budget) = args.goal.budget.filter(|b| !(b.is_finite() && *b > 0.0)) {
        return Err(format!("--budget is {budget}; it must be a positive number of nats per token, e.g. 0.005").into());
    }
    if let Some(ratio) = args.goal.kv_ratio.filter(|r| !(r.is_finite() && *r > 0.0)) {
        return Err(format!("--kv-ratio is {ratio}; it must be a positive number, e.g. 1.93").into());
    }
    if args.goal.kv_ratio.is_some() && args.units == Which::Weights {
        return Err("--kv-ratio is a matter of keys and values: use --units kv or all".into());
    }
    for (option, value) in [("--n-prompts", args.n_prompts), ("--max-tokens", args.max_tokens)] {
        if value == Some(0) {
            return Err(format!("{option} must be at least 1").into());
        }
    }
    if args.out.join("config.json").exists() {
        return Err(format!("{} is a model folder; give --out a folder of its own", args.out.display()).into());
    }
    Ok(())
}

pub fn precision_of(args: &TuneArgs, folder: &Folder) -> Precision {
    args.precision.unwrap_or(folder.precision())
}

/// Bytes that a KV page over all layers must shrink by, so that the pool holds `ratio` times bf16's tokens.
fn page_bytes_to_save(config: &ModelConfig, base: &Recipe, units: &[Unit], ratio: f64) -> Result<u64, Failure> {
    let bf16 = bf16_page_bytes(config)?;
    let now = page_bytes(config, base);
    let reaches = |page: u64| kv_ratio(bf16, page) >= ratio;
    let least = page_bytes(config, &with_units(base, config, units.iter().copied(), "all"));
    if !reaches(least) {
        let best = kv_ratio(bf16, least);
        return Err(format!(
            "--kv-ratio {ratio} cannot be reached: with all keys and values in e4m3 the pool holds {best:.4} times the \
             tokens of bf16; ask for at most that"
        )
        .into());
    }
    // Pages shrink by whole bytes: the largest that reaches it lies between the two ends.
    let (mut small, mut large) = (least, now + 1);
    while large - small > 1 {
        let middle = small + (large - small) / 2;
        if reaches(middle) { small = middle } else { large = middle }
    }
    Ok(now - small)
}

pub fn bf16_page_bytes(config: &ModelConfig) -> Result<u64, Failure> {
    Ok(page_bytes(config, &Recipe::built_in("bf16", Precision::Bf16, config)?))
}

#[allow(clippy::cast_precision_loss)] // bytes of a page are far below 2^53
pub fn kv_ratio(bf16: u64, page: u64) -> f64 {
    bf16 as f64 / page as f64
}

/// KV pages beside the weights of the reference.
fn pages(memory: usize, weights: usize, page: u64) -> Result<u64, Failure> {
    let room = memory.saturating_sub(weights) as u64 / page;
    if room == 0 {
        return Err(format!(
            "--memory {memory} leaves no room for a KV page of {page} bytes beside {weights} bytes of weights; give more than \
             their sum"
        )
        .into());
    }
    Ok(room)
}
