//! What a model under a recipe takes of memory, to the byte, before any of it is allocated: weights, the buffers of a
//! step, and the KV pool that is left. From the configuration alone.

mod weights;
mod workspace;

#[cfg(test)]
mod tests;

use kv::{Capacity, KvCache, Layout};
use ptx::Isa;

use crate::config::ModelConfig;
use crate::engine::{PAGE_LEN, kv_shapes};
use crate::recipe::{Precision, Recipe};
use crate::rollout::Limits;

pub use weights::Weights;
pub use workspace::Workspace;

/// What decides how large buffers are, beside the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Tokens of a KV page: a power of two from 1 to 256.
    pub page_len: usize,
    /// Most tokens of a prefill step.
    pub step_tokens: usize,
    /// Most sequences that are decoded at a time.
    pub batch: usize,
    /// Longest sequence, in tokens.
    pub length: usize,
    /// Threads of the device.
    pub threads: usize,
    /// Its instruction set.
    pub isa: Isa,
}

impl Settings {
    /// What the engine takes unless told otherwise, for sequences of up to `length` tokens.
    #[must_use]
    pub fn new(threads: usize, isa: Isa, length: usize) -> Settings {
        let Limits { batch, step_tokens, .. } = Limits::default();
        Settings { page_len: PAGE_LEN, step_tokens, batch, length, threads, isa }
    }
}

/// What the bytes that were given are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Weights, workspace and KV pool together.
    All(usize),
    /// The KV pool alone.
    Pool(usize),
}

/// Why a plan does not work out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The weights and buffers alone are larger than all memory.
    #[error(
        "{memory} bytes of memory are too few: the weights take {weights} bytes under recipe {recipe} and the workspace \
         {workspace}, before any KV page; give at least {want} bytes, which hold one sequence of {length} tokens"
    )]
    Memory {
        /// Bytes given.
        memory: usize,
        /// The recipe's name.
        recipe: String,
        /// Bytes of the weights.
        weights: usize,
        /// Bytes of the workspace.
        workspace: usize,
        /// Bytes that would do.
        want: usize,
        /// The longest sequence.
        length: usize,
    },
    /// The pool holds no sequence of the length asked for.
    #[error(
        "a KV pool of {pool} bytes has {pages} pages of {page_len} tokens ({page_bytes} bytes each); one sequence of {length} \
         tokens needs {pages_want}: give the pool at least {pool_want} bytes ({memory_want} with weights and workspace), \
         or ask for a shorter length"
    )]
    Pool {
        /// Bytes of the pool.
        pool: usize,
        /// Pages they hold.
        pages: usize,
        /// Tokens per page.
        page_len: usize,
        /// Bytes per page.
        page_bytes: usize,
        /// The length asked for.
        length: usize,
        /// Pages it needs.
        pages_want: usize,
        /// Bytes of those pages.
        pool_want: usize,
        /// Bytes in all that would do.
        memory_want: usize,
    },
    /// The length is beyond what the model can compute.
    #[error("length {length} is beyond the model's context of {max} tokens; ask for at most {max}")]
    Length {
        /// The length asked for.
        length: usize,
        /// The context.
        max: usize,
    },
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it was made for.
    pub settings: Settings,
    /// Bytes of the weights as the model holds them.
    pub weights: Weights,
    /// Bytes of a step's buffers.
    pub workspace: Workspace,
    /// Pages by layer.
    pub layout: Layout,
    /// Bytes for the pool; what is left beyond whole pages is not used.
    pub pool: usize,
    /// What the pool holds.
    pub capacity: Capacity,
}

impl Plan {
    /// Divides `memory`.
    ///
    /// # Panics
    /// When the tokens per page are no power of two from 1 to 256, or the recipe was resolved for another model.
    pub fn new(config: &ModelConfig, recipe: &Recipe, settings: Settings, memory: Memory) -> Result<Plan, PlanError> {
        let (page_len, length, max) = (settings.page_len, settings.length, config.max_positions);
        assert!(page_len.is_power_of_two() && page_len <= 256, "page_len {page_len} is no power of two from 1 to 256");
        assert_eq!(config.layers, recipe.layers.len(), "the recipe was resolved for another model");
        if length > max {
            return Err(PlanError::Length { length, max });
        }
        let weights = Weights::of(config, recipe);
        let layout = Layout::new(kv_shapes(config, recipe, page_len));
        let (workspace, pool) = match memory {
            Memory::Pool(bytes) => (Workspace::of(config, recipe, settings, layout.capacity(bytes).pages), bytes),
            Memory::All(bytes) => {
                let mut workspace = Workspace::of(config, recipe, settings, 0);
                let Some(rest) = bytes.checked_sub(weights.total().saturating_add(workspace.total())) else {
                    let want = want(&weights, &workspace, &layout, length);
                    let (weights, workspace, recipe) = (weights.total(), workspace.total(), recipe.name.clone());
                    return Err(PlanError::Memory { memory: bytes, recipe, weights, workspace, want, length });
                };
                let pages = layout.capacity_beside(rest, KvCache::BYTES_PER_PAGE).pages;
                // A rest that holds one more page but not its entry among the holders counts to these.
                let pool = (rest - pages * KvCache::BYTES_PER_PAGE).min((pages + 1) * layout.page_bytes() - 1);
                workspace.holders = rest - pool;
                (workspace, pool)
            }
        };
        let capacity = layout.capacity(pool);
        Ok(Plan { settings, weights, workspace, layout, pool, capacity })
    }

    /// Bytes in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.weights.total().saturating_add(self.workspace.total()).saturating_add(self.pool)
    }

    /// Sequences of the planned length that the pool holds at a time, at least one.
    pub fn sequences(&self) -> Result<usize, PlanError> {
        let (layout, pages, length) = (&self.layout, self.capacity.pages, self.settings.length);
        match layout.sequences(pages, length) {
            0 => {
                let pages_want = layout.pages_for(length);
                Err(PlanError::Pool {
                    pool: self.pool,
                    pages,
                    page_len: layout.page_len(),
                    page_bytes: layout.page_bytes(),
                    length,
                    pages_want,
                    pool_want: pages_want.saturating_mul(layout.page_bytes()),
                    memory_want: want(&self.weights, &self.workspace, layout, length),
                })
            }
            count => Ok(count),
        }
    }

    /// Tokens under this plan over those under `other`; none where that has none.
    #[must_use]
    pub fn ratio_to(&self, other: &Plan) -> Option<f64> {
        (other.capacity.tokens > 0).then(|| self.capacity.tokens as f64 / other.capacity.tokens as f64)
    }
}

/// Bytes in all that hold one sequence of `length` tokens.
fn want(weights: &Weights, workspace: &Workspace, layout: &Layout, length: usize) -> usize {
    let page = layout.page_bytes().saturating_add(KvCache::BYTES_PER_PAGE);
    let pool = layout.pages_for(length).saturating_mul(page);
    weights.total().saturating_add(workspace.without_holders()).saturating_add(pool)
}

/// The precision that a model without its weights is taken to be stored in: f32 if the configuration says so, else bf16.
#[must_use]
pub fn stated_precision(config: &ModelConfig) -> Precision {
    let stated = ["dtype", "torch_dtype"].iter().find_map(|key| config.raw.get(key)?.as_str());
    match stated {
        Some("float32" | "torch.float32" | "float") => Precision::F32,
        _ => Precision::Bf16,
    }
}
