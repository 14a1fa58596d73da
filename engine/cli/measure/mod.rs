//! `leeway measure`: what a rollout configuration costs, on rollouts sampled here or logged by some trainer.

mod live;
mod logged;
mod numbers;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use budget::mismatch::RatioEstimate;
use clap::Args;
use engine::checkpoint::Checkpoint;
use engine::recipe::Recipe;
use ptx::Cpu;
use ptx::ops::sample::Params;
use serde_json::json;

use super::open::Folder;
use super::recipe::tune::Input;
use super::{Failure, Global};

/// What is sampled when nothing is said.
const N_PROMPTS: usize = 32;
const MAX_TOKENS: usize = 64;

#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Folder of the trained model: the one that D is the distance to.
    #[arg(long)]
    model: PathBuf,
    /// What rollouts run in: identity (as the trained model), f32, bf16, kv8, fp8, or a recipe file. identity unless given;
    /// with --rollouts D needs it.
    #[arg(long)]
    recipe: Option<String>,
    /// What the trained model runs in; identity is f32 for a folder stored in f32, else bf16.
    #[arg(long, default_value = "identity", value_parser = ["identity", "bf16", "f32"])]
    trained_recipe: String,
    #[command(flatten)]
    input: Input,
    /// Prompts: the first ones of the file; 32 unless given.
    #[arg(short = 'n', long, alias = "n", conflicts_with = "rollouts")]
    n_prompts: Option<usize>,
    /// Completions of each prompt; 1 unless given.
    #[arg(long, conflicts_with = "rollouts")]
    samples: Option<u32>,
    /// Most tokens of a completion; 64 unless given.
    #[arg(long, conflicts_with = "rollouts")]
    max_tokens: Option<usize>,
    /// Temperature of both distributions; 1 unless given.
    #[arg(long, conflicts_with = "rollouts")]
    temperature: Option<f32>,
    /// Seed of completions and intervals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Rollouts have the weights of this folder, an older checkpoint of the model.
    #[arg(long, value_name = "DIR")]
    stale: Option<PathBuf>,
    /// Also measure what prefix drift does to the loss: KL to this teacher on rollouts of the configuration and of the trained
    /// model.
    #[arg(long, value_name = "DIR", conflicts_with = "rollouts")]
    teacher: Option<PathBuf>,
    /// A neighbouring checkpoint of the same run: how much of the recipe's error is the same there.
    #[arg(long, value_name = "DIR", conflicts_with = "rollouts")]
    replicate: Option<PathBuf>,
    /// Also measure every layer alone.
    #[arg(long)]
    by_layer: bool,
    /// Completion tokens that layers are measured on, at most; at least one row of each of two prompts.
    #[arg(long, default_value_t = 512)]
    layer_tokens: usize,
    /// Fail unless half the width of D's 95% interval is at most this share of D.
    #[arg(long, value_name = "SHARE")]
    half_width: Option<f64>,
}

/// What both ways of measuring start from.
struct Opened {
    cpu: Arc<Cpu>,
    folder: Folder,
    trained: Recipe,
    /// The rollout's recipe, if there is one.
    rollout: Option<Recipe>,
    stale: Option<Checkpoint>,
    valid: usize,
}

pub fn run(args: &MeasureArgs, global: &Global) -> Result<ExitCode, Failure> {
    check(args)?;
    let watch = opd::clock::Stopwatch::start();
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model)?;
    let config = folder.checkpoint.config();
    let trained = Recipe::built_in(&args.trained_recipe, folder.precision(), config)?;
    let open = |name: &str| -> Result<Recipe, Failure> {
        Ok(if name == "identity" { trained.clone() } else { Recipe::open(name, folder.precision(), config)? })
    };
    let live = args.input.rollouts.is_none();
    let name = args.recipe.as_deref().or(live.then_some("identity"));
    let rollout = name.map(open).transpose()?;
    let stale = args.stale.as_deref().map(|dir| beside(&folder, "--stale", dir)).transpose()?;
    let valid = folder.valid();
    let opened = Opened { cpu, folder, trained, rollout, stale, valid };
    let mut measured = if live { live::run(args, global, &opened)? } else { logged::run(args, global, &opened)? };
    if let (Some(share), Some(d)) = (args.half_width, &measured.d) {
        narrow_enough(share, d)?;
    }
    measured.wall_s = watch.elapsed_s();
    if !global.json {
        super::print(format_args!("{}", report::screen(&measured)))?;
    }
    let mut object = report::object(&measured);
    let hash = |checkpoint: &Option<Checkpoint>| json!(checkpoint.as_ref().map(Checkpoint::model_hash));
    for (key, value) in [
        ("model", json!(opened.folder.checkpoint.model_hash())),
        ("stale_model", hash(&opened.stale)),
        ("recipe", json!(opened.rollout.as_ref().map(|recipe| &recipe.name))),
        ("recipe_hash", json!(opened.rollout.as_ref().map(Recipe::hash))),
        ("trained_recipe", json!(opened.trained.name)),
        ("trained_recipe_hash", json!(opened.trained.hash())),
        ("weights_version", json!(0)),
        ("temperature", json!(measured.temperature)),
        ("seed", json!(args.seed)),
        ("device", json!(opened.cpu.to_string())),
        ("wall_s", json!(measured.wall_s)),
    ] {
        object[key] = value;
    }
    global.print_json(&object)?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &MeasureArgs) -> Result<(), Failure> {
    let counts =
        [("-n", args.n_prompts), ("--max-tokens", args.max_tokens), ("--layer-tokens", Some(args.layer_tokens))];
    for (option, value) in counts.into_iter().chain([("--samples", args.samples.map(|n| n as usize))]) {
        if value == Some(0) {
            return Err(format!("{option} must be at least 1").into());
        }
    }
    if args.n_prompts == Some(1) {
        return Err("-n is 1: an interval needs at least 2 prompts; give more".into());
    }
    if let Some(t) = args.temperature.filter(|t| !(t.is_finite() && *t >= Params::TEMPERATURE_MIN)) {
        return Err(format!("--temperature is {t}; it must be a positive number, at least 1e-6").into());
    }
    if let Some(share) = args.half_width.filter(|share| !(share.is_finite() && *share > 0.0)) {
        return Err(format!("--half-width is {share}; it must be a positive share of D, e.g. 0.2").into());
    }
    if args.input.rollouts.is_some() && args.recipe.is_none() {
        if args.stale.is_some() || args.by_layer {
            return Err(
                "--stale and --by-layer compute what sampled the rollouts anew, which needs its --recipe".into()
            );
        }
        if args.half_width.is_some() {
            return Err("--half-width is about D, which needs the --recipe that the rollouts were sampled in".into());
        }
    }
    Ok(())
}

/// Another checkpoint of the same model.
fn beside(folder: &Folder, option: &str, dir: &std::path::Path) -> Result<Checkpoint, Failure> {
    let other = Checkpoint::open(dir)?;
    let shape = |checkpoint: &Checkpoint| {
        let c = checkpoint.config();
        (c.arch.model_type(), [c.vocab, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn], c.tied)
    };
    if shape(&other) != shape(&folder.checkpoint) {
        return Err(format!(
            "{option} {}: not a checkpoint of the same model as {}: their shapes differ",
            dir.display(),
            folder.dir.display()
        )
        .into());
    }
    Ok(other)
}

fn narrow_enough(share: f64, d: &RatioEstimate) -> Result<(), Failure> {
    let (half, wanted) = (0.5 * d.ci95.width(), share * d.ratio);
    if half <= wanted {
        return Ok(());
    }
    let need = d.clusters_for(wanted).map_or("no number of prompts would do".to_owned(), |need| {
        format!("about {need} prompts like these would do: give -n {need}")
    });
    Err(format!(
        "D is {:.3e} nats per token, within {half:.2e} by {} prompts; --half-width {share} asks for {wanted:.2e}: {need}",
        d.ratio, d.clusters
    )
    .into())
}
