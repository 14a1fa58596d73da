//! Reads parameters from a source in blocks, rounds them as the recipe says and packs them.

use ptx::Cpu;
use ptx::DType;
use ptx::ops::linear::{self, Packed, SCALE_BLOCK, WeightScale};
use ptx::ops::round;

use crate::checkpoint::CheckpointError;
use crate::config::ModelConfig;
use crate::model::{Layer, Stored, WeightSource, kv_scale};
use crate::recipe::{Activations, Proj, StaticScales};

/// Values read from a source at a time: bounds the f32 copy that exists beside the packed form.
const BLOCK: usize = 1 << 20;

/// Values that are read at a time: an update holds that many f32 beside the model. Rows that share scales are packed
/// together, so it holds a block of them.
pub(crate) fn block_len(c: &ModelConfig) -> usize {
    // Shapes far beyond any machine must not wrap to a small block.
    let longest = c.hidden.max(c.ffn).max(c.heads * c.head_dim);
    let rows = c.vocab.max(longest);
    BLOCK.max(SCALE_BLOCK.saturating_mul(longest)).min(longest.saturating_mul(rows))
}

/// A version being read.
pub(super) struct Reader<'a> {
    pub cpu: &'a Cpu,
    pub source: &'a mut dyn WeightSource,
    pub block: &'a mut [f32],
    pub version: u64,
}

impl Reader<'_> {
    /// One decoder layer, and the static scales that follow from it or stand beside it. Calibrated ones come later.
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        scales: &StaticScales,
        index: usize,
        layer: &mut Layer,
    ) -> Result<(), CheckpointError> {
        let name = |rest: &str| format!("model.layers.{index}.{rest}");
        let row = layer.formats;
        let of = |proj: Proj| row[proj].activations;
        let qkv = [Proj::Q, Proj::K, Proj::V];
        self.vector(&name("input_layernorm.weight"), &qkv.map(of), &mut layer.attn_norm)?;
        let matrices = [
            (Proj::Q, &mut layer.q),
            (Proj::K, &mut layer.k),
            (Proj::V, &mut layer.v),
            (Proj::O, &mut layer.o),
            (Proj::Gate, &mut layer.gate),
            (Proj::Up, &mut layer.up),
            (Proj::Down, &mut layer.down),
        ];
        for (proj, matrix) in matrices {
            self.matrix(&name(&format!("{}.{}.weight", proj.module(), proj.name())), of(proj), matrix)?;
        }
        let qkv_bias = qkv.into_iter().zip(layer.qkv_bias.iter_mut().flatten());
        let mlp_bias = [Proj::Gate, Proj::Up, Proj::Down].into_iter().zip(layer.mlp_bias.iter_mut().flatten());
        let o_bias = layer.o_bias.as_mut().map(|bias| (Proj::O, bias));
        for (proj, bias) in qkv_bias.chain(o_bias).chain(mlp_bias) {
            self.vector(&name(&format!("{}.{}.bias", proj.module(), proj.name())), &[of(proj)], bias)?;
        }
        for (proj, gain) in [(Proj::Q, "q"), (Proj::K, "k")].into_iter().zip(layer.qk_norm.iter_mut().flatten()) {
            let (proj, unit) = proj;
            self.vector(&name(&format!("self_attn.{unit}_norm.weight")), &[of(proj)], gain)?;
        }
        let gate_up = [Proj::Gate, Proj::Up].map(of);
        self.vector(&name("post_attention_layernorm.weight"), &gate_up, &mut layer.mlp_norm)?;
        if kv_scale::largest_codes(&row).iter().all(Option::is_none) {
            return Ok(());
        }
        let version = self.version;
        match scales {
            StaticScales::Bounds => kv_scale::set_from_weights(config, layer),
            StaticScales::Checkpoint => {
                let none = CheckpointError::NoKvScales { layer: index, version };
                kv_scale::set_from_checkpoint(self.source.kv_scales(index).ok_or(none)?, layer)
            }
            StaticScales::Calibrated(_) => Some(()),
        }
        .ok_or(CheckpointError::KvBound { layer: index, version })
    }

    /// A matrix whose input is rounded to `activations`.
    pub fn matrix(&mut self, name: &str, activations: Activations, matrix: &mut Packed) -> Result<(), CheckpointError> {
        let rounds = activations != Activations::F32 && matrix.dtype() != DType::Bf16;
        if matrix.granularity() == Some(WeightScale::Tensor) {
            let mut amax = 0.0;
            self.blocks(name, matrix, rounds, |cpu, _, _, block| {
                amax = linear::larger(amax, linear::amax(cpu, block));
            })?;
            matrix.set_amax(amax);
        }
        if !self.in_place(name, matrix, rounds)? {
            self.blocks(name, matrix, rounds, |cpu, matrix, first, block| matrix.set_rows(cpu, first, block))?;
        }
        self.source.finished(name);
        Ok(())
    }

    /// Packs a matrix from where its source has it; false if it has it nowhere, or it must be rounded first.
    fn in_place(&mut self, name: &str, matrix: &mut Packed, rounds: bool) -> Result<bool, CheckpointError> {
        let (n, step) = (matrix.n(), self.step(matrix));
        for first in (0..n).step_by(step) {
            match self.source.stored(name, first, step.min(n - first))? {
                Some(Stored::F32(rows)) if !rounds => matrix.set_rows(self.cpu, first, rows),
                // Of bf16 values rounding to bf16 changes none.
                Some(Stored::Bf16(rows)) => matrix.set_rows_bf16(self.cpu, first, rows),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Rows of a matrix that are read at a time: whole blocks of scales.
    fn step(&self, matrix: &Packed) -> usize {
        let (n, most) = (matrix.n(), self.block.len() / matrix.k());
        if most < n { most / SCALE_BLOCK * SCALE_BLOCK } else { n }
    }

    /// Hands the rows of a matrix over in blocks that begin where scales do, rounded to bf16 if `rounds`.
    fn blocks(
        &mut self,
        name: &str,
        matrix: &mut Packed,
        rounds: bool,
        mut each: impl FnMut(&Cpu, &mut Packed, usize, &[f32]),
    ) -> Result<(), CheckpointError> {
        let (n, k, step) = (matrix.n(), matrix.k(), self.step(matrix));
        for first in (0..n).step_by(step) {
            let rows = step.min(n - first);
            let block = &mut self.block[..rows * k];
            self.source.rows(name, first, rows, block)?;
            if rounds {
                round::bf16(self.cpu, block);
            }
            each(self.cpu, matrix, first, block);
        }
        Ok(())
    }

    /// A vector that takes part in matmuls whose inputs are rounded to `activations`: it stays f32 where all of them do.
    pub fn vector(&mut self, name: &str, activations: &[Activations], into: &mut [f32]) -> Result<(), CheckpointError> {
        self.source.rows(name, 0, into.len(), into)?;
        if activations.iter().any(|&a| a != Activations::F32) {
            round::bf16(self.cpu, into);
        }
        self.source.finished(name);
        Ok(())
    }
}
