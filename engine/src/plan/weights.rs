//! Bytes of the weights: matrices as they are packed, everything else in f32.

use ptx::ops::linear::{PANEL, Packed};

use crate::config::ModelConfig;
use crate::recipe::{LayerRecipe, Proj, Recipe, WeightFormat};

/// Bytes that a [`crate::model::Model`] will hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The embedding.
    pub embed: usize,
    /// Decoder layers, by layer.
    pub layers: Vec<usize>,
    /// The head; 0 where it is the embedding.
    pub head: usize,
    /// The last norm and the rotary frequencies.
    pub rest: usize,
}

impl Weights {
    /// Those of a model under a recipe.
    #[must_use]
    pub fn of(config: &ModelConfig, recipe: &Recipe) -> Weights {
        let c = config;
        Weights {
            embed: matrix(recipe.embed, c.vocab, c.hidden),
            layers: recipe.layers.iter().map(|row| layer(c, row)).collect(),
            head: if c.tied { 0 } else { matrix(recipe.head.weights, c.vocab, c.hidden) },
            rest: floats(c.hidden + c.head_dim / 2),
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        // Shapes far beyond any machine must not wrap to little memory.
        self.layers.iter().chain([&self.embed, &self.head, &self.rest]).fold(0, |sum, &part| sum.saturating_add(part))
    }
}

fn layer(c: &ModelConfig, formats: &LayerRecipe) -> usize {
    let (hidden, ffn) = (c.hidden, c.ffn);
    let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let shape = |proj| match proj {
        Proj::Q => (q_len, hidden),
        Proj::K | Proj::V => (kv_len, hidden),
        Proj::O => (hidden, q_len),
        Proj::Gate | Proj::Up => (ffn, hidden),
        Proj::Down => (hidden, ffn),
    };
    let matrices = Proj::ALL.into_iter().map(|proj| {
        let (n, k) = shape(proj);
        matrix(formats[proj].weights, n, k)
    });
    let where_it_has = |has: bool, len: usize| if has { len } else { 0 };
    let vectors = 2 * hidden
        + 2 * c.kv_heads
        + where_it_has(c.qk_norm, 2 * c.head_dim)
        + where_it_has(c.qkv_bias, q_len + 2 * kv_len)
        + where_it_has(c.o_bias, hidden)
        + where_it_has(c.mlp_bias, 2 * ffn + hidden);
    matrices.fold(floats(vectors), usize::saturating_add)
}

fn matrix(format: WeightFormat, n: usize, k: usize) -> usize {
    // Four bytes a code, one scale at most for each, and padding: sizes that pass cannot wrap below.
    match n.next_multiple_of(PANEL).checked_mul(k).and_then(|codes| codes.checked_mul(16)) {
        Some(_) => Packed::bytes_for(format.dtype, format.scale, n, k),
        None => usize::MAX,
    }
}

fn floats(count: usize) -> usize {
    count * size_of::<f32>()
}
