//! Shapes that every device is tested on.

use crate::DType;
use crate::kv_tile::{KvScale, KvShape};

/// One shape, with the (first position, row count) of each sequence's span.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Query heads.
    pub heads: usize,
    /// Shape of the pages.
    pub pages: KvShape,
    /// First position and rows of each span.
    pub spans: &'static [(usize, usize)],
}

const fn case(
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    page_len: usize,
    formats: (DType, DType),
    spans: &'static [(usize, usize)],
) -> Case {
    let pages = KvShape { kv_heads, head_dim, page_len, k: formats.0, v: formats.1, scale: KvScale::Static };
    Case { heads, pages, spans }
}

const F32: (DType, DType) = (DType::F32, DType::F32);
const BF16: (DType, DType) = (DType::Bf16, DType::Bf16);
const E4M3: (DType, DType) = (DType::E4m3, DType::E4m3);

/// The table: one row and many, tails of pages and chunks, groups of 1, 2, 3 and 7 heads, every format and page size.
pub const CASES: &[Case] = &[
    case(1, 1, 16, 16, F32, &[(0, 1)]),
    case(2, 1, 32, 16, BF16, &[(0, 17), (254, 3)]),
    case(3, 1, 48, 4, E4M3, &[(0, 5), (255, 1), (256, 1)]),
    case(7, 1, 64, 16, E4M3, &[(0, 16), (299, 1), (15, 2)]),
    case(4, 2, 80, 8, (DType::E4m3, DType::Bf16), &[(40, 25)]),
    case(2, 2, 128, 64, (DType::Bf16, DType::E4m3), &[(0, 70), (511, 2)]),
    case(4, 2, 64, 256, F32, &[(200, 100), (255, 1)]),
    case(6, 3, 20, 2, BF16, &[(0, 33)]),
    case(4, 4, 64, 32, (DType::F32, DType::E4m3), &[(599, 1), (0, 1), (255, 2)]),
    case(2, 1, 128, 1, E4M3, &[(257, 9)]),
    case(14, 2, 64, 16, BF16, &[(0, 120)]),
];
