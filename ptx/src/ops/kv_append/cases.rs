//! Shapes that every device is tested on.

use crate::DType;
use crate::kv_tile::{KvScale, KvShape};

/// One shape, with the (first position, row count) of each sequence's span.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Shape of the pages.
    pub pages: KvShape,
    /// First position and rows of each span.
    pub spans: &'static [(usize, usize)],
}

const fn pages(kv_heads: usize, head_dim: usize, page_len: usize, k: DType, v: DType) -> KvShape {
    KvShape { kv_heads, head_dim, page_len, k, v, scale: KvScale::Static }
}

/// The pages with scales by token.
const fn by_token(pages: KvShape) -> KvShape {
    KvShape { scale: KvScale::Token, ..pages }
}

/// The table.
pub const CASES: &[Case] = &[
    Case { pages: pages(1, 16, 16, DType::F32, DType::F32), spans: &[(0, 1)] },
    Case { pages: pages(2, 64, 16, DType::Bf16, DType::Bf16), spans: &[(0, 33), (15, 2), (16, 1)] },
    Case { pages: pages(2, 64, 4, DType::E4m3, DType::E4m3), spans: &[(3, 1), (2, 7), (0, 4), (8, 1)] },
    Case { pages: pages(3, 80, 1, DType::E4m3, DType::Bf16), spans: &[(1, 3)] },
    Case { pages: pages(2, 20, 8, DType::F32, DType::E4m3), spans: &[(5, 30)] },
    Case { pages: pages(8, 128, 16, DType::Bf16, DType::E4m3), spans: &[(250, 70), (0, 100)] },
    Case { pages: pages(4, 128, 256, DType::E4m3, DType::F32), spans: &[(200, 100), (7, 1)] },
    Case { pages: pages(2, 64, 16, DType::E5m2, DType::E5m2), spans: &[(15, 30), (0, 1)] },
    Case { pages: pages(3, 33, 2, DType::E5m2, DType::E4m3), spans: &[(1, 9)] },
    Case { pages: by_token(pages(2, 64, 16, DType::E4m3, DType::E4m3)), spans: &[(0, 33), (15, 2), (16, 1)] },
    Case { pages: by_token(pages(3, 80, 1, DType::E5m2, DType::E5m2)), spans: &[(1, 3), (0, 2)] },
    Case { pages: by_token(pages(2, 129, 256, DType::E5m2, DType::E4m3)), spans: &[(250, 70)] },
    Case { pages: by_token(pages(4, 20, 8, DType::E4m3, DType::Bf16)), spans: &[(5, 30)] },
    Case { pages: by_token(pages(8, 128, 32, DType::F32, DType::E5m2)), spans: &[(3, 60)] },
];
