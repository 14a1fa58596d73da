//! Sequences over the pool: they grow, fork and end; a shared page is copied before it is written.

use crate::prefix::PrefixIndex;
use crate::provenance::Stamps;
use crate::{Arena, Layout, PageId, PagePool, PoolExhausted, PrefixFound, PrefixStats, Provenance};

/// The pages of one sequence. Made, grown and ended by a [`KvCache`]; dropping one without [`KvCache::end`] leaks its
/// pages, which `KvCache::free_pages` shows.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<PageId>,
    table: Vec<u32>, // the same page numbers, as the kernels read them
    len: usize,
}

impl Sequence {
    /// Bytes of its tables for each of its pages.
    pub const BYTES_PER_PAGE: usize = size_of::<PageId>() + size_of::<u32>();

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

/// A page that a step must find copied: all of `from`, in every layer, over `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Read.
    pub from: PageId,
    /// Written.
    pub to: PageId,
}

/// Where the bytes of the pages are.
#[derive(Debug)]
enum Bytes {
    Here(Arena),
    /// On a device, which does the copies noted here, in this order, before it runs its next step.
    Elsewhere(Vec<PageCopy>),
}

/// Pages, who holds them, and their bytes.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    pool: PagePool,
    bytes: Bytes,
    stamps: Stamps,
    provenance: Provenance,
    index: PrefixIndex,
    reuse: bool,
}

impl KvCache {
    /// Bytes that the cache keeps beside a page: who holds it, what wrote it and its place in the prefix index. A page that
    /// the index holds costs its node and its tokens on top, some 150 bytes.
    pub const BYTES_PER_PAGE: usize = PagePool::BYTES_PER_PAGE + Stamps::BYTES_PER_PAGE + PrefixIndex::BYTES_PER_PAGE;

    /// A cache of `pages` pages with their bytes.
    #[must_use]
    pub fn new(layout: Layout, pages: usize) -> KvCache {
        let bytes = Bytes::Here(Arena::new(&layout, pages));
        KvCache::with(layout, pages, bytes)
    }

    /// A cache of `pages` pages whose bytes are on a device. A page that must be copied before it is written is noted for
    /// [`KvCache::take_copies`]; in all else it is as any other.
    #[must_use]
    pub fn without_bytes(layout: Layout, pages: usize) -> KvCache {
        KvCache::with(layout, pages, Bytes::Elsewhere(Vec::new()))
    }

    fn with(layout: Layout, pages: usize, bytes: Bytes) -> KvCache {
        let index = PrefixIndex::new(layout.page_len(), pages);
        KvCache {
            layout,
            pool: PagePool::new(pages),
            bytes,
            stamps: Stamps::new(pages),
            provenance: Provenance::default(),
            index,
            reuse: true,
        }
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its bytes.
    ///
    /// # Panics
    /// When they are on a device.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        match &self.bytes {
            Bytes::Here(arena) => arena,
            Bytes::Elsewhere(_) => panic!("the bytes of these pages are on a device"),
        }
    }

    /// Its bytes, for writing.
    ///
    /// # Panics
    /// When they are on a device.
    #[must_use]
    pub fn arena_mut(&mut self) -> &mut Arena {
        match &mut self.bytes {
            Bytes::Here(arena) => arena,
            Bytes::Elsewhere(_) => panic!("the bytes of these pages are on a device"),
        }
    }

    /// The copies that the device has yet to make, oldest first: each after those before it, and all before anything is
    /// written to a page. None where the bytes are here.
    pub fn take_copies(&mut self) -> impl Iterator<Item = PageCopy> {
        let noted = match &mut self.bytes {
            Bytes::Here(_) => None,
            Bytes::Elsewhere(copies) => Some(copies.drain(..)),
        };
        noted.into_iter().flatten()
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

    /// Pages that sequences can still get: free ones, and those that only the prefix index holds.
    #[must_use]
    pub fn available_pages(&self) -> usize {
        self.pool.free() + self.index.stats.idle_pages
    }

    /// What the places made from now on are written by.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        self.provenance
    }

    /// Says what the places made from now on are written by.
    pub fn set_provenance(&mut self, provenance: Provenance) {
        self.provenance = provenance;
    }

    /// Oldest and newest weights version written into `page`, unless it is free.
    #[must_use]
    pub fn page_versions(&self, page: PageId) -> Option<(u64, u64)> {
        if self.pool.refs(page) == 0 { None } else { self.stamps.get(page) }
    }

    /// Tokens of `sequence` in pages that a version before `version` wrote into: those older than it, rounded up to
    /// pages.
    #[must_use]
    pub fn stale_tokens(&self, sequence: &Sequence, version: u64) -> usize {
        let page_len = self.layout.page_len();
        let tokens = |(i, &page): (usize, &PageId)| match self.stamps.get(page) {
            Some((oldest, _)) if oldest < version => page_len.min(sequence.len - i * page_len),
            _ => 0,
        };
        sequence.pages.iter().enumerate().map(tokens).sum()
    }

    /// A sequence without tokens, whose tables have room for `tokens` tokens without growing.
    #[must_use]
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let pages = self.layout.pages_for(tokens);
        Sequence { pages: Vec::with_capacity(pages), table: Vec::with_capacity(pages), len: 0 }
    }

    /// Pages that must be available to append `tokens` tokens: fresh ones, and one more to copy a shared partial page.
    #[must_use]
    pub fn pages_to_append(&self, sequence: &Sequence, tokens: usize) -> usize {
        if tokens == 0 {
            return 0;
        }
        let fresh = self.layout.pages_for(sequence.len + tokens) - sequence.pages.len();
        fresh + usize::from(self.shared_tail(sequence).is_some())
    }

    /// Makes places for `tokens` more tokens, or changes nothing. The places may be written: nobody else reads them.
    /// Pages that only the prefix index holds are taken from it, the longest unused first.
    pub fn append(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), PoolExhausted> {
        let (want, available) = (self.pages_to_append(sequence, tokens), self.available_pages());
        if want > available {
            // With the index as the only other holder of the tail, its letting go makes the copy unnecessary.
            let tail = self.shared_tail(sequence).filter(|&tail| self.pool.refs(tail) == 2 && self.index.holds(tail));
            match tail {
                Some(tail) if want == available + 1 => self.index.let_go(&mut self.pool, tail),
                _ => return Err(PoolExhausted { want, available }),
            }
        }
        if tokens == 0 {
            return Ok(());
        }
        // Giving a page up can take the tail's entry with it, so what is wanted is counted anew.
        while self.pool.free() < self.pages_to_append(sequence, tokens) {
            self.index.evict(&mut self.pool);
        }
        if let Some(tail) = self.shared_tail(sequence) {
            let last = sequence.pages.len() - 1;
            sequence.pages.pop();
            self.pool.take(1, &mut sequence.pages)?;
            let to = sequence.pages[last];
            match &mut self.bytes {
                Bytes::Here(arena) => arena.copy_page(tail, to),
                Bytes::Elsewhere(copies) => copies.push(PageCopy { from: tail, to }),
            }
            self.stamps.copy(tail, sequence.pages[last]);
            self.release(tail);
            sequence.table[last] = sequence.pages[last].0;
        }
        let held = sequence.pages.len();
        self.pool.take(self.layout.pages_for(sequence.len + tokens) - held, &mut sequence.pages)?;
        sequence.table.extend(sequence.pages[held..].iter().map(|page| page.0));
        for &page in &sequence.pages[held..] {
            self.stamps.clear(page);
        }
        for &page in &sequence.pages[sequence.len / self.layout.page_len()..] {
            self.stamps.stamp(page, self.provenance.version);
        }
        sequence.len += tokens;
        Ok(())
    }

    /// Another sequence with the same tokens, which shares every page until one of the two writes. Its tables have
    /// room for `tokens` tokens.
    #[must_use]
    pub fn fork(&mut self, sequence: &Sequence, tokens: usize) -> Sequence {
        self.fork_prefix(sequence, sequence.len, tokens)
    }

    /// As [`KvCache::fork`], with the first `len` tokens only.
    ///
    /// # Panics
    /// When the sequence has fewer.
    #[must_use]
    pub fn fork_prefix(&mut self, sequence: &Sequence, len: usize, tokens: usize) -> Sequence {
        assert!(len <= sequence.len, "a prefix of {len} tokens of a sequence of {}", sequence.len);
        let mut copy = self.sequence(tokens.max(len));
        copy.pages.extend_from_slice(&sequence.pages[..self.layout.pages_for(len)]);
        self.hold(&mut copy, len);
        copy
    }

    /// Gives the pages of a sequence back.
    pub fn end(&mut self, mut sequence: Sequence) {
        self.clear(&mut sequence);
    }

    /// As [`KvCache::end`], keeping the empty sequence and its tables' room for reuse.
    pub fn clear(&mut self, sequence: &mut Sequence) {
        while let Some(page) = sequence.pages.pop() {
            self.release(page);
        }
        sequence.table.clear();
        sequence.len = 0;
    }

    /// Turns reuse of prefixes on, as it is at first, or off; off forgets all.
    pub fn set_prefix_reuse(&mut self, reuse: bool) {
        self.reuse = reuse;
        if !reuse {
            self.index.retain(&mut self.pool, |_| false);
        }
    }

    /// The longest prefix of `tokens[..most]` computed under `provenance`, without sharing it.
    #[must_use]
    pub fn find_prefix(&self, provenance: Provenance, tokens: &[u32], most: usize) -> PrefixFound {
        let mut idle_pages = 0;
        let count = |page| idle_pages += usize::from(self.pool.refs(page) == 1);
        let tokens = self.index.find(provenance, &tokens[..most.min(tokens.len())], count);
        PrefixFound { tokens, idle_pages }
    }

    /// A sequence of the longest prefix of `tokens[..most]` computed under `provenance`; empty if there is none. Its
    /// tables have room for `room_tokens` tokens. With `most` below the number of tokens at least one is left to compute.
    #[must_use]
    pub fn share_prefix(
        &mut self,
        provenance: Provenance,
        tokens: &[u32],
        most: usize,
        room_tokens: usize,
    ) -> Sequence {
        let mut sequence = self.sequence(room_tokens);
        if self.reuse {
            let pages = &mut sequence.pages;
            let len = self.index.find(provenance, &tokens[..most.min(tokens.len())], |page| pages.push(page));
            self.hold(&mut sequence, len);
            self.index.stats.lookups += 1;
            self.index.stats.hits += u64::from(len > 0);
            self.index.stats.hit_tokens += len as u64;
        }
        sequence
    }

    /// Remembers the keys and values of `tokens`, which `sequence` begins with and which were computed wholly under
    /// `provenance`, for [`KvCache::share_prefix`]. Again is no harm.
    ///
    /// # Panics
    /// When the sequence has fewer tokens, or its pages are remembered under another provenance.
    pub fn remember(&mut self, provenance: Provenance, tokens: &[u32], sequence: &Sequence) {
        assert!(tokens.len() <= sequence.len, "{} tokens of a sequence of {}", tokens.len(), sequence.len);
        if self.reuse && !tokens.is_empty() {
            self.index.remember(&mut self.pool, provenance, tokens, &sequence.pages);
        }
    }

    /// Forgets the prefixes of `provenance`.
    pub fn forget(&mut self, provenance: Provenance) {
        self.index.retain(&mut self.pool, |of| *of != provenance);
    }

    /// Forgets the prefixes of every other weights version.
    pub fn forget_all_but(&mut self, version: u64) {
        self.index.retain(&mut self.pool, |of| of.version == version);
    }

    /// Forgets the prefixes of weights versions before `version`.
    pub fn forget_before(&mut self, version: u64) {
        self.index.retain(&mut self.pool, |of| of.version >= version);
    }

    /// Counts of the prefix index.
    #[must_use]
    pub fn prefix_stats(&self) -> PrefixStats {
        self.index.stats
    }

    /// Makes `sequence`, whose pages others hold and whose table is empty, one more holder of them.
    fn hold(&mut self, sequence: &mut Sequence, len: usize) {
        for &page in &sequence.pages {
            self.index.wake(page);
            self.pool.share(page);
            sequence.table.push(page.0);
        }
        sequence.len = len;
    }

    fn release(&mut self, page: PageId) {
        self.pool.release(page);
        if self.pool.refs(page) == 1 {
            self.index.rest(page);
        }
    }

    /// The last page, if tokens are still to be written into it and somebody else holds it too.
    fn shared_tail(&self, sequence: &Sequence) -> Option<PageId> {
        let tail = *sequence.pages.last()?;
        let partial = !sequence.len.is_multiple_of(self.layout.page_len());
        (partial && self.pool.refs(tail) > 1).then_some(tail)
    }
}
