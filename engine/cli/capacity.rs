//! `leeway capacity`: how many tokens and sequences some memory holds, from `config.json` alone.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::config::ModelConfig;
use engine::engine::PAGE_LEN;
use engine::plan::{Memory, Plan, PlanError, Settings, stated_precision};
use engine::recipe::{Precision, Recipe};
use engine::rollout::Limits;
use kv::Group;
use serde_json::{Value, json};

use super::open::bytes;
use super::table::Table;
use super::{Failure, Global};

/// Length of a sequence unless a caller asks otherwise, or the context is shorter.
const LENGTH: usize = 4096;

#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Model folder; its config.json is all that is read.
    #[arg(long)]
    model: PathBuf,
    /// Recipe: identity, f32, bf16, kv8, fp8, or a recipe file. `identity` is f32 where config.json says float32, else bf16.
    #[arg(long, default_value = "identity")]
    recipe: String,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Longest sequence, prompt and completion, in tokens [default: 4096, or the context where that is shorter]
    #[arg(long, value_parser = count)]
    length: Option<usize>,
    /// With --samples: tokens of the prompt that the samples share.
    #[arg(long, value_parser = count, requires = "samples")]
    prompt_length: Option<usize>,
    /// Samples of each prompt; says how many such groups fit.
    #[arg(long, value_parser = count, requires = "prompt_length")]
    samples: Option<usize>,
    /// Tokens of a KV page: a power of two from 1 to 256.
    #[arg(long, default_value_t = PAGE_LEN, value_parser = page_len)]
    page_len: usize,
    /// Most tokens of a prefill step.
    #[arg(long, default_value_t = Limits::default().step_tokens, value_parser = count)]
    step_tokens: usize,
    /// Most sequences decoded at a time; with the step's tokens it decides the workspace.
    #[arg(long, default_value_t = Limits::default().batch, value_parser = count)]
    batch: usize,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct MemoryArgs {
    /// Bytes for weights, workspace and KV pool together, e.g. 16GiB.
    #[arg(long, value_parser = bytes)]
    memory: Option<usize>,
    /// Bytes for the KV pool alone, e.g. 8GiB.
    #[arg(long, value_parser = bytes)]
    kv_memory: Option<usize>,
}

/// More of anything than a machine can have at a time: a slip of the finger.
const COUNT_MAX: usize = 1 << 30;

/// A number of things, at least one.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=COUNT_MAX).contains(count))
        .ok_or_else(|| format!("{text:?} is no whole number from 1 to {COUNT_MAX}"))
}

fn page_len(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|len: &usize| len.is_power_of_two() && *len <= 256)
        .ok_or_else(|| format!("{text:?} is no power of two from 1 to 256"))
}

pub fn run(args: &CapacityArgs, global: &Global) -> Result<ExitCode, Failure> {
    let cpu = global.cpu()?;
    let config = ModelConfig::open(&args.model)?;
    let recipe = Recipe::open(&args.recipe, stated_precision(&config), &config)?;
    let settings = Settings {
        page_len: args.page_len,
        step_tokens: args.step_tokens,
        batch: args.batch,
        length: args.length.unwrap_or(LENGTH.min(config.max_positions)),
        threads: cpu.threads(),
        isa: cpu.isa(),
    };
    let memory = match (args.memory.memory, args.memory.kv_memory) {
        (Some(all), _) => Memory::All(all),
        (_, Some(pool)) => Memory::Pool(pool),
        _ => unreachable!("clap requires one of them"),
    };
    let plan = Plan::new(&config, &recipe, settings, memory)?;
    let report = Report {
        max_batch: plan.sequences()?,
        ratio_kv: plan.layout.ratio_to_bf16(plan.pool),
        ratio_total: ratio_total(&config, &plan, memory)?,
        groups: groups(args, &plan)?,
        recipe,
        config,
        plan,
    };
    if !global.json {
        super::print(format_args!("{}\n{}", report.summary(), report.by_layer()))?;
    }
    global.print_json(&report.json())?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens over those of an all-bf16 recipe in the same memory; none where that does not even hold its weights.
fn ratio_total(config: &ModelConfig, plan: &Plan, memory: Memory) -> Result<Option<f64>, Failure> {
    if matches!(memory, Memory::Pool(_)) {
        return Ok(plan.layout.ratio_to_bf16(plan.pool));
    }
    let bf16 = Recipe::built_in("bf16", Precision::Bf16, config)?;
    match Plan::new(config, &bf16, plan.settings, memory) {
        Ok(bf16) => Ok(plan.ratio_to(&bf16)),
        Err(PlanError::Memory { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

/// The pages of a group of samples of one prompt, and how many groups fit.
fn groups(args: &CapacityArgs, plan: &Plan) -> Result<Option<(Group, usize)>, Failure> {
    let (Some(prompt), Some(samples)) = (args.prompt_length, args.samples) else { return Ok(None) };
    let length = plan.settings.length;
    if prompt >= length {
        return Err(format!(
            "--prompt-length is {prompt} and --length, prompt and completion together, {length}: nothing is left to \
             sample; ask for a longer length or a shorter prompt"
        )
        .into());
    }
    let group = plan.layout.group(prompt, length);
    Ok(Some((group, plan.capacity.pages / group.pages(samples))))
}

struct Report {
    config: ModelConfig,
    recipe: Recipe,
    plan: Plan,
    max_batch: usize,
    ratio_kv: Option<f64>,
    ratio_total: Option<f64>,
    groups: Option<(Group, usize)>,
}

impl Report {
    fn summary(&self) -> Table {
        let Report { config, recipe, plan, max_batch, .. } = self;
        let Settings { length, batch, step_tokens, threads, .. } = plan.settings;
        let (layout, pages) = (&plan.layout, plan.capacity.pages);
        let ratio = |ratio: Option<f64>| ratio.map_or("bf16 does not fit".into(), |ratio| format!("{ratio:.3}"));
        let mut table = Table::new(["capacity", ""]);
        table.row(["model".into(), config.arch.model_type().into()]);
        table.row(["recipe".into(), recipe.name.clone()]);
        table.row(["weights".into(), size(plan.weights.total())]);
        table.row([
            format!("workspace, {step_tokens} tokens a step, {batch} decoded, {threads} threads"),
            size(plan.workspace.total()),
        ]);
        table.row(["KV pool".into(), size(plan.pool)]);
        table.row(["in all".into(), size(plan.total())]);
        table.row([format!("page of {} tokens", layout.page_len()), size(layout.page_bytes())]);
        table.row(["bytes per token".into(), number(layout.token_bytes_total()).to_string()]);
        table.row(["pages".into(), pages.to_string()]);
        table.row(["tokens".into(), plan.capacity.tokens.to_string()]);
        table.row(["tokens in bf16, same KV bytes".into(), self.tokens_bf16().to_string()]);
        table.row(["ratio to bf16, KV only".into(), ratio(self.ratio_kv)]);
        table.row(["ratio to bf16, in total".into(), ratio(self.ratio_total)]);
        table.row([format!("largest batch at length {length}"), max_batch.to_string()]);
        let waste = layout.tail_waste();
        let share = 100.0 * waste / (length as f64 + waste);
        table.row(["unused tail of a sequence, mean".into(), format!("{waste} tokens ({share:.2} %)")]);
        if let Some((group, count)) = self.groups {
            table.row(["pages of a prompt, shared".into(), group.shared.to_string()]);
            table.row(["pages of each sample".into(), group.own.to_string()]);
            table.row(["groups that fit".into(), count.to_string()]);
        }
        table
    }

    /// Layers that are equal and follow each other share a row.
    fn by_layer(&self) -> Table {
        let Report { recipe, plan, .. } = self;
        let per_token: Vec<f64> = plan.layout.token_bytes().collect();
        let mut table = Table::new(["layers", "K", "V", "KV bytes per token", "weights"]);
        let mut first = 0;
        for rows in recipe.layers.chunk_by(|a, b| a == b) {
            let last = first + rows.len() - 1;
            let name = if first == last { first.to_string() } else { format!("{first}-{last}") };
            let row = &rows[0];
            table.row([
                name,
                row.k.name().into(),
                row.v.name().into(),
                number(per_token[first]).to_string(),
                size(plan.weights.layers[first]),
            ]);
            first = last + 1;
        }
        table.row(["embedding".into(), String::new(), String::new(), String::new(), size(plan.weights.embed)]);
        let head = if self.config.tied { "the embedding".into() } else { size(plan.weights.head) };
        table.row(["head".into(), String::new(), String::new(), String::new(), head]);
        table
    }

    fn tokens_bf16(&self) -> usize {
        self.plan.layout.as_bf16().capacity(self.plan.pool).tokens
    }

    fn json(&self) -> Value {
        let Report { config, recipe, plan, max_batch, ratio_kv, ratio_total, groups } = self;
        let layout = &plan.layout;
        json!({
            "model_type": config.arch.model_type(),
            "recipe": recipe.name,
            "recipe_hash": recipe.hash(),
            "memory_bytes": plan.total(),
            "weights_bytes": plan.weights.total(),
            "workspace_bytes": plan.workspace.total(),
            "kv_bytes": plan.pool,
            "page_len": layout.page_len(),
            "page_bytes": layout.page_bytes(),
            "bytes_per_token": number(layout.token_bytes_total()),
            "bytes_per_token_by_layer": layout.token_bytes().map(number).collect::<Vec<_>>(),
            "pages": plan.capacity.pages,
            "tokens": plan.capacity.tokens,
            "tokens_bf16": self.tokens_bf16(),
            "ratio_kv": ratio_kv,
            "ratio_total": ratio_total,
            "length": plan.settings.length,
            "max_batch": max_batch,
            "tail_waste": layout.tail_waste(),
            "prompt_pages": groups.map(|(group, _)| group.shared),
            "tail_pages_per_sample": groups.map(|(group, _)| group.own),
            "groups": groups.map(|(_, count)| count),
            "step_tokens": plan.settings.step_tokens,
            "batch": plan.settings.batch,
            "threads": plan.settings.threads,
        })
    }
}

/// A number as JSON, without a fraction where it has none.
#[allow(clippy::cast_possible_truncation)] // whole and below 2^53
fn number(x: f64) -> Value {
    if x.fract() == 0.0 && x.abs() < 9e15 { json!(x as i64) } else { json!(x) }
}

/// Bytes to be read: exact, and in the unit that fits.
pub fn size(bytes: usize) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{bytes} ({:.2} {unit})", bytes as f64 / (1_u64 << shift) as f64),
        None => bytes.to_string(),
    }
}
