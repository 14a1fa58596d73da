//! Buffers of a step on the device. They are made for the largest step so far; nothing is allocated in a step that is no
//! larger.

use ptx::cuda::{CudaError, Gpu, Mem, Out, View};
use ptx::ops::attention::{Batch, BatchLimits};
use ptx::ops::linear::cuda::Input;
use ptx::ops::round;

use super::weights::Products;
use crate::config::ModelConfig;
use crate::recipe::{Activations, LayerRecipe, Proj};

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

impl Workspace {
    pub fn new<'a>(
        gpu: &Gpu,
        c: &ModelConfig,
        layers: impl Iterator<Item = &'a LayerRecipe>,
        limits: BatchLimits,
    ) -> Result<Workspace, CudaError> {
        let rows = limits.rows;
        let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let zeros = |width: usize| zeroed(gpu, rows * width);
        let codes =
            layers.into_iter().any(|layer| Proj::ALL.iter().any(|&p| layer[p].activations == Activations::E4m3));
        Ok(Workspace {
            meta: zeroed(gpu, 3 * rows)?,
            batch: Batch::new(gpu, limits)?,
            x: zeros(c.hidden)?,
            cos: zeros(c.head_dim / 2)?,
            sin: zeros(c.head_dim / 2)?,
            qkv: zeros(q_len + 2 * kv_len)?,
            q: zeros(q_len)?,
            gate_up: zeros(2 * c.ffn)?,
            attention: gpu.alloc(limits.workspace_max(gpu))?,
            inputs: Inputs::new(gpu, rows, c.hidden.max(q_len).max(c.ffn), codes)?,
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

impl Inputs {
    /// For up to `rows` rows of up to `width` values, with codes if some product takes them.
    pub fn new(gpu: &Gpu, rows: usize, width: usize, codes: bool) -> Result<Inputs, CudaError> {
        let (len, coded) = (rows * width, if codes { rows * width } else { 0 });
        Ok(Inputs {
            wide: zeroed(gpu, coded)?,
            bf16: zeroed(gpu, len)?,
            codes: zeroed(gpu, coded)?,
            scales: zeroed(gpu, if codes { rows } else { 0 })?,
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
