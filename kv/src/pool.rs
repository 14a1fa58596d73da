//! Which pages are free. Knows page numbers only: no bytes, no tokens, no models.
//!
//! Invariant: a page is in `free` or has `refs > 0`; never both, never neither.

/// A page of the pool; it spans all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// The pool has fewer pages to give than were asked for; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV pool has {available} pages to give, {want} were asked for")]
pub struct PoolExhausted {
    /// Pages asked for.
    pub want: usize,
    /// Pages that are free or that the prefix index would give up.
    pub available: usize,
}

/// Reference counts and the free list.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    refs: Vec<u32>, // by page
}

impl PagePool {
    /// Bytes of its own for each page: an entry of the free list and a count of holders.
    pub const BYTES_PER_PAGE: usize = size_of::<PageId>() + size_of::<u32>();

    /// A pool of `pages` free pages.
    ///
    /// # Panics
    /// When `pages` exceeds `u32`.
    #[must_use]
    pub fn new(pages: usize) -> PagePool {
        let count = u32::try_from(pages).expect("page numbers are u32");
        PagePool { free: (0..count).rev().map(PageId).collect(), refs: vec![0; pages] }
    }

    /// Pages in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.refs.len()
    }

    /// True for a pool of no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// Free pages.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Holders of `page`.
    #[must_use]
    pub fn refs(&self, page: PageId) -> u32 {
        self.refs[page.0 as usize]
    }

    /// Appends `want` pages to `into`, or none, so that no caller ever holds half a sequence.
    ///
    /// # Panics
    /// When the invariant is broken.
    pub fn take(&mut self, want: usize, into: &mut Vec<PageId>) -> Result<(), PoolExhausted> {
        let available = self.free.len();
        let keep = available.checked_sub(want).ok_or(PoolExhausted { want, available })?;
        for page in self.free.drain(keep..).rev() {
            let refs = &mut self.refs[page.0 as usize];
            assert_eq!(*refs, 0, "{page:?} was both free and in use");
            *refs = 1;
            into.push(page);
        }
        Ok(())
    }

    /// One more holder of `page`.
    ///
    /// # Panics
    /// When the page is free.
    pub fn share(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "{page:?} is free and cannot be shared");
        *refs += 1;
    }

    /// One holder less; the last one frees it.
    ///
    /// # Panics
    /// When the page is free already.
    pub fn release(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "{page:?} was released twice");
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
        }
    }
}
