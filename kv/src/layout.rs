//! How many bytes a page takes in each layer, and how many tokens a number of bytes holds: the one place that knows.

use ptx::kv_tile::KvShape;

/// Shapes of all layers; every layer has the same tokens per page and its own bytes per page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    page_len: usize,
    layers: Vec<KvShape>,
}

/// What a pool of some size holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Whole pages, each spanning all layers.
    pub pages: usize,
    /// Token places: pages times tokens per page.
    pub tokens: usize,
}

impl Layout {
    /// The layout of `layers`.
    ///
    /// # Panics
    /// When there is no layer, or layers differ in tokens per page.
    #[must_use]
    pub fn new(layers: Vec<KvShape>) -> Layout {
        let page_len = layers.first().expect("a model has layers").page_len;
        assert!(layers.iter().all(|l| l.page_len == page_len), "all layers have the same tokens per page");
        Layout { page_len, layers }
    }

    /// Tokens per page.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Shapes, by layer.
    #[must_use]
    pub fn layers(&self) -> &[KvShape] {
        &self.layers
    }

    /// Bytes of one page over all layers.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().map(KvShape::page_bytes).sum()
    }

    /// Pages that `tokens` tokens of one sequence occupy.
    #[must_use]
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_len)
    }

    /// What fits in `bytes`.
    #[must_use]
    pub fn capacity(&self, bytes: usize) -> Capacity {
        let pages = bytes / self.page_bytes();
        Capacity { pages, tokens: pages * self.page_len }
    }
}
