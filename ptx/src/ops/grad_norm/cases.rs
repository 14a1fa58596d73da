//! Sizes that every device is tested on.

/// Lengths: none, one, tails of vectors, ragged last tasks, and enough to be shared by threads.
pub const LENGTHS: &[usize] = &[0, 1, 7, 16, 100, 4097, 16_385, 50_001];
