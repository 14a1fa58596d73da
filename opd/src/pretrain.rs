//! Supervised training on a task's solutions: makes teachers, and students that OPD can start from.

use std::sync::Arc;

use engine::checkpoint::{self, Checkpoint, CheckpointError};
use engine::engine::{Engine, EngineError, PAGE_LEN, kv_layout};
use engine::model::{Model, WeightSource as _};
use engine::recipe::{Precision, Recipe};
use engine::rollout::Limits;
use ptx::Cpu;
use ptx::ops::adamw::AdamW;

use crate::eval::{EvalSettings, Evaluation, PromptFailed, evaluate};
use crate::learner::{Learner, Views};
use crate::loss::{LossError, Objective, Sums};
use crate::master::Master;
use crate::sequences::{Micro, Row, micro_batches};
use crate::source::Source;
use crate::tasks::{EOS, Split, TaskSpec, VOCAB_LEN};
use crate::train::Rate;

/// Tokens of a micro-batch.
const MICRO_TOKENS: usize = 4096;

/// What to train on, and how.
#[derive(Clone, Debug)]
pub struct PretrainSettings {
    /// The task.
    pub task: TaskSpec,
    /// Seed of the problems.
    pub seed: u64,
    /// Optimizer steps.
    pub updates: u64,
    /// Problems per update.
    pub batch: usize,
    /// Peak learning rate.
    pub lr: f32,
    /// Updates over which it rises.
    pub warmup: u64,
    /// Whether it falls linearly to nothing over the rest.
    pub decay: bool,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Largest gradient norm.
    pub clip: f32,
    /// Precision of the forward pass, and of what is saved.
    pub precision: Precision,
    /// Held-out problems of an evaluation.
    pub problems: usize,
}

/// Why pretraining stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainError {
    /// The model folder.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A new weights version.
    #[error(transparent)]
    Weights(#[from] EngineError),
    /// The recipe of the precision.
    #[error(transparent)]
    Recipe(#[from] engine::recipe::RecipeError),
    /// The model was not made for the tasks' vocabulary.
    #[error(
        "the model has a vocabulary of {vocab}; the tasks need {VOCAB_LEN} ids: make it with `leeway init --tasks`"
    )]
    VocabularyTooSmall {
        /// What it has.
        vocab: usize,
    },
    /// A problem does not fit the context.
    #[error("a problem takes up to {tokens} tokens; the model's context holds {max}")]
    Context {
        /// Longest problem with its solution.
        tokens: usize,
        /// The context.
        max: usize,
    },
    /// The loss is not a number.
    #[error("update {update}: {source}")]
    Loss {
        /// Which update.
        update: u64,
        /// Where.
        source: LossError,
    },
    /// An evaluation could not be run.
    #[error(transparent)]
    Eval(#[from] PromptFailed),
}

/// A supervised run in progress.
#[derive(Debug)]
pub struct Pretrainer {
    cpu: Arc<Cpu>,
    settings: PretrainSettings,
    source: Source,
    engine: Engine,
    learner: Learner,
    master: Master,
}

impl Pretrainer {
    /// Starts from a checkpoint.
    pub fn open(cpu: Arc<Cpu>, start: &Checkpoint, settings: PretrainSettings) -> Result<Pretrainer, PretrainError> {
        let config = start.config().clone();
        if config.vocab < VOCAB_LEN {
            return Err(PretrainError::VocabularyTooSmall { vocab: config.vocab });
        }
        let tokens = settings.task.prompt_max() + settings.task.completion_max();
        if tokens > config.max_positions {
            return Err(PretrainError::Context { tokens, max: config.max_positions });
        }
        let master = Master::load(start, settings.precision)?;
        let recipe = Recipe::built_in("identity", settings.precision, &config)?;
        let mut model = Model::empty(config, recipe);
        model.update(&cpu, 0, &mut master.version(&cpu))?;
        let learner = Learner::new(&model, MICRO_TOKENS.max(tokens), settings.batch);
        let pages = kv_layout(&model, PAGE_LEN).pages_for(tokens) * Limits::default().batch;
        let engine = Engine::new(Arc::clone(&cpu), model, PAGE_LEN, pages, VOCAB_LEN);
        let source = Source::Task { spec: settings.task.clone(), seed: settings.seed };
        Ok(Pretrainer { cpu, settings, source, engine, learner, master })
    }

    /// Hash of the recipe that the forward pass runs in: the training precision's.
    #[must_use]
    pub fn recipe_hash(&self) -> String {
        self.engine.model().recipe.hash()
    }

    /// Updates done.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.master.updates
    }

    /// One update; returns the loss (nats per token), the tokens it was taken over, and the gradient's norm.
    pub fn update(&mut self) -> Result<(f64, u64, f64), PretrainError> {
        let s = &self.settings;
        let update = self.master.updates + 1;
        let first = (update - 1) * s.batch as u64;
        let rows: Vec<Row> = (first..first + s.batch as u64)
            .map(|i| {
                let problem = s.task.problem(s.seed, Split::Train, i);
                let prompt = problem.prompt.len();
                Row::new([problem.prompt, problem.solution].concat(), prompt)
            })
            .collect();
        let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
        let weight = 1.0 / tokens as f32;
        self.learner.gradients.clear();
        let mut sums = Sums::default();
        for part in micro_batches(&rows, Micro { tokens: MICRO_TOKENS, rows: usize::MAX }) {
            let (model, rows) = (self.engine.model(), &rows[part]);
            let micro = self
                .learner
                .micro_batch(&self.cpu, model, Objective::Supervised, rows, Views::default(), VOCAB_LEN, weight, true)
                .map_err(|source| PretrainError::Loss { update, source })?;
            sums.add(&micro);
        }
        let hyper = AdamW { lr: self.lr(update), beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: s.weight_decay };
        let norm = self.master.update(&self.cpu, &self.learner.gradients, hyper, s.clip);
        self.engine.update(update, &mut self.master.version(&self.cpu))?;
        Ok((sums.loss / sums.tokens as f64, sums.tokens, norm))
    }

    fn lr(&self, update: u64) -> f32 {
        let s = &self.settings;
        let decay = if s.decay { s.updates.saturating_sub(s.warmup) } else { 0 };
        Rate { warmup: s.warmup, decay, updates: s.updates }.at(s.lr, update)
    }

    /// Greedy accuracy on held-out problems.
    pub fn evaluate(&mut self) -> Result<Evaluation, PretrainError> {
        let settings = EvalSettings {
            problems: self.settings.problems,
            temperature: 0.0,
            max_tokens: self.settings.task.completion_max(),
            seed: self.settings.seed,
            first_sample: 0,
        };
        Ok(evaluate(&mut self.engine, &self.source, settings, &[EOS], Limits::default())?)
    }

    /// Writes the present weights as a Hugging Face folder, with the tokenizer files of `aux`.
    pub fn save(&self, dir: &std::path::Path, aux: &std::path::Path) -> Result<(), PretrainError> {
        let mut version = self.master.version(&self.cpu);
        let config = &self.engine.model().config;
        let dtype = self.settings.precision.dtype();
        checkpoint::write(dir, config, dtype, Some(aux), |param, out| {
            out.resize(param.shape.iter().product(), 0.0);
            version.rows(&param.name, 0, param.shape[0], out).expect("it reads from memory");
        })?;
        Ok(())
    }
}
