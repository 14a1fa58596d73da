//! Which pages hold the keys and values of which tokens, so that a prompt that begins like an earlier one starts there.
//!
//! A tree over pages, one root for each [`Provenance`]. A node holds one reference to one page and the page's tokens,
//! `page_len` of them or fewer at the end of what was remembered; its path from the root spells the whole prefix.
//! Siblings are ordered by their tokens and none begins another, so the sibling with the longest common beginning is
//! next to where the tokens looked for would stand, and a match is always a comparison of the tokens themselves.
//!
//! A page held by the index alone is idle. Idle nodes stand in a list in the order in which their last sequence left
//! them; a sequence leaves its last page first, so a leaf is older than what it hangs on. The oldest goes first when
//! pages are short, with whatever hangs on it.

use crate::{PageId, PagePool, Provenance};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    parent: u32,
    page: Option<PageId>, // a root has none
    tokens: Vec<u32>,
    children: Vec<u32>, // ordered by their tokens
    idle: bool,
    older: u32, // neighbours among the idle
    newer: u32,
}

/// Counts of a prefix index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Times a prefix was asked for.
    pub lookups: u64,
    /// Times at least one token was there.
    pub hits: u64,
    /// Tokens that were there, over all lookups.
    pub hit_tokens: u64,
    /// Pages given up because sequences needed them.
    pub evicted: u64,
    /// Pages the index holds, one a node.
    pub pages: usize,
    /// Pages among them that nobody else holds.
    pub idle_pages: usize,
}

/// What a lookup would find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixFound {
    /// Tokens of the longest prefix.
    pub tokens: usize,
    /// Idle pages among those it lies in: sharing it makes so many fewer available.
    pub idle_pages: usize,
}

#[derive(Debug)]
pub(crate) struct PrefixIndex {
    page_len: usize,
    nodes: Vec<Node>,
    vacant: Vec<u32>, // has room for every node, so that giving pages up allocates nothing
    roots: Vec<(Provenance, u32)>,
    node_of: Vec<u32>, // by page: a page is in one node at most
    oldest: u32,
    newest: u32,
    pub(crate) stats: PrefixStats,
}

impl PrefixIndex {
    /// Without nodes.
    pub(crate) const BYTES_PER_PAGE: usize = size_of::<u32>();

    pub(crate) fn new(page_len: usize, pages: usize) -> PrefixIndex {
        PrefixIndex {
            page_len,
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: Vec::new(),
            node_of: vec![NONE; pages],
            oldest: NONE,
            newest: NONE,
            stats: PrefixStats::default(),
        }
    }

    pub(crate) fn holds(&self, page: PageId) -> bool {
        self.node_of[page.0 as usize] != NONE
    }

    /// Visits the pages of the longest prefix of `tokens`; returns its length in tokens.
    pub(crate) fn find(&self, provenance: Provenance, tokens: &[u32], mut visit: impl FnMut(PageId)) -> usize {
        let Some(mut at) = self.root(provenance) else { return 0 };
        let mut found = 0;
        while found < tokens.len() {
            let query = &tokens[found..tokens.len().min(found + self.page_len)];
            let Some((child, common)) = self.nearest(at, query) else { break };
            visit(self.nodes[child as usize].page.expect("only a root has none"));
            found += common;
            if common < self.page_len {
                break;
            }
            at = child;
        }
        found
    }

    /// Remembers that `pages` hold `tokens`. Pages that it has already for the same tokens stay.
    pub(crate) fn remember(&mut self, pool: &mut PagePool, provenance: Provenance, tokens: &[u32], pages: &[PageId]) {
        let mut at = self.root(provenance).unwrap_or_else(|| {
            let root = self.insert(Node::new(NONE, None, &[]));
            self.roots.push((provenance, root));
            root
        });
        for (tokens, &page) in tokens.chunks(self.page_len).zip(pages) {
            let place = self.place(at, tokens);
            let children = &self.nodes[at as usize].children;
            if let Some(&next) = children.get(place)
                && self.nodes[next as usize].tokens.starts_with(tokens)
            {
                at = next;
                continue;
            }
            if let Some(&before) = place.checked_sub(1).and_then(|i| children.get(i))
                && tokens.starts_with(&self.nodes[before as usize].tokens)
            {
                self.replace(pool, before, tokens, page);
                at = before;
                continue;
            }
            let child = self.insert(Node::new(at, None, tokens));
            self.nodes[at as usize].children.insert(place, child);
            self.hold(pool, child, page);
            at = child;
        }
    }

    /// Forgets every prefix whose provenance is not wanted.
    pub(crate) fn retain(&mut self, pool: &mut PagePool, wanted: impl Fn(&Provenance) -> bool) {
        let mut i = 0;
        while i < self.roots.len() {
            if wanted(&self.roots[i].0) {
                i += 1;
            } else {
                let (_, root) = self.roots.swap_remove(i);
                self.remove(pool, root);
            }
        }
    }

    /// The last sequence has left `page`.
    pub(crate) fn rest(&mut self, page: PageId) {
        let mut at = self.node_of[page.0 as usize];
        if at == NONE {
            return;
        }
        self.link(at);
        self.stats.idle_pages += 1;
        self.nodes[at as usize].idle = true;
        // What it hangs on goes after it, also where another sequence with the same tokens left that before.
        loop {
            at = self.nodes[at as usize].parent;
            if !self.nodes[at as usize].idle {
                break;
            }
            self.unlink(at);
            self.link(at);
        }
    }

    /// A first sequence takes `page`, if it is idle.
    pub(crate) fn wake(&mut self, page: PageId) {
        let at = self.node_of[page.0 as usize];
        if at != NONE && self.nodes[at as usize].idle {
            self.unlink(at);
            self.stats.idle_pages -= 1;
            self.nodes[at as usize].idle = false;
        }
    }

    /// Gives the oldest idle page up.
    pub(crate) fn evict(&mut self, pool: &mut PagePool) {
        assert_ne!(self.oldest, NONE, "pages were counted as available that are not");
        let before = self.stats.pages;
        self.remove(pool, self.oldest);
        self.stats.evicted += (before - self.stats.pages) as u64;
    }

    /// Gives `page` up, and what hangs on it.
    pub(crate) fn let_go(&mut self, pool: &mut PagePool, page: PageId) {
        let before = self.stats.pages;
        self.remove(pool, self.node_of[page.0 as usize]);
        self.stats.evicted += (before - self.stats.pages) as u64;
    }

    fn root(&self, provenance: Provenance) -> Option<u32> {
        self.roots.iter().find(|(p, _)| *p == provenance).map(|&(_, root)| root)
    }

    /// Where among the children of `at` one with `tokens` stands or would stand.
    fn place(&self, at: u32, tokens: &[u32]) -> usize {
        let children = &self.nodes[at as usize].children;
        children.partition_point(|&child| self.nodes[child as usize].tokens.as_slice() < tokens)
    }

    /// The child of `at` that shares the most first tokens with `query`, and how many, if any.
    fn nearest(&self, at: u32, query: &[u32]) -> Option<(u32, usize)> {
        let place = self.place(at, query);
        let children = &self.nodes[at as usize].children;
        let common = |child: u32| {
            let pairs = self.nodes[child as usize].tokens.iter().zip(query);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let candidates = [children.get(place), place.checked_sub(1).and_then(|i| children.get(i))];
        let with_common = candidates.into_iter().flatten().map(|&child| (child, common(child)));
        with_common.filter(|&(_, common)| common > 0).max_by_key(|&(_, common)| common)
    }

    fn insert(&mut self, node: Node) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            self.nodes[slot as usize] = node;
            return slot;
        }
        self.nodes.push(node);
        self.vacant.reserve(self.nodes.len());
        u32::try_from(self.nodes.len() - 1).expect("a node is a page or a root, and both are u32")
    }

    fn hold(&mut self, pool: &mut PagePool, node: u32, page: PageId) {
        assert!(!self.holds(page), "{page:?} is remembered for other tokens or another provenance already");
        pool.share(page);
        self.node_of[page.0 as usize] = node;
        self.nodes[node as usize].page = Some(page);
        self.stats.pages += 1;
    }

    /// A node that ends within its page gets a page with more of the same tokens.
    fn replace(&mut self, pool: &mut PagePool, node: u32, tokens: &[u32], page: PageId) {
        let of = &mut self.nodes[node as usize];
        let shorter = of.tokens.len();
        of.tokens.extend_from_slice(&tokens[shorter..]);
        if of.page != Some(page) {
            self.drop_page(pool, node);
            self.hold(pool, node, page);
        }
    }

    fn drop_page(&mut self, pool: &mut PagePool, node: u32) {
        let Some(page) = self.nodes[node as usize].page.take() else { return };
        if self.nodes[node as usize].idle {
            self.unlink(node);
            self.stats.idle_pages -= 1;
            self.nodes[node as usize].idle = false;
        }
        self.node_of[page.0 as usize] = NONE;
        self.stats.pages -= 1;
        pool.release(page);
    }

    /// Removes `top` and all below it.
    fn remove(&mut self, pool: &mut PagePool, top: u32) {
        let parent = self.nodes[top as usize].parent;
        if parent != NONE {
            let place = self.place(parent, &self.nodes[top as usize].tokens);
            let gone = self.nodes[parent as usize].children.remove(place);
            assert_eq!(gone, top, "siblings are ordered by their tokens");
        }
        let mut at = top;
        loop {
            if let Some(child) = self.nodes[at as usize].children.pop() {
                at = child;
                continue;
            }
            let above = self.nodes[at as usize].parent;
            self.drop_page(pool, at);
            self.vacant.push(at);
            if at == top {
                return;
            }
            at = above;
        }
    }

    /// Puts a node behind the newest of the idle.
    fn link(&mut self, node: u32) {
        let newest = std::mem::replace(&mut self.newest, node);
        self.nodes[node as usize].older = newest;
        self.nodes[node as usize].newer = NONE;
        match newest {
            NONE => self.oldest = node,
            newest => self.nodes[newest as usize].newer = node,
        }
    }

    fn unlink(&mut self, node: u32) {
        let Node { older, newer, .. } = self.nodes[node as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }
}

impl Node {
    fn new(parent: u32, page: Option<PageId>, tokens: &[u32]) -> Node {
        let (tokens, children) = (tokens.to_vec(), Vec::new());
        Node { parent, page, tokens, children, idle: false, older: NONE, newer: NONE }
    }
}
