//! `leeway bench`: what a model does here under a recipe, beside what this machine can do at most.

mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use engine::config::ModelConfig;
use engine::engine::{Device, Engine};
use engine::model::Model;
use engine::plan::{Memory, Settings};
use engine::recipe::{Precision, Recipe};
use engine::rollout::Limits;
use indicatif::ProgressBar;
use opd::bench::{Capacity, Figure, Gauge, LimitsSpread, Training, Turns, What};
use opd::master::Master;

use super::capacity::count;
use super::open::{Folder, LineFile, Load, ModelArgs};
use super::{Failure, Global, Named};
use report::Report;

/// The pool that capacity is counted for where nobody gave one.
const POOL: usize = 1 << 30;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What to measure, with commas between: decode, prefill, score, capacity, update, train.
    #[arg(long, value_delimiter = ',', default_value = "decode,prefill,score,capacity,update")]
    what: Vec<What>,
    /// Sequences that decode at a time, with commas between.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = count)]
    batch: Vec<usize>,
    /// Tokens that each of them holds, with commas between; every batch is measured at every length [default: 128, or what
    /// the model takes]
    #[arg(long, value_delimiter = ',', value_parser = count)]
    context: Vec<usize>,
    /// Tokens of the prompt that is prefilled and of the row that is scored [default: 512, or what the model takes]
    #[arg(long, value_parser = count)]
    prompt: Option<usize>,
    /// Rounds of limits and work in turns, of which the median is taken; those that warm up come on top.
    #[arg(long, default_value_t = 5, value_parser = count)]
    rounds: usize,
    /// Rows of a training step.
    #[arg(long, default_value_t = 4, value_parser = count)]
    train_rows: usize,
    /// Tokens of each of them [default: 128, or what the model takes]
    #[arg(long, value_parser = count)]
    train_len: Option<usize>,
    /// Train on the ids themselves, by cross-entropy, and not towards a teacher.
    #[arg(long)]
    supervised: bool,
    /// Seed of ids and draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the result object here (one line of JSON).
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Sizes as the model's context has room for them.
struct Sizes {
    contexts: Vec<usize>,
    prompt: usize,
    train_len: usize,
}

impl BenchArgs {
    fn asks(&self, what: What) -> bool {
        self.what.contains(&what)
    }

    fn most_sequences(&self) -> usize {
        self.batch.iter().copied().max().unwrap_or(1)
    }

    /// Sizes that the model takes; one that was asked for and is too large is an error.
    fn sizes(&self, config: &ModelConfig) -> Result<Sizes, Failure> {
        let max = config.max_positions;
        let contexts = if self.context.is_empty() { vec![128.min(max - 1)] } else { self.context.clone() };
        let (prompt, train_len) = (self.prompt.unwrap_or(512.min(max)), self.train_len.unwrap_or(128.min(max)));
        let long = contexts.iter().copied().max().unwrap_or(0);
        for (what, name, least, given, more) in [
            (What::Decode, "--context", 1, long, 1),
            (What::Prefill, "--prompt", 1, prompt, 0),
            (What::Score, "--prompt", 2, prompt, 0),
            (What::Train, "--train-len", 2, train_len, 0),
        ] {
            if !self.asks(what) {
                continue;
            }
            if given + more > max {
                let beside = if more > 0 { ", the token that is decoded included" } else { "" };
                return Err(format!(
                    "{name} {given}: the model's context holds {max} tokens{beside}; give at most {}",
                    max - more
                )
                .into());
            }
            if given < least {
                return Err(format!("{name} {given}: to {what} takes at least {least} tokens; give more").into());
            }
        }
        Ok(Sizes { contexts, prompt, train_len })
    }
}

impl Sizes {
    /// Sequences that are held at a time, and their tokens: the largest of all that is measured.
    fn largest(&self, args: &BenchArgs, config: &ModelConfig) -> (usize, usize) {
        let long = self.contexts.iter().copied().max().unwrap_or(1);
        let decoding = opd::bench::decode_tokens(long, config.max_positions);
        match (args.asks(What::Decode), args.asks(What::Prefill) || args.asks(What::Score)) {
            (true, rows) => (args.most_sequences(), if rows { decoding.max(self.prompt) } else { decoding }),
            (false, true) => (1, self.prompt),
            (false, false) => (1, 1),
        }
    }
}

pub fn run(args: &BenchArgs, global: &Global) -> Result<ExitCode, Failure> {
    if let Named::Cuda(_) = global.named()? {
        return Err(format!(
            "--device {}: bench measures beside the CPU's limits, on the CPU alone; leave --device out. `leeway selftest \
             --device {0}` shows the kernels of a GPU beside its own",
            global.device
        )
        .into());
    }
    let cpu = global.cpu()?;
    let folder = Folder::open(&args.model.model)?;
    let config = folder.checkpoint.config();
    let sizes = args.sizes(config)?;
    let capacity = args.asks(What::Capacity).then(|| capacity(args, &folder, &sizes, &cpu)).transpose()?;
    let out = args.out.as_ref().map(|path| LineFile::create(path, [None, None])).transpose()?;
    let (sequences, tokens) = sizes.largest(args, config);
    let limits = Limits { batch: sequences, ..Limits::default() };
    let device = Device::from(Arc::clone(&cpu));
    let (mut engine, origin) = folder.load(&device, &args.model, Load { sequences, tokens, limits })?;
    engine.kv_mut().set_prefix_reuse(false);
    args.check_pool(&engine, &sizes)?;

    let works = args.works(&sizes);
    let bar = global.bar((works.len() * args.rounds) as u64, "rounds");
    let gauge = Gauge::new(Arc::clone(&cpu));
    let mut figures = Vec::new();
    for work in works.iter().filter(|work| work.what != What::Train) {
        figures.push(on_engine(work, args, &folder, &mut engine, &gauge, &bar)?);
    }
    let limits = if figures.is_empty() { Some((0..args.rounds).map(|_| gauge.measure()).collect()) } else { None };
    // Less what only measures.
    drop(gauge);
    let (rss, weights) = (opd::bench::resident_bytes(), engine.model().held_bytes());
    drop(engine);
    if works.iter().any(|work| work.what == What::Train) {
        bar.set_message("train");
        figures.push(training(args, &folder, sizes.train_len, &cpu, &bar)?);
    }
    bar.finish_and_clear();

    let rounds: Vec<_> = figures.iter().flat_map(|figure: &Figure| &figure.measured.samples.limits).copied().collect();
    let rounds = if rounds.is_empty() { limits.unwrap_or(rounds) } else { rounds };
    let report = Report {
        limits: LimitsSpread::of(rounds.iter()),
        figures,
        capacity,
        origin,
        config,
        cpu: &cpu,
        seed: args.seed,
        rss,
        weights,
    };
    let object = report.json();
    if let Some(mut out) = out {
        out.line(&object)?;
        out.finish()?;
    }
    if !global.json {
        super::print(format_args!("{report}"))?;
    }
    global.print_json(&object)?;
    Ok(ExitCode::SUCCESS)
}

/// One figure that is to be taken.
struct Work {
    what: What,
    batch: usize,
    tokens: usize,
}

impl BenchArgs {
    /// All of them, in the order of the table.
    fn works(&self, sizes: &Sizes) -> Vec<Work> {
        let mut works = Vec::new();
        for what in What::ALL.into_iter().filter(|&what| self.asks(what)) {
            match what {
                What::Decode => {
                    for &tokens in &sizes.contexts {
                        works.extend(self.batch.iter().map(|&batch| Work { what, batch, tokens }));
                    }
                }
                What::Prefill | What::Score => works.push(Work { what, batch: 1, tokens: sizes.prompt }),
                What::Update | What::Train => works.push(Work { what, batch: 1, tokens: 0 }),
                What::Capacity => (),
            }
        }
        works
    }

    /// That the pool holds the largest of them.
    fn check_pool(&self, engine: &Engine, sizes: &Sizes) -> Result<(), Failure> {
        let (layout, pages) = (engine.kv().layout(), engine.kv().pages());
        let max = engine.config().max_positions;
        let held = |work: &Work| match work.what {
            What::Decode => Some((opd::bench::decode_tokens(work.tokens, max), "--batch or --context")),
            What::Prefill | What::Score => Some((work.tokens, "--prompt")),
            What::Update | What::Train | What::Capacity => None,
        };
        let works = self.works(sizes);
        let wants = works.iter().filter_map(|work| {
            let (tokens, lower) = held(work)?;
            Some((work.batch.saturating_mul(layout.pages_for(tokens)), work, tokens, lower))
        });
        let Some((want, work, tokens, lower)) = wants.max_by_key(|(want, ..)| *want) else { return Ok(()) };
        if want > pages {
            let (what, batch, page_len) = (work.what, work.batch, layout.page_len());
            let bytes = want.saturating_mul(layout.page_bytes());
            let option = if self.model.memory.is_some() { "--memory" } else { "--kv-memory" };
            return Err(format!(
                "{what}, {batch} x {tokens} tokens: takes {want} KV pages of {page_len} tokens ({bytes} bytes), and the pool has \
                 {pages}: raise {option} or lower {lower}"
            )
            .into());
        }
        Ok(())
    }
}

fn on_engine(
    work: &Work,
    args: &BenchArgs,
    folder: &Folder,
    engine: &mut Engine,
    gauge: &Gauge,
    bar: &ProgressBar,
) -> Result<Figure, Failure> {
    bar.set_message(work.what.name());
    let mut tick = || bar.inc(1);
    let mut turns = Turns { gauge, rounds: args.rounds, seed: args.seed, tick: &mut tick };
    Ok(match work.what {
        What::Decode => opd::bench::decode(engine, work.batch, work.tokens, &mut turns)?,
        What::Prefill => opd::bench::prefill(engine, work.tokens, &mut turns)?,
        What::Score => opd::bench::score(engine, work.tokens, &mut turns)?,
        What::Update => {
            let stored = folder.checkpoint.tensors().map(|t| t.shape.iter().product::<usize>() * t.dtype.bytes()).sum();
            opd::bench::update(engine, &mut &*folder.checkpoint, stored, &mut turns)?
        }
        What::Capacity | What::Train => unreachable!("they take no engine"),
    })
}

/// A step of the student's training, at the folder's own precision.
fn training(
    args: &BenchArgs,
    folder: &Folder,
    len: usize,
    cpu: &Arc<ptx::Cpu>,
    bar: &ProgressBar,
) -> Result<Figure, Failure> {
    let precision: Precision = folder.precision();
    let recipe = Recipe::built_in("identity", precision, folder.checkpoint.config())?;
    let mut model = Model::load(cpu, &folder.checkpoint, recipe)?;
    let mut master = Master::load(&folder.checkpoint, precision)?;
    let gauge = Gauge::new(Arc::clone(cpu));
    let mut tick = || bar.inc(1);
    let mut turns = Turns { gauge: &gauge, rounds: args.rounds, seed: args.seed, tick: &mut tick };
    let training = Training { rows: args.train_rows, len, supervised: args.supervised };
    Ok(opd::bench::train(&mut model, &mut master, training, folder.valid(), &mut turns)?)
}

/// What the memory that was given holds, in sequences of the longest length that is measured.
fn capacity(args: &BenchArgs, folder: &Folder, sizes: &Sizes, cpu: &ptx::Cpu) -> Result<Capacity, Failure> {
    let config = folder.checkpoint.config();
    let recipe = Recipe::open(&args.model.recipe, folder.precision(), config)?;
    let length = sizes.contexts.iter().copied().fold(sizes.prompt, usize::max).min(config.max_positions);
    let settings = Settings { batch: args.most_sequences(), ..Settings::new(cpu.threads(), cpu.isa(), length) };
    let memory = match (args.model.memory, args.model.kv_memory) {
        (Some(all), _) => Memory::All(all),
        (_, pool) => Memory::Pool(pool.unwrap_or(POOL)),
    };
    Ok(Capacity::new(config, &recipe, settings, memory)?)
}
