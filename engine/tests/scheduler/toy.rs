//! A model whose keys and values are hashes: of the version, the token, and every slot before it as read from the pages.
//! So one stale, foreign or wrongly rebuilt slot changes every later token. Beside it the same by tokens alone.

use engine::scheduler::Segment;
use kv::{KvCache, Layout, Sequence};
use ptx::DType;
use ptx::kv_tile::{KvScale, KvShape};

pub const PAGE_LEN: usize = 4;
pub const VOCAB: u32 = 6;

/// A cache of one layer, one head and one f32 element; every slot is poisoned.
pub fn cache(pages: usize) -> KvCache {
    let shape =
        KvShape { kv_heads: 1, head_dim: 1, page_len: PAGE_LEN, k: DType::F32, v: DType::F32, scale: KvScale::Static };
    let mut cache = KvCache::new(Layout::new(vec![shape]), pages);
    cache.arena_mut().poison();
    cache
}

pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn slot_of(version: u64, token: u32, before: u64) -> u64 {
    mix(mix(version, u64::from(token)), before)
}

/// Computes tokens at positions `first ..` of a sequence that has places for them; returns their logits.
pub fn forward(cache: &mut KvCache, sequence: &Sequence, first: usize, tokens: &[u32], version: u64) -> Vec<u64> {
    let places = |position: usize| {
        let (shape, page) = (cache.layout().layers()[0], sequence.block_table()[position / PAGE_LEN]);
        let offset = position % PAGE_LEN * 4;
        (shape.k_tile(page, 0).start + offset, shape.v_tile(page, 0).start + offset)
    };
    let half = |at: usize| u32::from_ne_bytes(cache.arena().layer(0)[at..at + 4].try_into().expect("four bytes"));
    let read = |(k, v): (usize, usize)| u64::from(half(k)) | u64::from(half(v)) << 32;
    let mut before = (0..first).fold(0, |before, position| mix(before, read(places(position))));
    let (mut rows, mut written) = (Vec::new(), Vec::new());
    for (i, &token) in tokens.iter().enumerate() {
        let slot = slot_of(version, token, before);
        before = mix(before, slot);
        rows.push(before);
        written.push((places(first + i), slot));
    }
    for ((k, v), slot) in written {
        let bytes = slot.to_le_bytes();
        let layer = cache.arena_mut().layer_mut(0);
        let (low, high) = bytes.split_at(4);
        layer[k..k + 4].copy_from_slice(&u32::from_le_bytes(low.try_into().expect("four")).to_ne_bytes());
        layer[v..v + 4].copy_from_slice(&u32::from_le_bytes(high.try_into().expect("four")).to_ne_bytes());
    }
    rows
}

/// Logits at the last of `tokens`, whose positions were computed by the versions of `kv`.
pub fn naive(tokens: &[u32], kv: &[Segment]) -> u64 {
    let mut before = 0;
    for (position, &token) in tokens.iter().enumerate() {
        let (_, version) = *kv.iter().rfind(|&&(first, _)| first <= position).expect("the history begins at 0");
        before = mix(before, slot_of(version, token, before));
    }
    before
}

/// The token after `position` tokens, drawn by the key (seed, job, sample, position).
pub fn draw(logits: u64, key: (u64, u64, u32), position: usize) -> u32 {
    let (seed, job, sample) = key;
    let draw = mix(mix(mix(logits, seed), job), mix(u64::from(sample), position as u64));
    u32::try_from(draw % u64::from(VOCAB)).expect("small")
}
