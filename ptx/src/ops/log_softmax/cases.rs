//! Shapes that every device is tested on.

use crate::rng::{Purpose, Stream};

/// One block of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Rows of the block.
    pub rows: usize,
    /// Columns of the block.
    pub vocab: usize,
    /// Columns that are ids.
    pub valid: usize,
    /// 1 / temperature.
    pub inv_temp: f32,
    /// Standard deviation of the logits.
    pub spread: f32,
}

const fn case(rows: usize, vocab: usize, valid: usize, inv_temp: f32, spread: f32) -> Case {
    Case { rows, vocab, valid, inv_temp, spread }
}

/// One id, less than a block, around a tile, several tiles, ragged tails, padding, flat and peaked rows.
pub const CASES: &[Case] = &[
    case(1, 1, 1, 1.0, 1.0),
    case(3, 5, 5, 1.0, 2.0),
    case(2, 16, 5, 0.5, 2.0),
    case(4, 33, 33, 1.0 / 0.7, 3.0),
    case(2, 1023, 1023, 1.0, 3.0),
    case(3, 1024, 1024, 2.0, 0.01),
    case(2, 1088, 1025, 1.0, 8.0),
    case(5, 4096, 3001, 1.0 / 1.3, 4.0),
    case(1, 20_000, 19_999, 1.0, 30.0),
];

/// The vocabulary of Qwen3: ids, padded embedding rows.
pub const QWEN3: Case = case(2, 151_936, 151_669, 1.0, 3.0);

/// Seeded logits with NaN in the padding: whoever reads it is found out. One in 16 is minus infinity when asked.
pub(crate) fn logits(case: &Case, seed: u64, masked: bool) -> Vec<f32> {
    let mut stream = Stream::new(seed, Purpose::Test, case.vocab as u64);
    let mut x = vec![f32::NAN; case.rows * case.vocab];
    for row in x.chunks_mut(case.vocab) {
        for (at, x) in row[..case.valid].iter_mut().enumerate() {
            let value = stream.normal() * case.spread;
            *x = if masked && at > 0 && stream.below(16) == 0 { f32::NEG_INFINITY } else { value };
        }
    }
    x
}
