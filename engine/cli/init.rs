//! `leeway init`: a model folder with seeded random weights, or one made of some layers of another.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::init::{InitSpec, random};
use engine::prune::keep_layers;
use ptx::DType;
use serde_json::json;

use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Where the folder goes.
    #[arg(long)]
    out: PathBuf,
    /// qwen3, qwen2, llama or mistral.
    #[arg(long, default_value = "qwen3", value_parser = arch)]
    arch: Arch,
    /// Width of the residual stream.
    #[arg(long, default_value_t = 128)]
    hidden: usize,
    /// Decoder layers.
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Query heads.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Key and value heads.
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    /// Width of a head.
    #[arg(long, default_value_t = 32)]
    head_dim: usize,
    /// Width of the MLP.
    #[arg(long, default_value_t = 384)]
    ffn: usize,
    /// Vocabulary; --tasks sets it.
    #[arg(long, default_value_t = 64, conflicts_with = "tasks")]
    vocab: usize,
    /// Context, in tokens.
    #[arg(long, default_value_t = 256)]
    max_positions: usize,
    /// Base of the rotary embedding.
    #[arg(long, default_value_t = 10_000.0)]
    rope_theta: f64,
    /// Give the head its own weights.
    #[arg(long)]
    untied: bool,
    /// Standard deviation of the weights.
    #[arg(long, default_value_t = 0.05)]
    std: f32,
    /// Storage: f32 or bf16.
    #[arg(long, default_value = "f32", value_parser = dtype)]
    dtype: DType,
    /// Seed of the weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take the vocabulary of the built-in tasks, and write its tokenizer.
    #[arg(long)]
    tasks: bool,
    /// Instead of random weights, copy this folder's.
    #[arg(long, conflicts_with_all = MADE)]
    from: Option<PathBuf>,
    /// With --from: the layers to keep, e.g. 0-9,20-29.
    #[arg(long, requires = "from", value_parser = ranges)]
    keep_layers: Option<Layers>,
}

/// What says how a new model is made, and would be ignored where one is copied.
const MADE: [&str; 15] = [
    "arch",
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "max_positions",
    "rope_theta",
    "untied",
    "std",
    "dtype",
    "seed",
    "tasks",
];

/// More layers than any model has: a slip of the finger that would be listed one by one.
const LAYERS_MAX: usize = 10_000;

/// Layer numbers, ascending.
#[derive(Clone, Debug)]
struct Layers(Vec<usize>);

fn arch(name: &str) -> Result<Arch, String> {
    Arch::ALL
        .into_iter()
        .find(|a| a.model_type() == name)
        .ok_or_else(|| format!("{name:?} is no architecture here; use qwen3, qwen2, llama or mistral"))
}

fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        other => Err(format!("{other:?} is no storage format here; use f32 or bf16")),
    }
}

fn ranges(text: &str) -> Result<Layers, String> {
    let number = |t: &str| t.trim().parse::<usize>().map_err(|_| format!("{t:?} is not a layer number"));
    let mut layers = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first >= LAYERS_MAX {
                    return Err(format!("{part:?} is no range of layers, e.g. 20-29"));
                }
                layers.extend(first..=last);
            }
            None => layers.push(number(part)?),
        }
    }
    if layers.is_empty() || !layers.is_sorted_by(|a, b| a < b) {
        return Err(format!("{text:?} must name layers in ascending order, each once, e.g. 0-9,20-29"));
    }
    Ok(Layers(layers))
}

pub fn run(args: &InitArgs, global: &Global) -> Result<ExitCode, Failure> {
    global.only_cpu()?;
    if args.out.exists() {
        return Err(format!("{} exists already; init never overwrites a model", args.out.display()).into());
    }
    if let Some(from) = &args.from {
        let checkpoint = Checkpoint::open(from)?;
        let all: Vec<usize> = (0..checkpoint.config().layers).collect();
        keep_layers(&checkpoint, args.keep_layers.as_ref().map_or(&all, |l| &l.0), &args.out)?;
    } else {
        let spec = InitSpec {
            arch: args.arch,
            hidden: args.hidden,
            layers: args.layers,
            heads: args.heads,
            kv_heads: args.kv_heads,
            head_dim: args.head_dim,
            ffn: args.ffn,
            vocab: if args.tasks { opd::tasks::VOCAB_LEN } else { args.vocab },
            tied: !args.untied,
            seed: args.seed,
            dtype: args.dtype,
            max_positions: args.max_positions,
            rope_theta: args.rope_theta,
            std: args.std,
        };
        let files = args.tasks.then(task_files).transpose()?;
        random(&args.out, &spec, files.as_ref().map(|dir| dir.path()))?;
    }
    let checkpoint = Checkpoint::open(&args.out)?;
    let (parameters, hash) = (checkpoint.config().parameters(), checkpoint.model_hash());
    if !global.json {
        super::print(format_args!("{}: {parameters} parameters, model {hash}\n", args.out.display()))?;
    }
    global.print_json(&json!({"parameters": parameters, "model": hash, "seed": args.seed}))?;
    Ok(ExitCode::SUCCESS)
}

/// A folder with the tokenizer and the stop ids of the built-in tasks, for the new model to take over.
fn task_files() -> Result<tempfile::TempDir, Failure> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("tokenizer.json"), opd::tasks::tokenizer_json())?;
    std::fs::write(dir.path().join("tokenizer_config.json"), opd::tasks::tokenizer_config_json())?;
    let ids =
        json!({"bos_token_id": opd::tasks::BOS, "eos_token_id": opd::tasks::EOS, "pad_token_id": opd::tasks::PAD});
    std::fs::write(dir.path().join("generation_config.json"), ids.to_string())?;
    Ok(dir)
}
