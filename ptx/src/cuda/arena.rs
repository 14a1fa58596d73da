//! Which bytes of the device's big allocations are free. Knows addresses only: no driver, no elements.
//!
//! A large range is a chunk of its own, so that nothing keeps its memory once it is given back, and none of it is left
//! over. Small ones are cut from common chunks.
//!
//! Invariant: the free ranges of a chunk are disjoint, none touches another, and none is empty.

use std::collections::BTreeMap;

/// Every range begins at a multiple of this and has a multiple of it as its length, in bytes: what the driver's own
/// allocations promise too.
pub(super) const ALIGN: u64 = 256;

/// What small ranges are cut from, in bytes.
pub(super) const CHUNK: u64 = 32 << 20;
/// From so many bytes on a range is a chunk of its own.
pub(super) const LARGE: u64 = CHUNK / 8;

/// Big allocations, cut to ranges.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    used: u64,
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    bytes: u64,
    /// It is one large range.
    whole: bool,
    /// Length of every free range, by its address.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// Bytes of the chunk to be added for a range of `bytes` that [`Arena::take`] does not find.
    pub(super) fn chunk_for(bytes: u64) -> u64 {
        if bytes < LARGE { CHUNK } else { bytes }
    }

    /// Adds an allocation of the driver, for a range of `wanted` bytes and others like it.
    pub(super) fn add(&mut self, base: u64, bytes: u64, wanted: u64) {
        assert!(
            base.is_multiple_of(ALIGN) && bytes.is_multiple_of(ALIGN) && bytes > 0,
            "a chunk of {bytes} at {base:#x}"
        );
        let whole = wanted >= LARGE;
        self.chunks.push(Chunk { base, bytes, whole, free: BTreeMap::from([(base, bytes)]) });
    }

    /// A free range of `bytes`: a whole chunk of that size for a large one, for others the smallest range that is large
    /// enough.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        assert!(bytes.is_multiple_of(ALIGN) && bytes > 0, "a range of {bytes} bytes");
        let fits = |chunk: &Chunk| {
            if chunk.whole != (bytes >= LARGE) || chunk.whole && chunk.bytes != bytes {
                return None;
            }
            let ranges = chunk.free.iter().filter(|(_, len)| **len >= bytes);
            ranges.map(|(&address, &len)| (len, address)).min()
        };
        let best = self.chunks.iter().enumerate().filter_map(|(i, chunk)| Some((fits(chunk)?, i))).min();
        let ((len, address), chunk) = best?;
        let free = &mut self.chunks[chunk].free;
        free.remove(&address);
        if len > bytes {
            free.insert(address + bytes, len - bytes);
        }
        self.used += bytes;
        Some(address)
    }

    /// Gives a range back and joins it with free neighbours.
    pub(super) fn give(&mut self, address: u64, bytes: u64) {
        let end = address + bytes;
        let chunk = self.chunks.iter_mut().find(|c| c.base <= address && end <= c.base + c.bytes);
        let chunk = chunk.expect("a range given back lies in a chunk");
        let before = chunk.free.range(..=address).next_back().map(|(&a, &n)| (a, n));
        let after = chunk.free.range(address..).next().map(|(&a, &n)| (a, n));
        assert!(before.is_none_or(|(a, n)| a + n <= address), "{bytes} bytes at {address:#x} were given back twice");
        assert!(after.is_none_or(|(a, _)| end <= a), "{bytes} bytes at {address:#x} were given back twice");
        let (mut first, mut len) = (address, bytes);
        if let Some((a, n)) = before.filter(|(a, n)| a + n == address) {
            chunk.free.remove(&a);
            (first, len) = (a, n + len);
        }
        if let Some((a, n)) = after.filter(|(a, _)| *a == end) {
            chunk.free.remove(&a);
            len += n;
        }
        chunk.free.insert(first, len);
        self.used -= bytes;
    }

    /// Takes the chunks out of which nothing is taken, and returns their addresses, to be freed.
    pub(super) fn shed(&mut self) -> Vec<u64> {
        let free = self.chunks.extract_if(.., |chunk| chunk.free.get(&chunk.base) == Some(&chunk.bytes));
        free.map(|chunk| chunk.base).collect()
    }

    /// Bytes of all chunks once ranges of these sizes have been taken in turn.
    pub(super) fn footprint(sizes: impl Iterator<Item = u64>) -> u64 {
        let (mut arena, mut next) = (Arena::default(), ALIGN);
        for bytes in sizes.map(|bytes| bytes.next_multiple_of(ALIGN)) {
            if arena.take(bytes).is_none() {
                let chunk = Arena::chunk_for(bytes);
                arena.add(next, chunk, bytes);
                next += chunk;
                arena.take(bytes).expect("the new chunk is large enough");
            }
        }
        arena.reserved()
    }

    /// Bytes of all chunks.
    pub(super) fn reserved(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// Bytes taken and not given back.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Addresses of the chunks, to be freed; nothing is left.
    pub(super) fn clear(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.chunks).into_iter().map(|chunk| chunk.base).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Arena, CHUNK, LARGE};
    use crate::rng;
    use std::collections::BTreeMap;

    /// Thousands of ranges taken and given back against a plain list of the taken ones: none overlaps another, all lie in
    /// chunks, and at the end everything is one free range per chunk again.
    #[test]
    fn ranges_never_overlap_and_all_comes_back() {
        let (chunks, seed) = ([(1 << 20, 64 * ALIGN), (1 << 24, 16 * ALIGN)], 7);
        let mut arena = Arena::default();
        for (base, bytes) in chunks {
            arena.add(base, bytes, ALIGN);
        }
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        let mut refused = 0;
        for i in 0..4000 {
            let [x, y, ..] = rng::philox([seed, 0], [i, 0, 0, 0]);
            if x % 3 != 0 || taken.is_empty() {
                let bytes = ALIGN * (1 + u64::from(y) % 12);
                let Some(address) = arena.take(bytes) else {
                    refused += 1;
                    continue;
                };
                assert!(chunks.iter().any(|&(base, len)| base <= address && address + bytes <= base + len));
                let before = taken.range(..=address).next_back();
                assert!(before.is_none_or(|(a, n)| a + n <= address), "overlaps the one before");
                assert!(taken.range(address..).next().is_none_or(|(a, _)| address + bytes <= *a), "overlaps the next");
                taken.insert(address, bytes);
            } else {
                let which = usize::try_from(y).unwrap() % taken.len();
                let (&address, &bytes) = taken.iter().nth(which).unwrap();
                taken.remove(&address);
                arena.give(address, bytes);
            }
            assert_eq!(arena.used(), taken.values().sum::<u64>());
        }
        assert!(refused > 10, "the chunks were never full: {refused}");
        for (address, bytes) in taken {
            arena.give(address, bytes);
        }
        assert_eq!(arena.take(64 * ALIGN), Some(1 << 20));
        assert_eq!(arena.take(16 * ALIGN), Some(1 << 24));
        assert_eq!((arena.take(ALIGN), arena.used(), arena.reserved()), (None, 80 * ALIGN, 80 * ALIGN));
    }

    #[test]
    fn chunks_leave_that_are_free_as_a_whole() {
        let mut arena = Arena::default();
        for base in [1 << 20, 1 << 21, 1 << 22] {
            arena.add(base, 4 * ALIGN, ALIGN);
        }
        let taken = [3, 3, 4].map(|n| (arena.take(n * ALIGN).unwrap(), n * ALIGN));
        assert_eq!(arena.shed(), [0_u64; 0], "something of each is taken");
        for (address, bytes) in [taken[0], taken[2]] {
            arena.give(address, bytes);
        }
        assert_eq!(arena.shed(), [1 << 20, 1 << 22]);
        assert_eq!((arena.reserved(), arena.used()), (4 * ALIGN, 3 * ALIGN));
        assert_eq!((arena.take(ALIGN), arena.take(ALIGN)), (Some((1 << 21) + 3 * ALIGN), None));
    }

    /// Nothing is cut from a large range that was given back, be it larger or smaller: only one of its size takes it.
    #[test]
    fn large_ranges_are_chunks_of_their_own() {
        let mut arena = Arena::default();
        assert_eq!((Arena::chunk_for(LARGE - ALIGN), Arena::chunk_for(LARGE)), (CHUNK, LARGE));
        arena.add(1 << 30, 2 * LARGE, 2 * LARGE);
        arena.add(1 << 32, CHUNK, ALIGN);
        assert_eq!(arena.take(LARGE), None);
        assert_eq!((arena.take(ALIGN), arena.take(2 * LARGE)), (Some(1 << 32), Some(1 << 30)));
        arena.give(1 << 30, 2 * LARGE);
        assert_eq!((arena.take(LARGE), arena.take(2 * LARGE)), (None, Some(1 << 30)));
        arena.give(1 << 30, 2 * LARGE);
        assert_eq!((arena.shed(), arena.reserved()), (vec![1 << 30], CHUNK));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_range_given_back_twice_is_noticed() {
        let mut arena = Arena::default();
        arena.add(ALIGN, 4 * ALIGN, ALIGN);
        let address = arena.take(ALIGN).unwrap();
        arena.give(address, ALIGN);
        arena.give(address, ALIGN);
    }
}
