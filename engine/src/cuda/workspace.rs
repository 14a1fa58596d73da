//! Buffers of a step on the device. They are made for the largest step so far, or for what an engine was told to make room
//! for; nothing is allocated in a step that is no larger.

use ptx::cuda::{CudaError, Gpu, Mem, Out, View};
use ptx::ops::attention::{Batch, BatchLimits};
use ptx::ops::linear::cuda::Input;
use ptx::ops::round;

use super::weights::Products;
use crate::config::ModelConfig;
use crate::recipe::{Activations, Proj, Recipe};

/// Steps of up to this many rows, each one token of a sequence of its own, are captured in graphs.
pub(super) const GRAPH_ROWS: usize = 256;

/// What steps need room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows of a step at most: its new tokens.
    pub rows: usize,
    /// Sequences of a step at most.
    pub sequences: usize,
    /// Tokens of the longest sequence.
    pub tokens: usize,
}

impl Room {
    /// The same for attention. Sequences that decode are filled up to the rows of a graph; and a large step may be followed
    /// by one in which as many sequences decode, for which buffers should not be made again.
    pub(super) fn limits(&self, c: &ModelConfig, page_len: usize) -> BatchLimits {
        let filled = if self.sequences <= GRAPH_ROWS { graph_rows(self.sequences) } else { self.sequences };
        let rows = self.rows.max(filled).max(1);
        BatchLimits {
            rows,
            spans: self.sequences.max(rows.min(GRAPH_ROWS)),
            pages: self.tokens.div_ceil(page_len).max(1),
            page_len,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
        }
    }
}

/// Rows that a step of `rows` decoding sequences is filled up to, so that few graphs serve many batches.
pub(super) fn graph_rows(rows: usize) -> usize {
    if rows <= 8 { rows.next_power_of_two() } else { rows.next_multiple_of(8) }
}

/// Activations and metadata of a step of up to `rows` rows.
#[derive(Debug)]
pub(super) struct Workspace {
    /// Ids, positions and slots of a step of n rows: `[3, n]`.
    meta: Mem<u32>,
    pub batch: Batch,
    /// The residual stream, `[rows, hidden]`.
    pub x: Mem<f32>,
    pub cos: Mem<f32>,
    pub sin: Mem<f32>,
    /// Queries, keys and values, `[rows, (heads + 2 kv_heads) head_dim]`.
    pub qkv: Mem<f32>,
    /// Queries after norm and rotation.
    pub q: Mem<f32>,
    /// `[rows, 2 ffn]`.
    pub gate_up: Mem<f32>,
    pub attention: Mem<f32>,
    pub inputs: Inputs,
}

/// What a product's input is rounded to, and where it stands before that if it is not rounded on the way.
#[derive(Debug)]
pub(super) struct Inputs {
    wide: Mem<f32>,
    bf16: Mem<u16>,
    codes: Mem<u8>,
    scales: Mem<f32>,
}

/// Elements of each buffer: those of four bytes, and the inputs'.
struct Lens {
    meta: usize,
    batch: [usize; 3],
    x: usize,
    rotation: usize,
    qkv: usize,
    q: usize,
    gate_up: usize,
    attention: usize,
    inputs: InputLens,
}

impl Lens {
    fn new(gpu: &Gpu, c: &ModelConfig, recipe: &Recipe, limits: &BatchLimits) -> Lens {
        let rows = limits.rows;
        let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let codes = recipe.layers.iter().any(|l| Proj::ALL.iter().any(|&p| l[p].activations == Activations::E4m3));
        Lens {
            meta: 3 * rows,
            batch: limits.lens(),
            x: rows * c.hidden,
            rotation: rows * (c.head_dim / 2),
            qkv: rows * (q_len + 2 * kv_len),
            q: rows * q_len,
            gate_up: rows * 2 * c.ffn,
            attention: limits.workspace_max(gpu),
            inputs: InputLens::new(rows, c.hidden.max(q_len).max(c.ffn), codes),
        }
    }
}

impl Workspace {
    /// Bytes of each allocation of a workspace.
    pub fn sizes(gpu: &Gpu, c: &ModelConfig, recipe: &Recipe, limits: &BatchLimits) -> Vec<usize> {
        let Lens { meta, batch: [spans, tables, tiles], x, rotation, qkv, q, gate_up, attention, inputs } =
            Lens::new(gpu, c, recipe, limits);
        let words = [meta, spans, tables, tiles, x, rotation, rotation, qkv, q, gate_up, attention];
        words.into_iter().map(|len| len * size_of::<u32>()).chain(inputs.sizes()).collect()
    }

    pub fn new(gpu: &Gpu, c: &ModelConfig, recipe: &Recipe, limits: BatchLimits) -> Result<Workspace, CudaError> {
        let lens = Lens::new(gpu, c, recipe, &limits);
        Ok(Workspace {
            meta: zeroed(gpu, lens.meta)?,
            batch: Batch::new(gpu, limits)?,
            x: zeroed(gpu, lens.x)?,
            cos: zeroed(gpu, lens.rotation)?,
            sin: zeroed(gpu, lens.rotation)?,
            qkv: zeroed(gpu, lens.qkv)?,
            q: zeroed(gpu, lens.q)?,
            gate_up: zeroed(gpu, lens.gate_up)?,
            attention: gpu.alloc(lens.attention)?,
            inputs: Inputs::new(gpu, lens.inputs)?,
        })
    }

    /// The metadata of a step of `rows` rows.
    pub fn meta(&self, rows: usize) -> View<u32> {
        self.meta.view().part(0, 3 * rows)
    }

    pub fn ids(&self, rows: usize) -> View<u32> {
        self.meta.view().part(0, rows)
    }

    pub fn positions(&self, rows: usize) -> View<u32> {
        self.meta.view().part(rows, rows)
    }

    pub fn slots(&self, rows: usize) -> View<u32> {
        self.meta.view().part(2 * rows, rows)
    }
}

/// Memory of zeros: rows that a batch is filled up with are computed like all others, from something.
fn zeroed<T: bytemuck::Pod>(gpu: &Gpu, len: usize) -> Result<Mem<T>, CudaError> {
    let mem = gpu.alloc(len)?;
    gpu.fill(mem.view(), 0)?;
    Ok(mem)
}

/// Elements of each buffer of [`Inputs`].
#[derive(Clone, Copy, Debug)]
pub(super) struct InputLens {
    wide: usize,
    bf16: usize,
    codes: usize,
    scales: usize,
}

impl InputLens {
    /// For up to `rows` rows of up to `width` values, with codes if some product takes them.
    pub fn new(rows: usize, width: usize, codes: bool) -> InputLens {
        let coded = if codes { rows * width } else { 0 };
        InputLens { wide: coded, bf16: rows * width, codes: coded, scales: if codes { rows } else { 0 } }
    }

    /// Bytes of each.
    pub fn sizes(&self) -> [usize; 4] {
        let InputLens { wide, bf16, codes, scales } = *self;
        [wide * size_of::<f32>(), bf16 * size_of::<u16>(), codes, scales * size_of::<f32>()]
    }
}

impl Inputs {
    pub fn new(gpu: &Gpu, lens: InputLens) -> Result<Inputs, CudaError> {
        Ok(Inputs {
            wide: zeroed(gpu, lens.wide)?,
            bf16: zeroed(gpu, lens.bf16)?,
            codes: zeroed(gpu, lens.codes)?,
            scales: zeroed(gpu, lens.scales)?,
        })
    }

    /// Where the op before these products puts their input `[rows, width]`: rounded at once where bf16 is all they take.
    pub fn out(&self, rows: usize, width: usize, codes: bool) -> Out {
        if codes {
            Out::F32(self.wide.view().part(0, rows * width))
        } else {
            Out::Bf16(self.bf16.view().part(0, rows * width))
        }
    }

    /// Rounds what is in [`Inputs::out`] to what the products take.
    pub fn round(&self, gpu: &Gpu, rows: usize, width: usize, codes: bool, bf16: bool) -> Result<(), CudaError> {
        if !codes {
            return Ok(());
        }
        let wide = self.wide.view();
        round::cuda::e4m3_rows(gpu, rows, width, wide, self.codes.view(), self.scales.view())?;
        if bf16 { round::cuda::bf16(gpu, rows * width, wide, self.bf16.view()) } else { Ok(()) }
    }

    /// The input in a format.
    pub fn input(&self, activations: Activations, rows: usize, width: usize) -> Input {
        match activations {
            Activations::Bf16 => Input::Bf16(self.bf16.view().part(0, rows * width)),
            Activations::E4m3 => {
                Input::E4m3 { codes: self.codes.view().part(0, rows * width), scales: self.scales.view().part(0, rows) }
            }
            Activations::F32 => unreachable!("products of f32 inputs were refused"),
        }
    }
}

/// Whether some of the products take codes, and whether some take bf16.
pub(super) fn kinds(products: &Products) -> (bool, bool) {
    (products.takes(Activations::E4m3), products.takes(Activations::Bf16))
}
