//! What `generate`, `score` and `eval` share: a model folder opened for rollouts, and prompts read from files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use engine::chat::ChatTemplate;
use engine::checkpoint::{Checkpoint, HashInBackground};
use engine::config::ModelConfig;
use engine::cuda::{Room, Unsupported, fixed_bytes};
use engine::engine::{Device, Engine, PAGE_LEN, kv_shapes};
use engine::plan::{Memory, Plan, Settings};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, RequestError};
use engine::tokenizer::Tokenizer;
use kv::Layout;
use opd::prompts::{self, Prompt, Source};
use ptx::DType;

use super::Failure;

/// Most bytes of KV pool taken without being asked.
const KV_BYTES_MAX: usize = 8 << 30;

#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Model folder (Hugging Face layout).
    #[arg(long)]
    pub model: PathBuf,
    /// Recipe: identity, f32, bf16, kv8, fp8, or the path of a recipe file. `identity` is f32 for a folder stored in
    /// f32, else bf16.
    #[arg(long, default_value = "identity")]
    pub recipe: String,
    /// Bytes of the KV pool, e.g. 512MiB; by default what the longest batch needs, at most 8GiB
    /// and what a CUDA device has free.
    #[arg(long, value_parser = bytes)]
    pub kv_memory: Option<usize>,
    /// Bytes of weights, workspace and KV pool together, e.g. 16GiB; the pool gets what the others leave.
    #[arg(long, value_parser = bytes, conflicts_with = "kv_memory")]
    pub memory: Option<usize>,
}

/// What a folder is opened for: the pool and the workspace are made for it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Sequences that are held at a time.
    pub sequences: usize,
    /// Tokens of the longest.
    pub tokens: usize,
    pub limits: Limits,
}

impl Load {
    /// What steps on a device need, with no sequence longer than the model takes.
    fn room(&self, config: &ModelConfig) -> Room {
        let Limits { batch, step_tokens, .. } = self.limits;
        let tokens = self.tokens.min(config.max_positions);
        Room { rows: step_tokens.max(batch), sequences: batch, tokens }
    }
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct InputArgs {
    /// JSONL file of prompts: text, chat messages or ids.
    #[arg(long)]
    pub prompts: Option<PathBuf>,
    /// JSONL file of lines {"ids": [...]}; no tokenizer is needed.
    #[arg(long)]
    pub ids: Option<PathBuf>,
    /// One prompt as text.
    #[arg(long)]
    pub prompt: Option<String>,
}

/// A model folder, open but not yet loaded.
pub struct Folder {
    pub dir: PathBuf,
    pub checkpoint: Arc<Checkpoint>,
    pub tokenizer: Option<Tokenizer>,
    pub chat: Option<ChatTemplate>,
}

/// Who produced a result: stands in every output.
#[derive(Clone, Debug)]
pub struct Origin {
    model_hash: Arc<HashInBackground>,
    pub recipe: String,
    pub recipe_hash: String,
    pub device: String,
    /// `{name, capability, simulated}` of a CUDA device.
    pub gpu: Option<serde_json::Value>,
}

impl Origin {
    /// The model hash; waits for it, so ask when there is a result to write.
    pub fn model_hash(&self) -> &str {
        self.model_hash.get()
    }
}

/// What results say of a CUDA device beside its name in `device`.
pub fn gpu_json(device: &Device) -> Option<serde_json::Value> {
    let gpu = device.gpu()?;
    let (major, minor) = gpu.capability();
    let capability = format!("{major}.{minor}");
    Some(serde_json::json!({"name": gpu.name(), "capability": capability, "simulated": gpu.is_simulated()}))
}

/// Adds to a result object what it was computed on, if that was a CUDA device.
pub fn add_gpu(object: &mut serde_json::Value, gpu: Option<&serde_json::Value>) {
    if let Some(gpu) = gpu {
        object["gpu"] = gpu.clone();
    }
}

impl Folder {
    pub fn open(dir: &Path) -> Result<Folder, Failure> {
        Ok(Folder {
            checkpoint: Arc::new(Checkpoint::open(dir)?),
            tokenizer: Tokenizer::open(dir)?,
            chat: ChatTemplate::open(dir)?,
            dir: dir.to_owned(),
        })
    }

    /// The precision that the checkpoint is stored in.
    pub fn precision(&self) -> Precision {
        let f32 = self.checkpoint.tensors().all(|t| t.dtype == DType::F32);
        if f32 { Precision::F32 } else { Precision::Bf16 }
    }

    /// Whether there are CUDA kernels for the model under this recipe. A recipe that cannot be read is an error later.
    pub fn fits_cuda(&self, args: &ModelArgs) -> Result<(), Unsupported> {
        let config = self.checkpoint.config();
        Recipe::open(&args.recipe, self.precision(), config)
            .map_or(Ok(()), |recipe| engine::cuda::check(config, &recipe, PAGE_LEN))
    }

    /// Loads the weights, with a KV pool for what is to be done unless its size was given.
    pub fn load(&self, device: &Device, args: &ModelArgs, load: Load) -> Result<(Engine, Origin), Failure> {
        let config = self.checkpoint.config();
        let recipe = Recipe::open(&args.recipe, self.precision(), config)?;
        let origin = Origin {
            model_hash: Arc::new(HashInBackground::start(Arc::clone(&self.checkpoint))),
            recipe: recipe.name.clone(),
            recipe_hash: recipe.hash(),
            device: device.to_string(),
            gpu: gpu_json(device),
        };
        let pages = pages(device, config, &recipe, args, load, self.valid())?;
        let (room, config, source) = (load.room(config), config.clone(), &mut &*self.checkpoint);
        let mut engine = Engine::open(device, config, recipe, 0, source, PAGE_LEN, pages, self.valid())?;
        if args.memory.is_some() {
            // What the pool was made beside is taken now, while it is there.
            engine.make_room(room)?;
        }
        Ok((engine, origin))
    }

    /// How many ids are real: rows of the embedding beyond the tokenizer are padding.
    pub fn valid(&self) -> usize {
        let vocab = self.checkpoint.config().vocab;
        self.tokenizer.as_ref().map_or(vocab, |t| t.size().min(vocab))
    }

    /// Ids of the prompts asked for.
    pub fn read(&self, input: &InputArgs) -> Result<Vec<Vec<u32>>, Failure> {
        let read = match (&input.prompts, &input.ids, &input.prompt) {
            (Some(file), _, _) | (_, Some(file), _) => prompts::read(file)?,
            (_, _, Some(text)) => {
                vec![Prompt { source: Source::Text(text.clone()), answer: None, teacher: None, line: 1 }]
            }
            _ => unreachable!("clap requires one of them"),
        };
        let file = input.prompts.as_ref().or(input.ids.as_ref());
        read.iter()
            .map(|prompt| {
                self.to_ids(prompt, input.ids.is_some()).map_err(|what| match file {
                    Some(file) => format!("{}:{}: {what}", file.display(), prompt.line).into(),
                    None => what.into(),
                })
            })
            .collect()
    }

    /// Ids of one prompt.
    pub fn to_ids(&self, prompt: &Prompt, ids_only: bool) -> Result<Vec<u32>, String> {
        if ids_only && !matches!(prompt.source, Source::Ids(_)) {
            return Err("--ids takes lines {\"ids\": [...]}; use --prompts for text".to_owned());
        }
        opd::source::to_ids(&prompt.source, self.tokenizer.as_ref(), self.chat.as_ref())
    }

    /// Text of ids; empty without a tokenizer.
    pub fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.as_ref().map_or(String::new(), |t| t.decode(ids))
    }
}

/// Pages of the pool.
fn pages(
    device: &Device,
    config: &ModelConfig,
    recipe: &Recipe,
    args: &ModelArgs,
    load: Load,
    valid: usize,
) -> Result<usize, Failure> {
    let (most, whose) = match device.gpu() {
        Some(gpu) => (gpu.memory_info()?.total, "the device"),
        None => (super::doctor::memory_bytes().unwrap_or(u64::MAX), "this machine"),
    };
    for (name, bytes) in [("--kv-memory", args.kv_memory), ("--memory", args.memory)] {
        if let Some(bytes) = bytes.filter(|&bytes| bytes as u64 > most) {
            return Err(format!("{name} is {bytes} bytes; {whose} has {most} bytes of memory: give less").into());
        }
    }
    let tokens = load.tokens.min(config.max_positions);
    let layout = Layout::new(kv_shapes(config, recipe, PAGE_LEN));
    Ok(match (args.memory, args.kv_memory) {
        (Some(bytes), _) => {
            if let Some(gpu) = device.gpu() {
                let fixed = fixed_bytes(gpu, config, recipe, PAGE_LEN, load.room(config), valid)?;
                let left = bytes.checked_sub(fixed).ok_or_else(|| {
                    format!(
                        "--memory is {bytes} bytes; weights and workspace alone take {fixed} on the device: give more, \
                         shorten the longest sequence, or choose a recipe of fewer bits"
                    )
                })?;
                layout.capacity(left).pages
            } else {
                let (cpu, Limits { batch, step_tokens, .. }) = (device.cpu(), load.limits);
                let settings = Settings { batch, step_tokens, ..Settings::new(cpu.threads(), cpu.isa(), tokens) };
                Plan::new(config, recipe, settings, Memory::All(bytes))?.capacity.pages
            }
        }
        (_, Some(bytes)) => layout.capacity(bytes).pages,
        _ => {
            let room = match device.gpu() {
                // Beside weights and workspace, which are made later.
                Some(gpu) => {
                    let fixed = fixed_bytes(gpu, config, recipe, PAGE_LEN, load.room(config), valid)?;
                    usize::try_from(gpu.memory_info()?.free).unwrap_or(usize::MAX).saturating_sub(fixed)
                }
                None => usize::MAX,
            };
            let most = layout.capacity(KV_BYTES_MAX.min(room)).pages.max(layout.pages_for(tokens));
            (load.sequences * layout.pages_for(tokens)).min(most)
        }
    })
}

/// Why a request was not served, and what to do on the command line; `shorter` is the option that makes it fit.
pub fn advice(error: &RequestError, args: &ModelArgs, shorter: &str) -> String {
    match error {
        RequestError::NeverFits(_) => {
            let option = if args.memory.is_some() { "--memory" } else { "--kv-memory" };
            format!("{error}: raise {option} or {shorter}")
        }
        _ => error.to_string(),
    }
}

/// Bytes from text such as `16GiB`, `512MiB`, `4096`.
pub fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(format!("unknown unit {other:?}; use B, KiB, MiB, GiB or TiB")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is not a number of bytes such as 512MiB"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text} is more than this machine can address"))
}

/// A JSONL file being written: it has its name only once it is whole.
pub struct LineFile {
    path: PathBuf,
    part: PathBuf,
    file: Option<std::io::BufWriter<std::fs::File>>, // none: finished
}

impl LineFile {
    pub fn create(path: &Path, inputs: [Option<&PathBuf>; 2]) -> Result<LineFile, Failure> {
        if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return Err(format!("{}: exists and is not a file; name a file to write", path.display()).into());
        }
        let same = |input: &PathBuf| path.canonicalize().is_ok_and(|p| input.canonicalize().is_ok_and(|i| i == p));
        if inputs.into_iter().flatten().any(same) {
            return Err(format!("{}: is the input too; --out would replace it", path.display()).into());
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = std::fs::File::create(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        Ok(LineFile { path: path.to_owned(), part, file: Some(std::io::BufWriter::new(file)) })
    }

    pub fn line(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        let file = self.file.as_mut().expect("not finished yet");
        writeln!(file, "{value}").map_err(|e| format!("{}: {e}", self.part.display()).into())
    }

    pub fn finish(mut self) -> Result<(), Failure> {
        let named = |e: std::io::Error| format!("{}: {e}", self.path.display());
        let mut file = self.file.take().expect("finished once");
        let done = file.flush().and_then(|()| file.get_ref().sync_all());
        if let Err(error) = done.and_then(|()| std::fs::rename(&self.part, &self.path)) {
            self.file = Some(file); // dropped with the file unfinished
            return Err(named(error).into());
        }
        Ok(())
    }
}

impl Drop for LineFile {
    /// Takes an unfinished file away again.
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Whatever went wrong is being told already.
            drop(std::fs::remove_file(&self.part));
        }
    }
}
