//! Who runs what: the jobs, the contestants of each, and the command line of each contestant.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::Environment;
use crate::models::{self, Shape};
use crate::report::{self, Report};
use crate::run;

/// Everything contestants are started with.
pub struct Setup<'a> {
    pub environment: &'a Environment,
    /// The binary under comparison, and what it calls itself.
    pub leeway: &'a Path,
    pub version: &'a str,
    /// The folder of the drivers.
    pub scripts: &'a Path,
    pub threads: usize,
    /// Peers to leave out.
    pub skip: &'a [String],
    /// Whether contestants go before everything else on the machine.
    pub first: bool,
}

/// What is done with one model.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub shape: Shape,
    pub kind: Kind,
}

/// Sizes of a job; so small that a round is a matter of minutes, since it is the rounds that tell.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Decoding `steps` tokens of each of so many sequences after `context` tokens; prefill of `prompt` tokens, so often.
    Infer { batches: &'static [usize], context: usize, steps: usize, prompt: usize, repeats: usize },
    /// So many updates on `rows` sequences of `len` tokens.
    Train { rows: usize, len: usize, updates: usize },
}

impl Kind {
    /// Its name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Infer { .. } => "infer",
            Kind::Train { .. } => "train",
        }
    }
}

const INFER: Kind = Kind::Infer { batches: &[1, 8, 32], context: 128, steps: 8, prompt: 512, repeats: 2 };
const TRAIN_107M: Kind = Kind::Train { rows: 4, len: 128, updates: 3 };
const TRAIN_3M: Kind = Kind::Train { rows: 8, len: 128, updates: 10 };

/// All jobs there are; the second only when its model is asked for.
pub const JOBS: [Job; 4] = [
    Job { shape: models::QWEN3_06B, kind: INFER },
    Job { shape: models::M107, kind: INFER },
    Job { shape: models::M107, kind: TRAIN_107M },
    Job { shape: models::M3, kind: TRAIN_3M },
];

/// The jobs of a run: of one kind, of these models; of no model by name, all but the 107M's inference.
pub fn jobs(only: Option<&str>, names: &[String]) -> Vec<Job> {
    let wanted = |(index, job): &(usize, &Job)| {
        let model = if names.is_empty() { *index != 1 } else { names.iter().any(|name| name == job.shape.name) };
        model && only.is_none_or(|kind| kind == job.kind.name())
    };
    JOBS.iter().enumerate().filter(wanted).map(|(_, job)| *job).collect()
}

/// One program with one format of weights.
pub struct Contestant {
    pub who: &'static str,
    pub weights: &'static str,
    /// Bytes of the weights of a peer that is bound by reading them; ours says itself what it reads.
    pub weight_bytes: Option<f64>,
    pub program: PathBuf,
    /// Arguments of each process of its turn, one after the other.
    pub turns: Vec<Vec<String>>,
}

impl Contestant {
    /// Program and format.
    pub fn name(&self) -> String {
        format!("{} {}", self.who, self.weights)
    }

    /// Whether it is leeway.
    pub fn is_ours(&self) -> bool {
        self.who == "leeway"
    }

    /// Runs it once.
    pub fn run(&self, setup: &Setup) -> Result<Report, String> {
        let mut whole: Option<Report> = None;
        for words in &self.turns {
            let mut command = if setup.first { run::timed(&self.program) } else { Command::new(&self.program) };
            command.args(words).env("PYTHONDONTWRITEBYTECODE", "1");
            let printed = run::output(&mut command)?;
            let read =
                if self.is_ours() { report::of_ours(&printed, setup.version) } else { report::of_peer(&printed) };
            let part = read.map_err(|e| format!("{}: {e}", self.name()))?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.add(part),
            }
        }
        whole.ok_or_else(|| format!("{} has nothing to do", self.name()))
    }
}

/// The contestants of a job in the order of a round, ours between the others; their models and programs are brought first.
pub fn contestants(setup: &Setup, job: Job) -> Result<Vec<Contestant>, String> {
    let models = setup.environment.folder("models")?;
    // Trained in the precision that it is stored in.
    let dtype = if matches!(job.kind, Kind::Train { .. }) { "f32" } else { "bf16" };
    let checkpoint = job.shape.checkpoint(setup.leeway, &models, dtype)?;
    match job.kind {
        Kind::Infer { .. } => {
            let e4m3 = setup.scripts.join("e4m3.toml");
            let mut list = vec![ours(setup, job, &checkpoint, "bf16", "bf16")];
            if !setup.skips("llama.cpp") {
                let llama = setup.environment.llama()?;
                for weights in ["bf16", "f16", "q8_0"] {
                    let gguf = models::gguf(job.shape, &llama, setup.scripts, &checkpoint, weights)?;
                    let bytes = std::fs::metadata(&gguf).map_err(|e| format!("{}: {e}", gguf.display()))?.len();
                    let turns = vec![llama_words(setup, job.kind, &gguf)];
                    let program = llama.driver.clone();
                    list.push(Contestant {
                        who: "llama.cpp",
                        weights,
                        weight_bytes: Some(bytes as f64),
                        program,
                        turns,
                    });
                }
            }
            let place = list.len().div_ceil(2);
            list.insert(place, ours(setup, job, &checkpoint, "e4m3", &e4m3.to_string_lossy()));
            Ok(list)
        }
        Kind::Train { rows, len, updates } => {
            let mut list = vec![ours(setup, job, &checkpoint, "f32", "f32")];
            let words = |script: &str| {
                let script = setup.scripts.join(script).to_string_lossy().into_owned();
                let numbers = [setup.threads, rows, len, updates].map(|n| n.to_string());
                [script, checkpoint.to_string_lossy().into_owned()].into_iter().chain(numbers).collect()
            };
            let peer = |who, program, script| Contestant {
                who,
                weights: "f32",
                weight_bytes: None,
                program,
                turns: vec![words(script)],
            };
            if !setup.skips("jax") {
                list.push(peer("jax", setup.environment.jax()?, "jax_train.py"));
            }
            if !setup.skips("torch") {
                list.push(peer("torch", setup.environment.torch()?, "torch_train.py"));
            }
            Ok(list)
        }
    }
}

impl Setup<'_> {
    fn skips(&self, peer: &str) -> bool {
        self.skip.iter().any(|name| name == peer)
    }
}

/// leeway with a recipe, doing what the job asks.
fn ours(setup: &Setup, job: Job, checkpoint: &Path, weights: &'static str, recipe: &str) -> Contestant {
    let threads = setup.threads.to_string();
    let bench = |options: &[(&str, &str)]| {
        let model = checkpoint.to_string_lossy();
        let always = [("--model", &*model), ("--recipe", recipe), ("--threads", &threads)];
        let words = always.iter().chain(options).flat_map(|(key, value)| [*key, *value]);
        ["bench", "--json", "--quiet"].into_iter().chain(words).map(str::to_owned).collect::<Vec<_>>()
    };
    let turns = match job.kind {
        Kind::Infer { batches, context, steps, prompt, repeats } => {
            let batches = batches.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let [context, steps, prompt, repeats] = [context, steps, prompt, repeats].map(|n| n.to_string());
            let decode = [("--what", "decode"), ("--batch", &batches), ("--context", &context), ("--rounds", &steps)];
            vec![bench(&decode), bench(&[("--what", "prefill"), ("--prompt", &prompt), ("--rounds", &repeats)])]
        }
        Kind::Train { rows, len, updates } => {
            let [rows, len, updates] = [rows, len, updates].map(|n| n.to_string());
            let train = [("--what", "train"), ("--train-rows", &rows), ("--train-len", &len), ("--rounds", &updates)];
            let mut words = bench(&train);
            words.push("--supervised".to_owned());
            vec![words]
        }
    };
    Contestant { who: "leeway", weights, weight_bytes: None, program: setup.leeway.to_owned(), turns }
}

fn llama_words(setup: &Setup, kind: Kind, gguf: &Path) -> Vec<String> {
    let Kind::Infer { batches, context, steps, prompt, repeats } = kind else { unreachable!("it only infers") };
    let numbers = [setup.threads, context, steps, prompt, repeats].into_iter().chain(batches.iter().copied());
    std::iter::once(gguf.to_string_lossy().into_owned()).chain(numbers.map(|n| n.to_string())).collect()
}
