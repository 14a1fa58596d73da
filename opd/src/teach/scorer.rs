//! Scores one sequence with a model, straight into a block's arrays.

use std::sync::Arc;

use bridge::{ArraysMut, Dtype, Kind, Meta, ScoresMut};
use engine::checkpoint::Checkpoint;
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use ptx::Cpu;
use ptx::dtype::bf16_from_f32;
use ptx::math;
use ptx::ops::linear::{self, Job};
use ptx::ops::log_softmax;

use super::{TeachError, hash_word, head_descriptor};
use crate::loss::block_rows;
use crate::sequences::Row;
use crate::side::Side;

/// What is sent of the teacher's distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Rows of the last norm in bf16: the learner applies the teacher's head.
    Hidden,
    /// Logits in f32.
    Logits,
    /// The k likeliest tokens with their ln q, and ln of the rest.
    TopK(u32),
    /// The logprob of the token taken.
    Sampled,
}

/// A teacher in memory.
#[derive(Debug)]
pub struct Scorer {
    cpu: Arc<Cpu>,
    model: Model,
    side: Side,
    payload: Payload,
    precision: Precision,
    hash: String,
    valid: usize,
    tokens_max: usize,
    logits: Vec<f32>,
    lse: Vec<f32>,
}

impl Scorer {
    /// Loads a model as a teacher for sequences of up to `tokens_max` tokens. Ids below `valid` are real.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn load(
        cpu: &Arc<Cpu>,
        checkpoint: &Checkpoint,
        precision: Precision,
        payload: Payload,
        valid: usize,
        tokens_max: usize,
    ) -> Result<Scorer, TeachError> {
        let recipe = Recipe::built_in("identity", precision, checkpoint.config())?;
        let model = Model::load(cpu, checkpoint, recipe)?;
        let side = Side::new(&model, tokens_max, 1);
        let (cpu, hash) = (Arc::clone(cpu), checkpoint.model_hash());
        let (logits, lse) = (Vec::new(), Vec::new());
        Ok(Scorer { cpu, model, side, payload, precision, hash, valid, tokens_max, logits, lse })
    }

    /// The model's hash.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Tokens of the longest sequence that it scores.
    #[must_use]
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// A block of `rows` predicted tokens, without what a request says of them.
    #[must_use]
    pub fn meta(&self, rows: u32) -> Meta {
        let size = |n: usize| u32::try_from(n).expect("dimensions are small");
        let config = &self.model.config;
        let (kind, dtype, width) = match self.payload {
            Payload::Hidden => (Kind::Hidden, Dtype::Bf16, size(config.hidden)),
            Payload::Logits => (Kind::Logits, Dtype::F32, size(config.vocab)),
            Payload::TopK(k) => (Kind::TopK, Dtype::F32, k),
            Payload::Sampled => (Kind::Sampled, Dtype::F32, 1),
        };
        Meta {
            dtype,
            rows,
            width,
            lse: true,
            tail: kind == Kind::TopK,
            teacher_hash: hash_word(&self.hash),
            head_descriptor: head_descriptor(self.precision),
            ..Meta::new(kind)
        }
    }

    /// Runs the model over a sequence, and says why there are no scores of it where there can be none.
    ///
    /// # Errors
    /// Too many tokens, an id that is none, or logits that are no distribution at this temperature.
    pub fn run(&mut self, row: &Row, temperature: f32) -> Result<(), String> {
        if row.ids.len() > self.tokens_max {
            return Err(format!("{} tokens, and the teacher takes {}", row.ids.len(), self.tokens_max));
        }
        if let Some(id) = row.ids.iter().find(|&&id| id as usize >= self.valid) {
            return Err(format!("token id {id} is none of the teacher's {}", self.valid));
        }
        let inv_temp = 1.0 / temperature;
        if !(temperature > 0.0 && inv_temp > 0.0 && inv_temp.is_finite()) {
            return Err(format!("temperature {temperature}"));
        }
        self.side.run(&self.cpu, &self.model, std::slice::from_ref(row));
        let count = row.targets().len();
        self.lse.resize(count, 0.0);
        for first in (0..count).step_by(block_rows(self.model.config.vocab)) {
            let n = self.block(first, count);
            let (vocab, lse) = (self.model.config.vocab, &mut self.lse[first..first + n]);
            log_softmax::lse(&self.cpu, n, vocab, self.valid, inv_temp, &self.logits, lse)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Makes the logits of a block of rows from `first` on; gives how many rows it has.
    fn block(&mut self, first: usize, count: usize) -> usize {
        let (hidden, vocab) = (self.model.config.hidden, self.model.config.vocab);
        let n = block_rows(vocab).min(count - first);
        self.logits.resize(n * vocab, 0.0);
        let input = &self.side.hidden[first * hidden..(first + n) * hidden];
        let jobs = &mut [Job { w: self.model.head(), bias: None, y: &mut self.logits }];
        linear::forward(&self.cpu, n, input, jobs);
        n
    }

    /// Writes the scores of the sequence that was run: `arrays` is a block of [`Scorer::meta`] with its tokens in place.
    pub fn write(&mut self, arrays: &mut ArraysMut<'_>, temperature: f32) {
        arrays.lse.copy_from_slice(&self.lse);
        let (count, vocab, inv_temp) = (self.lse.len(), self.model.config.vocab, 1.0 / temperature);
        if let (Payload::Hidden, ScoresMut::Dense(rows)) = (self.payload, &mut arrays.scores) {
            for (at, row) in self.side.hidden.chunks_exact(self.model.config.hidden).enumerate() {
                let into: &mut [u16] = bytemuck::cast_slice_mut(rows.row_mut(at));
                into.iter_mut().zip(row).for_each(|(to, &from)| *to = bf16_from_f32(from));
            }
            return;
        }
        for first in (0..count).step_by(block_rows(vocab)) {
            let n = self.block(first, count);
            for (row, logits) in (first..first + n).zip(self.logits.chunks_exact(vocab)) {
                let logprob = |id: usize| logits[id] * inv_temp - self.lse[row];
                match &mut arrays.scores {
                    ScoresMut::Dense(rows) => rows.row_mut(row).copy_from_slice(bytemuck::cast_slice(logits)),
                    ScoresMut::Sampled(logprobs) => logprobs[row] = logprob(arrays.tokens[row] as usize),
                    ScoresMut::TopK { ids, ln_q, tail } => {
                        let k = ids.len() / count;
                        let (ids, ln_q) = (&mut ids[row * k..][..k], &mut ln_q[row * k..][..k]);
                        log_softmax::top_k(&self.cpu, 1, vocab, self.valid, inv_temp, logits, k, ids, ln_q)
                            .expect("its normaliser was made");
                        let on = |id: &usize| ids.iter().any(|&chosen| chosen as usize == *id);
                        let rest = (0..self.valid).filter(|id| !on(id)).map(|id| f64::from(math::exp(logprob(id))));
                        #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
                        let rest = rest.sum::<f64>() as f32;
                        tail[row] = if rest > 0.0 { math::ln(rest) } else { f32::NEG_INFINITY };
                    }
                    ScoresMut::Missing => unreachable!("the block has scores"),
                }
            }
        }
    }
}
