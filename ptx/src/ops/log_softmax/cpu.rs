//! Tiles of a row and their sums, compiled for each instruction set.

use super::{WORTH_SHARING, order};
use crate::isa::by_isa;
use crate::math::{exp, ln, tree16};
use crate::parallel::Parts;
use crate::{Cpu, Isa, scratch};

/// Columns per tile: 4 KiB, so that the second pass over it reads the first-level cache.
pub(crate) const TILE: usize = 1024;

/// Strided sums per tile.
pub(crate) const LANES: usize = 16;

/// The largest x whose `exp` is 0.
pub(crate) const EXP_IS_ZERO: f32 = -103.972_084;

/// The maximum of some z, and the sum of exp(z - max).
///
/// Nothing but minus infinity gives (-inf, 0). A NaN or plus infinity anywhere makes the sum NaN, and it stays NaN
/// through every fold: that is how broken rows are found without a test per element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mass {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl Mass {
    pub(crate) const NONE: Mass = Mass { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Of one tile of logits.
    #[inline(always)]
    pub(crate) fn of_tile(tile: &[f32], inv_temp: f32) -> Mass {
        let (blocks, rest) = tile.as_chunks::<LANES>();
        let mut largest = [f32::NEG_INFINITY; LANES];
        for block in blocks {
            for i in 0..LANES {
                let z = block[i] * inv_temp;
                largest[i] = if z > largest[i] { z } else { largest[i] };
            }
        }
        let rest = padded(rest);
        let mut max = f32::NEG_INFINITY;
        for i in 0..LANES {
            let z = rest[i] * inv_temp;
            let lane = if z > largest[i] { z } else { largest[i] };
            max = if lane > max { lane } else { max };
        }
        // Without a finite maximum every exp is to be 0, and -inf - 0 gives that where -inf - -inf would be NaN.
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sums = [0.0; LANES];
        for block in blocks {
            for i in 0..LANES {
                sums[i] += exp(block[i] * inv_temp - base);
            }
        }
        for i in 0..LANES {
            sums[i] += exp(rest[i] * inv_temp - base);
        }
        Mass { max, sum: tree16(&sums) }
    }

    /// Folds the next tile in.
    #[inline(always)]
    pub(crate) fn and(self, tile: Mass) -> Mass {
        if tile.max == f32::NEG_INFINITY {
            return Mass { max: self.max, sum: self.sum + tile.sum }; // the sum is 0, or NaN that has to survive
        }
        let max = if tile.max > self.max { tile.max } else { self.max };
        Mass { max, sum: self.sum.mul_add(exp(self.max - max), tile.sum * exp(tile.max - max)) }
    }

    /// Log-sum-exp; NaN when there is no distribution.
    #[inline(always)]
    pub(crate) fn lse(self) -> f32 {
        if self.max == f32::NEG_INFINITY { f32::NAN } else { self.max + ln(self.sum) }
    }
}

/// The last, ragged block of a tile, filled up with minus infinity: it adds 0 to every sum.
#[inline(always)]
pub(crate) fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut block = [f32::NEG_INFINITY; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// The mass of a row.
pub(crate) fn row_mass(isa: Isa, row: &[f32], inv_temp: f32) -> Mass {
    more_mass(isa, Mass::NONE, row, inv_temp)
}

by_isa! {
    /// The mass of what came before, whole tiles, and of these columns.
    pub(crate) fn more_mass(before: Mass, columns: &[f32], inv_temp: f32) -> Mass {
        // A loop and not a fold: a closure is compiled for the instruction set only if it happens to be inlined.
        let mut mass = before;
        for tile in columns.chunks(TILE) {
            mass = mass.and(Mass::of_tile(tile, inv_temp));
        }
        mass
    }
}

by_isa! {
    /// The mass of a row and of each of its tiles (`maxes` and `sums`, one element per tile).
    pub(crate) fn tile_masses(row: &[f32], inv_temp: f32, maxes: &mut [f32], sums: &mut [f32]) -> Mass {
        let mut mass = Mass::NONE;
        for ((tile, max), sum) in row.chunks(TILE).zip(maxes).zip(sums) {
            let one = Mass::of_tile(tile, inv_temp);
            (*max, *sum) = (one.max, one.sum);
            mass = mass.and(one);
        }
        mass
    }
}

/// Log-sum-exp of each row; NaN for a row without a distribution.
pub(crate) fn lse(cpu: &Cpu, vocab: usize, valid: usize, inv_temp: f32, logits: &[f32], out: &mut [f32]) {
    let (rows, isa) = (out.len(), cpu.isa());
    let out = Parts::new(out);
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        // SAFETY: element `row` belongs to this task alone.
        let out = unsafe { out.range(row, 1) };
        out[0] = row_mass(isa, &logits[row * vocab..][..valid], inv_temp).lse();
    });
}

/// The logprobs of each row's ids, ragged; `lses` says which row is no distribution by NaN. A row without ids is not
/// read, and its log-sum-exp is 0.
#[allow(clippy::too_many_arguments)]
pub(crate) fn gather_many(
    cpu: &Cpu,
    vocab: usize,
    valid: usize,
    inv_temps: &[f32],
    logits: &[f32],
    offsets: &[usize],
    ids: &[u32],
    lses: &mut [f32],
    out: &mut [f32],
) {
    let (rows, isa) = (lses.len(), cpu.isa());
    let (lses, out) = (Parts::new(lses), Parts::new(out));
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        let (first, len) = (offsets[row], offsets[row + 1] - offsets[row]);
        // SAFETY: element `row` belongs to this task alone.
        let lse = unsafe { lses.range(row, 1) };
        // SAFETY: offsets ascend from 0 to the length, so the elements of row `row` belong to this task alone.
        let out = unsafe { out.range(first, len) };
        lse[0] = 0.0;
        if len > 0 {
            let (row, inv_temp) = (&logits[row * vocab..][..valid], inv_temps[row]);
            lse[0] = row_mass(isa, row, inv_temp).lse();
            for (out, &id) in out.iter_mut().zip(&ids[first..]) {
                *out = row[id as usize] * inv_temp - lse[0];
            }
        }
    });
}

/// The `k` largest of each row, given each row's log-sum-exp.
#[allow(clippy::too_many_arguments)]
pub(crate) fn top_k(
    cpu: &Cpu,
    vocab: usize,
    valid: usize,
    inv_temp: f32,
    logits: &[f32],
    k: usize,
    lses: &[f32],
    ids: &mut [u32],
    logprobs: &mut [f32],
) {
    let (rows, isa) = (lses.len(), cpu.isa());
    let (ids, logprobs) = (Parts::new(ids), Parts::new(logprobs));
    cpu.for_each_if(rows * valid >= WORTH_SHARING, rows, |row| {
        // SAFETY: row `row` of the ids belongs to this task alone.
        let ids = unsafe { ids.range(row * k, k) };
        // SAFETY: as above, of the logprobs.
        let logprobs = unsafe { logprobs.range(row * k, k) };
        largest(isa, &logits[row * vocab..][..valid], inv_temp, lses[row], ids, logprobs);
    });
}

/// The `ids.len()` largest of a row in order, with their logprobs given its log-sum-exp.
pub(crate) fn largest(isa: Isa, row: &[f32], inv_temp: f32, lse: f32, ids: &mut [u32], logprobs: &mut [f32]) {
    scratch::with::<1, _>(2 * ids.len(), |buffer| {
        let keys: &mut [u64] = bytemuck::cast_slice_mut(buffer);
        order::largest(isa, row, inv_temp, keys);
        for ((id, logprob), &key) in ids.iter_mut().zip(logprobs).zip(keys.iter()) {
            *id = order::id(key);
            *logprob = row[*id as usize] * inv_temp - lse;
        }
    });
}
