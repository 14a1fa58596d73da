//! A model whose next token is always clear and always depends on tokens some way back, so that 200 greedy tokens agree only
//! where attention, positions, the KV cache and the feed-forward layers all do their part.
//!
//! ```text
//! hidden      A 0..21          B 21..42              C 42..63             63
//! embedding   word of the token                                          1
//! layer 0                      B = A, D0 tokens back
//!   mlp                        B = turn(B)
//! layer 1                                            C = B, D1 tokens back
//!   mlp                                              C = turn(C)
//! head                                               by the words as they arrive there, their ids shuffled
//! ```
//!
//! A word is 21 signs, and any two differ in at least 5, so that the likeliest token is 10 or so ahead of the next. Queries
//! and keys are made of the constant alone: rotated by their positions they meet where the key is the right way back.

use ptx::rng::{Purpose, Stream};

use super::VOCAB;
use crate::checkpoint::CheckpointError;
use crate::config::ModelConfig;
use crate::model::WeightSource;

/// Signs of a word.
const BITS: usize = 21;
/// Signs in which two words differ at least.
const APART: u32 = 5;
/// Where the constant stands.
const ONE: usize = 3 * BITS;
/// How far back each layer looks.
const BACK: [f64; 2] = [2.0, 3.0];
/// Of a query's and a key's pairs of elements: their products make the right key e^8 times as likely as its neighbours.
const LENGTH: f64 = 8.2;
/// What silu passes on nearly whole.
const OPEN: f64 = 8.0;

/// The weights.
#[derive(Clone, Debug)]
pub struct Copying {
    config: ModelConfig,
    words: Vec<u32>,
    /// The token that each id follows.
    follows: Vec<usize>,
    /// For each layer, which sign of its input becomes which of its output, and whether it is turned round.
    turns: [Vec<(usize, bool)>; 2],
}

impl Copying {
    /// For a model of two layers of hidden size 64, whose head is its own, with ids below `valid`.
    ///
    /// # Panics
    /// When the model is another.
    #[must_use]
    pub fn new(config: ModelConfig, valid: usize) -> Copying {
        assert!(config.layers == 2 && config.hidden == ONE + 1 && !config.tied && config.ffn >= 2 * BITS);
        assert!(config.kv_heads * config.head_dim >= BITS, "values have no room for a word");
        let mut draw = Stream::new(1, Purpose::Test, 0);
        let mut words: Vec<u32> = Vec::new();
        while words.len() < VOCAB {
            let word = draw.below(1 << BITS);
            if words.iter().all(|other| (word ^ other).count_ones() >= APART) {
                words.push(word);
            }
        }
        let mut follows: Vec<usize> = (0..valid).collect();
        draw.shuffle(&mut follows);
        let mut turn = || {
            let mut from: Vec<usize> = (0..BITS).collect();
            draw.shuffle(&mut from);
            from.into_iter().map(|bit| (bit, draw.below(2) == 1)).collect()
        };
        Copying { config, words, follows, turns: [turn(), turn()] }
    }

    /// The sign of a bit of a word after so many layers.
    fn sign(&self, word: u32, bit: usize, layers: usize) -> f64 {
        let Some(last) = layers.checked_sub(1) else { return if word >> bit & 1 == 1 { 1.0 } else { -1.0 } };
        let (from, turned) = self.turns[last][bit];
        let sign = self.sign(word, from, last);
        if turned { -sign } else { sign }
    }

    /// What normalisation makes of the elements that are 1 when this many words have been written.
    #[allow(clippy::cast_precision_loss)] // small numbers
    fn one(written: usize) -> f64 {
        ((ONE + 1) as f64 / (written * BITS + 1) as f64).sqrt()
    }

    /// An element of a parameter.
    #[allow(clippy::cast_precision_loss)] // small numbers
    fn value(&self, name: &str, row: usize, column: usize) -> f64 {
        let (c, dim) = (&self.config, self.config.head_dim);
        let (group, pair) = (c.heads / c.kv_heads, dim / 2);
        let layer = usize::from(name.contains("layers.1."));
        // Elements of the input are 1 in attention, then in the feed-forward layer.
        let (attention, feed_forward) = (Copying::one(layer + 1), Copying::one(layer + 2));
        let (of, to) = (layer * BITS, (layer + 1) * BITS);
        let at = |ours: bool, value: f64| if ours { value } else { 0.0 };
        let normalised = name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight");
        // Where queries and keys are normalised, the gain makes their length.
        match name.rsplit('.').nth(1).unwrap_or_default() {
            _ if name.ends_with(".bias") => 0.0,
            _ if normalised => LENGTH / std::f64::consts::SQRT_2,
            _ if name.ends_with("norm.weight") => 1.0,
            "embed_tokens" if column < BITS => self.sign(self.words[row], column, 0),
            "embed_tokens" => at(column == ONE, 1.0),
            "lm_head" => match self.follows.get(row) {
                Some(&token) if (2 * BITS..ONE).contains(&column) => self.sign(self.words[token], column - 2 * BITS, 2),
                _ => 0.0,
            },
            "q_proj" => at(column == ONE && row % dim < pair, LENGTH / attention),
            "k_proj" => {
                let angle = BACK[layer] * c.rope.theta.powf(-((row % pair) as f64) / pair as f64);
                let (sin, cos) = angle.sin_cos();
                at(column == ONE, LENGTH / attention * if row % dim < pair { cos } else { sin })
            }
            // Bits take turns among the kv heads.
            "v_proj" => {
                let bit = row % dim * c.kv_heads + row / dim;
                at(bit < BITS && column == of + bit, 1.0 / attention)
            }
            "o_proj" => {
                let bit = column % dim * c.kv_heads + column / dim / group;
                at(bit < BITS && row == to + bit, 1.0 / group as f64)
            }
            "gate_proj" => at(column == ONE, OPEN / feed_forward),
            "up_proj" => {
                let (from, turned) = self.turns[layer].get(row / 2).copied().unwrap_or_default();
                let (bit, sign) = if row % 2 == 1 { (row / 2, 1.0) } else { (from, if turned { -1.0 } else { 1.0 }) };
                at(row / 2 < BITS && column == to + bit, sign / feed_forward)
            }
            // What it became less what it was.
            "down_proj" => at(row == to + column / 2 && column / 2 < BITS, [1.0, -1.0][column % 2] / OPEN),
            other => unreachable!("no parameter {other} of {name}"),
        }
    }
}

impl WeightSource for Copying {
    #[allow(clippy::cast_possible_truncation)] // weights are f32
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let width = out.len() / rows;
        for (i, x) in out.iter_mut().enumerate() {
            *x = self.value(name, first + i / width, i % width) as f32;
        }
        Ok(())
    }
}
