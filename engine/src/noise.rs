//! Noise on logits before a token is drawn: a function of the prefix alone, so that the same tokens always meet the same
//! distribution, however they are batched and whenever they come again, and that a later pass can repeat it exactly.

use ptx::rng::noise_normals;

/// Independent normal noise on every logit of every prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitNoise {
    /// Seed of the run.
    pub seed: u64,
    /// Which of the seed's draws; every prefix has other noise under another.
    pub draw: u32,
    /// Standard deviation of ln p before it is normalised, nats.
    pub sigma: f32,
}

impl LogitNoise {
    /// The key of a prefix.
    #[must_use]
    pub fn key(&self, prefix: &[u32]) -> u64 {
        prefix.iter().fold(self.start(), |key, &id| next(key, id))
    }

    /// The keys of `ids[..first]`, `ids[..first + 1]` and so on up to `ids` without its last: of the prefixes behind which
    /// the tokens from `first` on were drawn.
    #[must_use]
    pub fn keys(&self, ids: &[u32], first: usize) -> Vec<u64> {
        let mut key = self.key(&ids[..first]);
        let mut keys = Vec::with_capacity(ids.len() - first);
        for &id in &ids[first..] {
            keys.push(key);
            key = next(key, id);
        }
        keys
    }

    fn start(&self) -> u64 {
        mix(u64::from(self.draw))
    }

    /// Adds the noise of the prefix behind `key` to its logits of ids `first ..`, at `1 / inv_temp` temperature: there
    /// ln p has the standard deviation that was asked for.
    ///
    /// # Panics
    /// When `first` is no multiple of 4, so that a block of normals would be cut.
    pub fn add(&self, key: u64, first: usize, inv_temp: f32, logits: &mut [f32]) {
        assert!(first.is_multiple_of(4), "noise of ids from {first} on; blocks are of 4");
        let scale = self.sigma / inv_temp;
        #[allow(clippy::cast_possible_truncation)] // the halves of a key
        let (low, high) = (key as u32, (key >> 32) as u32);
        for (block, logits) in logits.chunks_mut(4).enumerate() {
            let block = u32::try_from(first / 4 + block).expect("ids are u32");
            let normals = noise_normals(self.seed, [block, low, high]);
            logits.iter_mut().zip(normals).for_each(|(logit, normal)| *logit += scale * normal);
        }
    }
}

/// One more token on a prefix.
fn next(key: u64, id: u32) -> u64 {
    mix(key.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(id)))
}

/// The finaliser of splitmix64: every bit depends on every bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: LogitNoise = LogitNoise { seed: 3, draw: 1, sigma: 0.5 };

    fn of(noise: LogitNoise, ids: &[u32]) -> Vec<f32> {
        let mut logits = vec![0.0; 61];
        noise.add(noise.key(ids), 0, 1.0, &mut logits);
        logits
    }

    #[test]
    fn it_depends_on_the_whole_prefix_and_on_nothing_else() {
        let plain = of(NOISE, &[1, 2, 3]);
        assert_eq!(plain, of(NOISE, &[1, 2, 3]));
        let others = [
            of(NOISE, &[1, 2]),
            of(NOISE, &[2, 1, 3]),
            of(NOISE, &[0, 1, 2, 3]),
            of(NOISE, &[1, 2, 3, 0]),
            of(LogitNoise { seed: 4, ..NOISE }, &[1, 2, 3]),
            of(LogitNoise { draw: 2, ..NOISE }, &[1, 2, 3]),
        ];
        for (i, other) in others.iter().enumerate() {
            let same = plain.iter().zip(other).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
            assert!(same <= 1, "variant {i}: {same} of 61 values are the same");
        }
        // Keys one by one are those of the prefixes.
        let ids = [5, 9, 2, 2, 7];
        let want: Vec<u64> = (2..ids.len()).map(|len| NOISE.key(&ids[..len])).collect();
        assert_eq!(NOISE.keys(&ids, 2), want);
    }

    #[test]
    fn parts_have_the_bits_of_the_whole_and_temperature_scales() {
        let key = NOISE.key(&[4]);
        let whole = of(NOISE, &[4]);
        let mut part = vec![0.0; 13];
        NOISE.add(key, 24, 1.0, &mut part);
        assert_eq!(part, whole[24..37]);
        let mut warm = vec![0.0; 61];
        NOISE.add(key, 0, 0.5, &mut warm);
        assert!(whole.iter().zip(&warm).all(|(cold, warm)| 2.0 * cold == *warm));
    }

    /// The mean over contexts is zero for every id, and the deviation is what was asked for.
    #[test]
    fn zero_mean_over_contexts() {
        let n = 4000_u16;
        let mut sums = vec![[0.0_f64; 2]; 61];
        for context in 0..n {
            for (sum, x) in sums.iter_mut().zip(of(NOISE, &[u32::from(context), 7])) {
                *sum = [sum[0] + f64::from(x), sum[1] + f64::from(x) * f64::from(x)];
            }
        }
        for [sum, square] in sums {
            let (mean, deviation) = (sum / f64::from(n), (square / f64::from(n)).sqrt());
            // Standard errors .5 / sqrt(4000) = .0079 and half of .5 sqrt(2 / 4000); four and a half of each.
            assert!(mean.abs() < 0.036 && (deviation - 0.5).abs() < 0.026, "mean {mean}, deviation {deviation}");
        }
    }
}
