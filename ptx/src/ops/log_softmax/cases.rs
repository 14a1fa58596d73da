//! Shapes that every device is tested on.

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
