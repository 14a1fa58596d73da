//! What made the bytes of a page.

use crate::PageId;

/// The weights and the formats that keys and values were computed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Provenance {
    /// Weights version.
    pub version: u64,
    /// Hash of the recipe.
    pub recipe: [u8; 32],
}

/// Oldest and newest version written into each page.
#[derive(Debug)]
pub(crate) struct Stamps(Vec<Option<(u64, u64)>>); // by page

impl Stamps {
    pub(crate) const BYTES_PER_PAGE: usize = size_of::<Option<(u64, u64)>>();

    pub(crate) fn new(pages: usize) -> Stamps {
        Stamps(vec![None; pages])
    }

    pub(crate) fn get(&self, page: PageId) -> Option<(u64, u64)> {
        self.0[page.0 as usize]
    }

    /// `version` is written into `page`.
    pub(crate) fn stamp(&mut self, page: PageId, version: u64) {
        let stamp = &mut self.0[page.0 as usize];
        *stamp = Some(stamp.map_or((version, version), |(old, new)| (old.min(version), new.max(version))));
    }

    /// `to` has become a copy of `from`.
    pub(crate) fn copy(&mut self, from: PageId, to: PageId) {
        self.0[to.0 as usize] = self.0[from.0 as usize];
    }

    pub(crate) fn clear(&mut self, page: PageId) {
        self.0[page.0 as usize] = None;
    }
}
