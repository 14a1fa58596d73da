//! Draws the next token from one row of logits.
//!
//! **Shape.** `row` `[valid]`: the ids only, no padding, so that padding cannot be drawn.
//!
//! **Order of processing.** Temperature, top-k, top-p, min-p, each on what the one before it left (the order of
//! Hugging Face transformers). z = logit * (1 / temperature) in f32. The kept ids are always the first n in descending z,
//! equal z by ascending id:
//! * top-k keeps exactly k of them, ties or not;
//! * top-p keeps the fewest whose mass reaches `top_p` of the mass that top-k left, at least one;
//! * min-p keeps those at least `min_p` times as likely as the likeliest.
//!
//! A token whose probability relative to the likeliest is 0 in f32 (below 1e-45) is never kept and never drawn.
//!
//! **Draw.** Untruncated: the first id, ascending, whose running sum of exp(z - max) exceeds uniform times the total;
//! the sum runs in f64 over the tiles' masses of [`super::log_softmax`] and inside one tile over its columns. Truncated:
//! the same over the kept ids in their order. Where rounding lets the sum end below the total, the last id with
//! probability above 0 is taken. Bits depend on the row, the parameters and the uniform alone.
//!
//! **Cost.** At temperature 1 one log-sum-exp and a pass that counts the support; another log-sum-exp at other
//! temperatures (for the raw logprob). Truncation adds selection: a heap for top-k; for top-p and min-p passes
//! that reach ever further below the maximum until enough mass is in, and a sort of what was found.
//!
//! **CUDA** ([`cuda`]). Equal logits and uniform give the same token, logprobs and support, truncated or not. A truncated row
//! is sorted group by group from the top until the cut is found, and its sum runs in f64 over the kept ids one by one. A cut
//! that keeps nearly all of a flat row of 150 000 ids takes as many dependent f64 additions: about half a millisecond where
//! f64 runs at half the rate of f32, several where it runs at a sixty-fourth.

pub(crate) use conform::conform;

use crate::ops::log_softmax::{LogitError, Normalizers, diagnose};
use crate::{Isa, Scratch};

pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
pub mod naive;
mod rows;
#[cfg(test)]
mod tests;

pub use rows::{Drawn, RowDraw, draw_rows};

/// How logits become the distribution that is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Logits are divided by it; 0 takes the likeliest token and ignores the rest.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 is off.
    pub top_k: u32,
    /// The mass that is kept; 1 is off.
    pub top_p: f32,
    /// The least probability kept, relative to the likeliest token's; 0 is off.
    pub min_p: f32,
}

impl Default for Params {
    /// Temperature 1, untruncated.
    fn default() -> Params {
        Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

impl Params {
    /// The least temperature above 0: below it, ordinary logits over the temperature leave f32's range.
    pub const TEMPERATURE_MIN: f32 = 1e-6;

    /// Whether the values are within their ranges.
    pub fn check(&self) -> Result<(), SampleError> {
        let Params { temperature, top_p, min_p, .. } = *self;
        if temperature != 0.0 && !(temperature >= Params::TEMPERATURE_MIN && temperature.is_finite()) {
            return Err(SampleError::Temperature { temperature });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SampleError::TopP { top_p });
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(SampleError::MinP { min_p });
        }
        Ok(())
    }

    /// What logits are multiplied by: 1 / temperature, and 1 for temperature 0, whose logprobs are those of
    /// temperature 1.
    #[must_use]
    pub fn inv_temp(&self) -> f32 {
        if self.temperature == 0.0 { 1.0 } else { 1.0 / self.temperature }
    }

    /// Whether a vocabulary of `valid` ids is cut at all.
    #[must_use]
    pub fn truncates(&self, valid: usize) -> bool {
        (self.top_k != 0 && (self.top_k as usize) < valid) || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// A token and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The id drawn.
    pub token: u32,
    /// Its ln p in the distribution that it was drawn from, after temperature and truncation, nats. At temperature 0,
    /// where that would always be 0, the same as `logprob_raw`.
    pub logprob: f32,
    /// Its ln p at temperature 1, untruncated, nats.
    pub logprob_raw: f32,
    /// How many tokens could have been drawn.
    pub support: u32,
    /// The row's log-sum-exps before truncation: with them a list of the likeliest costs no further sum.
    pub normalizers: Normalizers,
}

/// Why nothing can be drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// Not 0, nor within range.
    #[error(
        "temperature {temperature}: must be 0 (take the likeliest) or finite and at least {}",
        Params::TEMPERATURE_MIN
    )]
    Temperature {
        /// What was given.
        temperature: f32,
    },
    /// Out of range.
    #[error("top_p {top_p}: must be above 0 and at most 1 (1 keeps everything)")]
    TopP {
        /// What was given.
        top_p: f32,
    },
    /// Out of range.
    #[error("min_p {min_p}: must be from 0 (keeps everything) to 1")]
    MinP {
        /// What was given.
        min_p: f32,
    },
    /// A logit is NaN or plus infinity, or becomes so when it is divided by the temperature.
    #[error(
        "id {id}: logit {value} at temperature {temperature} is NaN or +inf; the model's output is broken there, or the temperature too low"
    )]
    NotFinite {
        /// The first such id.
        id: usize,
        /// Its logit.
        value: f32,
        /// The temperature asked for.
        temperature: f32,
    },
    /// Every logit is minus infinity.
    #[error("all {valid} logits are -inf; a mask has removed every token")]
    NoMass {
        /// How many ids there are.
        valid: usize,
    },
    /// A logprob is asked for of an id that there is not.
    #[error("id {id} is outside the vocabulary of {valid} ids")]
    Id {
        /// What was asked for.
        id: u32,
        /// How many ids there are.
        valid: usize,
    },
}

/// What [`draw`] keeps on its thread for rows of `valid` ids, in the costliest case: top-p or min-p over all of them.
#[must_use]
pub fn scratch(valid: usize) -> Scratch {
    cpu::scratch(valid)
}

/// Draws one token from `row` `[valid]` with `uniform` in [0, 1).
///
/// # Panics
/// When the row is empty or `uniform` is out of range.
pub fn draw(isa: Isa, params: &Params, row: &[f32], uniform: f32) -> Result<Sampled, SampleError> {
    check(params, row)?;
    assert!((0.0..1.0).contains(&uniform), "uniform {uniform} is not in [0, 1)");
    let sampled = if params.temperature == 0.0 {
        cpu::greedy(isa, row)
    } else if params.truncates(row.len()) {
        cpu::truncated(isa, params, row, uniform)
    } else {
        cpu::untruncated(isa, params, row, uniform)
    };
    sampled.ok_or_else(|| fault(params, row))
}

/// The ids that [`draw`] could give, the likeliest first, into `ids`, which is cleared: the mask that makes a truncated
/// distribution reproducible elsewhere.
///
/// # Panics
/// When the row is empty.
pub fn support(isa: Isa, params: &Params, row: &[f32], ids: &mut Vec<u32>) -> Result<(), SampleError> {
    check(params, row)?;
    ids.clear();
    if params.temperature == 0.0 {
        ids.push(cpu::greedy(isa, row).ok_or_else(|| fault(params, row))?.token);
        return Ok(());
    }
    cpu::support(isa, params, row, ids).ok_or_else(|| fault(params, row))
}

/// The logprob of each of `ids`, into `out` `[ids]`, nats: the bits that [`draw`] reports for the one that it draws.
///
/// Under truncation an id that is cut has minus infinity, and the kept ones share the whole probability, ties decided as
/// in the draw. Where nothing is cut, and at temperature 0, which reports temperature 1, they are the bits of
/// [`crate::ops::log_softmax::gather`].
///
/// # Panics
/// When the row is empty or `out` has not the ids' length.
pub fn processed(isa: Isa, params: &Params, row: &[f32], ids: &[u32], out: &mut [f32]) -> Result<(), SampleError> {
    check(params, row)?;
    assert_eq!(out.len(), ids.len(), "out has not the ids' shape");
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= row.len()) {
        return Err(SampleError::Id { id, valid: row.len() });
    }
    cpu::processed(isa, params, row, ids, out).ok_or_else(|| fault(params, row))
}

fn check(params: &Params, row: &[f32]) -> Result<(), SampleError> {
    params.check()?;
    assert!(!row.is_empty() && u32::try_from(row.len()).is_ok(), "a row of {} ids", row.len());
    Ok(())
}

fn fault(params: &Params, row: &[f32]) -> SampleError {
    match diagnose("logits", 0, row, params.inv_temp()) {
        LogitError::NotFinite { column, value, .. } => {
            SampleError::NotFinite { id: column, value, temperature: params.temperature }
        }
        _ => SampleError::NoMass { valid: row.len() },
    }
}
