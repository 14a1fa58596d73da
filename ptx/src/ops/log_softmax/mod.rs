//! Log-probabilities of blocks of logits: log-sum-exp, the logprobs of given ids, the largest k.
//!
//! **Shapes.** Logits are `[rows, vocab]`, row-major f32. Only the columns `0..valid` are ids; what lies beyond is
//! padding and never read, whatever it holds.
//!
//! **Definition.** z = logit * inv_temp in f32 (1 leaves the bits alone); lse = ln sum over valid columns of e^z;
//! logprob = z - lse, in nats. A logit of minus infinity has probability 0 and logprob minus infinity.
//!
//! **Order.** A row is cut into tiles of 1024 columns. A tile's maximum m comes first, then its sum of exp(z - m): 16
//! strided sums (column mod 16) and the fixed tree. Tiles are folded in ascending order into (M, S):
//! M' = max(M, m), S' = fma(S, exp(M - M'), s * exp(m - M')); lse = M + ln S. So bits depend on the row alone.
//!
//! **Cost.** One read of the row (4 bytes a column; a tile's second pass hits the first-level cache) and one exp a
//! column: bound by arithmetic, not by memory.
//!
//! **Accuracy.** With u = 2^-24: |lse - exact| <= u (100 + 5 tiles + 2 |lse|). An exp is within 4 u and its argument's
//! rounding, a tile's sum within 68 u, each fold within 5 u, the last addition within u |lse|. In practice a tenth.
//!
//! **CUDA** ([`cuda`]). Equal logits give the same bits, lists and errors. Only the chain of fma of the fold runs one step
//! after the other; the factors in it follow from the running maximum, which is no sum. The largest k are looked for
//! from a bound down that at least k columns reach: the k-th largest of the tiles' maxima.

pub(crate) use conform::{OnDevice, conform};

use crate::{Cpu, Isa, scratch};

pub mod cases;
mod conform;
pub(crate) mod cpu;
pub mod cuda;
pub mod naive;
pub(crate) mod order;
#[cfg(test)]
pub(crate) mod tests;

/// Why a block of logits gives no log-probabilities.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LogitError {
    /// A logit is NaN or plus infinity, or becomes so when it is divided by the temperature.
    #[error(
        "{whose} row {row}, column {column}: logit {value} times 1/temperature {inv_temp} is NaN or +inf; \
         the model's output is broken there, or the temperature too low"
    )]
    NotFinite {
        /// Whose logits: `logits`, `student`, `teacher`, `p` or `q`.
        whose: &'static str,
        /// The row of the block.
        row: usize,
        /// The first such column.
        column: usize,
        /// The logit there.
        value: f32,
        /// What it is multiplied by.
        inv_temp: f32,
    },
    /// Every valid logit is minus infinity, so there is no distribution.
    #[error("{whose} row {row}: all {valid} logits are -inf; a mask has removed every token")]
    NoMass {
        /// Whose logits.
        whose: &'static str,
        /// The row of the block.
        row: usize,
        /// How many columns are ids.
        valid: usize,
    },
    /// A target is not an id of the vocabulary.
    #[error("row {row}: target {target} is outside the vocabulary of {valid} ids")]
    Target {
        /// The row of the block.
        row: usize,
        /// The id asked for.
        target: u32,
        /// How many ids there are.
        valid: usize,
    },
    /// A loss with a nonzero weight is infinite: one side excludes a token that the other allows.
    #[error(
        "row {row}: the loss is infinite; a token is masked (-inf) on one side only: mask it on both or on neither"
    )]
    InfiniteLoss {
        /// The row of the block.
        row: usize,
    },
}

impl LogitError {
    /// The row of the block.
    #[must_use]
    pub fn row(&self) -> usize {
        match *self {
            LogitError::NotFinite { row, .. }
            | LogitError::NoMass { row, .. }
            | LogitError::Target { row, .. }
            | LogitError::InfiniteLoss { row } => row,
        }
    }
}

/// Below this many columns in all, sharing costs more than it saves.
pub(crate) const WORTH_SHARING: usize = 1 << 14;

/// Panics unless the buffers have the shape that the arguments claim.
pub(crate) fn check_block(rows: usize, vocab: usize, valid: usize, inv_temp: f32, logits: &[f32]) {
    assert!(valid >= 1 && valid <= vocab, "{valid} valid columns of {vocab}");
    assert!(u32::try_from(valid).is_ok(), "{valid} ids do not fit u32");
    assert!(inv_temp.is_finite() && inv_temp > 0.0, "1/temperature is {inv_temp}; it must be finite and positive");
    assert_eq!(Some(logits.len()), rows.checked_mul(vocab), "logits are not [{rows}, {vocab}]");
}

/// What is wrong with a row whose lse came out as NaN; `valid` holds its valid columns.
pub(crate) fn diagnose(whose: &'static str, row: usize, valid: &[f32], inv_temp: f32) -> LogitError {
    let broken = |&(_, &x): &(usize, &f32)| {
        let z = x * inv_temp;
        z.is_nan() || z == f32::INFINITY
    };
    match valid.iter().enumerate().find(broken) {
        Some((column, &value)) => LogitError::NotFinite { whose, row, column, value, inv_temp },
        None => LogitError::NoMass { whose, row, valid: valid.len() },
    }
}

/// The log-sum-exp of each row, into `out` `[rows]`, nats.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim.
pub fn lse(
    cpu: &Cpu,
    rows: usize,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    logits: &[f32],
    out: &mut [f32],
) -> Result<(), LogitError> {
    check_block(rows, vocab, valid, inv_temp, logits);
    assert_eq!(out.len(), rows, "out is not [{rows}]");
    cpu::lse(cpu, vocab, valid, inv_temp, logits, out);
    match out.iter().position(|x| x.is_nan()) {
        Some(row) => Err(diagnose("logits", row, &logits[row * vocab..][..valid], inv_temp)),
        None => Ok(()),
    }
}

/// The logprob of each row's target (`targets` `[rows]`), into `out` `[rows]`, nats: the same bits that an untruncated
/// draw at this temperature reports.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim.
#[allow(clippy::too_many_arguments)]
pub fn gather(
    cpu: &Cpu,
    rows: usize,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    logits: &[f32],
    targets: &[u32],
    out: &mut [f32],
) -> Result<(), LogitError> {
    assert_eq!(targets.len(), rows, "targets are not [{rows}]");
    check_targets(targets, valid)?;
    lse(cpu, rows, vocab, valid, inv_temp, logits, out)?;
    for (row, (out, &target)) in out.iter_mut().zip(targets).enumerate() {
        *out = logits[row * vocab + target as usize] * inv_temp - *out;
    }
    Ok(())
}

/// The logprobs of a list of ids of each row, nats, after one pass over it: row r's ids are `ids[offsets[r]..offsets[r +
/// 1]]` and so are its logprobs in `out`; `offsets` is `[rows + 1]` and ascends from 0, `inv_temps` is `[rows]`. The
/// same bits as [`gather`] of each id by itself. A row with an empty list is not read, whatever it holds. An id that is
/// none of the vocabulary, or a row that is no distribution, is an error that names the first such row.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim.
#[allow(clippy::too_many_arguments)]
pub fn gather_many(
    cpu: &Cpu,
    vocab: usize,
    valid: usize,
    inv_temps: &[f32],
    logits: &[f32],
    offsets: &[usize],
    ids: &[u32],
    out: &mut [f32],
) -> Result<(), LogitError> {
    let rows = inv_temps.len();
    for &inv_temp in inv_temps {
        check_block(rows, vocab, valid, inv_temp, logits);
    }
    assert_eq!(offsets.len(), rows + 1, "offsets are not [{rows} + 1]");
    assert!(offsets[0] == 0 && offsets.is_sorted(), "offsets do not ascend from 0");
    assert_eq!(offsets[rows], ids.len(), "the last offset is not the number of ids");
    assert_eq!(out.len(), ids.len(), "out has not the ids' shape");
    if let Some(at) = ids.iter().position(|&id| id as usize >= valid) {
        let row = offsets.partition_point(|&offset| offset <= at) - 1;
        return Err(LogitError::Target { row, target: ids[at], valid });
    }
    let bad = scratch::with::<0, _>(rows, |lses| {
        cpu::gather_many(cpu, vocab, valid, inv_temps, logits, offsets, ids, lses, out);
        lses.iter().position(|x| x.is_nan())
    });
    match bad {
        Some(row) => Err(diagnose("logits", row, &logits[row * vocab..][..valid], inv_temps[row])),
        None => Ok(()),
    }
}

/// A row's log-sum-exp at some temperature and at temperature 1, nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalizers {
    /// Of z = logit * inv_temp.
    pub at_temperature: f32,
    /// Of the logits as they are.
    pub raw: f32,
}

impl Normalizers {
    /// Of `row` `[valid]`: one pass over it at temperature 1, two otherwise.
    ///
    /// # Panics
    /// When the row is empty or `inv_temp` is no positive number.
    pub fn of(isa: Isa, row: &[f32], inv_temp: f32) -> Result<Normalizers, LogitError> {
        check_block(1, row.len(), row.len(), inv_temp, row);
        let lse = |inv_temp: f32| {
            let lse = cpu::row_mass(isa, row, inv_temp).lse();
            if lse.is_nan() { Err(diagnose("logits", 0, row, inv_temp)) } else { Ok(lse) }
        };
        let at_temperature = lse(inv_temp)?;
        Ok(Normalizers { at_temperature, raw: if inv_temp == 1.0 { at_temperature } else { lse(1.0)? } })
    }
}

/// The `ids.len()` largest of `row` `[valid]`, ordered as by [`top_k`], each once; their logprobs at the temperature
/// and at temperature 1. No pass sums the row again: a draw reports its normalizers, and [`Normalizers::of`] makes them
/// for a row that nothing is drawn from.
///
/// # Panics
/// When the outputs differ in length, or there are none or more than the row has columns.
pub fn top_k_of_row(
    isa: Isa,
    row: &[f32],
    inv_temp: f32,
    normalizers: Normalizers,
    ids: &mut [u32],
    logprobs: &mut [f32],
    logprobs_raw: &mut [f32],
) {
    check_block(1, row.len(), row.len(), inv_temp, row);
    let k = ids.len();
    assert!(k >= 1 && k <= row.len(), "the {k} largest of {}", row.len());
    assert!(logprobs.len() == k && logprobs_raw.len() == k, "logprobs are not [{k}]");
    cpu::largest(isa, row, inv_temp, normalizers.at_temperature, ids, logprobs);
    for (raw, &id) in logprobs_raw.iter_mut().zip(ids.iter()) {
        *raw = row[id as usize] - normalizers.raw;
    }
}

pub(crate) fn check_targets(targets: &[u32], valid: usize) -> Result<(), LogitError> {
    match targets.iter().position(|&target| target as usize >= valid) {
        Some(row) => Err(LogitError::Target { row, target: targets[row], valid }),
        None => Ok(()),
    }
}

/// The `k` largest of each row, descending, equal z by ascending id: `ids` and `logprobs` are `[rows, k]`.
///
/// # Panics
/// When a buffer has not the shape that the arguments claim, or `k` exceeds `valid`.
#[allow(clippy::too_many_arguments)]
pub fn top_k(
    cpu: &Cpu,
    rows: usize,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    logits: &[f32],
    k: usize,
    ids: &mut [u32],
    logprobs: &mut [f32],
) -> Result<(), LogitError> {
    check_block(rows, vocab, valid, inv_temp, logits);
    assert!(k >= 1 && k <= valid, "the {k} largest of {valid}");
    assert_eq!(Some(ids.len()), rows.checked_mul(k), "ids are not [{rows}, {k}]");
    assert_eq!(Some(logprobs.len()), rows.checked_mul(k), "logprobs are not [{rows}, {k}]");
    let bad = scratch::with::<0, _>(rows, |lses| {
        cpu::lse(cpu, vocab, valid, inv_temp, logits, lses);
        let bad = lses.iter().position(|x| x.is_nan());
        if bad.is_none() {
            cpu::top_k(cpu, vocab, valid, inv_temp, logits, k, lses, ids, logprobs);
        }
        bad
    });
    match bad {
        Some(row) => Err(diagnose("logits", row, &logits[row * vocab..][..valid], inv_temp)),
        None => Ok(()),
    }
}
