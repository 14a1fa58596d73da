//! A model with its cache and buffers, and the one step that prefill, decode and scoring share.

mod device;
mod error;
mod host;

use std::sync::Arc;

use kv::{KvCache, Layout, Provenance, Sequence};
use ptx::Cpu;
use ptx::cuda::CudaError;
use ptx::kv_tile::{KvCounts, KvShape, Span};
use ptx::ops::log_softmax;
use ptx::ops::sample::{RowDraw, SampleError, Sampled};

pub use crate::versions::Switch;
pub use device::Device;
pub use error::EngineError;

use crate::config::ModelConfig;
use crate::cuda::{self, Writer};
use crate::model::{Model, WeightSource};
use crate::noise::LogitNoise;
use crate::recipe::{LayerRecipe, Recipe};
use crate::versions::Weights as _;
use host::Host;

/// Logits are never held for more rows than this, whatever the batch.
pub const LOGIT_ROWS: usize = 64;

/// Tokens per KV page unless a caller asks otherwise.
pub const PAGE_LEN: usize = 16;

/// New tokens of one sequence, whose places were just appended to it.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The sequence; its last `ids.len()` places are for these tokens.
    pub sequence: &'a Sequence,
    /// The tokens.
    pub ids: &'a [u32],
}

impl<'a> Feed<'a> {
    fn first(&self) -> usize {
        self.sequence.len().checked_sub(self.ids.len()).expect("places were appended for the tokens fed")
    }

    /// Where its tokens lie in a batch in which they begin at `first_row`.
    pub(crate) fn span(&self, first_row: usize) -> Span<'a> {
        Span {
            first_row,
            row_count: self.ids.len(),
            first_position: self.first(),
            block_table: self.sequence.block_table(),
        }
    }

    /// The positions of its tokens.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> + use<> {
        (self.first()..self.sequence.len()).map(|p| u32::try_from(p).expect("positions are u32"))
    }
}

/// A token to draw from the logits of a row of the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The row.
    pub row: usize,
    /// How.
    pub how: RowDraw,
    /// How many of the likeliest ids are wanted beside the drawn one, at most all real ids.
    pub top: usize,
    /// What the engine's logit noise is drawn by, [`LogitNoise::key`] of the row's tokens and those before; of no meaning
    /// without noise.
    pub prefix: u64,
}

/// What became of a draw.
pub type Drew = Result<Sampled, SampleError>;

/// A token with its ln p twice, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// The token.
    pub id: u32,
    /// After temperature and truncation; minus infinity for a token that could not be drawn.
    pub logprob: f32,
    /// At temperature 1, untruncated.
    pub logprob_raw: f32,
}

impl Top {
    /// In the place of what a row that is no distribution does not have.
    pub(crate) const NONE: Top = Top { id: 0, logprob: f32::NAN, logprob_raw: f32::NAN };
}

/// What runs steps.
#[derive(Debug)]
pub struct Engine {
    config: ModelConfig,
    recipe: Recipe,
    kv: KvCache,
    valid: usize,
    device: Device,
    backend: Backend,
}

/// Weights and buffers, where they are.
#[derive(Debug)]
enum Backend {
    Host(Box<Host>),
    Cuda(Box<cuda::Runner>),
}

/// Shapes of a model's KV pages under its recipe.
#[must_use]
pub fn kv_layout(model: &Model, page_len: usize) -> Layout {
    Layout::new(kv_shapes(&model.config, &model.recipe, page_len))
}

/// Shapes of KV pages by layer: from the configuration alone.
#[must_use]
pub fn kv_shapes(c: &ModelConfig, recipe: &Recipe, page_len: usize) -> Vec<KvShape> {
    let shape = |r: &LayerRecipe| KvShape {
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        page_len,
        k: r.k,
        v: r.v,
        scale: r.kv_scale,
    };
    recipe.layers.iter().map(shape).collect()
}

impl Engine {
    /// An engine on the CPU with a pool of `pages` pages of `page_len` tokens. `valid` is how many ids are real: rows of
    /// the embedding beyond the tokenizer are padding, are never fed, and never get probability.
    ///
    /// # Panics
    /// When `valid` is 0 or exceeds the vocabulary.
    #[must_use]
    pub fn new(cpu: Arc<Cpu>, model: Model, page_len: usize, pages: usize, valid: usize) -> Engine {
        let (config, recipe) = (model.config.clone(), model.recipe.clone());
        let kv = KvCache::new(kv_layout(&model, page_len), pages);
        let (version, backend) = (model.version(), Backend::Host(Box::new(Host::new(Arc::clone(&cpu), model))));
        Engine::with(cpu.into(), config, recipe, kv, valid, version, backend)
    }

    /// As [`Engine::new`] on any device, with weights version `version` from `source`. On a CUDA device the host holds one
    /// layer of it at a time.
    ///
    /// # Errors
    /// When the weights cannot be read, the device fails or has too little memory, or it has no kernel for a part of the
    /// model.
    ///
    /// # Panics
    /// When `valid` is 0 or exceeds the vocabulary, or the recipe is another model's.
    #[allow(clippy::too_many_arguments)] // what an engine is of
    pub fn open(
        device: &Device,
        config: ModelConfig,
        recipe: Recipe,
        version: u64,
        source: &mut dyn WeightSource,
        page_len: usize,
        pages: usize,
        valid: usize,
    ) -> Result<Engine, EngineError> {
        let (gpu, cpu) = match device {
            Device::Cpu(cpu) => {
                let mut model = Model::empty(config, recipe);
                model.update(cpu, version, source)?;
                return Ok(Engine::new(Arc::clone(cpu), model, page_len, pages, valid));
            }
            Device::Cuda { gpu, cpu, .. } => (gpu.clone(), Arc::clone(cpu)),
        };
        cuda::check(&config, &recipe, page_len)?;
        let shapes = kv_shapes(&config, &recipe, page_len);
        let kv = KvCache::without_bytes(Layout::new(shapes), pages);
        let writer = Writer { gpu, cpu, copies: Arc::default() };
        let (shared, own) = (Arc::new(config.clone()), Arc::new(recipe.clone()));
        let runner = cuda::Runner::new(writer, shared, own, version, source, &kv, valid)?;
        Ok(Engine::with(device.clone(), config, recipe, kv, valid, version, Backend::Cuda(Box::new(runner))))
    }

    fn with(
        device: Device,
        config: ModelConfig,
        recipe: Recipe,
        mut kv: KvCache,
        valid: usize,
        version: u64,
        backend: Backend,
    ) -> Engine {
        assert!(valid > 0 && valid <= config.vocab, "{valid} real ids of a vocabulary of {}", config.vocab);
        kv.set_provenance(Provenance { version, recipe: recipe.hash_bytes() });
        Engine { config, recipe, kv, valid, device, backend }
    }

    /// Makes the buffers for steps of up to so much on a CUDA device, so that later ones up to that allocate nothing; does
    /// nothing on the CPU. Without it they are made as steps come that need more than those before.
    ///
    /// # Errors
    /// When the device has too little memory.
    pub fn make_room(&mut self, room: cuda::Room) -> Result<(), CudaError> {
        match &mut self.backend {
            Backend::Host(_) => Ok(()),
            Backend::Cuda(cuda) => cuda.make_room(self.kv.layout().page_len(), room),
        }
    }

    /// Where it computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The CPU: what it runs on, or what prepares weights for the device.
    #[must_use]
    pub fn cpu(&self) -> &Arc<Cpu> {
        self.device.cpu()
    }

    /// The model: its present weights version.
    ///
    /// # Panics
    /// When it is on another device than the CPU.
    #[must_use]
    pub fn model(&self) -> &Model {
        match &self.backend {
            Backend::Host(host) => host.versions.present(),
            Backend::Cuda(_) => panic!("the model is on {}, and there is none here", self.device),
        }
    }

    /// The model for those that read it beside this engine, which must not update it while they do.
    ///
    /// # Panics
    /// As [`Engine::model`].
    #[must_use]
    pub fn shared_model(&self) -> Arc<Model> {
        match &self.backend {
            Backend::Host(host) => Arc::clone(host.versions.present()),
            Backend::Cuda(_) => panic!("the model is on {}, and there is none here", self.device),
        }
    }

    /// Another engine on the CPU with the same model, which both must not update, and `pages` pages of its own.
    ///
    /// # Panics
    /// As [`Engine::model`].
    #[must_use]
    pub fn beside(&self, pages: usize) -> Engine {
        let (model, page_len) = (self.shared_model(), self.kv.layout().page_len());
        let kv = KvCache::new(kv_layout(&model, page_len), pages);
        let (config, recipe, version) = (self.config.clone(), self.recipe.clone(), model.version());
        let host = Host::sharing(Arc::clone(self.cpu()), model);
        Engine::with(self.device.clone(), config, recipe, kv, self.valid, version, Backend::Host(Box::new(host)))
    }

    /// A weights version that is held, on the CPU.
    ///
    /// # Panics
    /// As [`Engine::model`].
    #[must_use]
    pub fn model_at(&self, version: u64) -> Option<&Model> {
        match &self.backend {
            Backend::Host(host) => host.versions.get(version).map(|model| &**model),
            Backend::Cuda(_) => panic!("the model is on {}, and there is none here", self.device),
        }
    }

    /// The model's architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The formats it runs in.
    #[must_use]
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The present weights version.
    ///
    /// # Panics
    /// When the last update failed.
    #[must_use]
    pub fn version(&self) -> u64 {
        match &self.backend {
            Backend::Host(host) => host.versions.present().version(),
            Backend::Cuda(cuda) => cuda.versions.present().version(),
        }
    }

    /// Whether a weights version can be run.
    #[must_use]
    pub fn holds(&self, version: u64) -> bool {
        match &self.backend {
            Backend::Host(host) => host.versions.get(version).is_some(),
            Backend::Cuda(cuda) => cuda.versions.get(version).is_some(),
        }
    }

    /// The oldest weights version that can be run.
    #[must_use]
    pub fn oldest_version(&self) -> u64 {
        match &self.backend {
            Backend::Host(host) => host.versions.oldest(),
            Backend::Cuda(cuda) => cuda.versions.oldest(),
        }
    }

    /// False after an update that failed, until one succeeds.
    #[must_use]
    pub fn usable(&self) -> bool {
        match &self.backend {
            Backend::Host(host) => host.versions.usable(),
            Backend::Cuda(cuda) => cuda.versions.usable(),
        }
    }

    /// Keeps `count` versions before the present one from now on, each a whole copy of the weights. Those beyond leave
    /// with the next update, since samples under way may still need them.
    pub fn retain_versions(&mut self, count: usize) {
        match &mut self.backend {
            Backend::Host(host) => host.versions.retain(count),
            Backend::Cuda(cuda) => cuda.versions.retain(count),
        }
    }

    /// The update transaction: weights and the KV scales that belong to them become those of `version`. Without retained
    /// versions they are written over the old ones in place. After a failure nothing may be run until an update succeeds,
    /// and the oldest retained version may be gone. Sequences that are alive need
    /// [`Session::update`](crate::rollout::Session::update), which calls this.
    ///
    /// # Panics
    /// When `version` is not above every version before: a number stands for one set of weights for good.
    pub fn update(&mut self, version: u64, source: &mut dyn WeightSource) -> Result<Switch, EngineError> {
        let switch = match &mut self.backend {
            Backend::Host(host) => host.versions.update(&host.cpu, version, source)?,
            Backend::Cuda(cuda) => cuda.update(version, source)?,
        };
        self.kv.set_provenance(Provenance { version, ..self.kv.provenance() });
        Ok(switch)
    }

    /// The cache.
    #[must_use]
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The cache, for sequences to grow and end.
    pub fn kv_mut(&mut self) -> &mut KvCache {
        &mut self.kv
    }

    /// Ids below this are real.
    #[must_use]
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// Runs the present version over the new tokens of some sequences. The step's rows are the tokens in the order fed.
    ///
    /// # Errors
    /// When the device fails, which the CPU does not.
    ///
    /// # Panics
    /// When a sequence has fewer places than tokens are fed.
    pub fn step<'a>(&mut self, feeds: impl IntoIterator<Item = Feed<'a>>) -> Result<(), CudaError> {
        self.step_at(self.version(), feeds)
    }

    /// As [`Engine::step`] under any version that is still here.
    ///
    /// # Panics
    /// When the version is not here, or a sequence has fewer places than tokens are fed.
    pub fn step_at<'a>(&mut self, version: u64, feeds: impl IntoIterator<Item = Feed<'a>>) -> Result<(), CudaError> {
        match &mut self.backend {
            Backend::Host(host) => {
                host.step(&mut self.kv, version, feeds.into_iter());
                Ok(())
            }
            Backend::Cuda(cuda) => cuda.step(&mut self.kv, version, feeds.into_iter()),
        }
    }

    /// Logits `[rows, vocab]` of some of the last step's rows, at most [`LOGIT_ROWS`], on the host.
    ///
    /// # Panics
    /// When more rows are asked for.
    pub fn logits(&mut self, rows: impl ExactSizeIterator<Item = usize>) -> Result<&[f32], CudaError> {
        match &mut self.backend {
            Backend::Host(host) => {
                host.logits(rows);
                Ok(&host.logits)
            }
            Backend::Cuda(cuda) => cuda.logits(rows),
        }
    }

    /// What the last call of [`Engine::logits`] returned; on the CPU also the last block of [`Engine::gather`] and
    /// [`Engine::draw`].
    #[must_use]
    pub fn last_logits(&self) -> &[f32] {
        match &self.backend {
            Backend::Host(host) => &host.logits,
            Backend::Cuda(cuda) => cuda.last_logits(),
        }
    }

    /// ln p of the id `targets[i]` under row `rows[i]` of the last step at `1 / inv_temps[i]`, in nats, into `out`; NaN
    /// where the row's logits are no distribution. All lists are as long, and at most [`LOGIT_ROWS`].
    ///
    /// # Panics
    /// When they are not, or a target is no real id.
    pub fn gather(
        &mut self,
        rows: &[usize],
        inv_temps: &[f32],
        targets: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), CudaError> {
        let count = rows.len();
        assert!(inv_temps.len() == count && targets.len() == count, "{count} rows, and other lists are not as long");
        out.clear();
        out.resize(count, 0.0);
        match &mut self.backend {
            Backend::Host(host) => {
                host.gather(self.valid, rows, inv_temps, targets, out);
                Ok(())
            }
            Backend::Cuda(cuda) => cuda.gather(rows, inv_temps, targets, out),
        }
    }

    /// The same for lists of ids under rows `first ..` of the last [`Engine::gather`]: row i's ids are
    /// `ids[offsets[i]..offsets[i + 1]]`, and so are its logprobs in `out`. A row with an empty list is not looked at.
    ///
    /// # Panics
    /// When an id is not real; on the CPU also when a row that is looked at is no distribution.
    pub fn gather_lists(
        &mut self,
        first: usize,
        inv_temps: &[f32],
        offsets: &[usize],
        ids: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), CudaError> {
        out.clear();
        out.resize(ids.len(), 0.0);
        match &mut self.backend {
            Backend::Host(host) => {
                let (vocab, valid) = (self.config.vocab, self.valid);
                let logits = &host.logits[first * vocab..(first + inv_temps.len()) * vocab];
                log_softmax::gather_many(&host.cpu, vocab, valid, inv_temps, logits, offsets, ids, out)
                    .expect("the ids were checked, and the rows' own tokens were found finite");
                Ok(())
            }
            Backend::Cuda(cuda) => cuda.gather_lists(first, inv_temps, offsets, ids, out),
        }
    }

    /// Draws tokens for the first of `draws`, as many as one block of logits serves, and returns how many: their results
    /// are in `drew`, in order, and the likeliest ids that they ask for in `tops`, one list behind the other, the likeliest
    /// first, equal ones by id; the list of a draw that failed has NaN. A draw does not depend on those beside it.
    ///
    /// # Panics
    /// When more of the likeliest are asked for than there are real ids.
    pub fn draw(&mut self, draws: &[Draw], drew: &mut Vec<Drew>, tops: &mut Vec<Top>) -> Result<usize, CudaError> {
        let most = draws.iter().map(|draw| draw.top).max().unwrap_or(0);
        assert!(most <= self.valid, "the {most} likeliest of {} ids", self.valid);
        match &mut self.backend {
            Backend::Host(host) => Ok(host.draw(self.valid, draws, drew, tops)),
            Backend::Cuda(cuda) => cuda.draw(draws, drew, tops),
        }
    }

    /// From now on [`Engine::draw`] adds noise to logits; scores ([`Engine::gather`]) and [`Engine::logits`] stay without.
    ///
    /// # Panics
    /// With noise on another device than the CPU.
    pub fn set_logit_noise(&mut self, noise: Option<LogitNoise>) {
        match &mut self.backend {
            Backend::Host(host) => host.noise = noise,
            Backend::Cuda(_) => {
                assert!(noise.is_none(), "logit noise is the CPU's, and the model is on {}", self.device)
            }
        }
    }

    /// The noise that draws have.
    #[must_use]
    pub fn logit_noise(&self) -> Option<LogitNoise> {
        match &self.backend {
            Backend::Host(host) => host.noise,
            Backend::Cuda(_) => None,
        }
    }

    /// Bytes of the activations, and of the logits with the rows they are of.
    #[cfg(test)]
    pub(crate) fn buffer_bytes(&mut self) -> (usize, usize) {
        match &mut self.backend {
            Backend::Host(host) => host.buffer_bytes(),
            Backend::Cuda(_) => unreachable!("these are the CPU's"),
        }
    }

    /// What rounding keys and values to 8 bits lost in all steps since the counts were last cleared,
    /// `[layers, kv_heads]`; empty before the first step. Layers without 8-bit keys or values count nothing there.
    pub fn kv_counts(&self) -> Result<Vec<KvCounts>, CudaError> {
        match &self.backend {
            Backend::Host(host) => Ok(host.counts().to_vec()),
            Backend::Cuda(cuda) => cuda.kv_counts(),
        }
    }

    /// Clears the counts.
    pub fn clear_kv_counts(&mut self) -> Result<(), CudaError> {
        match &mut self.backend {
            Backend::Host(host) => {
                host.clear_counts();
                Ok(())
            }
            Backend::Cuda(cuda) => cuda.clear_kv_counts(),
        }
    }

    /// Fills every page with NaN, so that a read of a slot that nothing wrote shows. For tests.
    pub fn poison_pages(&mut self) -> Result<(), CudaError> {
        match &mut self.backend {
            Backend::Host(_) => {
                self.kv.arena_mut().poison();
                Ok(())
            }
            Backend::Cuda(cuda) => cuda.poison(),
        }
    }

    /// Whether steps that decode alone run as CUDA graphs, as they do at first; of no meaning on the CPU. No bit depends
    /// on it.
    pub fn set_graphs(&mut self, on: bool) {
        if let Backend::Cuda(cuda) = &mut self.backend {
            cuda.set_graphs(on);
        }
    }

    /// Steps that ran as CUDA graphs.
    #[must_use]
    pub fn graph_steps(&self) -> u64 {
        match &self.backend {
            Backend::Host(_) => 0,
            Backend::Cuda(cuda) => cuda.graph_steps(),
        }
    }
}

/// The allocation of a vector of borrowed spans, without its contents, for a later borrow. The collect works in place:
/// a test with a counting allocator holds it to that.
#[must_use]
pub fn emptied(mut spans: Vec<Span<'_>>) -> Vec<Span<'static>> {
    spans.clear();
    spans.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}
