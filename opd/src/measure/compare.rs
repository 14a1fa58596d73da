//! Two or more models at the same completion tokens.

use engine::engine::LOGIT_ROWS;
use engine::model::Model;
use ptx::Cpu;
use ptx::ops::divergence;
use ptx::ops::linear::{self, Job};
use ptx::ops::log_softmax::{self, LogitError};

use crate::loss::View;
use crate::sequences::{Micro, Row, micro_batches};
use crate::side::Side;

/// Tokens of one forward pass, unless a single row is longer.
const PART_TOKENS: usize = 1024;

/// Two models at one completion token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// KL(rollout || trained) over the whole vocabulary, nats.
    pub kl: f64,
    /// ln p of the token taken, by the rollout's model.
    pub logprob_rollout: f32,
    /// ln p of the token taken, by the trained model.
    pub logprob_trained: f32,
}

/// Logits that give no number.
#[derive(Debug, thiserror::Error)]
#[error("completion token {token}: {what}")]
pub struct CompareError {
    /// The token, counted over all rows.
    pub token: usize,
    /// What is wrong.
    pub what: String,
}

/// The last hidden rows of `model` at the tokens that predict a completion token, `[tokens, hidden]`, in the order of the
/// rows.
///
/// # Panics
/// When a row has no prompt or is longer than the context.
#[must_use]
pub fn hidden(cpu: &Cpu, model: &Model, rows: &[Row]) -> Vec<f32> {
    let parts = micro_batches(rows, Micro { tokens: PART_TOKENS, rows: usize::MAX });
    let tokens = |part: &std::ops::Range<usize>| rows[part.clone()].iter().map(|row| row.ids.len()).sum();
    let most = parts.iter().map(tokens).max().unwrap_or(0);
    let mut side = Side::new(model, most, parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0));
    let mut all = Vec::new();
    for part in parts {
        side.run(cpu, model, &rows[part]);
        all.extend_from_slice(&side.hidden);
    }
    all
}

/// Gets probabilities and two lists of ln mu - ln pi at one token.
pub type EachPair<'a> = dyn FnMut(&[f64], &[f64], &[f64]) + 'a;

/// Gets the first token of a block, its tokens, and every model's logits of it.
type EachBlock<'a> = dyn FnMut(usize, usize, &[Vec<f32>]) -> Result<(), CompareError> + 'a;

/// How distributions are made of logits.
#[derive(Clone, Copy, Debug)]
pub struct Compare<'a> {
    /// Where to compute.
    pub cpu: &'a Cpu,
    /// Ids below this are real.
    pub valid: usize,
    /// Logits are divided by it.
    pub temperature: f32,
}

impl Compare<'_> {
    /// Both models at every token; `targets` are the tokens taken.
    ///
    /// # Errors
    /// Where logits are no distribution, or the trained model excludes what the rollout's allows.
    pub fn tokens(&self, targets: &[u32], rollout: View<'_>, trained: View<'_>) -> Result<Vec<Token>, CompareError> {
        let mut tokens = Vec::with_capacity(targets.len());
        self.blocks(&[rollout, trained], targets.len(), &mut |first, rows, logits| {
            let mut kl = [0.0; LOGIT_ROWS];
            self.kl_block(first, rows, &logits[0], &logits[1], &mut kl)?;
            let targets = &targets[first..first + rows];
            let [ours, theirs] = [0, 1].map(|at| self.gather(first, &logits[at], targets, self.temperature));
            for ((kl, logprob_rollout), logprob_trained) in kl.into_iter().zip(ours?).zip(theirs?) {
                tokens.push(Token { kl, logprob_rollout, logprob_trained });
            }
            Ok(())
        })?;
        Ok(tokens)
    }

    /// KL(p || q) at every token, nats.
    ///
    /// # Errors
    /// As [`Compare::tokens`].
    pub fn kl(&self, count: usize, p: View<'_>, q: View<'_>) -> Result<Vec<f64>, CompareError> {
        let mut all = Vec::with_capacity(count);
        self.blocks(&[p, q], count, &mut |first, rows, logits| {
            let mut kl = [0.0; LOGIT_ROWS];
            self.kl_block(first, rows, &logits[0], &logits[1], &mut kl)?;
            all.extend_from_slice(&kl[..rows]);
            Ok(())
        })?;
        Ok(all)
    }

    /// ln p of the tokens taken, one list for each of `temperatures`.
    ///
    /// # Errors
    /// As [`Compare::tokens`].
    pub fn logprobs(
        &self,
        targets: &[u32],
        view: View<'_>,
        temperatures: &[f32],
    ) -> Result<Vec<Vec<f32>>, CompareError> {
        let mut all = vec![Vec::with_capacity(targets.len()); temperatures.len()];
        self.blocks(&[view], targets.len(), &mut |first, rows, logits| {
            for (list, &temperature) in all.iter_mut().zip(temperatures) {
                list.extend(self.gather(first, &logits[0], &targets[first..first + rows], temperature)?);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Two replicates of a mismatch at every token: `each` gets the probabilities under the first replicate's trained model
    /// and ln mu - ln pi of every id in either replicate. A replicate is a rollout's model and the trained one that it
    /// belongs to.
    ///
    /// # Errors
    /// As [`Compare::tokens`].
    pub fn replicates(
        &self,
        count: usize,
        [[a, b], [c, d]]: [[View<'_>; 2]; 2],
        each: &mut EachPair<'_>,
    ) -> Result<(), CompareError> {
        self.blocks(&[a, b, c, d], count, &mut |first, rows, logits| {
            for row in 0..rows {
                let lists = [0, 1, 2, 3].map(|at| {
                    let vocab = logits[at].len() / rows;
                    self.distribution(&logits[at][row * vocab..][..self.valid])
                });
                if lists.iter().flatten().any(|x| !x.is_finite()) {
                    let what = "a model's logits are no distribution, or exclude a token".to_owned();
                    return Err(CompareError { token: first + row, what });
                }
                let [mu1, pi1, mu2, pi2] = lists;
                let delta = |mu: &[f64], pi: &[f64]| mu.iter().zip(pi).map(|(m, p)| m - p).collect::<Vec<f64>>();
                let p: Vec<f64> = pi1.iter().map(|x| x.exp()).collect();
                each(&p, &delta(&mu1, &pi1), &delta(&mu2, &pi2));
            }
            Ok(())
        })
    }

    /// Logprobs of all ids of one row, in f64.
    pub(super) fn distribution(&self, row: &[f32]) -> Vec<f64> {
        let z: Vec<f64> = row.iter().map(|&x| f64::from(x) / f64::from(self.temperature)).collect();
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = max + z.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
        z.into_iter().map(|x| x - lse).collect()
    }

    /// Calls `each` with the first token, the number of tokens and every model's logits `[rows, vocab]`.
    pub(super) fn blocks(
        &self,
        views: &[View<'_>],
        count: usize,
        each: &mut EachBlock<'_>,
    ) -> Result<(), CompareError> {
        let mut logits = vec![Vec::new(); views.len()];
        for first in (0..count).step_by(LOGIT_ROWS) {
            let rows = LOGIT_ROWS.min(count - first);
            for (view, logits) in views.iter().zip(&mut logits) {
                let (width, vocab) = (view.head.k(), view.head.n());
                logits.resize(rows * vocab, 0.0);
                let input = &view.hidden[first * width..(first + rows) * width];
                linear::forward(self.cpu, rows, input, &mut [Job { w: view.head, bias: None, y: logits }]);
            }
            each(first, rows, &logits)?;
        }
        Ok(())
    }

    fn kl_block(
        &self,
        first: usize,
        rows: usize,
        p: &[f32],
        q: &[f32],
        out: &mut [f64; LOGIT_ROWS],
    ) -> Result<(), CompareError> {
        // Models of one tokenizer may pad their vocabularies differently.
        let [p, q] = [p, q].map(|side| unpadded(side, rows, self.valid));
        divergence::kl(self.cpu, rows, self.valid, self.valid, 1.0 / self.temperature, &p, &q, &mut out[..rows])
            .map_err(|error| fault(first, &error))?;
        match out[..rows].iter().position(|kl| kl.is_infinite()) {
            Some(row) => {
                let what = "the second model excludes a token that the first allows".to_owned();
                Err(CompareError { token: first + row, what })
            }
            None => Ok(()),
        }
    }

    fn gather(
        &self,
        first: usize,
        logits: &[f32],
        targets: &[u32],
        temperature: f32,
    ) -> Result<Vec<f32>, CompareError> {
        let (rows, mut out) = (targets.len(), vec![0.0; targets.len()]);
        let vocab = logits.len() / rows;
        log_softmax::gather(self.cpu, rows, vocab, self.valid, 1.0 / temperature, logits, targets, &mut out)
            .map_err(|error| fault(first, &error))?;
        Ok(out)
    }
}

/// The columns `0..valid` of a block.
fn unpadded(block: &[f32], rows: usize, valid: usize) -> std::borrow::Cow<'_, [f32]> {
    let vocab = block.len() / rows;
    if vocab == valid {
        return block.into();
    }
    block.chunks_exact(vocab).flat_map(|row| &row[..valid]).copied().collect::<Vec<f32>>().into()
}

fn fault(first: usize, error: &LogitError) -> CompareError {
    CompareError { token: first + error.row(), what: error.to_string() }
}
