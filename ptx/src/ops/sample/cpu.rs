//! Selection and inverse CDF. `None` everywhere means that the row is no distribution.

use super::{Params, Sampled};
use crate::isa::by_isa;
use crate::math::{exp, ln, tree16};
use crate::ops::log_softmax::cpu::{EXP_IS_ZERO, LANES, TILE, padded, row_mass, tile_masses};
use crate::ops::log_softmax::{Normalizers, order};
use crate::{Isa, Scratch, scratch};

/// Two numbers a tile, and a key of two floats an id; rows are shared among threads.
pub(super) fn scratch(valid: usize) -> Scratch {
    Scratch::default().every(0, 2 * valid.div_ceil(TILE)).every(1, 2 * valid)
}

/// The likeliest id, the lowest of equals; its logprobs are those of temperature 1.
pub(super) fn greedy(isa: Isa, row: &[f32]) -> Option<Sampled> {
    with_masses(isa, row, 1.0, |masses| {
        let tile = masses.maxes.iter().position(|&max| max == masses.max)?;
        let start = tile * TILE;
        let inside = row[start..].iter().position(|&x| x == masses.max)?;
        let logprob = row[start + inside] - masses.lse;
        let normalizers = Normalizers { at_temperature: masses.lse, raw: masses.lse };
        Some(Sampled { token: id(start + inside), logprob, logprob_raw: logprob, support: 1, normalizers })
    })
}

/// A draw from the whole row.
pub(super) fn untruncated(isa: Isa, params: &Params, row: &[f32], uniform: f32) -> Option<Sampled> {
    let inv_temp = params.inv_temp();
    with_masses(isa, row, inv_temp, |masses| {
        let target = f64::from(uniform) * masses.total();
        let (mut tile, mut before) = (0, 0.0);
        // The running sum ends at the total, and a uniform below 1 puts the target below that.
        while before + f64::from(masses.sums[tile]) <= target {
            before += f64::from(masses.sums[tile]);
            tile += 1;
        }
        let columns = &row[tile * TILE..row.len().min((tile + 1) * TILE)];
        let token = tile * TILE + first_above(isa, columns, inv_temp, masses.max, target - before);
        let logprob = row[token] * inv_temp - masses.lse;
        let normalizers = normalizers(isa, row, inv_temp, masses.lse);
        let support = count_above(isa, row, inv_temp, masses.max);
        Some(Sampled { token: id(token), logprob, logprob_raw: row[token] - normalizers.raw, support, normalizers })
    })
}

/// A draw from what top-k, top-p and min-p leave.
pub(super) fn truncated(isa: Isa, params: &Params, row: &[f32], uniform: f32) -> Option<Sampled> {
    with_kept(isa, params, row, |keys, max, lse| {
        let (key, total) = pick(isa, keys, max, uniform);
        let token = order::id(key);
        let normalizers = normalizers(isa, row, params.inv_temp(), lse);
        Sampled {
            token,
            logprob: logprob_of_kept(key, max, total),
            logprob_raw: row[token as usize] - normalizers.raw,
            support: id(keys.len()),
            normalizers,
        }
    })
}

/// What `draw` would report of each id, had it drawn that one; minus infinity if it never could.
pub(super) fn processed(isa: Isa, params: &Params, row: &[f32], ids: &[u32], out: &mut [f32]) -> Option<()> {
    let inv_temp = params.inv_temp();
    if params.temperature == 0.0 || !params.truncates(row.len()) {
        let lse = row_mass(isa, row, inv_temp).lse();
        for (out, &id) in out.iter_mut().zip(ids) {
            *out = row[id as usize] * inv_temp - lse;
        }
        return if lse.is_nan() { None } else { Some(()) };
    }
    with_kept(isa, params, row, |keys, max, _| {
        let total = mass_of(isa, keys, max);
        // The kept ids are the first in order, so the last of them tells them from the rest.
        let last = keys[keys.len() - 1];
        for (out, &id) in out.iter_mut().zip(ids) {
            let key = order::key(row[id as usize] * inv_temp, id);
            *out = if key <= last { logprob_of_kept(key, max, total) } else { f32::NEG_INFINITY };
        }
    })
}

#[inline(always)]
fn logprob_of_kept(key: u64, max: f32, total: f64) -> f32 {
    #[allow(clippy::cast_possible_truncation)] // rounding is meant
    let total = total as f32;
    (order::z(key) - max) - ln(total)
}

/// Both normalizers, given the one at the temperature.
fn normalizers(isa: Isa, row: &[f32], inv_temp: f32, lse: f32) -> Normalizers {
    let raw = if inv_temp == 1.0 { lse } else { row_mass(isa, row, 1.0).lse() };
    Normalizers { at_temperature: lse, raw }
}

/// The ids that could be drawn, the likeliest first.
pub(super) fn support(isa: Isa, params: &Params, row: &[f32], ids: &mut Vec<u32>) -> Option<()> {
    with_kept(isa, params, row, |keys, _, _| ids.extend(keys.iter().map(|&key| order::id(key))))
}

/// Calls `f` with the keys of the kept ids in order, at least one, the largest z, and the whole row's log-sum-exp.
fn with_kept<R>(isa: Isa, params: &Params, row: &[f32], f: impl FnOnce(&[u64], f32, f32) -> R) -> Option<R> {
    let inv_temp = params.inv_temp();
    with_masses(isa, row, inv_temp, |masses| {
        let max = masses.max;
        let k = if params.top_k == 0 { row.len() } else { row.len().min(params.top_k as usize) };
        let result = scratch::with::<1, _>(2 * k, |buffer| {
            let keys: &mut [u64] = bytemuck::cast_slice_mut(buffer);
            let (keys, total) = if k < row.len() {
                order::largest(isa, row, inv_temp, keys);
                let total = mass_of(isa, keys, max);
                (keys, total)
            } else {
                let total = masses.total();
                let count = candidates(isa, params, row, max, total, keys);
                keys[..count].sort_unstable();
                (&mut keys[..count], total)
            };
            f(&keys[..kept(isa, params, keys, max, total)], max, masses.lse)
        });
        Some(result)
    })
}

/// Puts every id that top-p and min-p could keep at the front of `keys`, unordered, and returns their number. Looks ever
/// further below the maximum until enough mass is in or min-p forbids more.
fn candidates(isa: Isa, params: &Params, row: &[f32], max: f32, total: f64, keys: &mut [u64]) -> usize {
    // exp is within 2 ulp, so no id that min-p keeps lies a thousandth of a nat below this; `kept` decides exactly.
    let floor = (ln(params.min_p) - 1e-3).max(EXP_IS_ZERO);
    // Small steps: what is found beyond need is sorted for nothing.
    let mut depth = 2.0_f32;
    loop {
        let reach = if params.top_p < 1.0 { floor.max(-depth) } else { floor };
        let (count, mass) = order::at_least(isa, row, params.inv_temp(), max + reach, max, keys);
        if reach == floor || mass >= f64::from(params.top_p) * total {
            return count;
        }
        depth *= 1.5;
    }
}

by_isa! {
    /// The sum of exp(z - max), in the keys' order.
    fn mass_of(keys: &[u64], max: f32) -> f64 {
        let mut total = 0.0;
        for &key in keys {
            total += f64::from(exp(order::z(key) - max));
        }
        total
    }
}

by_isa! {
    /// How many of the ordered keys top-p and min-p keep, at least one. `total` is the mass that top-k left.
    fn kept(params: &Params, keys: &[u64], max: f32, total: f64) -> usize {
        let share = if params.top_p < 1.0 { f64::from(params.top_p) * total } else { f64::INFINITY };
        let mut sum = 0.0;
        for (at, &key) in keys.iter().enumerate() {
            let mass = exp(order::z(key) - max);
            if at > 0 && (mass < params.min_p || mass == 0.0 || sum >= share) {
                return at;
            }
            sum += f64::from(mass);
        }
        keys.len()
    }
}

by_isa! {
    /// The first key whose running sum of exp(z - max) exceeds uniform times the whole, or else the last; the whole.
    fn pick(keys: &[u64], max: f32, uniform: f32) -> (u64, f64) {
        let mut total = 0.0;
        for &key in keys {
            total += f64::from(exp(order::z(key) - max));
        }
        let target = f64::from(uniform) * total;
        let mut sum = 0.0;
        for &key in keys {
            sum += f64::from(exp(order::z(key) - max));
            if sum > target {
                return (key, total);
            }
        }
        (keys[keys.len() - 1], total)
    }
}

/// A row's tiles: each one's maximum and its sum of exp(z - max), the row's maximum and log-sum-exp.
struct Masses<'a> {
    maxes: &'a [f32],
    sums: &'a [f32],
    max: f32,
    lse: f32,
}

impl Masses<'_> {
    /// The sum of exp(z - max) over the row.
    fn total(&self) -> f64 {
        self.sums.iter().fold(0.0, |total, &sum| total + f64::from(sum))
    }
}

fn with_masses<R>(isa: Isa, row: &[f32], inv_temp: f32, f: impl FnOnce(&Masses) -> Option<R>) -> Option<R> {
    let tiles = row.len().div_ceil(TILE);
    scratch::with::<0, _>(2 * tiles, |buffer| {
        let (maxes, sums) = buffer.split_at_mut(tiles);
        let mass = tile_masses(isa, row, inv_temp, maxes, sums);
        let lse = mass.lse();
        if lse.is_nan() {
            return None;
        }
        to_common_maximum(isa, maxes, sums, mass.max);
        f(&Masses { maxes, sums, max: mass.max, lse })
    })
}

by_isa! {
    /// Sums of exp(z - own maximum) become sums of exp(z - max).
    fn to_common_maximum(maxes: &[f32], sums: &mut [f32], max: f32) {
        for (sum, own) in sums.iter_mut().zip(maxes) {
            *sum *= exp(own - max);
        }
    }
}

by_isa! {
    /// The first column whose running sum of exp(z - max) exceeds `target`, or else the last with any probability.
    fn first_above(tile: &[f32], inv_temp: f32, max: f32, target: f64) -> usize {
        let mut masses = [0.0_f32; TILE];
        for (mass, x) in masses.iter_mut().zip(tile) {
            *mass = exp(x * inv_temp - max);
        }
        let mut sum = 0.0;
        let mut last = 0;
        for (at, &mass) in masses[..tile.len()].iter().enumerate() {
            sum += f64::from(mass);
            if sum > target {
                return at;
            }
            last = if mass > 0.0 { at } else { last };
        }
        last
    }
}

by_isa! {
    /// How many columns have exp(z - max) above 0.
    fn count_above(row: &[f32], inv_temp: f32, max: f32) -> u32 {
        // Counted in f32, which vectorises and is exact in a tile.
        let mut count = 0.0_f64;
        for tile in row.chunks(TILE) {
            let (blocks, rest) = tile.as_chunks::<LANES>();
            let mut lanes = [0.0_f32; LANES];
            for block in blocks {
                for i in 0..LANES {
                    lanes[i] += if block[i] * inv_temp - max > EXP_IS_ZERO { 1.0 } else { 0.0 };
                }
            }
            let rest = padded(rest);
            for i in 0..LANES {
                lanes[i] += if rest[i] * inv_temp - max > EXP_IS_ZERO { 1.0 } else { 0.0 };
            }
            count += f64::from(tree16(&lanes));
        }
        #[allow(clippy::cast_possible_truncation)] // a row has fewer than 2^32 columns
        let count = count as u32;
        count
    }
}

/// Rows are checked to have at most 2^32 ids.
fn id(at: usize) -> u32 {
    u32::try_from(at).expect("ids fit u32")
}
