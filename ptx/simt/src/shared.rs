//! A block's shared memory and its shadow.

use crate::shadow::Shadow;

/// What fresh shared memory holds: a NaN in every float format.
const FRESH: u32 = u32::MAX;

/// Shared memory of one block.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) words: Vec<u32>,
    pub(crate) bytes: u64,
    pub(crate) shadow: Option<Shadow>,
    /// Bank patterns by site: the offsets of the lanes from the first, and what they cost.
    pub(crate) patterns: Vec<Pattern>,
}

/// The lanes' words of an access relative to each other, and the passes it takes.
#[derive(Clone)]
pub(crate) struct Pattern {
    mask: u32,
    offsets: [u32; 32],
    wavefronts: u32,
    least: u32,
}

impl Shared {
    pub(crate) fn new(bytes: usize, warps: usize, sites: usize, checks: bool) -> Shared {
        let words = bytes.div_ceil(4);
        Shared {
            words: vec![FRESH; words],
            bytes: bytes as u64,
            shadow: checks.then(|| Shadow::new(words, warps)),
            patterns: vec![Pattern { mask: 0, offsets: [0; 32], wavefronts: 0, least: 0 }; sites],
        }
    }

    /// Fresh memory for the next block.
    pub(crate) fn restart(&mut self) {
        self.words.fill(FRESH);
        if let Some(shadow) = &mut self.shadow {
            shadow.restart();
        }
    }

    /// Passes that an access of `words` words at the byte addresses `at` takes, and the least possible.
    pub(crate) fn wavefronts(&mut self, site: u32, at: &[u32; 32], mask: u32, words: u32) -> (u64, u64) {
        let first = at[crate::state::first_lane(mask)];
        let offsets: [u32; 32] =
            std::array::from_fn(|i| if mask >> i & 1 == 1 { at[i].wrapping_sub(first) } else { 0 });
        // Moving all lanes by the same number of words permutes the banks. Bytes within a word matter only below 4 bytes,
        // where the first lane's place in its word is kept as well.
        let offsets = if first.is_multiple_of(4) { offsets } else { offsets.map(|o| o.wrapping_add(first % 4)) };
        let known = &mut self.patterns[site as usize];
        let differs = known.offsets.iter().zip(&offsets).fold(known.mask ^ mask, |d, (a, b)| d | (a ^ b));
        if differs != 0 {
            let (wavefronts, least) = passes(at, mask, words);
            *known = Pattern { mask, offsets, wavefronts, least };
        }
        (u64::from(known.wavefronts), u64::from(known.least))
    }
}

/// Lanes are served in phases whose lanes ask for at most 32 words together; a phase takes as many passes as the bank with
/// most different words has.
fn passes(at: &[u32; 32], mask: u32, words: u32) -> (u32, u32) {
    let lanes = 32 / words;
    let (mut total, mut least) = (0, 0);
    for phase in 0..words {
        let mut seen: [Vec<u32>; 32] = Default::default();
        for lane in phase * lanes..(phase + 1) * lanes {
            if mask >> lane & 1 == 0 {
                continue;
            }
            for word in 0..words {
                let word = at[lane as usize] / 4 + word;
                let bank = &mut seen[(word % 32) as usize];
                if !bank.contains(&word) {
                    bank.push(word);
                }
            }
        }
        let most = seen.iter().map(Vec::len).max().unwrap_or(0);
        if most > 0 {
            total += u32::try_from(most).expect("at most 32 lanes");
            least += 1;
        }
    }
    (total, least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(address: impl Fn(u32) -> u32, words: u32) -> (u32, u32) {
        let at: [u32; 32] = std::array::from_fn(|i| address(u32::try_from(i).unwrap()));
        passes(&at, u32::MAX, words)
    }

    #[test]
    fn passes_of_known_patterns() {
        assert_eq!(cost(|i| 4 * i, 1), (1, 1));
        assert_eq!(cost(|_| 64, 1), (1, 1));
        assert_eq!(cost(|i| 8 * i, 1), (2, 1));
        assert_eq!(cost(|i| 128 * i, 1), (32, 1));
        assert_eq!(cost(|i| 132 * i, 1), (1, 1));
        assert_eq!(cost(|i| 2 * i, 1), (1, 1));
        assert_eq!(cost(|i| 8 * i, 2), (2, 2));
        assert_eq!(cost(|i| 16 * i, 4), (4, 4));
        assert_eq!(cost(|i| 128 * (i % 8), 4), (32, 4));
        assert_eq!(cost(|i| 144 * (i % 8), 4), (4, 4));
    }
}
