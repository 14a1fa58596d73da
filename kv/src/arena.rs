//! The bytes of the pages: one allocation a layer.

use crate::{Layout, PageId};

/// Page bytes, by layer. Fresh pages are zero bytes that the system has not yet made resident.
#[derive(Debug)]
pub struct Arena {
    layers: Vec<Vec<u8>>,
    page_bytes: Vec<usize>,
}

impl Arena {
    /// Room for `pages` pages of `layout`.
    #[must_use]
    pub fn new(layout: &Layout, pages: usize) -> Arena {
        let page_bytes: Vec<usize> = layout.layers().iter().map(ptx::kv_tile::KvShape::page_bytes).collect();
        Arena { layers: page_bytes.iter().map(|bytes| vec![0; bytes * pages]).collect(), page_bytes }
    }

    /// All pages of `layer`.
    #[must_use]
    pub fn layer(&self, layer: usize) -> &[u8] {
        &self.layers[layer]
    }

    /// All pages of `layer`, for writing.
    #[must_use]
    pub fn layer_mut(&mut self, layer: usize) -> &mut [u8] {
        &mut self.layers[layer]
    }

    /// Copies page `from` over page `to`, in every layer.
    pub fn copy_page(&mut self, from: PageId, to: PageId) {
        for (bytes, &size) in self.layers.iter_mut().zip(&self.page_bytes) {
            let (from, to) = (from.0 as usize * size, to.0 as usize * size);
            bytes.copy_within(from..from + size, to);
        }
    }

    /// Overwrites every byte with 0xff, which is NaN in every page format, so that a read of a slot that nothing wrote
    /// shows. For tests.
    pub fn poison(&mut self) {
        for bytes in &mut self.layers {
            bytes.fill(0xff);
        }
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}
