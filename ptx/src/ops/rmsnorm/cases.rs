//! Shapes that every device is tested on.

/// Rows of `dim` elements.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub dim: usize,
}

/// One row, tails of 16, rows shorter than 16, heads, and enough to be shared by threads.
pub const CASES: &[Case] = &[
    Case { rows: 0, dim: 8 },
    Case { rows: 1, dim: 1 },
    Case { rows: 3, dim: 7 },
    Case { rows: 1, dim: 16 },
    Case { rows: 5, dim: 17 },
    Case { rows: 2, dim: 100 },
    Case { rows: 300, dim: 128 },
    Case { rows: 1100, dim: 64 },
    Case { rows: 41, dim: 1024 },
    Case { rows: 23, dim: 2305 },
    Case { rows: 2, dim: 20_000 },
];
