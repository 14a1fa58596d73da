//! Runs steps on a CUDA device: weights, pages, buffers, and the graphs of steps that decode alone.

use std::collections::HashMap;
use std::sync::Arc;

use kv::{KvCache, PageCopy};
use ptx::cuda::{CudaError, Gpu, Graph, Mem};
use ptx::kv_tile::{KvCounts, KvShape, Span};
use ptx::ops::attention::{BatchLimits, CHUNK, Plan};
use ptx::ops::kv_append::cuda::{COUNTS, NO_SLOT, counts};
use ptx::ops::kv_copy::cuda as kv_copy;

use super::forward::{Pass, pages};
use super::sampling::Sampling;
use super::weights::{DeviceModel, Writer};
use super::workspace::{GRAPH_ROWS, Room, Workspace, graph_rows};
use crate::config::ModelConfig;
use crate::engine::{Draw, Drew, EngineError, Feed, LOGIT_ROWS, Switch, Top, emptied};
use crate::model::WeightSource;
use crate::recipe::Recipe;
use crate::versions::Versions;

/// What a device holds for an engine.
#[derive(Debug)]
pub(crate) struct Runner {
    pub writer: Writer,
    pub versions: Versions<DeviceModel>,
    config: Arc<ModelConfig>,
    recipe: Arc<Recipe>,
    shapes: Vec<KvShape>,
    /// Pages, by layer.
    pools: Vec<Mem<u8>>,
    pool_pages: usize,
    layers: kv_copy::Layers,
    copies: Copies,
    counts: Mem<u64>,
    inv_freq: Mem<f32>,
    workspace: Option<Workspace>,
    sampling: Sampling,
    step: Step,
    graphs: Graphs,
    /// The weights version of the last step: whose head its logits take.
    ran: u64,
    /// Rows of the last step, if it ran: the workspace may hold more, of earlier ones.
    rows: usize,
}

/// What a step is told, on the host.
#[derive(Debug, Default)]
struct Step {
    meta: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    spans: Vec<Span<'static>>, // empty between steps: only its allocation is kept
}

/// Steps whose launches are the same but for what they read from device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Copy of the weights.
    copy: usize,
    rows: usize,
    chunks: usize,
}

#[derive(Debug)]
struct Graphs {
    on: bool,
    /// None where such a step has run once and was not captured.
    made: HashMap<Key, Option<Graph>>,
    launched: u64,
}

/// Page numbers of copies on their way to the device.
#[derive(Debug)]
struct Copies {
    all: Vec<PageCopy>,
    pairs: Vec<u32>,
    /// Of one launch.
    device: Mem<u32>,
}

/// Pages that one launch copies at most.
const COPIES: usize = 64;
/// Bytes of their list.
pub(super) const COPIES_BYTES: usize = 2 * COPIES * size_of::<u32>();

impl Runner {
    /// For pages as `kv` counts them, and ids below `valid`.
    pub fn new(
        writer: Writer,
        config: Arc<ModelConfig>,
        recipe: Arc<Recipe>,
        version: u64,
        source: &mut dyn WeightSource,
        kv: &KvCache,
        valid: usize,
    ) -> Result<Runner, EngineError> {
        let (shapes, pool_pages) = (kv.layout().layers().to_vec(), kv.pages());
        let gpu = writer.gpu.clone();
        let model = DeviceModel::new(&writer, Arc::clone(&config), Arc::clone(&recipe), version, source)?;
        let pool = |shape: &KvShape| {
            let pool = gpu.alloc::<u8>(shape.page_bytes() * pool_pages)?;
            // A page is copied whole, also where nothing was written yet. NaN, so that a stray read shows.
            gpu.fill(pool.view(), 0xff)?;
            Ok::<_, CudaError>(pool)
        };
        let pools = shapes.iter().map(pool).collect::<Result<Vec<_>, _>>()?;
        let of_layers: Vec<_> = model
            .layers
            .iter()
            .zip(&shapes)
            .zip(&pools)
            .map(|((layer, &shape), pool)| pages(shape, pool, layer))
            .collect();
        let layers = kv_copy::Layers::new(&gpu, &of_layers)?;
        let counts = gpu.alloc(config.layers * config.kv_heads * COUNTS)?;
        gpu.fill(counts.view(), 0)?;
        let inv_freq = gpu.upload(&config.rope.inv_freq(config.head_dim))?;
        let copies = gpu.alloc(2 * COPIES)?;
        let sampling = Sampling::new(&gpu, &config, recipe.head.activations, valid)?;
        Ok(Runner {
            writer,
            versions: Versions::new(model),
            config,
            recipe,
            shapes,
            pools,
            pool_pages,
            layers,
            copies: Copies { all: Vec::new(), pairs: Vec::new(), device: copies },
            counts,
            inv_freq,
            workspace: None,
            sampling,
            step: Step::default(),
            graphs: Graphs { on: true, made: HashMap::new(), launched: 0 },
            ran: version,
            rows: 0,
        })
    }

    fn gpu(&self) -> &Gpu {
        &self.writer.gpu
    }

    pub fn update(&mut self, version: u64, source: &mut dyn WeightSource) -> Result<Switch, EngineError> {
        self.versions.update(&self.writer, version, source)
    }

    /// Runs `version` over the new tokens.
    pub fn step<'a>(
        &mut self,
        kv: &mut KvCache,
        version: u64,
        feeds: impl Iterator<Item = Feed<'a>>,
    ) -> Result<(), CudaError> {
        self.versions.assert_usable();
        (self.ran, self.rows) = (version, 0);
        self.copy_pages(kv)?;
        let page_len = kv.layout().page_len();
        let Step { meta, positions, slots, spans } = &mut self.step;
        meta.clear();
        positions.clear();
        slots.clear();
        let mut batch_spans: Vec<Span<'a>> = std::mem::take(spans);
        for feed in feeds {
            let span = feed.span(meta.len());
            meta.extend_from_slice(feed.ids);
            for position in feed.positions() {
                let (page, place) = (position as usize / page_len, position as usize % page_len);
                let slot = span.block_table[page] as usize * page_len + place;
                positions.push(position);
                slots.push(u32::try_from(slot).ok().filter(|&slot| slot != NO_SLOT).expect("slots are below 2^32"));
            }
            batch_spans.push(span);
        }
        let rows = meta.len();
        let ran = if rows == 0 { Ok(()) } else { self.run(page_len, &batch_spans) };
        self.step.spans = emptied(batch_spans);
        ran?;
        self.rows = rows;
        Ok(())
    }

    fn run(&mut self, page_len: usize, spans: &[Span<'_>]) -> Result<(), CudaError> {
        let rows = self.step.meta.len();
        let decodes = spans.len() == rows && rows <= GRAPH_ROWS && self.graphs.on;
        let graph_rows = if decodes { graph_rows(rows) } else { rows };
        self.make_room_for(page_len, graph_rows, spans)?;
        let gpu = self.writer.gpu.clone();
        let w = self.workspace.as_mut().expect("room was made");
        let least = w.batch.plan_for(spans);
        let graph_plan = if decodes { graph_plan(w, least, rows, graph_rows) } else { None };
        let (padded, plan) = graph_plan.map_or((rows, least), |plan| (graph_rows, plan));
        let Step { meta, positions, slots, .. } = &mut self.step;
        meta.resize(padded, 0);
        meta.extend_from_slice(positions);
        meta.resize(2 * padded, 0);
        meta.extend_from_slice(slots);
        meta.resize(3 * padded, NO_SLOT);
        gpu.write(w.meta(padded), meta)?;
        w.batch.set_as(&gpu, spans, plan)?;
        let model = self.versions.get(self.ran).expect("the version is retained");
        model.assert_complete();
        let pass = Pass {
            gpu: &gpu,
            c: &self.config,
            rows: padded,
            shapes: &self.shapes,
            pools: &self.pools,
            counts: self.counts.view(),
            inv_freq: self.inv_freq.view(),
            w,
        };
        if graph_plan.is_none() {
            return pass.run(model);
        }
        // Compiling kernels and a step that never comes again are no matter for a graph, so the first runs as it is.
        let key = Key { copy: model.copy, rows: padded, chunks: plan.chunks };
        match self.graphs.made.get_mut(&key) {
            None => {
                self.graphs.made.insert(key, None);
                pass.run(model)
            }
            Some(made) => {
                if made.is_none() {
                    *made = Some(gpu.capture(|_| pass.run(model))?);
                }
                self.graphs.launched += 1;
                made.as_ref().expect("just made").launch()
            }
        }
    }

    /// As [`crate::engine::Engine::make_room`].
    pub fn make_room(&mut self, page_len: usize, room: Room) -> Result<(), CudaError> {
        let need = room.limits(&self.config, page_len);
        self.grow(need, need.pages)
    }

    /// Buffers for a step of `rows` rows of these spans.
    fn make_room_for(&mut self, page_len: usize, rows: usize, spans: &[Span<'_>]) -> Result<(), CudaError> {
        let tokens = spans.iter().map(Span::end_position).max().unwrap_or(1);
        let need = Room { rows, sequences: spans.len(), tokens }.limits(&self.config, page_len);
        // Tables grow by doubling: they are uploaded whole, so they should not be made for sequences that never come.
        let most = self.pool_pages.min(self.config.max_positions.div_ceil(page_len));
        self.grow(need, need.pages.max(32).next_power_of_two().min(most).max(need.pages))
    }

    /// Buffers for these limits, unless there are; if their pages must grow, then to `pages`. Larger buffers have other
    /// addresses, so graphs are made anew.
    fn grow(&mut self, need: BatchLimits, pages: usize) -> Result<(), CudaError> {
        let has = self.workspace.as_ref().map(|w| *w.batch.limits());
        if has.is_some_and(|l| need.rows <= l.rows && need.spans <= l.spans && need.pages <= l.pages) {
            return Ok(());
        }
        let (has_rows, has_spans, has_pages) = has.map_or((0, 0, 0), |l| (l.rows, l.spans, l.pages));
        let pages = if need.pages <= has_pages { has_pages } else { pages };
        let limits = BatchLimits { rows: need.rows.max(has_rows), spans: need.spans.max(has_spans), pages, ..need };
        self.graphs.made.clear();
        // The old ones first: their memory is given back before more is taken, so that both need not fit at once.
        self.workspace = None;
        self.workspace = Some(Workspace::new(&self.writer.gpu, &self.config, &self.recipe, limits)?);
        Ok(())
    }

    /// Copies on write, in an order that gives what one after the other would.
    fn copy_pages(&mut self, kv: &mut KvCache) -> Result<(), CudaError> {
        let Copies { all, pairs, device } = &mut self.copies;
        all.clear();
        all.extend(kv.take_copies());
        if all.is_empty() {
            return Ok(());
        }
        let room = device.view();
        let mut first = 0;
        while first < all.len() {
            // The longest run in which no page that is written is in another pair.
            let meets = |at: usize| {
                all[first..at]
                    .iter()
                    .any(|before| before.to == all[at].from || before.to == all[at].to || before.from == all[at].to)
            };
            let most = all.len().min(first + COPIES);
            let end = (first + 1..most).find(|&at| meets(at)).unwrap_or(most);
            pairs.clear();
            pairs.extend(all[first..end].iter().flat_map(|copy| [copy.from.0, copy.to.0]));
            self.writer.gpu.write(room, pairs)?;
            kv_copy::forward(&self.writer.gpu, &self.layers, room, end - first)?;
            first = end;
        }
        Ok(())
    }

    /// The logits of some rows of the last step, on the device.
    fn rows(&mut self, rows: impl ExactSizeIterator<Item = usize>) -> Result<(), CudaError> {
        let model = self.versions.get(self.ran).expect("logits are asked for before the next update");
        let w = self.workspace.as_ref().expect("logits are asked for after a step");
        let x = w.x.view().part(0, self.rows * self.config.hidden);
        self.sampling.logits(&self.writer.gpu, &self.config, model, x, rows)
    }

    /// As [`crate::engine::Engine::logits`].
    pub fn logits(&mut self, rows: impl ExactSizeIterator<Item = usize>) -> Result<&[f32], CudaError> {
        let count = rows.len();
        self.rows(rows)?;
        self.sampling.download(&self.writer.gpu, count)
    }

    /// What [`Runner::logits`] gave last.
    pub fn last_logits(&self) -> &[f32] {
        self.sampling.downloaded()
    }

    /// As [`crate::engine::Engine::gather`].
    pub fn gather(
        &mut self,
        rows: &[usize],
        inv_temps: &[f32],
        targets: &[u32],
        out: &mut [f32],
    ) -> Result<(), CudaError> {
        self.rows(rows.iter().copied())?;
        self.sampling.gather(&self.writer.gpu, inv_temps, targets, out)
    }

    /// As [`crate::engine::Engine::gather_lists`].
    pub fn gather_lists(
        &mut self,
        first: usize,
        inv_temps: &[f32],
        offsets: &[usize],
        ids: &[u32],
        out: &mut [f32],
    ) -> Result<(), CudaError> {
        self.sampling.gather_lists(&self.writer.gpu, first, inv_temps, offsets, ids, out)
    }

    /// As [`crate::engine::Engine::draw`].
    pub fn draw(&mut self, draws: &[Draw], drew: &mut Vec<Drew>, tops: &mut Vec<Top>) -> Result<usize, CudaError> {
        let draws = &draws[..draws.len().min(LOGIT_ROWS)];
        self.rows(draws.iter().map(|draw| draw.row))?;
        self.sampling.draw(&self.writer.gpu, draws, drew, tops)?;
        Ok(draws.len())
    }

    pub fn kv_counts(&self) -> Result<Vec<KvCounts>, CudaError> {
        if self.workspace.is_none() {
            return Ok(Vec::new());
        }
        Ok(counts(&self.gpu().download(self.counts.view())?))
    }

    pub fn clear_kv_counts(&self) -> Result<(), CudaError> {
        self.gpu().fill(self.counts.view(), 0)
    }

    /// Whether steps that decode alone run as graphs, as they do at first. No bit depends on it.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs.on = on;
    }

    /// Steps that ran as graphs.
    pub fn graph_steps(&self) -> u64 {
        self.graphs.launched
    }

    /// Makes every page hold NaN.
    pub fn poison(&self) -> Result<(), CudaError> {
        self.pools.iter().try_for_each(|pool| self.gpu().fill(pool.view(), 0xff))
    }
}

/// The plan of a graph of `graph_rows` rows that serves batches of `rows` sequences whose least plan is `least`, if the
/// workspace holds it.
fn graph_plan(w: &Workspace, least: Plan, rows: usize, graph_rows: usize) -> Option<Plan> {
    let limits = w.batch.limits();
    let longest = (limits.pages * limits.page_len).div_ceil(CHUNK);
    let chunks = if least.chunks == 0 { 0 } else { least.chunks.next_power_of_two().min(longest) };
    let plan = Plan { narrow: least.narrow / rows * graph_rows, chunks, wide: 0 };
    (least.wide == 0 && limits.workspace_len(plan) <= w.attention.len()).then_some(plan)
}
