//! `leeway generate`: sample completions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::rollout::{Limits, Request, Rollout, generate};
use ptx::ops::sample::Params;
use serde_json::{Value, json};

use super::open::{Folder, InputArgs, ModelArgs, Origin};
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,
    /// Completions of each prompt.
    #[arg(long, default_value_t = 1)]
    n: u32,
    /// Most tokens of a completion.
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// Smallest set of tokens whose mass reaches this; 1 is off.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Most likely tokens to draw from; 0 is off.
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Least probability, relative to the most likely token's; 0 is off.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Seed; a draw depends on it, the sample's index and the position alone.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Report this many most likely tokens at each step.
    #[arg(long, default_value_t = 0)]
    logprobs: usize,
    /// Report logprobs of the prompt's tokens too, at temperature 1.
    #[arg(long)]
    prompt_logprobs: bool,
    /// Sequences decoded at a time.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Write rollout lines (JSONL) here.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &GenerateArgs, global: &Global) -> Result<ExitCode, Failure> {
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model.model)?;
    let prompts = folder.read(&args.input)?;
    let params = Params { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, min_p: args.min_p };
    params.check()?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(args.max_tokens);
    let sequences = prompts.len().saturating_mul(args.n as usize).min(args.batch.max(1));
    let (mut engine, origin) = folder.load(&cpu, &args.model, sequences, longest)?;
    let requests: Vec<Request> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| Request {
            prompt: prompt.clone(),
            samples: args.n,
            first_sample: i as u64 * u64::from(args.n),
            seed: args.seed,
            params,
            max_tokens: args.max_tokens,
            stop_ids: folder.checkpoint.config().stop_ids.clone(),
            top_logprobs: args.logprobs,
        })
        .collect();
    let mut out = args
        .out
        .as_ref()
        .map(|path| super::open::LineFile::create(path, [args.input.prompts.as_ref(), args.input.ids.as_ref()]))
        .transpose()?;
    let bar = global.bar(requests.len() as u64 * u64::from(args.n), "rollouts");
    bar.set_message("generate");
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let mut tokens = 0_usize;
    let watch = opd::clock::Stopwatch::start();
    let limits = Limits { batch: args.batch.max(1), ..Limits::default() };
    generate(&mut engine, &requests, limits, &mut |index, result| match result {
        Ok(rollout) => {
            tokens += rollout.ids.len();
            bar.inc(1);
            rows.push(rollout);
        }
        Err(error) => failed.push((index, error.to_string())),
    });
    bar.finish_and_clear();
    let wall_s = watch.elapsed_s();
    rows.sort_by_key(|r| (r.request, r.sample));
    failed.sort();
    let prompt_logprobs = if args.prompt_logprobs {
        let refs: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let mut scores = vec![Value::Null; prompts.len()];
        engine::rollout::score(&mut engine, &refs, 1.0, limits, &mut |index, result| match result {
            Ok(score) => scores[index] = json!(score.logprobs),
            // A prompt that could not be served has its error already.
            Err(error) if failed.iter().all(|(i, _)| *i != index) => failed.push((index, error.to_string())),
            Err(_) => {}
        });
        Some(scores)
    } else {
        None
    };
    if let Some(out) = &mut out {
        for rollout in &rows {
            out.line(&rollout_line(&prompts[rollout.request], rollout, args, &origin))?;
        }
    }
    if let Some(out) = out {
        out.finish()?;
    }
    if !global.json {
        for rollout in &rows {
            let text = folder.text(&rollout.ids);
            let shown = if folder.tokenizer.is_some() { text } else { format!("{:?}", rollout.ids) };
            let (prompt, sample) = (rollout.request, rollout.sample % u64::from(args.n));
            super::print(format_args!("[{prompt}.{sample}] {shown}\n"))?;
        }
    }
    for (index, error) in &failed {
        eprintln!("error: prompt {index}: {error}");
    }
    eprintln!("{tokens} tokens in {wall_s:.2} s: {:.1} tokens/s", tokens as f64 / wall_s);
    let json_rows: Vec<Value> = rows
        .iter()
        .map(|r| {
            let mut row = json!({
                "index": r.request, "sample": r.sample, "ids": r.ids, "text": folder.text(&r.ids),
                "logprobs": r.logprobs, "logprobs_raw": r.logprobs_raw, "finish": r.finish.name(),
            });
            if args.logprobs > 0 {
                row["top_logprobs"] = json!(r.top);
            }
            if let Some(scores) = &prompt_logprobs {
                row["prompt_logprobs"] = scores[r.request].clone();
            }
            row
        })
        .collect();
    global.print_json(&json!({
        "rows": json_rows,
        "errors": failed.iter().map(|(i, e)| json!({"index": i, "error": e})).collect::<Vec<_>>(),
        "tokens": tokens, "wall_s": wall_s, "seed": args.seed, "weights_version": engine.model().version(),
        "model": origin.model_hash, "recipe": origin.recipe, "recipe_hash": origin.recipe_hash, "device": origin.device,
    }))?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line of a rollout file (docs/formats.md).
fn rollout_line(prompt: &[u32], rollout: &Rollout, args: &GenerateArgs, origin: &Origin) -> Value {
    json!({
        "prompt_ids": prompt, "ids": rollout.ids, "logprobs_rollout": rollout.logprobs,
        "versions": [[0, rollout.version]], "seed": args.seed, "sample": rollout.sample,
        "temperature": args.temperature, "top_p": args.top_p, "recipe": origin.recipe_hash,
        "model": origin.model_hash, "finish": rollout.finish.name(), "top_k": args.top_k, "min_p": args.min_p,
        "device": origin.device,
    })
}
