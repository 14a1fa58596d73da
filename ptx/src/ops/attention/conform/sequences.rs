//! Sequences in pages, on the CPU and on a device. Slots that nothing was written to are NaN in every format.

use super::super::{Batch, BatchLimits, Plan, Shape, cuda};
use crate::Cpu;
use crate::conformance::guarded::Guarded;
use crate::cuda::{CudaError, Gpu, Mem, Out, Pages};
use crate::kv_tile::{KvPages, KvPagesMut, KvShape, Span};
use crate::ops::kv_append;
use crate::rng::{Purpose, Stream};

const FREE: u8 = 0xff;

/// (sequence, first position, rows) of a span.
pub(super) type Part = (usize, usize, usize);

pub(super) struct Sequences {
    pub heads: usize,
    pub shape: KvShape,
    pub bytes: Vec<u8>,
    pub scales: Vec<f32>,
    pub tables: Vec<Vec<u32>>,
    /// Keys and values of each sequence, `[positions, kv_heads * head_dim]`.
    pub k: Vec<Vec<f32>>,
    pub v: Vec<Vec<f32>>,
    /// Queries of each sequence, `[positions, heads * head_dim]`.
    pub q: Vec<Vec<f32>>,
}

/// How a batch is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Chunks of narrow tiles in blocks of their own, some of which are not there.
    Apart,
    /// A block takes all chunks of a tile.
    Together,
    /// As [`Together`](How::Together), with the output rounded to bf16.
    Rounded,
}

impl Sequences {
    /// Sequences of `lengths`; `order` seeds which pages are whose. `draw` may change keys and values.
    pub(super) fn new(heads: usize, shape: KvShape, lengths: &[usize], order: u64) -> Sequences {
        let mut stream = Stream::new(5, Purpose::Test, lengths.iter().sum::<usize>() as u64);
        let mut draw = |width: usize| -> Vec<Vec<f32>> {
            lengths.iter().map(|n| (0..n * width).map(|_| stream.normal()).collect()).collect()
        };
        let kv = shape.kv_heads * shape.head_dim;
        let (k, v, q) = (draw(kv), draw(kv), draw(heads * shape.head_dim));
        let counts: Vec<usize> = lengths.iter().map(|n| n.div_ceil(shape.page_len)).collect();
        let total = counts.iter().sum::<usize>() + 2;
        let mut ids: Vec<u32> = (0..u32::try_from(total).expect("few pages")).collect();
        Stream::new(order, Purpose::Test, 1).shuffle(&mut ids);
        let tables = counts.iter().map(|&n| ids.split_off(ids.len() - n)).collect();
        let scales = (0..shape.kv_heads).map(|h| [1.0 / 64.0, 1.0 / 128.0][h % 2]).collect();
        let bytes = vec![FREE; total * shape.page_bytes()];
        Sequences { heads, shape, bytes, scales, tables, k, v, q }
    }

    /// Writes the keys and values of all positions below `ends[sequence]`.
    pub(super) fn append(&mut self, ends: &[usize]) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        for (sequence, &end) in ends.iter().enumerate() {
            let span = Span { first_row: 0, row_count: end, first_position: 0, block_table: &self.tables[sequence] };
            let mut pages = KvPagesMut {
                shape: self.shape,
                bytes: &mut self.bytes,
                k_scales: &self.scales,
                v_scales: &self.scales,
                counts: None,
            };
            let (k, v) = (&self.k[sequence][..end * width], &self.v[sequence][..end * width]);
            kv_append::forward(&Cpu::new(1), &mut pages, &[span], k, v);
        }
    }

    #[allow(clippy::cast_precision_loss)] // heads are short
    pub(super) fn attention(&self) -> Shape {
        Shape { heads: self.heads, softmax_scale: 1.0 / (self.shape.head_dim as f32).sqrt() }
    }

    pub(super) fn pages(&self) -> KvPages<'_> {
        KvPages { shape: self.shape, bytes: &self.bytes, k_scales: &self.scales, v_scales: &self.scales }
    }

    /// The parts as one batch: its spans, and its queries.
    pub(super) fn batch(&self, parts: &[Part]) -> (Vec<Span<'_>>, Vec<f32>) {
        let width = self.heads * self.shape.head_dim;
        let (mut spans, mut q) = (Vec::new(), Vec::new());
        let mut row = 0;
        for &(sequence, first_position, row_count) in parts {
            spans.push(Span { first_row: row, row_count, first_position, block_table: &self.tables[sequence] });
            row += row_count;
            q.extend(&self.q[sequence][first_position * width..][..row_count * width]);
        }
        (spans, q)
    }

    pub(super) fn upload(&self, gpu: &Gpu) -> Result<OnDevice, CudaError> {
        let bytes = gpu.upload(&Pages::from_cpu(&self.shape, &self.bytes))?;
        let scales = gpu.upload(&self.scales)?;
        let pages = Pages::new(self.shape, bytes.view(), Some(scales.view()), Some(scales.view()));
        Ok(OnDevice { pages, _bytes: bytes, _scales: scales })
    }

    /// Outputs of the parts on a device, and what is wrong with the guards around them.
    pub(super) fn run(
        &self,
        gpu: &Gpu,
        on: &OnDevice,
        parts: &[Part],
        how: How,
    ) -> Result<(Vec<f32>, Option<String>), CudaError> {
        let (spans, q) = self.batch(parts);
        // Apart no table has a page to spare, so that what lies behind the last one was never written.
        let spare = usize::from(how != How::Apart);
        let limits = BatchLimits {
            spans: spans.len() + 2,
            rows: q.len() / self.heads / self.shape.head_dim + 3,
            pages: spans.iter().map(|s| s.block_table.len()).max().unwrap_or(1) + spare,
            page_len: self.shape.page_len,
            heads: self.heads,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
        };
        let mut batch = Batch::new(gpu, limits)?;
        let plan = batch.plan_for(&spans);
        let longest = spans.iter().map(|s| s.end_position().div_ceil(super::super::CHUNK)).max().unwrap_or(0);
        let plan = match how {
            How::Apart => Plan { narrow: plan.narrow + 1, chunks: longest + 1, wide: plan.wide + 1 },
            How::Together | How::Rounded => Plan { chunks: 0, ..plan },
        };
        batch.set_as(gpu, &spans, plan)?;
        let on_q = gpu.upload(&q)?;
        let workspace = gpu.alloc(limits.workspace_len(plan))?;
        let shape = self.attention();
        if how == How::Rounded {
            let out = Guarded::<u16>::new(gpu, q.len())?;
            cuda::forward(gpu, shape, &on.pages, &batch, on_q.view(), Out::Bf16(out.view()), workspace.view())?;
            let (out, guards) = out.take(gpu)?;
            return Ok((out.into_iter().map(crate::dtype::bf16_to_f32).collect(), guards));
        }
        let out = Guarded::<f32>::new(gpu, q.len())?;
        cuda::forward(gpu, shape, &on.pages, &batch, on_q.view(), Out::F32(out.view()), workspace.view())?;
        out.take(gpu)
    }
}

/// The pages of [`Sequences`] on a device.
pub(super) struct OnDevice {
    pub pages: Pages,
    _bytes: Mem<u8>,
    _scales: Mem<f32>,
}
