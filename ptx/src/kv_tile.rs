//! placeholder, replaced by merge
use crate::DType;
use std::ops::Range;
/// Shape of one layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// a
    pub kv_heads: usize,
    /// a
    pub head_dim: usize,
    /// a
    pub page_len: usize,
    /// a
    pub k: DType,
    /// a
    pub v: DType,
}
impl KvShape {
    /// a
    pub fn page_bytes(&self) -> usize {
        self.kv_heads * self.page_len * self.head_dim * (self.k.bytes() + self.v.bytes())
    }
    /// a
    pub fn k_tile(&self, page: u32, head: usize) -> Range<usize> {
        let t = self.page_len * self.head_dim * self.k.bytes();
        let s = page as usize * self.page_bytes() + head * t;
        s..s + t
    }
}
