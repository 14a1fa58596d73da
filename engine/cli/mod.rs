//! The command line: one file a command, each wiring crates together and printing what they return.

mod admit;
mod bench;
mod calibrate;
mod capacity;
mod doctor;
mod eval;
mod experiment;
mod generate;
mod init;
mod kv_counts;
mod measure;
mod open;
mod pretrain;
mod recipe;
mod report;
mod score;
mod selftest;
mod table;
#[cfg(unix)]
mod teach;
mod train;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use engine::cuda::Unsupported;
use engine::engine::Device;
use ptx::cuda::CudaError;
use ptx::{Cpu, Isa};

/// More threads than any machine has cores: a slip of the finger that the system would refuse late.
const THREADS_MAX: usize = 1024;

/// Whatever went wrong, with its causes.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Rollouts, on-policy distillation and its mismatch budget.
#[derive(Debug, Parser)]
#[command(name = "leeway", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(Debug, Args)]
struct Global {
    /// Device to run on: cpu, cuda, cuda:N, or auto: the first CUDA device that can run the model, else the CPU; it says
    /// which and why.
    #[arg(long, global = true, default_value = "cpu")]
    device: String,
    /// Threads; 0 takes what the machine offers.
    #[arg(long, global = true, default_value_t = 0)]
    threads: usize,
    /// Instruction set: portable, avx2 or avx512. Results do not depend on it.
    #[arg(long, global = true)]
    isa: Option<String>,
    /// Print one JSON object on standard output, as its last line.
    #[arg(long, global = true)]
    json: bool,
    /// No progress bars.
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a model folder with seeded random weights.
    Init(init::InitArgs),
    /// Train a model on a task's solutions (supervised): makes teachers and starting points.
    Pretrain(pretrain::PretrainArgs),
    /// Sample completions of prompts.
    Generate(generate::GenerateArgs),
    /// Logprobs of given token ids.
    Score(score::ScoreArgs),
    /// On-policy distillation as a run file says.
    Train(train::TrainArgs),
    /// How much mismatch a student and its teacher can bear: trainings at rungs of it, a certificate and a picture.
    Calibrate(calibrate::CalibrateArgs),
    /// Whether a rollout configuration is within the budget of a certificate: 0 admit, 3 reject, 4 cannot be told.
    Admit(admit::AdmitArgs),
    /// The runs of experiments that are not there yet; every finished one is a line of results.
    Experiment(experiment::ExperimentArgs),
    /// What experiments found, as a page of text and one of HTML.
    Report(report::ReportArgs),
    /// Score what a learner in another process asks for, through a ring in shared memory.
    #[cfg(unix)]
    Teach(teach::TeachArgs),
    /// Accuracy of a model on held-out problems.
    Eval(eval::EvalArgs),
    /// How far a rollout configuration is from the trained model, in nats per token, and where that comes from.
    Measure(measure::MeasureArgs),
    /// How many tokens and sequences some memory holds, from config.json alone.
    Capacity(capacity::CapacityArgs),
    /// What speed, capacity and update latency a model has here under a recipe, beside what this machine can do at most.
    Bench(bench::BenchArgs),
    /// Recipes: which format every part of a model has.
    Recipe(recipe::RecipeArgs),
    /// Whether a device computes what it must: every kernel, small models, and what speed it reaches.
    Selftest(selftest::SelftestArgs),
    /// What this machine can run, and whether a model folder is sound.
    Doctor(doctor::DoctorArgs),
}

/// What a process returns whose training came to numbers that are none: a result of that training, not a mishap.
const DIVERGED: u8 = 5;

/// Parses, runs, and turns an error into one readable message and status 1 (wrong usage: 2; a training that diverged: 5).
pub fn run() -> ExitCode {
    let Cli { command, global } = Cli::parse();
    match dispatch(&command, &global) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(inner) = cause {
                // Messages that already quote their cause are not repeated.
                if !error.to_string().contains(&inner.to_string()) {
                    eprintln!("  because: {inner}");
                }
                cause = inner.source();
            }
            let diverged = error.downcast_ref::<opd::train::TrainError>().is_some_and(opd::train::TrainError::diverged);
            if diverged { ExitCode::from(DIVERGED) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: &Command, global: &Global) -> Result<ExitCode, Failure> {
    match command {
        Command::Init(args) => init::run(args, global),
        Command::Pretrain(args) => pretrain::run(args, global),
        Command::Generate(args) => generate::run(args, global),
        Command::Score(args) => score::run(args, global),
        Command::Train(args) => train::run(args, global),
        Command::Calibrate(args) => calibrate::run(args, global),
        Command::Admit(args) => admit::run(args, global),
        Command::Experiment(args) => experiment::run(args, global),
        Command::Report(args) => report::run(args, global),
        #[cfg(unix)]
        Command::Teach(args) => teach::run(args, global),
        Command::Eval(args) => eval::run(args, global),
        Command::Measure(args) => measure::run(args, global),
        Command::Capacity(args) => capacity::run(args, global),
        Command::Bench(args) => bench::run(args, global),
        Command::Recipe(args) => recipe::run(args, global),
        Command::Selftest(args) => selftest::run(args, global),
        Command::Doctor(args) => doctor::run(args, global),
    }
}

/// What `--device` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Cpu,
    Cuda(usize),
    Auto,
}

impl Global {
    fn named(&self) -> Result<Named, Failure> {
        let name = &self.device[..];
        let number = || name.strip_prefix("cuda:")?.parse().ok();
        match name {
            "cpu" => Ok(Named::Cpu),
            "auto" => Ok(Named::Auto),
            "cuda" => Ok(Named::Cuda(0)),
            _ => {
                number().map(Named::Cuda).ok_or_else(|| ptx::DeviceError::Unknown { name: self.device.clone() }.into())
            }
        }
    }

    /// The CPU, for a command that runs nowhere else.
    fn cpu(&self) -> Result<Arc<Cpu>, Failure> {
        self.only_cpu()?;
        self.host()
    }

    /// Refuses a CUDA device for a command that has no use for one.
    fn only_cpu(&self) -> Result<(), Failure> {
        match self.named()? {
            Named::Cuda(_) => {
                Err(format!("--device {}: this command runs on the CPU alone; leave --device out", self.device).into())
            }
            Named::Auto => {
                eprintln!("--device auto: cpu, where all of this command runs");
                Ok(())
            }
            Named::Cpu => Ok(()),
        }
    }

    /// The device that was asked for; never another one in its place. `fits` says whether CUDA kernels can do what is
    /// asked of them, and is heard where nobody named a device.
    fn device(&self, fits: impl FnOnce() -> Result<(), Unsupported>) -> Result<Device, Failure> {
        let cpu = self.host()?;
        match self.named()? {
            Named::Cpu => Ok(cpu.into()),
            Named::Cuda(ordinal) => Ok(Device::open_cuda(ordinal, cpu)?),
            Named::Auto => {
                let found = first_cuda(&cpu).map_err(|why| why.to_string());
                Ok(match found.and_then(|device| fits().map(|()| device).map_err(|why| why.to_string())) {
                    Ok(device) => {
                        eprintln!("--device auto: {device}");
                        device
                    }
                    Err(why) => {
                        eprintln!("--device auto: cpu ({why})");
                        cpu.into()
                    }
                })
            }
        }
    }

    fn host(&self) -> Result<Arc<Cpu>, Failure> {
        if self.threads > THREADS_MAX {
            return Err(
                format!("--threads is {}; at most {THREADS_MAX} are taken, and 0 is one a core", self.threads).into()
            );
        }
        let isa = self.isa.as_deref().map_or(Ok(Isa::detect()), Cpu::isa_by_name)?;
        Ok(Arc::new(Cpu::with_isa(self.threads, isa)))
    }

    /// A progress bar on standard error, hidden when asked for or when nobody is looking.
    fn bar(&self, total: u64, unit: &str) -> indicatif::ProgressBar {
        if self.quiet {
            return indicatif::ProgressBar::hidden();
        }
        let style = format!("{{msg:<10}} {{bar:28}} {{pos}}/{{len}} {unit}  {{per_sec}}  eta {{eta}}  {{prefix}}");
        let style = indicatif::ProgressStyle::with_template(&style).expect("the template is ours");
        indicatif::ProgressBar::new(total).with_style(style)
    }

    /// Prints the result object, if asked for.
    fn print_json(&self, value: &serde_json::Value) -> Result<(), Failure> {
        if self.json { print(format_args!("{value}\n")) } else { Ok(()) }
    }
}

/// The first CUDA device that has what kernels need, or why the first of all has not.
fn first_cuda(cpu: &Arc<Cpu>) -> Result<Device, CudaError> {
    let mut first = None;
    for ordinal in 0.. {
        match Device::open_cuda(ordinal, Arc::clone(cpu)) {
            Ok(device) => return Ok(device),
            Err(why @ CudaError::Capability { .. }) => first = first.or(Some(why)),
            Err(why) => return Err(first.unwrap_or(why)),
        }
    }
    unreachable!("no driver has that many devices")
}

/// Writes to standard output. A reader that has seen enough, as `head` has, is no error; a full disk is one.
fn print(text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {e}").into()),
        _ => Ok(()),
    }
}
