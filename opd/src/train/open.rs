//! Opens a run: both checkpoints, the prompts, engines and buffers; and checks that they fit each other.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use engine::chat::{ChatError, ChatTemplate};
use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::config::ModelConfig;
use engine::cuda::Unsupported;
use engine::engine::{Device, Engine, EngineError, PAGE_LEN, kv_shapes};
use engine::recipe::{Precision, Recipe, RecipeError};
use engine::tokenizer::{Tokenizer, TokenizerError};
use kv::Layout;
use ptx::Cpu;

use super::flop::Sizes;
use super::folder;
use super::report::Totals;
use super::sampling::{Ground, Sampling, has_stages, pool};
use super::save::{self, Restored, SaveError};
use super::teacher::Local;
use super::{Origin, Teacher, Trainer};
use crate::config::{Config, InFlight, LossKind, NoiseKind, Task};
use crate::flow::RemoteTeacher;
use crate::learner::Learner;
use crate::master::Master;
use crate::noise::Injected;
use crate::sequences::Micro;
use crate::side::Beside;
use crate::source::Source;
use crate::source::SourceError;
use crate::tasks::VOCAB_LEN;
use crate::teach::{Expected, RingTeacher, TeachError};

/// Memory that a micro-batch's activations may take.
const TAPE_BYTES: usize = 1 << 30;

/// Why a run cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A model folder.
    #[error("{role} {dir}: {source}", dir = dir.display())]
    Checkpoint {
        /// student, teacher or reference.
        role: &'static str,
        /// Its folder.
        dir: PathBuf,
        /// Why.
        source: Box<CheckpointError>,
    },
    /// A model on its device.
    #[error("{role} {dir}: {source}", dir = dir.display())]
    Engine {
        /// student, teacher or reference.
        role: &'static str,
        /// Its folder.
        dir: PathBuf,
        /// Why.
        source: Box<EngineError>,
    },
    /// A tokenizer.
    #[error("{role} {dir}: {source}", dir = dir.display())]
    Tokenizer {
        /// student, teacher or reference.
        role: &'static str,
        /// Its folder.
        dir: PathBuf,
        /// Why.
        source: TokenizerError,
    },
    /// The student and another model read tokens differently.
    #[error(
        "student and {role} have different tokenizers (BLAKE3 of their tokens: {student} and {other}); distillation \
         compares distributions over the same tokens, so take models of one family"
    )]
    TokenizerMismatch {
        /// teacher or reference, and which.
        role: String,
        /// The student's hash.
        student: String,
        /// The other's hash.
        other: String,
    },
    /// The task needs ids that a model does not have.
    #[error("{role} has a vocabulary of {vocab}; the task needs {need} ids: its model must be made for the task")]
    VocabularyTooSmall {
        /// student, teacher or reference, and which.
        role: String,
        /// What it has.
        vocab: usize,
        /// What the task needs.
        need: usize,
    },
    /// A teacher without kernels.
    #[error(
        "train.precision is f32, for which there are no CUDA kernels: set train.precision = \"bf16\", or use --device cpu"
    )]
    Precision,
    /// Noise on logits, which a device draws from by itself.
    #[error(
        "noise.kind is \"logits\", which is put into draws on the CPU alone: leave out --device, or take another kind"
    )]
    LogitNoise,
    /// Completions of several versions, which a device cannot tell apart in one micro-batch.
    #[error(
        "rollout.in_flight has to be \"drain\" on a CUDA device: mismatch is measured there by micro-batches of one weights \
         version, so every completion has to be of one"
    )]
    InFlight,
    /// A KV pool that no sequence fits in.
    #[error(
        "rollout.kv_memory: a sequence of up to {tokens} tokens takes {bytes} bytes in recipe {recipe}, which rollouts or evaluation \
         run in: give at least as much, or leave it out"
    )]
    Pool {
        /// The recipe.
        recipe: String,
        /// Tokens of prompt and completion.
        tokens: usize,
        /// What it takes.
        bytes: usize,
    },
    /// The rollout recipe.
    #[error("rollout.recipe: {0}")]
    Recipe(#[from] RecipeError),
    /// The prompt file.
    #[error(transparent)]
    Prompts(#[from] SourceError),
    /// A loss on rewards, and prompts without.
    #[error(
        "loss.kind is \"grpo\", whose reward is whether a completion is right, and `task.prompts` has prompts that cannot be \
         judged: give each an `answer` and the student a tokenizer.json, or take another task"
    )]
    Unjudged,
    /// The student's chat template.
    #[error("student {dir}: {source}", dir = dir.display())]
    Chat {
        /// Its folder.
        dir: PathBuf,
        /// Why.
        source: ChatError,
    },
    /// Prompts and completions do not fit the model's context.
    #[error(
        "prompts of up to {prompt} tokens and completions of up to {completion} exceed the {role}'s context of {max}"
    )]
    Context {
        /// student, teacher or reference, and which.
        role: String,
        /// Longest prompt.
        prompt: usize,
        /// Longest completion.
        completion: usize,
        /// The context.
        max: usize,
    },
    /// The teacher in another process.
    #[error("teacher: {0}")]
    Teach(#[from] TeachError),
    /// A checkpoint of the run.
    #[error(transparent)]
    Resume(#[from] SaveError),
}

impl Trainer {
    /// Opens the run of `config`, whose folder is held where it goes on ([`super::hold`]). Rollouts and the teacher run on `device`, updates and evaluation on the CPU. With
    /// `resume` it goes on from the newest whole checkpoint of `config.out`, if there is one.
    pub fn open(config: Config, device: Device, resume: bool) -> Result<Trainer, OpenError> {
        let cpu = Arc::clone(device.cpu());
        let student = open_checkpoint("student", &config.student)?;
        let named = config.teachers();
        let teachers =
            named.iter().map(|(_, dir)| open_checkpoint("teacher", dir)).collect::<Result<Vec<Checkpoint>, _>>()?;
        let student_config = student.config().clone();
        let tokenizer = open_tokenizer("student", &config.student)?;
        let reference_dir = config.loss.reference_dir(&config.student);
        let reference = reference_dir.as_deref().map(|dir| open_checkpoint("reference", dir)).transpose()?;
        let others = named.iter().map(|&(name, dir)| ("teacher", called(name), dir));
        let others = others.chain(reference_dir.as_ref().map(|dir| ("reference", "reference".to_owned(), dir)));
        for (kind, role, dir) in others {
            let other = open_tokenizer(kind, dir)?;
            if let (Some(a), Some(b)) = (&tokenizer, &other)
                && a.hash() != b.hash()
            {
                let (student, other) = (a.hash().to_owned(), b.hash().to_owned());
                return Err(OpenError::TokenizerMismatch { role, student, other });
            }
        }
        let mut models = vec![("student".to_owned(), &student_config)];
        models.extend(named.iter().zip(&teachers).map(|((name, _), teacher)| (called(name), teacher.config())));
        models.extend(reference.as_ref().map(|reference| ("reference".to_owned(), reference.config())));
        let vocab_both = models.iter().map(|(_, c)| c.vocab).min().expect("there is a student");
        let mut valid = tokenizer.as_ref().map_or(vocab_both, |t| t.size().min(vocab_both));
        let (source, prompt_max) = source(&config, tokenizer)?;
        if let Task::Prompts(task) = &config.task {
            source.check_ids(valid, &task.prompts)?;
        }
        if config.loss.kind == LossKind::Grpo && !source.judges() {
            return Err(OpenError::Unjudged);
        }
        if let Source::Task { .. } = source {
            for (role, c) in &models {
                if c.vocab < VOCAB_LEN {
                    let role = role.clone();
                    return Err(OpenError::VocabularyTooSmall { role, vocab: c.vocab, need: VOCAB_LEN });
                }
            }
            valid = valid.min(VOCAB_LEN);
        }
        let completion = config.rollout.max_tokens as usize;
        for (role, c) in &models {
            if prompt_max + completion > c.max_positions {
                let role = role.clone();
                return Err(OpenError::Context { role, prompt: prompt_max, completion, max: c.max_positions });
            }
        }
        let mut stop_ids = source.stop_ids().to_vec();
        stop_ids.extend(&student_config.stop_ids);
        stop_ids.extend(teachers.iter().flat_map(|teacher| &teacher.config().stop_ids));
        stop_ids.sort_unstable();
        stop_ids.dedup();

        let precision = config.train.precision.into();
        if !device.is_cpu() && config.lead().is_some() && config.rollout.in_flight != InFlight::Drain {
            return Err(OpenError::InFlight);
        }
        if !device.is_cpu() && precision == Precision::F32 {
            return Err(OpenError::Precision);
        }
        if !device.is_cpu() && config.noise.is_some_and(|noise| noise.kind == NoiseKind::Logits) {
            return Err(OpenError::LogitNoise);
        }
        let identity = Recipe::built_in("identity", precision, &student_config)?;
        let mut recipe = Recipe::open(&config.rollout.recipe, precision, &student_config)?;
        let source = Arc::new(source);
        let origin = Origin {
            prompts: source.fingerprint(),
            bridge: config.ring.as_ref().map(|_| "hidden rows, bf16".to_owned()),
            student: student.model_hash(),
            teacher: teachers[0].model_hash(),
            teachers: named[1..]
                .iter()
                .zip(&teachers[1..])
                .map(|(&(name, _), teacher)| (name.to_owned(), teacher.model_hash()))
                .collect(),
            reference: reference.as_ref().map(Checkpoint::model_hash),
            recipe_hash: recipe.hash(),
            device: device.to_string(),
            device_kind: device.kind(),
        };
        let mut master = Master::load(&student, precision).map_err(|source| OpenError::Checkpoint {
            role: "student",
            dir: config.student.clone(),
            source: Box::new(source),
        })?;
        let mut noise = config.noise.map(|noise| Injected::new(noise, config.seed));
        let (mut restored, mut run) = (Restored::default(), config.clone());
        if resume {
            folder::check_same(&config)?;
            restored = save::restore(&config.out, &origin, &mut master, noise.as_mut())?;
            if let Some(in_force) = &restored.in_force {
                in_force.apply(&mut run);
                recipe = Recipe::open(&run.rollout.recipe, precision, &student_config)?;
            }
        }
        let failed = |role: &'static str, dir: &Path| {
            let dir = dir.to_owned();
            move |source| OpenError::Engine { role, dir, source: Box::new(source) }
        };
        let len = prompt_max + completion;
        let sequences = config.sequences();
        for recipe in [&recipe, &identity] {
            let (pages, one) = (pool(&config, &student_config, recipe, len), len.div_ceil(PAGE_LEN));
            if pages < one {
                let page = Layout::new(kv_shapes(&student_config, recipe, PAGE_LEN)).page_bytes();
                let (recipe, bytes) = (recipe.name.clone(), one * page);
                return Err(OpenError::Pool { recipe, tokens: len, bytes });
            }
        }
        let on_student = failed("student", &config.student);
        let policy = {
            let host = Device::Cpu(Arc::clone(&cpu));
            let pages = match config.rollout.kv_memory {
                None => sequences.max(64) * len.div_ceil(PAGE_LEN),
                Some(_) => pool(&config, &student_config, &identity, len),
            };
            let (version, source) = (master.updates, &mut master.version(&cpu));
            Engine::open(&host, student_config.clone(), identity, version, source, PAGE_LEN, pages, valid)
                .map_err(on_student.clone())?
        };
        let micro_tokens = micro_tokens(&student_config).max(len);
        let rows = micro_tokens.min(sequences.max(64)); // no row is shorter than a token
        let micro = Micro { tokens: micro_tokens, rows };
        // On the CPU the teacher's pages are in its side.
        let pages = if device.is_cpu() { 0 } else { crate::side::pages(micro_tokens, rows) };
        let mut remote = None;
        // A run with nothing left to do asks nobody; its teacher has left, and taken the ring away.
        let ring = config.ring.as_ref().filter(|_| master.updates < u64::from(config.updates));
        let teacher = if let Some(ring) = ring {
            let teacher = connect(&cpu, ring, &teachers[0], origin.teacher.clone(), precision, &config, len)?;
            let head = teacher.head();
            if has_stages(&run, master.updates) {
                remote = Some(teacher);
                Teacher::Staged(head)
            } else {
                Teacher::Remote(Box::new(teacher), head)
            }
        } else {
            let open = |(checkpoint, (_, dir)): (&Checkpoint, &(&str, &PathBuf))| {
                let model = checkpoint.config().clone();
                let identity = Recipe::built_in("identity", precision, &model)?;
                let vocab = valid.min(model.vocab);
                let engine = Engine::open(&device, model, identity, 0, &mut &*checkpoint, PAGE_LEN, pages, vocab)
                    .map_err(failed("teacher", dir))?;
                Ok(Local { side: Beside::new(&engine, micro_tokens, rows), engine })
            };
            Teacher::Here(teachers.iter().zip(&named).map(open).collect::<Result<Vec<Local>, OpenError>>()?)
        };
        let reference = match (reference, &reference_dir) {
            (Some(checkpoint), Some(dir)) => {
                let model = checkpoint.config().clone();
                let identity = Recipe::built_in("identity", precision, &model)?;
                let vocab = valid.min(model.vocab);
                let engine = Engine::open(&device, model, identity, 0, &mut &checkpoint, PAGE_LEN, pages, vocab)
                    .map_err(failed("reference", dir))?;
                let side = Beside::new(&engine, micro_tokens, rows);
                Some((engine, side))
            }
            _ => None,
        };
        let learner = Learner::new(policy.model(), micro_tokens, rows);
        let master = Arc::new(RwLock::new(master));
        let ground = Ground {
            device: &device,
            cpu: &cpu,
            config: &run,
            recipe: &recipe,
            master: &master,
            noise: noise.as_ref(),
            policy: &policy,
            teacher: &teacher,
            remote,
            source: &source,
            stop_ids: &stop_ids,
            micro,
            longest: len,
            in_flight: restored.in_flight,
        };
        let Sampling { rollout, is_identity, stages, behaviour } = ground.open().map_err(on_student)?;
        let teachers = teachers.iter().map(|teacher| teacher.config().matmul_parameters()).collect();
        let sizes = Sizes { student: policy.config().matmul_parameters(), teachers };
        Ok(Trainer {
            cpu,
            device,
            in_force: restored.in_force,
            recipe,
            kept: restored.kept,
            longest: len,
            source,
            stop_ids,
            valid,
            policy,
            rollout,
            noise,
            is_identity,
            stages,
            behaviour,
            teacher,
            reference,
            learner,
            master,
            micro,
            student_dir: config.student.clone(),
            totals: Totals::default(),
            sizes,
            token_kl: Vec::new(),
            origin,
            config: run,
        })
    }
}

/// The teacher in another process, with what it has to be.
pub(super) fn connect(
    cpu: &Cpu,
    ring: &Path,
    folder: &Checkpoint,
    model_hash: String,
    precision: Precision,
    config: &Config,
    longest: usize,
) -> Result<RemoteTeacher, OpenError> {
    let temperature = super::narrow(config.rollout.temperature);
    let expected = Expected { model_hash, precision, temperature, longest };
    let ring = RingTeacher::connect(cpu, ring, folder, expected, Duration::from_secs_f64(config.wait_s))?;
    // It is given up before the learner gives up waiting for it, so that its own reason is told.
    Ok(RemoteTeacher { ring: Some(ring), wait_s: 0.9 * config.wait_s, since: None })
}

/// Whether there are CUDA kernels for a run's teacher and rollouts. What cannot be read is an error when the run is opened.
pub fn fits_cuda(config: &Config) -> Result<(), Unsupported> {
    let precision = config.train.precision.into();
    let reference = config.loss.reference_dir(&config.student);
    let teachers = config.teachers();
    let student = [(&config.student, &config.rollout.recipe[..])];
    let runs = student.into_iter().chain(teachers.into_iter().map(|(_, dir)| (dir, "identity")));
    for (dir, recipe) in runs.chain(reference.iter().map(|dir| (dir, "identity"))) {
        let Ok(model) = ModelConfig::open(dir) else { continue };
        let Ok(recipe) = Recipe::open(recipe, precision, &model) else { continue };
        engine::cuda::check(&model, &recipe, PAGE_LEN)?;
    }
    Ok(())
}

/// A teacher in an error.
fn called(name: &str) -> String {
    if name == "teacher" { name.to_owned() } else { format!("teacher `{name}`") }
}

fn open_checkpoint(role: &'static str, dir: &Path) -> Result<Checkpoint, OpenError> {
    Checkpoint::open(dir).map_err(|source| OpenError::Checkpoint {
        role,
        dir: dir.to_owned(),
        source: Box::new(source),
    })
}

fn open_tokenizer(role: &'static str, dir: &Path) -> Result<Option<Tokenizer>, OpenError> {
    Tokenizer::open(dir).map_err(|source| OpenError::Tokenizer { role, dir: dir.to_owned(), source })
}

/// The prompts, and the length of the longest.
fn source(config: &Config, tokenizer: Option<Tokenizer>) -> Result<(Source, usize), OpenError> {
    match &config.task {
        Task::Procedural(spec) => {
            let source = Source::Task { spec: spec.clone(), seed: config.seed };
            Ok((source, spec.prompt_max()))
        }
        Task::Prompts(task) => {
            let chat = ChatTemplate::open(&config.student)
                .map_err(|source| OpenError::Chat { dir: config.student.clone(), source })?;
            let teachers: Vec<&str> = task.teachers.keys().map(String::as_str).collect();
            let source = Source::open_file(&task.prompts, tokenizer, chat.as_ref(), &teachers, config.seed)?;
            let source = source.shorter_than(task.max_prompt as usize, &task.prompts)?.hold_out();
            let longest = source.longest();
            Ok((source, longest))
        }
    }
}

/// Tokens of a micro-batch: what the activations of all layers may take, within what keeps the kernels busy.
fn micro_tokens(c: &ModelConfig) -> usize {
    let width = 4 * c.hidden + 3 * c.heads * c.head_dim + 3 * c.kv_heads * c.head_dim + 2 * c.ffn + 2 * c.heads + 4;
    (TAPE_BYTES / (4 * width * c.layers)).clamp(256, 4096)
}
