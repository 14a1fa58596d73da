//! Shapes that every device is tested on.

/// One product: `m` rows of x, `n` outputs, `k` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Rows of x.
    pub m: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// Odd sizes, single rows, tails of panels, of k blocks and of blocks of scales, the row counts around which the CPU
/// takes another path (24 and 25), and sizes that are shared among threads.
pub const CASES: &[Case] = &[
    Case { m: 1, n: 1, k: 1 },
    Case { m: 1, n: 33, k: 31 },
    Case { m: 1, n: 576, k: 576 },
    Case { m: 2, n: 31, k: 100 },
    Case { m: 2, n: 576, k: 257 },
    Case { m: 3, n: 100, k: 33 },
    Case { m: 5, n: 96, k: 300 },
    Case { m: 6, n: 130, k: 576 },
    Case { m: 7, n: 576, k: 31 },
    Case { m: 8, n: 100, k: 576 },
    Case { m: 9, n: 33, k: 100 },
    Case { m: 12, n: 64, k: 512 },
    Case { m: 13, n: 65, k: 513 },
    Case { m: 32, n: 1, k: 576 },
    Case { m: 32, n: 100, k: 100 },
    Case { m: 65, n: 31, k: 1 },
    Case { m: 65, n: 96, k: 300 },
    Case { m: 300, n: 33, k: 31 },
    Case { m: 1, n: 128, k: 128 },
    Case { m: 1, n: 257, k: 385 },
    Case { m: 24, n: 130, k: 200 },
    Case { m: 25, n: 130, k: 200 },
    Case { m: 300, n: 33, k: 257 },
];
