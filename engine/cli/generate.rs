//! `leeway generate`: sample completions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::ValueEnum;
use engine::rollout::{Answer, Limits, Request, RequestError, Reservation, Rollout, Session, Top};
use ptx::ops::sample::Params;
use serde_json::{Value, json};

use super::open::{Folder, InputArgs, Load, ModelArgs, Origin};
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: InputArgs,
    /// Completions of each prompt.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
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
    /// Text that ends a completion; may be given several times.
    #[arg(long)]
    stop: Vec<String>,
    /// Id that ends a completion, beside the model's own; may be given several times.
    #[arg(long)]
    stop_id: Vec<u32>,
    /// Do not end completions at the model's own stop ids.
    #[arg(long)]
    ignore_eos: bool,
    /// Sequences decoded at a time.
    #[arg(long, default_value_t = 32, value_parser = at_most::<65_536>)]
    batch: usize,
    /// Most tokens of a step: long prompts are cut into pieces that run beside what others decode.
    #[arg(long, default_value_t = Limits::default().step_tokens, value_parser = at_most::<1_048_576>)]
    step_tokens: usize,
    /// How KV pages are secured: for a sample's whole lifetime, or as they are needed, preempting the youngest.
    #[arg(long, value_enum, default_value_t = Secured::Lifetime)]
    reservation: Secured,
    /// Do not reuse keys and values of prompts that begin alike.
    #[arg(long)]
    no_prefix_reuse: bool,
    /// Print what the 8-bit cache lost, by layer.
    #[arg(long)]
    kv_counts: bool,
    /// Write rollout lines (JSONL) here.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// [`Reservation`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Secured {
    /// A sample's whole lifetime of pages is set aside when it begins.
    Lifetime,
    /// A sample begins on the pages it needs now; when they run out the youngest is preempted and computed again.
    Optimistic,
}

impl From<Secured> for Reservation {
    fn from(secured: Secured) -> Reservation {
        match secured {
            Secured::Lifetime => Reservation::Lifetime,
            Secured::Optimistic => Reservation::Optimistic,
        }
    }
}

/// A count from 1 to `MOST`.
fn at_most<const MOST: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("{text:?} is no number from 1 to {MOST}")),
    }
}

pub fn run(args: &GenerateArgs, global: &Global) -> Result<ExitCode, Failure> {
    let folder = Folder::open(&args.model.model)?;
    let device = global.device(|| folder.fits_cuda(&args.model))?;
    let prompts = folder.read(&args.input)?;
    let params = Params { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, min_p: args.min_p };
    params.check()?;
    let valid = folder.valid();
    if let Some(id) = args.stop_id.iter().find(|&&id| id as usize >= valid) {
        return Err(format!("--stop-id {id}: the model has ids 0..{valid}").into());
    }
    if args.logprobs > valid {
        return Err(
            format!("--logprobs {}: the model has {valid} ids; ask for at most that many", args.logprobs).into()
        );
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(args.max_tokens);
    let sequences = prompts.len().saturating_mul(args.n as usize).min(args.batch);
    let reservation = args.reservation.into();
    let limits = Limits { batch: args.batch, step_tokens: args.step_tokens, reservation, ..Limits::default() };
    let (mut engine, origin) = folder.load(&device, &args.model, Load { sequences, tokens: longest, limits })?;
    engine.kv_mut().set_prefix_reuse(!args.no_prefix_reuse);
    let own = if args.ignore_eos { &[][..] } else { &folder.checkpoint.config().stop_ids };
    let stop_ids = [own, &args.stop_id].concat();
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
            stop_ids: stop_ids.clone(),
            stop: args.stop.clone(),
            top_logprobs: args.logprobs,
            prompt_logprobs: args.prompt_logprobs,
        })
        .collect();
    let mut out = args
        .out
        .as_ref()
        .map(|path| super::open::LineFile::create(path, [args.input.prompts.as_ref(), args.input.ids.as_ref()]))
        .transpose()?;
    let bar = global.bar(requests.len() as u64 * u64::from(args.n), "rollouts");
    bar.set_message("generate");
    let (mut rows, mut failed, mut broken) = (Vec::new(), Vec::new(), None);
    let mut tokens = 0_usize;
    let watch = opd::clock::Stopwatch::start();
    let advise = |error: &RequestError| super::open::advice(error, &args.model, "lower --max-tokens");
    let mut session = Session::new(&mut engine, limits).with_tokenizer(folder.tokenizer.clone());
    for (index, request) in requests.into_iter().enumerate() {
        if let Err(error) = session.submit(&engine, index, request) {
            failed.push((index, advise(&error)));
        }
    }
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => {
            tokens += rollout.ids.len();
            bar.inc(1);
            rows.push(rollout);
        }
        Answer::Failed { error: RequestError::Device(error), .. } => broken = Some(error),
        Answer::Failed { request, error, .. } => failed.push((request, advise(&error))),
        Answer::Scores { .. } => unreachable!("nothing was to be scored"),
    };
    while session.step(&mut engine, &mut answer) {}
    let stats = session.stats();
    bar.finish_and_clear();
    if let Some(error) = broken {
        return Err(error.into());
    }
    let wall_s = watch.elapsed_s();
    rows.sort_by_key(|r| (r.request, r.sample));
    failed.sort();
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
            let text = rollout.text.clone().unwrap_or_else(|| folder.text(&rollout.ids));
            let shown = if folder.tokenizer.is_some() { text } else { format!("{:?}", rollout.ids) };
            let (prompt, sample) = (rollout.request, rollout.sample % u64::from(args.n));
            super::print(format_args!("[{prompt}.{sample}] {shown}\n"))?;
        }
    }
    for (index, error) in &failed {
        eprintln!("error: prompt {index}: {error}");
    }
    eprintln!("{tokens} tokens in {wall_s:.2} s: {:.1} tokens/s", tokens as f64 / wall_s);
    let (counts, kv_heads) = (engine.kv_counts()?, engine.config().kv_heads);
    if args.kv_counts && !global.json {
        super::print(format_args!("\n{}", super::kv_counts::table(&counts, kv_heads)))?;
    }
    let json_rows: Vec<Value> = rows
        .iter()
        .map(|r| {
            let mut row = json!({
                "index": r.request, "sample": r.sample, "ids": r.ids, "text": r.text.clone().unwrap_or_else(|| folder.text(&r.ids)),
                "logprobs": r.logprobs, "logprobs_raw": r.logprobs_raw, "support": r.support,
                "versions": r.versions, "finish": r.finish.name(),
            });
            if args.logprobs > 0 {
                row["top_logprobs"] =
                    json!(r.top.iter().map(|top| top.iter().map(top_json).collect()).collect::<Vec<Vec<Value>>>());
            }
            if let Some(scores) = &r.prompt_logprobs {
                row["prompt_logprobs"] = json!(scores.logprobs);
            }
            row
        })
        .collect();
    let mut object = json!({
        "rows": json_rows,
        "errors": failed.iter().map(|(i, e)| json!({"index": i, "error": e})).collect::<Vec<_>>(),
        "tokens": tokens, "wall_s": wall_s, "seed": args.seed, "weights_version": engine.version(),
        "model": origin.model_hash(), "recipe": origin.recipe, "recipe_hash": origin.recipe_hash, "device": origin.device,
        "scheduler": {
            "steps": stats.steps, "prefill_tokens": stats.prefill_tokens_computed,
            "reused_tokens": stats.prefill_tokens_reused, "recomputed_tokens": stats.recomputed_tokens,
            "preempted": stats.preempted, "pages": engine.kv().pages(),
        },
    });
    if args.kv_counts {
        object["kv_counts"] = super::kv_counts::json(&counts, kv_heads);
    }
    super::open::add_gpu(&mut object, origin.gpu.as_ref());
    global.print_json(&object)?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `[id, ln p as drawn from, ln p at temperature 1]`; no number for a token that truncation left out.
fn top_json(top: &Top) -> Value {
    json!([top.id, top.logprob.is_finite().then_some(top.logprob), top.logprob_raw])
}

/// A line of a rollout file (docs/formats.md).
fn rollout_line(prompt: &[u32], rollout: &Rollout, args: &GenerateArgs, origin: &Origin) -> Value {
    json!({
        "prompt_ids": prompt, "ids": rollout.ids, "logprobs_rollout": rollout.logprobs,
        "versions": rollout.versions, "seed": args.seed, "sample": rollout.sample,
        "temperature": args.temperature, "top_p": args.top_p, "recipe": origin.recipe_hash,
        "model": origin.model_hash(), "finish": rollout.finish.name(), "top_k": args.top_k, "min_p": args.min_p,
        "device": origin.device,
    })
}
