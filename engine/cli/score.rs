//! `leeway score`: logprobs of given ids.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::rollout::{Limits, score};
use ptx::ops::sample::Params;
use serde_json::{Value, json};

use super::open::{Folder, InputArgs, LineFile, ModelArgs};
use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,
    /// Temperature that the logprobs are taken at.
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// Write one line a row (JSONL) here.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &ScoreArgs, global: &Global) -> Result<ExitCode, Failure> {
    if !(args.temperature.is_finite() && args.temperature >= Params::TEMPERATURE_MIN) {
        return Err(
            format!("--temperature is {}; scoring needs a positive number, at least 1e-6", args.temperature).into()
        );
    }
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model.model)?;
    let rows = folder.read(&args.input)?;
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let limits = Limits::default();
    let (mut engine, origin) =
        folder.load(&cpu, &args.model, limits.step_tokens.div_ceil(longest.max(1)).max(2), longest)?;
    let bar = global.bar(rows.len() as u64, "rows");
    bar.set_message("score");
    let refs: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let mut logprobs: Vec<Option<Vec<f32>>> = vec![None; rows.len()];
    let mut failed = Vec::new();
    let watch = opd::clock::Stopwatch::start();
    score(&mut engine, &refs, args.temperature, limits, &mut |i, result| {
        bar.inc(1);
        match result {
            Ok(scores) => logprobs[i] = Some(scores.logprobs),
            Err(error) => failed.push((i, error.to_string())),
        }
    });
    bar.finish_and_clear();
    let (wall_s, tokens) = (watch.elapsed_s(), rows.iter().map(Vec::len).sum::<usize>());
    if let Some(path) = &args.out {
        let mut out = LineFile::create(path, [args.input.prompts.as_ref(), args.input.ids.as_ref()])?;
        for (ids, logprobs) in rows.iter().zip(&logprobs) {
            out.line(
                &json!({"ids": ids, "logprobs": logprobs, "recipe": origin.recipe_hash, "model": origin.model_hash,
                "weights_version": engine.model().version(), "temperature": args.temperature, "device": origin.device}),
            )?;
        }
        out.finish()?;
    }
    if !global.json {
        let mut table = Table::new(["row", "tokens", "mean NLL, nats", "perplexity"]);
        for (i, (ids, scores)) in rows.iter().zip(&logprobs).enumerate() {
            if let Some(scores) = scores {
                let nll = -scores.iter().map(|&l| f64::from(l)).sum::<f64>() / scores.len().max(1) as f64;
                table.row([i.to_string(), ids.len().to_string(), format!("{nll:.6}"), format!("{:.3}", nll.exp())]);
            }
        }
        super::print(format_args!("{table}"))?;
    }
    for (index, error) in &failed {
        eprintln!("error: row {index}: {error}");
    }
    eprintln!("{tokens} tokens in {wall_s:.2} s: {:.1} tokens/s", tokens as f64 / wall_s);
    global.print_json(&json!({
        "logprobs": logprobs.into_iter().map(|l| l.map_or(Value::Null, |l| json!(l))).collect::<Vec<_>>(),
        "errors": failed.iter().map(|(i, e)| json!({"index": i, "error": e})).collect::<Vec<_>>(),
        "tokens": tokens, "wall_s": wall_s, "weights_version": engine.model().version(), "temperature": args.temperature,
        "recipe": origin.recipe_hash, "recipe_name": origin.recipe, "model": origin.model_hash, "device": origin.device,
    }))?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
