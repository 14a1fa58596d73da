//! The spans of a step on a device, and how they are cut into the tiles that blocks take.

use crate::cuda::{CudaError, Gpu, Mem};
use crate::kv_tile::Span;

use super::CHUNK;

/// No tile.
const NONE: u32 = u32::MAX;

/// What a [`Batch`] must have room for, and what tiles are cut for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Spans at most.
    pub spans: usize,
    /// Rows of all spans at most.
    pub rows: usize,
    /// Pages of a span at most.
    pub pages: usize,
    /// Tokens of a page.
    pub page_len: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Elements of a head: 16, 32, 64, 96 or 128.
    pub head_dim: usize,
}

/// The launches of one step. A larger plan does for a smaller batch, so that one captured graph does for many batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tiles of the spans of few rows, as in decode.
    pub narrow: usize,
    /// Chunks of the longest of those spans if each is a block of its own; 0 if a block takes them all. The bits are the
    /// same.
    pub chunks: usize,
    /// Tiles of the other spans.
    pub wide: usize,
}

/// The spans of a step, their block tables and their tiles, in device buffers that are used again.
#[derive(Debug)]
pub struct Batch {
    limits: BatchLimits,
    plan: Plan,
    /// Blocks, from which on chunks need no blocks of their own.
    many: usize,
    pub(super) spans: Mem<u32>,
    pub(super) tables: Mem<u32>,
    pub(super) tiles: Mem<u32>,
    /// What is written to those buffers.
    host: [Vec<u32>; 3],
}

impl BatchLimits {
    /// Query heads to a kv head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Columns of a narrow tile in fours: 1 or 2.
    pub(super) fn narrow_width(&self) -> usize {
        if self.group() <= 4 { 1 } else { 2 }
    }

    /// Columns of a wide tile in fours: 2 or 4.
    pub(super) fn wide_width(&self) -> usize {
        if matches!(self.head_dim, 64 | 128) { 4 } else { 2 }
    }

    /// Whether a span of so many rows is cut into narrow tiles.
    fn is_narrow(&self, rows: usize) -> bool {
        rows == 1 || rows * self.group() <= 4 * self.narrow_width()
    }

    fn tiles(&self, rows: usize) -> usize {
        let width = if self.is_narrow(rows) { self.narrow_width() } else { self.wide_width() };
        (rows * self.group()).div_ceil(4 * width)
    }

    fn narrow_max(&self) -> usize {
        self.spans * self.tiles(1)
    }

    fn wide_max(&self) -> usize {
        (self.rows * self.group()).div_ceil(4 * self.wide_width()) + self.spans
    }

    /// Words of each buffer of a [`Batch`]: spans, tables and tiles.
    #[must_use]
    pub fn lens(&self) -> [usize; 3] {
        [4 * self.spans, self.spans * self.pages, 2 * (self.narrow_max() + self.wide_max())]
    }

    /// Floats of workspace that a launch by `plan` needs.
    #[must_use]
    pub fn workspace_len(&self, plan: Plan) -> usize {
        plan.narrow * self.kv_heads * plan.chunks * 4 * self.narrow_width() * (self.head_dim + 2)
    }

    /// Floats of workspace that any plan of a [`Batch`] on this device needs.
    #[must_use]
    pub fn workspace_max(&self, gpu: &Gpu) -> usize {
        let chunks = (self.pages * self.page_len).div_ceil(CHUNK);
        let narrow = self.narrow_max().min(many_blocks(gpu).div_ceil(self.kv_heads));
        self.workspace_len(Plan { narrow, chunks, wide: 0 })
    }
}

/// Blocks that fill the device a few times over.
fn many_blocks(gpu: &Gpu) -> usize {
    4 * gpu.multiprocessors() as usize
}

impl Batch {
    /// Buffers for batches within the limits; no span yet.
    ///
    /// # Panics
    /// When the heads do not divide or a limit is zero.
    pub fn new(gpu: &Gpu, limits: BatchLimits) -> Result<Batch, CudaError> {
        let l = &limits;
        assert!(l.kv_heads > 0 && l.heads.is_multiple_of(l.kv_heads) && l.heads > 0, "heads of {l:?}");
        assert!(l.spans > 0 && l.rows > 0 && l.pages > 0 && l.page_len > 0, "no room in {l:?}");
        let lens = l.lens();
        Ok(Batch {
            limits,
            plan: Plan { narrow: 0, chunks: 0, wide: 0 },
            many: many_blocks(gpu),
            spans: gpu.alloc(lens[0])?,
            tables: gpu.alloc(lens[1])?,
            tiles: gpu.alloc(lens[2])?,
            host: lens.map(Vec::with_capacity),
        })
    }

    /// What it has room for.
    #[must_use]
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// How the spans are launched.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// The least plan for these spans.
    #[must_use]
    pub fn plan_for(&self, spans: &[Span<'_>]) -> Plan {
        let (mut narrow, mut longest, mut wide) = (0, 0, 0);
        for span in spans.iter().filter(|span| span.row_count > 0) {
            let tiles = self.limits.tiles(span.row_count);
            if self.limits.is_narrow(span.row_count) {
                narrow += tiles;
                longest = longest.max(span.end_position().div_ceil(CHUNK));
            } else {
                wide += tiles;
            }
        }
        let apart = longest > 1 && narrow * self.limits.kv_heads < self.many;
        Plan { narrow, chunks: if apart { longest } else { 0 }, wide }
    }

    /// Takes these spans, by their least plan. Ordered with launches; allocates nothing.
    ///
    /// # Panics
    /// When the spans exceed the limits or lack pages.
    pub fn set(&mut self, gpu: &Gpu, spans: &[Span<'_>]) -> Result<(), CudaError> {
        self.set_as(gpu, spans, self.plan_for(spans))
    }

    /// Takes these spans, to be launched by a plan that may be larger than they need.
    ///
    /// # Panics
    /// When the spans exceed the limits or the plan, or lack pages.
    pub fn set_as(&mut self, gpu: &Gpu, spans: &[Span<'_>], plan: Plan) -> Result<(), CudaError> {
        let (limits, need) = (self.limits, self.plan_for(spans));
        assert!(spans.len() <= limits.spans, "{} spans, room for {}", spans.len(), limits.spans);
        let longest = spans.iter().filter(|s| limits.is_narrow(s.row_count)).map(|s| s.end_position().div_ceil(CHUNK));
        let chunks_fit = plan.chunks == 0 || plan.chunks >= longest.max().unwrap_or(0);
        assert!(plan.narrow >= need.narrow && plan.wide >= need.wide && chunks_fit, "{plan:?} for {need:?}");
        assert!(plan.narrow <= limits.narrow_max() && plan.wide <= limits.wide_max(), "{plan:?} in {limits:?}");
        let [rows, tables, tiles] = &mut self.host;
        for list in [&mut *rows, &mut *tables, &mut *tiles] {
            list.clear();
        }
        let word = |x: usize| u32::try_from(x).expect("a position, row or page below 2^32");
        for span in spans {
            let pages = span.end_position().div_ceil(limits.page_len);
            assert!(pages <= span.block_table.len(), "a span needs {pages} pages, has {}", span.block_table.len());
            assert!(pages <= limits.pages, "a span of {pages} pages, room for {}", limits.pages);
            rows.extend([word(span.first_row), word(span.row_count), word(span.first_position), 0]);
            tables.extend(&span.block_table[..pages]);
            tables.resize(rows.len() / 4 * limits.pages, 0);
        }
        for (narrow, count) in [(true, plan.narrow), (false, plan.wide)] {
            let end = tiles.len() + 2 * count;
            let width = 4 * if narrow { limits.narrow_width() } else { limits.wide_width() };
            // The longest come first, so that they do not end last.
            for (index, span) in spans.iter().enumerate().filter(|(_, s)| limits.is_narrow(s.row_count) == narrow) {
                let columns = span.row_count * limits.group();
                for first in (0..columns).step_by(width).rev() {
                    tiles.extend([word(index), word(first)]);
                }
            }
            tiles.resize(end, NONE);
        }
        self.plan = plan;
        for (to, from) in [(&self.spans, rows), (&self.tables, tables), (&self.tiles, tiles)] {
            if !from.is_empty() {
                gpu.write(to.view(), from)?;
            }
        }
        Ok(())
    }
}
