//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! A draw is a pure function of its key and counter, so it does not depend on what else was drawn before, on threads
//! or on the device.

/// The ten rounds of Philox4x32.
#[must_use]
#[inline]
pub fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key[0] = key[0].wrapping_add(0x9E37_79B9);
            key[1] = key[1].wrapping_add(0xBB67_AE85);
        }
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)];
    }
    counter
}

fn high(x: u64) -> u32 {
    u32::try_from(x >> 32).expect("32 bits")
}

fn low(x: u64) -> u32 {
    u32::try_from(x & 0xffff_ffff).expect("32 bits")
}

/// What a draw is for; draws of different purposes never share a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// The next token of a rollout.
    Sample = 1,
    /// Initial weights.
    Init = 2,
    /// Task problems and data order.
    Data = 3,
    /// Injected noise.
    Noise = 4,
    /// Tests and benches.
    Test = 5,
}

/// Uniform in [0, 1) with 24 bits, for token `position` of sample `sample` under `seed`.
#[must_use]
#[inline]
pub fn sample_uniform(seed: u64, sample: u64, position: u32) -> f32 {
    let word = philox([low(seed), high(seed)], [position, Purpose::Sample as u32, low(sample), high(sample)])[0];
    uniform_f32(word)
}

/// Four standard normals of injected noise, a pure function of seed and place: what has many of them, such as a matrix,
/// needs none of those before.
#[must_use]
#[inline]
pub fn noise_normals(seed: u64, place: [u32; 3]) -> [f32; 4] {
    // No purpose word of a stream lacks the top bit.
    let words = philox([low(seed), high(seed)], [place[0], Purpose::Noise as u32, place[1], place[2]]);
    let pair = |u: u32, v: u32| {
        let radius = (-2.0 * crate::math::ln(1.0 - uniform_f32(u))).sqrt();
        let (sin, cos) = crate::math::sin_cos(std::f32::consts::TAU * uniform_f32(v));
        [radius * cos, radius * sin]
    };
    let ([a, b], [c, d]) = (pair(words[0], words[1]), pair(words[2], words[3]));
    [a, b, c, d]
}

/// The upper 24 bits of a word as a fraction.
#[must_use]
#[inline]
#[allow(clippy::cast_precision_loss)] // 24 bits are exact in f32
pub fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A stream of draws under one key, for whatever is drawn in order: initial weights, problems, shuffles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    counter: [u32; 4],
    words: [u32; 4],
    left: u8,
}

impl Stream {
    /// The stream of `purpose` and `index` (a tensor, a problem, an epoch) under `seed`.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose, index: u64) -> Stream {
        // The top bit of the purpose word keeps streams apart from `sample_uniform`.
        Stream {
            key: [low(seed), high(seed)],
            counter: [0, purpose as u32 | 1 << 31, low(index), high(index)],
            words: [0; 4],
            left: 0,
        }
    }

    /// The next 32 bits.
    #[inline]
    pub fn word(&mut self) -> u32 {
        if self.left == 0 {
            self.words = philox(self.key, self.counter);
            self.counter[0] = self.counter[0].checked_add(1).expect("a stream has 2^34 words");
            self.left = 4;
        }
        self.left -= 1;
        self.words[usize::from(3 - self.left)]
    }

    /// Uniform in [0, 1), 24 bits.
    pub fn uniform(&mut self) -> f32 {
        uniform_f32(self.word())
    }

    /// Uniform in `0..bound`, without bias (rejection).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "nothing is below 0");
        let reject = bound.wrapping_neg() % bound; // 2^32 mod bound
        loop {
            let wide = u64::from(self.word()) * u64::from(bound);
            if low(wide) >= reject {
                return high(wide);
            }
        }
    }

    /// A standard normal (Box-Muller, our own `ln`, `cos`): the same bits on every machine.
    pub fn normal(&mut self) -> f32 {
        let u = 1.0 - self.uniform(); // in (0, 1]
        let v = self.uniform();
        (-2.0 * crate::math::ln(u)).sqrt() * crate::math::sin_cos(std::f32::consts::TAU * v).1
    }

    /// Shuffles in place (Fisher-Yates).
    ///
    /// # Panics
    /// When there are more than 2^32 items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(u32::try_from(i + 1).expect("at most 2^32 items"));
            items.swap(i, j as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn moments() {
        let mut stream = Stream::new(7, Purpose::Test, 0);
        let n = 100_000;
        let (mut sum, mut square) = (0.0_f64, 0.0_f64);
        for _ in 0..n {
            let x = f64::from(stream.normal());
            sum += x;
            square += x * x;
        }
        let (mean, var) = (sum / f64::from(n), square / f64::from(n));
        // Standard errors: 1/sqrt(n) = 0.0032 and sqrt(2/n) = 0.0045; four of each.
        assert!(mean.abs() < 0.013 && (var - 1.0).abs() < 0.018, "mean {mean}, variance {var}");
    }

    /// All four have mean 0 and variance 1, and neighbours in any coordinate have nothing to do with each other.
    #[test]
    fn noise_moments() {
        let n = 40_000_u32;
        let mut sums = [[0.0_f64; 2]; 4];
        let mut cross = [0.0_f64; 6];
        for i in 0..n {
            let x = noise_normals(3, [i, 7, 1]).map(f64::from);
            (0..4).for_each(|k| sums[k] = [sums[k][0] + x[k], sums[k][1] + x[k] * x[k]]);
            let others = [
                x[1],
                x[2],
                f64::from(noise_normals(3, [i + 1, 7, 1])[0]),
                f64::from(noise_normals(3, [i, 8, 1])[0]),
                f64::from(noise_normals(3, [i, 7, 2])[0]),
                f64::from(noise_normals(4, [i, 7, 1])[0]),
            ];
            cross.iter_mut().zip(others).for_each(|(sum, other)| *sum += x[0] * other);
        }
        // Standard errors: 1/sqrt(n) = .005 and sqrt(2/n) = .0071; four and a half of each.
        let n = f64::from(n);
        for [sum, square] in sums {
            assert!((sum / n).abs() < 0.0225 && (square / n - 1.0).abs() < 0.032, "{sums:?}");
        }
        assert!(cross.iter().all(|sum| (sum / n).abs() < 0.0225), "{cross:?}");
    }

    #[test]
    fn below_is_in_range_and_covers() {
        let mut stream = Stream::new(1, Purpose::Test, 1);
        let mut hits = [0; 7];
        (0..7000).for_each(|_| hits[stream.below(7) as usize] += 1);
        assert!(hits.iter().all(|&h| (850..1150).contains(&h)), "{hits:?}");
    }
}
