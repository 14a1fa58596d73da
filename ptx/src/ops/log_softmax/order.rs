//! The descending order of a row, as integers: a key holds z and its id, and ascending keys are descending z, equal z
//! by ascending id. One comparison decides, so every selection below has one answer.

use super::cpu::{LANES, padded};
use crate::isa::by_isa;

/// The key of z (not NaN) at `id`. Minus zero counts as zero.
#[inline(always)]
pub(crate) fn key(z: f32, id: u32) -> u64 {
    let bits = (z + 0.0).to_bits();
    // Negative floats order backwards, positive ones forwards; this gives both in descending order.
    let descending = if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits };
    u64::from(descending) << 32 | u64::from(id)
}

/// The id of a key.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // the lower half is meant
pub(crate) fn id(key: u64) -> u32 {
    key as u32
}

/// The z of a key.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // 32 bits are left
pub(crate) fn z(key: u64) -> f32 {
    let descending = (key >> 32) as u32;
    f32::from_bits(if descending >> 31 == 0 { !descending & !(1 << 31) } else { descending })
}

by_isa! {
    /// The keys of the `keys.len()` largest z of a row, in order. The row has at least that many columns.
    pub(crate) fn largest(row: &[f32], inv_temp: f32, keys: &mut [u64]) {
        let k = keys.len();
        let (head, tail) = row.split_at(k);
        for ((key_out, &x), at) in keys.iter_mut().zip(head).zip(0_u32..) {
            *key_out = key(x * inv_temp, at);
        }
        // A heap whose root is the worst key kept. Whole blocks without anything better, nearly all of them, are
        // passed over by their maximum; an equal z further on has the larger id and so loses as well.
        for root in (0..k / 2).rev() {
            sift_down(keys, root);
        }
        let mut worst = z(keys[0]);
        let first = u32::try_from(k).expect("ids fit u32");
        for (block, base) in tail.chunks(LANES).zip((first..).step_by(LANES)) {
            let padded = match block.first_chunk::<LANES>() {
                Some(block) => *block,
                None => padded(block),
            };
            if !any_above(&padded, inv_temp, worst) {
                continue;
            }
            for (&x, at) in block.iter().zip(base..) {
                let new = key(x * inv_temp, at);
                if new < keys[0] {
                    keys[0] = new;
                    sift_down(keys, 0);
                }
            }
            worst = z(keys[0]);
        }
        keys.sort_unstable();
    }
}

by_isa! {
    /// Puts the keys of every z >= `least` at the front of `keys`, by ascending id; returns their number and the sum of
    /// exp(z - `max`), in that order, in f64. `keys` has room for the whole row.
    pub(crate) fn at_least(row: &[f32], inv_temp: f32, least: f32, max: f32, keys: &mut [u64]) -> (usize, f64) {
        let (mut count, mut mass) = (0, 0.0);
        let below = least.next_down();
        for (block, base) in row.chunks(LANES).zip((0_u32..).step_by(LANES)) {
            let padded = match block.first_chunk::<LANES>() {
                Some(block) => *block,
                None => padded(block),
            };
            if !any_above(&padded, inv_temp, below) {
                continue;
            }
            for (&x, at) in block.iter().zip(base..) {
                let z = x * inv_temp;
                if z >= least {
                    keys[count] = key(z, at);
                    count += 1;
                    mass += f64::from(crate::math::exp(z - max));
                }
            }
        }
        (count, mass)
    }
}

#[inline(always)]
fn any_above(block: &[f32; LANES], inv_temp: f32, limit: f32) -> bool {
    let mut any = false;
    for &x in block {
        any |= x * inv_temp > limit;
    }
    any
}

/// Restores the heap below `at`: no key is smaller than its children's.
#[inline(always)]
fn sift_down(keys: &mut [u64], mut at: usize) {
    loop {
        let mut child = 2 * at + 1;
        if child >= keys.len() {
            return;
        }
        if child + 1 < keys.len() && keys[child + 1] > keys[child] {
            child += 1;
        }
        if keys[child] <= keys[at] {
            return;
        }
        keys.swap(at, child);
        at = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_documented_and_come_back() {
        let values = [f32::MAX, 3.0, f32::MIN_POSITIVE, 1e-45, 0.0, -1e-45, -2.0, f32::MIN, f32::NEG_INFINITY];
        for pair in values.windows(2) {
            assert!(key(pair[0], 9) < key(pair[1], 0), "{pair:?}");
        }
        for value in values {
            let key = key(value, 77);
            assert_eq!((z(key).to_bits(), id(key)), (value.to_bits(), 77));
            assert!(key < super::key(value, 78));
        }
        assert_eq!(key(-0.0, 5), key(0.0, 5));
    }
}
