//! Counter-based random numbers for resampling: the splitmix64 finaliser over seed and counter (Steele, Lea, Flood,
//! "Fast splittable pseudorandom number generators", 2014). A draw is a pure function of both.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Draws by number under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    start: u64,
}

impl Random {
    /// The draws of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        // Mixed first, so that neighbouring seeds are not neighbouring counters of one sequence.
        Random { start: mix(seed.wrapping_add(GOLDEN)) }
    }

    /// 64 bits, draw `counter`.
    #[must_use]
    pub fn word(&self, counter: u64) -> u64 {
        mix(self.start.wrapping_add(counter.wrapping_mul(GOLDEN)))
    }

    /// Uniform in [0, 1), 53 bits, draw `counter`.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // 53 bits are exact
    pub fn uniform(&self, counter: u64) -> f64 {
        (self.word(counter) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// An index below `len`, draw `counter`. Its bias is below `len` in 2^64.
    ///
    /// # Panics
    /// When `len` is 0.
    #[must_use]
    pub fn index(&self, counter: u64, len: usize) -> usize {
        assert!(len > 0, "nothing to choose from");
        let wide = u128::from(self.word(counter)) * len as u128;
        usize::try_from(wide >> 64).expect("below len")
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first three outputs of the published splitmix64 with state 1234567.
    #[test]
    fn known_answers() {
        let outputs: Vec<u64> = (1..=3_u64).map(|i| mix(1_234_567_u64.wrapping_add(i.wrapping_mul(GOLDEN)))).collect();
        assert_eq!(outputs, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn uniform_and_even() {
        let random = Random::new(5);
        let n = 10_000_u32;
        let mean = (0..u64::from(n)).map(|i| random.uniform(i)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 4.0 * 0.0029, "mean {mean}"); // sqrt(1/12/n) = .0029
        let mut hits = [0; 7];
        (0..7000).for_each(|i| hits[random.index(i, 7)] += 1);
        assert!(hits.iter().all(|hits| (850..1150).contains(hits)), "{hits:?}");
        assert_ne!(Random::new(5).word(1), Random::new(6).word(0), "seeds are not counters");
    }
}
