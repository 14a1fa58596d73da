//! Shapes that every device is tested on.

/// Heads of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of tokens.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
}

/// One pair, half heads that are no whole vectors, a decode step, and enough to be shared by threads.
pub const CASES: &[Case] = &[
    Case { tokens: 0, heads: 2, head_dim: 4 },
    Case { tokens: 1, heads: 1, head_dim: 2 },
    Case { tokens: 3, heads: 2, head_dim: 6 },
    Case { tokens: 2, heads: 3, head_dim: 80 },
    Case { tokens: 1, heads: 16, head_dim: 128 },
    Case { tokens: 65, heads: 8, head_dim: 128 },
    Case { tokens: 201, heads: 4, head_dim: 64 },
];
