//! Sequences over the pool: they grow, fork and end; a shared page is copied before it is written.

use crate::{Arena, Layout, PageId, PagePool, PoolExhausted};

/// The pages of one sequence. Made, grown and ended by a [`KvCache`]; dropping one without [`KvCache::end`] leaks its
/// pages, which `KvCache::free_pages` shows.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<PageId>,
    table: Vec<u32>, // the same page numbers, as the kernels read them
    len: usize,
}

impl Sequence {
    /// Tokens whose places it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its page numbers in order.
    #[must_use]
    pub fn block_table(&self) -> &[u32] {
        &self.table
    }
}

/// Pages, who holds them, and their bytes.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    pool: PagePool,
    arena: Arena,
}

impl KvCache {
    /// A cache of `pages` pages.
    #[must_use]
    pub fn new(layout: Layout, pages: usize) -> KvCache {
        let arena = Arena::new(&layout, pages);
        KvCache { layout, pool: PagePool::new(pages), arena }
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its bytes.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Its bytes, for writing.
    #[must_use]
    pub fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// Pages in all.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pool.len()
    }

    /// Pages that nobody holds.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.pool.free()
    }

    /// A sequence without tokens, whose tables have room for `tokens` tokens without growing.
    #[must_use]
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let pages = self.layout.pages_for(tokens);
        Sequence { pages: Vec::with_capacity(pages), table: Vec::with_capacity(pages), len: 0 }
    }

    /// Pages that must be free to append `tokens` tokens: fresh ones, and one more to copy a shared partial page.
    #[must_use]
    pub fn pages_to_append(&self, sequence: &Sequence, tokens: usize) -> usize {
        if tokens == 0 {
            return 0;
        }
        let fresh = self.layout.pages_for(sequence.len + tokens) - sequence.pages.len();
        fresh + usize::from(self.shared_tail(sequence).is_some())
    }

    /// Makes places for `tokens` more tokens, or changes nothing. The places may be written: nobody else reads them.
    pub fn append(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), PoolExhausted> {
        let want = self.pages_to_append(sequence, tokens);
        let free = self.pool.free();
        if want > free {
            return Err(PoolExhausted { want, free });
        }
        if tokens > 0
            && let Some(tail) = self.shared_tail(sequence)
        {
            let last = sequence.pages.len() - 1;
            sequence.pages.pop();
            self.pool.take(1, &mut sequence.pages)?;
            self.arena.copy_page(tail, sequence.pages[last]);
            self.pool.release(tail);
            sequence.table[last] = sequence.pages[last].0;
        }
        let held = sequence.pages.len();
        self.pool.take(self.layout.pages_for(sequence.len + tokens) - held, &mut sequence.pages)?;
        sequence.table.extend(sequence.pages[held..].iter().map(|page| page.0));
        sequence.len += tokens;
        Ok(())
    }

    /// Another sequence with the same tokens, which shares every page until one of the two writes. Its tables have
    /// room for `tokens` tokens.
    #[must_use]
    pub fn fork(&mut self, sequence: &Sequence, tokens: usize) -> Sequence {
        let mut copy = self.sequence(tokens.max(sequence.len));
        for &page in &sequence.pages {
            self.pool.share(page);
        }
        copy.pages.extend_from_slice(&sequence.pages);
        copy.table.extend_from_slice(&sequence.table);
        copy.len = sequence.len;
        copy
    }

    /// Gives the pages of a sequence back.
    pub fn end(&mut self, mut sequence: Sequence) {
        self.clear(&mut sequence);
    }

    /// As [`KvCache::end`], keeping the empty sequence and its tables' room for reuse.
    pub fn clear(&mut self, sequence: &mut Sequence) {
        for page in sequence.pages.drain(..) {
            self.pool.release(page);
        }
        sequence.table.clear();
        sequence.len = 0;
    }

    /// The last page, if tokens are still to be written into it and somebody else holds it too.
    fn shared_tail(&self, sequence: &Sequence) -> Option<PageId> {
        let tail = *sequence.pages.last()?;
        let partial = !sequence.len.is_multiple_of(self.layout.page_len());
        (partial && self.pool.refs(tail) > 1).then_some(tail)
    }
}
