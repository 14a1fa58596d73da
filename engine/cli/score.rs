//! `leeway score`: logprobs of given ids.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::rollout::{Limits, RequestError, ScoreRow, Scores, score};
use opd::score_lines::{self, ScoreLine};
use ptx::ops::sample::Params;
use serde_json::json;

use super::open::{Folder, InputArgs, LineFile, Load, ModelArgs};
use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,
    /// Temperature that the logprobs are taken at, where a line of --ids does not give its own.
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
    let folder = Folder::open(&args.model.model)?;
    let device = global.device(|| folder.fits_cuda(&args.model))?;
    let rows = rows(&folder, &args.input)?;
    let temperature = |row: &ScoreLine| row.temperature.unwrap_or(args.temperature);
    let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
    let limits = Limits::default();
    let sequences = limits.step_tokens.div_ceil(longest.max(1)).max(2);
    let (mut engine, origin) = folder.load(&device, &args.model, Load { sequences, tokens: longest, limits })?;
    let bar = global.bar(rows.len() as u64, "rows");
    bar.set_message("score");
    let asked: Vec<ScoreRow> = rows
        .iter()
        .map(|row| ScoreRow { ids: row.ids.clone(), temperature: temperature(row), candidates: row.candidates.clone() })
        .collect();
    let mut scored: Vec<Option<Scores>> = vec![None; rows.len()];
    let (mut failed, mut broken) = (Vec::new(), None);
    let watch = opd::clock::Stopwatch::start();
    score(&mut engine, &asked, limits, &mut |i, result| {
        bar.inc(1);
        match result {
            Ok(one) => scored[i] = Some(one),
            Err(RequestError::Device(error)) => broken = Some(error),
            Err(error) => failed.push((i, super::open::advice(&error, &args.model, "shorten the row"))),
        }
    });
    bar.finish_and_clear();
    if let Some(error) = broken {
        return Err(error.into());
    }
    failed.sort();
    let (wall_s, tokens) = (watch.elapsed_s(), rows.iter().map(|row| row.ids.len()).sum::<usize>());
    if let Some(path) = &args.out {
        let mut out = LineFile::create(path, [args.input.prompts.as_ref(), args.input.ids.as_ref()])?;
        for (row, scored) in rows.iter().zip(&scored) {
            let mut line = json!({"ids": row.ids, "logprobs": scored.as_ref().map(|s| &s.logprobs),
                "recipe": origin.recipe_hash, "model": origin.model_hash(), "weights_version": engine.version(),
                "temperature": temperature(row), "device": origin.device});
            if row.candidates.is_some() {
                line["candidates"] = json!(scored.as_ref().and_then(|s| s.candidates.as_ref()));
            }
            out.line(&line)?;
        }
        out.finish()?;
    }
    if !global.json {
        let mut table = Table::new(["row", "tokens", "mean NLL, nats", "perplexity"]);
        for (i, (row, scored)) in rows.iter().zip(&scored).enumerate() {
            if let Some(Scores { logprobs, .. }) = scored {
                let nll = -logprobs.iter().map(|&l| f64::from(l)).sum::<f64>() / logprobs.len().max(1) as f64;
                table.row([i.to_string(), row.ids.len().to_string(), format!("{nll:.6}"), format!("{:.3}", nll.exp())]);
            }
        }
        super::print(format_args!("{table}"))?;
    }
    for (index, error) in &failed {
        eprintln!("error: row {index}: {error}");
    }
    eprintln!("{tokens} tokens in {wall_s:.2} s: {:.1} tokens/s", tokens as f64 / wall_s);
    let mut object = json!({
        "logprobs": scored.iter().map(|s| s.as_ref().map(|s| &s.logprobs)).collect::<Vec<_>>(),
        "errors": failed.iter().map(|(i, e)| json!({"index": i, "error": e})).collect::<Vec<_>>(),
        "tokens": tokens, "wall_s": wall_s, "weights_version": engine.version(), "temperature": args.temperature,
        "recipe": origin.recipe_hash, "recipe_name": origin.recipe, "model": origin.model_hash(), "device": origin.device,
    });
    if rows.iter().any(|row| row.candidates.is_some()) {
        let of = |s: &Option<Scores>| json!(s.as_ref().and_then(|s| s.candidates.as_ref()));
        object["candidates"] = scored.iter().map(of).collect();
    }
    if rows.iter().any(|row| row.temperature.is_some()) {
        object["temperatures"] = rows.iter().map(|row| json!(temperature(row))).collect();
    }
    super::open::add_gpu(&mut object, origin.gpu.as_ref());
    global.print_json(&object)?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rows asked for: lines of ids may say more than their ids.
fn rows(folder: &Folder, input: &InputArgs) -> Result<Vec<ScoreLine>, Failure> {
    if let Some(file) = &input.ids {
        return Ok(score_lines::read(file, folder.valid())?);
    }
    let row = |ids| ScoreLine { ids, candidates: None, temperature: None, line: 0 };
    Ok(folder.read(input)?.into_iter().map(row).collect())
}
