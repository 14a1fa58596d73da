//! `leeway teach`: a teacher in a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use engine::recipe::Precision;
use opd::clock::Stopwatch;
use opd::teach::{Payload, Rings, Scorer, Server};
use serde_json::json;

use super::open::Folder;
use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct TeachArgs {
    /// The ring that scores pass through, made if it is not there, best on a memory file system: /dev/shm/NAME. Requests
    /// come through PATH.requests.
    #[arg(long, value_name = "PATH")]
    ring: PathBuf,
    /// Model folder of the teacher.
    #[arg(long)]
    model: PathBuf,
    /// What is sent of its distributions.
    #[arg(long, value_enum, default_value_t = Sent::Hidden)]
    payload: Sent,
    /// How many of the likeliest tokens --payload top-k sends.
    #[arg(long, value_name = "K", required_if_eq("payload", "top-k"))]
    top_k: Option<u32>,
    /// f32 or bf16: precision of the forward pass; what the folder is stored in unless given.
    #[arg(long, value_parser = super::pretrain::precision)]
    precision: Option<Precision>,
    /// Tokens of the longest sequence; what the model takes, at most 4096, unless given. Rings are made for it.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Seconds that every answer takes at least, from when it was asked for: to see what a slow teacher costs a run.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    delay: f64,
    /// Seconds without a learner after which it gives up.
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    wait_s: f64,
    /// Blocks under way in each ring that is made: a power of two.
    #[arg(long, default_value_t = 8)]
    slots: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sent {
    /// Rows of the last norm in bf16; the learner applies the teacher's head.
    Hidden,
    /// Logits in f32.
    Logits,
    /// The likeliest tokens, and the rest as one.
    TopK,
    /// The logprob of the token taken.
    Sampled,
}

impl Sent {
    fn name(self) -> &'static str {
        match self {
            Sent::Hidden => "hidden",
            Sent::Logits => "logits",
            Sent::TopK => "top-k",
            Sent::Sampled => "sampled",
        }
    }
}

pub fn run(args: &TeachArgs, global: &Global) -> Result<ExitCode, Failure> {
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model)?;
    let valid = folder.valid();
    let payload = match (args.payload, args.top_k) {
        (Sent::Hidden, None) => Payload::Hidden,
        (Sent::Logits, None) => Payload::Logits,
        (Sent::Sampled, None) => Payload::Sampled,
        (Sent::TopK, Some(k)) if (1..=valid).contains(&(k as usize)) => Payload::TopK(k),
        (Sent::TopK, k) => return Err(format!("--top-k is {k:?}; give 1 to {valid}, the ids of the model").into()),
        (sent, Some(_)) => return Err(format!("--top-k has no meaning with --payload {}", sent.name()).into()),
    };
    let most = folder.checkpoint.config().max_positions;
    let tokens = args.max_tokens.unwrap_or(most.min(4096));
    if !(2..=most).contains(&tokens) {
        return Err(format!("--max-tokens is {tokens}; the model takes 2 to {most}").into());
    }
    let precision = args.precision.unwrap_or_else(|| folder.precision());
    let seconds = |flag: &str, s: f64| {
        std::time::Duration::try_from_secs_f64(s).map_err(|error| format!("{flag} is {s}: {error}"))
    };
    let (delay, wait) = (seconds("--delay", args.delay)?, seconds("--wait-s", args.wait_s)?);
    let watch = Stopwatch::start();
    let scorer = Scorer::load(&cpu, &folder.checkpoint, precision, payload, valid, tokens)?;
    let model = scorer.hash().to_owned();
    let mut server = Server::open(&args.ring, Rings { slots: args.slots }, scorer)?.delayed(delay).patient(wait);
    let epoch = server.epoch();
    if !global.quiet {
        eprintln!(
            "{}: teaching with {}, epoch {epoch}, until a learner has finished",
            args.ring.display(),
            &model[..12]
        );
    }
    let done = server.serve(|number, why| eprintln!("request {number} has no scores: {why}"))?;
    let wall_s = watch.elapsed_s();
    if let Err(error) = server.remove(&args.ring) {
        eprintln!("warning: {} is not taken away: {error}", args.ring.display());
    }
    if global.json {
        let object = json!({
            "requests": done.requests, "rows": done.rows, "tokens": done.tokens, "missing": done.missing,
            "again": done.again, "payload": args.payload.name(), "precision": precision.name(), "epoch": epoch,
            "model": model, "ring": args.ring.display().to_string(), "device": cpu.to_string(), "wall_s": wall_s,
        });
        global.print_json(&object)?;
    } else {
        let mut table = Table::new(["requests", "rows", "without scores", "seconds"]);
        table.row([done.requests.to_string(), done.rows.to_string(), done.missing.to_string(), format!("{wall_s:.1}")]);
        super::print(format_args!("{table}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
