//! The resolved table: what every tensor of every layer is stored and read in. Plain data; `mod.rs` makes it from names and
//! files.

use std::ops::{Index, IndexMut};

use ptx::DType;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::WeightScale;

/// What the input of a matmul is rounded to; accumulation is f32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Not rounded.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// e4m3 codes with one power-of-two scale a token row.
    E4m3,
}

impl Activations {
    /// Its name in recipes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Bf16 => "bf16",
            Activations::E4m3 => "e4m3",
        }
    }
}

/// How a weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightFormat {
    /// f32, bf16 or e4m3.
    pub dtype: DType,
    /// What one scale covers; of e4m3 alone, and `Channel` elsewhere.
    pub scale: WeightScale,
}

impl WeightFormat {
    /// A format, its scale by channel if it is e4m3.
    #[must_use]
    pub fn new(dtype: DType) -> WeightFormat {
        WeightFormat { dtype, scale: WeightScale::Channel }
    }
}

/// One matmul: its weights and its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The matrix.
    pub weights: WeightFormat,
    /// Its input.
    pub activations: Activations,
}

/// The matrices of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the field's names")]
pub enum Proj {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Proj {
    /// All, in the order of a layer.
    pub const ALL: [Proj; 7] = [Proj::Q, Proj::K, Proj::V, Proj::O, Proj::Gate, Proj::Up, Proj::Down];

    /// Its name in checkpoints and recipes, `q_proj`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"][self as usize]
    }

    /// The module of a layer that it lies in: `self_attn` or `mlp`.
    #[must_use]
    pub fn module(self) -> &'static str {
        if self < Proj::Gate { "self_attn" } else { "mlp" }
    }
}

/// Formats of one decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRecipe {
    /// By [`Proj`].
    pub projections: [Projection; 7],
    /// Keys in the cache: f32, bf16, e4m3 or e5m2.
    pub k: DType,
    /// Values in the cache, likewise.
    pub v: DType,
    /// Scales of 8-bit keys and values.
    pub kv_scale: KvScale,
}

impl LayerRecipe {
    /// Whether nothing of the layer is rounded below f32 on its way into a matmul.
    #[must_use]
    pub fn is_f32(&self) -> bool {
        self.projections.iter().all(|p| p.activations == Activations::F32)
    }

    /// Whether keys or values take a byte an element, and so have scales.
    #[must_use]
    pub fn has_8bit_cache(&self) -> bool {
        [self.k, self.v].iter().any(|dtype| dtype.bytes() == 1)
    }
}

impl Index<Proj> for LayerRecipe {
    type Output = Projection;

    fn index(&self, proj: Proj) -> &Projection {
        &self.projections[proj as usize]
    }
}

impl IndexMut<Proj> for LayerRecipe {
    fn index_mut(&mut self, proj: Proj) -> &mut Projection {
        &mut self.projections[proj as usize]
    }
}
