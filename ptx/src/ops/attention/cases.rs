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

/// The case with scales by token.
const fn by_token(case: Case) -> Case {
    Case { pages: KvShape { scale: KvScale::Token, ..case.pages }, ..case }
}

const F32: (DType, DType) = (DType::F32, DType::F32);
const BF16: (DType, DType) = (DType::Bf16, DType::Bf16);
const E4M3: (DType, DType) = (DType::E4m3, DType::E4m3);
const E5M2: (DType, DType) = (DType::E5m2, DType::E5m2);

/// The table: one row and many, tails of pages and chunks, groups of 1, 2, 3 and 7 heads, every format, page size and
/// kind of scale.
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
    case(3, 1, 48, 16, E5M2, &[(0, 5), (255, 1), (256, 1)]),
    case(4, 2, 64, 32, E5M2, &[(40, 65), (511, 2)]),
    case(2, 2, 36, 1, (DType::E5m2, DType::E4m3), &[(255, 3)]),
    by_token(case(7, 1, 64, 16, E4M3, &[(0, 16), (299, 1), (15, 2)])),
    by_token(case(4, 2, 128, 256, E4M3, &[(200, 100), (255, 1), (256, 1)])),
    by_token(case(2, 1, 80, 1, E4M3, &[(255, 4)])),
    by_token(case(6, 3, 20, 2, E5M2, &[(0, 33)])),
    by_token(case(14, 2, 64, 16, E5M2, &[(0, 120), (520, 1)])),
    by_token(case(4, 2, 48, 64, (DType::E5m2, DType::Bf16), &[(40, 25), (300, 1)])),
    by_token(case(4, 4, 33, 8, (DType::F32, DType::E5m2), &[(13, 9)])),
    by_token(case(2, 2, 64, 128, (DType::E4m3, DType::E5m2), &[(0, 70), (511, 2)])),
];
