//! `leeway eval`: accuracy on held-out problems.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::rollout::Limits;
use engine::tokenizer::Tokenizer;
use opd::eval::{EvalSettings, evaluate};
use opd::source::Source;
use opd::tasks::{TaskSpec, VOCAB_LEN};
use serde_json::json;

use super::open::{Folder, Load, ModelArgs};
use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The task as a TOML inline table, e.g. '{ name = "modular-chain", depth = 8 }'.
    #[arg(long, value_parser = super::pretrain::task, required_unless_present = "prompts", conflicts_with = "prompts")]
    task: Option<TaskSpec>,
    /// JSONL file of prompts with an `answer` each.
    #[arg(long)]
    prompts: Option<PathBuf>,
    /// Held-out problems.
    #[arg(long, default_value_t = 512)]
    problems: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Most tokens of a completion; by default what the task needs, 256 for prompts.
    #[arg(long)]
    max_tokens: Option<usize>,
    /// Seed of the problems and draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &EvalArgs, global: &Global) -> Result<ExitCode, Failure> {
    let folder = Folder::open(&args.model.model)?;
    let device = global.device(|| folder.fits_cuda(&args.model))?;
    let mut stop_ids = folder.checkpoint.config().stop_ids.clone();
    let (source, longest, tokens) = match (&args.task, &args.prompts) {
        (Some(spec), _) => {
            let vocab = folder.checkpoint.config().vocab;
            if vocab < VOCAB_LEN {
                return Err(format!("the model has a vocabulary of {vocab}; the tasks need {VOCAB_LEN} ids").into());
            }
            let source = Source::Task { spec: spec.clone(), seed: args.seed };
            (source, spec.prompt_max(), spec.completion_max())
        }
        (None, Some(file)) => {
            let source = Source::open_file(file, Tokenizer::open(&folder.dir)?, folder.chat.as_ref(), &[], args.seed)?;
            let longest = source.longest();
            (source, longest, 256)
        }
        (None, None) => unreachable!("clap requires one of them"),
    };
    stop_ids.extend(source.stop_ids());
    let max_tokens = args.max_tokens.unwrap_or(tokens);
    let problems = source.test_len().map_or(args.problems, |n| n.min(args.problems));
    let limits = Limits::default();
    let load = Load { sequences: problems.min(limits.batch), tokens: longest.saturating_add(max_tokens), limits };
    let (mut engine, origin) = folder.load(&device, &args.model, load)?;
    let watch = opd::clock::Stopwatch::start();
    let settings =
        EvalSettings { problems, temperature: args.temperature, max_tokens, seed: args.seed, first_sample: 0 };
    let result = evaluate(&mut engine, &source, settings, &stop_ids, limits)?;
    let Some(accuracy) = result.accuracy() else {
        return Err("no prompt has an answer to judge by; add `answer` to the lines of the file".into());
    };
    let ci = budget::stats::wilson(result.correct, result.judged);
    if !global.json {
        let mut table = Table::new(["eval", ""]);
        table.row(["accuracy".into(), format!("{:.2}%", 100.0 * accuracy)]);
        table.row(["95% interval".into(), format!("{:.2}% to {:.2}%", 100.0 * ci.low, 100.0 * ci.high)]);
        table.row(["problems".into(), result.judged.to_string()]);
        table.row(["cut off by length".into(), result.truncated.to_string()]);
        table.row(["recipe".into(), origin.recipe.clone()]);
        super::print(format_args!("{table}"))?;
    }
    let mut object = json!({
        "accuracy": accuracy, "ci95": [ci.low, ci.high], "n": result.judged, "truncated": result.truncated,
        "wall_s": watch.elapsed_s(), "seed": args.seed, "temperature": args.temperature,
        "weights_version": engine.version(), "model": origin.model_hash(), "recipe": origin.recipe,
        "recipe_hash": origin.recipe_hash, "device": origin.device,
    });
    super::open::add_gpu(&mut object, origin.gpu.as_ref());
    global.print_json(&object)?;
    Ok(ExitCode::SUCCESS)
}
