//! How many bytes a page takes in each layer, and how many tokens a number of bytes holds: the one place that knows.

use ptx::DType;
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

/// Pages of the samples of one prompt, each held to its longest length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whole pages of the prompt, which all samples share.
    pub shared: usize,
    /// Pages of each sample: the prompt's partial page, which is copied, and what follows.
    pub own: usize,
}

impl Group {
    /// Pages of `samples` samples together.
    #[must_use]
    pub fn pages(&self, samples: usize) -> usize {
        self.shared.saturating_add(self.own.saturating_mul(samples))
    }
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
        // Shapes far beyond any machine must not wrap to a small page.
        self.layers.iter().map(KvShape::page_bytes).fold(0, usize::saturating_add)
    }

    /// Bytes that one token takes in each layer, scales included: a page's bytes over its tokens, which is exact since
    /// the tokens of a page are a power of two.
    pub fn token_bytes(&self) -> impl ExactSizeIterator<Item = f64> {
        self.layers.iter().map(|layer| layer.page_bytes() as f64 / self.page_len as f64)
    }

    /// Bytes that one token takes in all layers.
    #[must_use]
    pub fn token_bytes_total(&self) -> f64 {
        self.page_bytes() as f64 / self.page_len as f64
    }

    /// Pages that `tokens` tokens of one sequence occupy.
    #[must_use]
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_len)
    }

    /// What fits in `bytes`.
    #[must_use]
    pub fn capacity(&self, bytes: usize) -> Capacity {
        self.capacity_beside(bytes, 0)
    }

    /// What fits in `bytes` when each page takes `beside` bytes more elsewhere.
    #[must_use]
    pub fn capacity_beside(&self, bytes: usize, beside: usize) -> Capacity {
        let pages = bytes / self.page_bytes().saturating_add(beside);
        Capacity { pages, tokens: pages * self.page_len }
    }

    /// The same pages with every key and value in bf16: what ratios are measured against.
    #[must_use]
    pub fn as_bf16(&self) -> Layout {
        let bf16 = |layer: &KvShape| KvShape { k: DType::Bf16, v: DType::Bf16, ..*layer };
        Layout { page_len: self.page_len, layers: self.layers.iter().map(bf16).collect() }
    }

    /// Tokens over those of [`Layout::as_bf16`] in the same `bytes`, both in whole pages; none when bf16 has no page.
    #[must_use]
    pub fn ratio_to_bf16(&self, bytes: usize) -> Option<f64> {
        let bf16 = self.as_bf16().capacity(bytes).tokens;
        (bf16 > 0).then(|| self.capacity(bytes).tokens as f64 / bf16 as f64)
    }

    /// Sequences of `tokens` tokens, nothing shared, that `pages` pages hold at a time.
    ///
    /// # Panics
    /// When `tokens` is 0: such sequences are without number.
    #[must_use]
    pub fn sequences(&self, pages: usize, tokens: usize) -> usize {
        pages / self.pages_for(tokens)
    }

    /// What samples of one prompt of `prompt` tokens take that grow to `tokens` tokens each, the prompt included.
    #[must_use]
    pub fn group(&self, prompt: usize, tokens: usize) -> Group {
        let shared = prompt / self.page_len;
        Group { shared, own: self.pages_for(tokens) - shared }
    }

    /// Places that a sequence leaves empty in its last page, on average over lengths.
    #[must_use]
    pub fn tail_waste(&self) -> f64 {
        (self.page_len - 1) as f64 / 2.0
    }
}
