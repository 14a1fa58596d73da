//! Sizes that every device is tested on.

/// Lengths: none, one, tails of vectors, ragged last tasks, and enough to be shared by threads.
pub const LENGTHS: &[usize] = &[0, 1, 7, 16, 100, 4097, 16_385, 50_001];

/// Rows and their width: none, one value, tails of vectors, ragged last tasks, a row longer than a task, and enough to
/// be shared by threads.
pub const ROWS: &[(usize, usize)] = &[(0, 5), (1, 1), (9, 1), (1, 4097), (7, 33), (65, 576), (2, 20_000), (300, 129)];
