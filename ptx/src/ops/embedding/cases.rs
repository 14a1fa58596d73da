//! Shapes that every device is tested on.

/// Tokens looked up in a table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of tokens.
    pub tokens: usize,
    /// Rows of the table.
    pub vocab: u32,
    /// Elements of a row.
    pub hidden: usize,
}

/// One token, ragged rows, tables smaller than the batch (repeated ids), and enough to be shared by threads.
pub const CASES: &[Case] = &[
    Case { tokens: 0, vocab: 3, hidden: 8 },
    Case { tokens: 1, vocab: 1, hidden: 1 },
    Case { tokens: 9, vocab: 4, hidden: 37 },
    Case { tokens: 40, vocab: 1000, hidden: 64 },
    Case { tokens: 70, vocab: 11, hidden: 1030 },
];
