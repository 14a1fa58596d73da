//! The cache against a naive model under random operations: every sequence reads back exactly what was written at its
//! positions, also those that it shares or found in the prefix index; no page is lost or held twice; what cannot be had
//! changes nothing; and the longest prefix is found as long as nothing had to be given up.

use std::collections::HashSet;

use kv::{Arena, KvCache, Layout, PageId, Provenance, Sequence};
use proptest::prelude::*;
use ptx::DType;
use ptx::kv_tile::{KvScale, KvShape};

#[derive(Clone, Debug)]
enum Op {
    New { version: u64 },
    Append { which: usize, tokens: Vec<u32> },
    Fork { which: usize, len: usize },
    Share { version: u64, tokens: Vec<u32>, short: usize },
    Remember { which: usize, short: usize },
    Forget { version: u64, others: bool },
    End { which: usize },
}

/// Few ids, so that sequences begin alike.
fn tokens(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![4 => Just(0_u32), 1 => 1..3_u32], 0..most)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let which = 0..16_usize;
    let version = 0..2_u64;
    prop::collection::vec(
        prop_oneof![
            1 => version.clone().prop_map(|version| Op::New { version }),
            5 => (which.clone(), tokens(11)).prop_map(|(which, tokens)| Op::Append { which, tokens }),
            2 => (which.clone(), 0..40_usize).prop_map(|(which, len)| Op::Fork { which, len }),
            3 => (version.clone(), tokens(20), 0..3_usize)
                .prop_map(|(version, tokens, short)| Op::Share { version, tokens, short }),
            3 => (which.clone(), 0..4_usize).prop_map(|(which, short)| Op::Remember { which, short }),
            1 => (version, any::<bool>()).prop_map(|(version, others)| Op::Forget { version, others }),
            3 => which.prop_map(|which| Op::End { which }),
        ],
        1..120,
    )
}

const PAGE_LEN: usize = 4;
const PAGES: usize = 24;

/// One byte a token: a layer has one head of one e4m3 element, so a K tile is `page_len` bytes.
fn layout() -> Layout {
    let layer = KvShape {
        kv_heads: 1,
        head_dim: 1,
        page_len: PAGE_LEN,
        k: DType::E4m3,
        v: DType::E4m3,
        scale: KvScale::Static,
    };
    Layout::new(vec![layer, layer])
}

fn cache() -> KvCache {
    KvCache::new(layout(), PAGES)
}

/// Where the bytes are: in the cache, or on a device, which here is an arena that does the copies before it is written.
enum Bytes {
    Here,
    Device(Arena),
}

impl Bytes {
    fn layers<'a>(&'a mut self, cache: &'a mut KvCache) -> &'a mut Arena {
        match self {
            Bytes::Here => cache.arena_mut(),
            Bytes::Device(arena) => {
                for copy in cache.take_copies() {
                    arena.copy_page(copy.from, copy.to);
                }
                arena
            }
        }
    }
}

fn provenance(version: u64) -> Provenance {
    Provenance { version, recipe: [9; 32] }
}

fn slot(cache: &KvCache, sequence: &Sequence, position: usize) -> usize {
    let page = sequence.block_table()[position / PAGE_LEN];
    cache.layout().layers()[0].k_tile(page, 0).start + position % PAGE_LEN
}

/// What stands at the last of `tokens`: it depends on all of them and on the version, as keys and values do.
fn written(version: u64, tokens: &[u32]) -> [u8; 2] {
    let mix = |hash: u32, token: u32| (hash ^ token).wrapping_mul(0x0100_0193).rotate_left(5) ^ 0x9e37;
    let hash = tokens.iter().fold(u32::try_from(version + 1).expect("small"), |hash, &token| mix(hash, token + 1));
    [(hash >> 8).to_le_bytes()[0], (hash >> 16).to_le_bytes()[0]]
}

struct One {
    sequence: Sequence,
    version: u64,
    tokens: Vec<u32>,
}

fn append(cache: &mut KvCache, bytes: &mut Bytes, one: &mut One, new: &[u32]) -> bool {
    let (want, available) = (cache.pages_to_append(&one.sequence, new.len()), cache.available_pages());
    let (free, held, entries) = (cache.free_pages(), one.sequence.block_table().to_vec(), cache.prefix_stats().pages);
    cache.set_provenance(provenance(one.version));
    match cache.append(&mut one.sequence, new.len()) {
        Ok(()) => {
            // One short is enough if the index holds the tail: it lets go.
            assert!(want <= available || (want == available + 1 && cache.prefix_stats().pages < entries));
            for &token in new {
                one.tokens.push(token);
                let slot = slot(cache, &one.sequence, one.tokens.len() - 1);
                for (layer, byte) in written(one.version, &one.tokens).into_iter().enumerate() {
                    bytes.layers(cache).layer_mut(layer)[slot] = byte;
                }
            }
            true
        }
        Err(refused) => {
            assert!(want > available && (refused.want, refused.available) == (want, available));
            assert_eq!((cache.free_pages(), cache.available_pages()), (free, available));
            assert_eq!((one.sequence.len(), one.sequence.block_table()), (one.tokens.len(), &held[..]));
            false
        }
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn run(ops: &[Op], on_device: bool) {
    let (mut cache, mut bytes) = if on_device {
        (KvCache::without_bytes(layout(), PAGES), Bytes::Device(Arena::new(&layout(), PAGES)))
    } else {
        (cache(), Bytes::Here)
    };
    let mut live: Vec<One> = Vec::new();
    let mut remembered: Vec<(u64, Vec<u32>)> = Vec::new();
    for op in ops {
        match op {
            Op::New { version } => {
                live.push(One { sequence: cache.sequence(8), version: *version, tokens: Vec::new() });
            }
            Op::Append { which, tokens } if !live.is_empty() => {
                let at = which % live.len();
                append(&mut cache, &mut bytes, &mut live[at], tokens);
            }
            Op::Fork { which, len } if !live.is_empty() => {
                let one = &live[which % live.len()];
                let len = (*len).min(one.tokens.len());
                let sequence = cache.fork_prefix(&one.sequence, len, 16);
                live.push(One { sequence, version: one.version, tokens: one.tokens[..len].to_vec() });
            }
            Op::Share { version, tokens, short } => {
                let most = tokens.len().saturating_sub(*short);
                let found = cache.find_prefix(provenance(*version), tokens, most);
                let available = cache.available_pages();
                let sequence = cache.share_prefix(provenance(*version), tokens, most, 16);
                let of_version = remembered.iter().filter(|(of, _)| of == version);
                let longest = of_version.map(|(_, all)| common(all, &tokens[..most])).max().unwrap_or(0);
                let given_up = cache.prefix_stats().evicted > 0;
                assert!(sequence.len() == longest || (given_up && sequence.len() < longest));
                assert_eq!((found.tokens, found.idle_pages), (sequence.len(), available - cache.available_pages()));
                let tokens = tokens[..sequence.len()].to_vec();
                live.push(One { sequence, version: *version, tokens });
            }
            Op::Remember { which, short } if !live.is_empty() => {
                let one = &live[which % live.len()];
                let tokens = &one.tokens[..one.tokens.len().saturating_sub(*short)];
                cache.remember(provenance(one.version), tokens, &one.sequence);
                let stats = cache.prefix_stats();
                cache.remember(provenance(one.version), tokens, &one.sequence);
                assert_eq!(cache.prefix_stats(), stats, "again changes nothing");
                assert!(cache.find_prefix(provenance(one.version), tokens, tokens.len()).tokens == tokens.len());
                remembered.push((one.version, tokens.to_vec()));
            }
            Op::Forget { version, others } => {
                if *others {
                    cache.forget_all_but(*version)
                } else {
                    cache.forget(provenance(*version))
                }
                remembered.retain(|(of, _)| (of == version) == *others);
            }
            Op::End { which } if !live.is_empty() => {
                let at = which % live.len();
                cache.end(live.swap_remove(at).sequence);
            }
            _ => {}
        }
        check(&mut cache, &mut bytes, &live);
    }
    for one in live {
        cache.end(one.sequence);
    }
    assert_eq!(cache.available_pages(), PAGES);
    assert_eq!(cache.prefix_stats().pages, cache.prefix_stats().idle_pages);
    // All of what is remembered can be given up at once.
    let mut all = cache.sequence(PAGES * PAGE_LEN);
    cache.append(&mut all, PAGES * PAGE_LEN).expect("all pages are available");
    assert_eq!(cache.prefix_stats().pages, 0);
    cache.end(all);
    assert_eq!(cache.free_pages(), PAGES);
}

fn check(cache: &mut KvCache, bytes: &mut Bytes, live: &[One]) {
    let mut held = HashSet::new();
    for One { sequence, version, tokens } in live {
        assert_eq!(sequence.len(), tokens.len());
        assert_eq!(sequence.block_table().len(), tokens.len().div_ceil(PAGE_LEN));
        held.extend(sequence.block_table().iter().copied());
        for position in 0..tokens.len() {
            let slot = slot(cache, sequence, position);
            let arena = bytes.layers(cache);
            let read = [arena.layer(0)[slot], arena.layer(1)[slot]];
            assert_eq!(read, written(*version, &tokens[..=position]), "position {position}");
        }
        for &page in sequence.block_table() {
            assert_eq!(cache.page_versions(PageId(page)), Some((*version, *version)));
        }
        assert_eq!(cache.stale_tokens(sequence, *version), 0);
        assert_eq!(cache.stale_tokens(sequence, version + 1), tokens.len());
    }
    let stats = cache.prefix_stats();
    assert_eq!(cache.available_pages() + held.len(), PAGES, "a page is lost or counted twice");
    assert_eq!(cache.free_pages() + stats.idle_pages, cache.available_pages());
    let stamped = (0..24).filter(|&page| cache.page_versions(PageId(page)).is_some()).count();
    assert_eq!(stamped, PAGES - cache.free_pages(), "exactly the pages in use say what made them");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sequences_read_back_what_they_wrote(ops in ops(), on_device in any::<bool>()) {
        run(&ops, on_device);
    }
}

/// The device copies late, all at once: what was noted must still be there in an order that is right, also where a page
/// that was copied from has since been taken for another copy.
#[test]
fn copies_are_noted_in_order() {
    let mut cache = KvCache::without_bytes(layout(), 4);
    let mut arena = Arena::new(&layout(), 4);
    let (mut a, mut b) = (cache.sequence(4), cache.sequence(4));
    cache.append(&mut a, 1).expect("fits");
    cache.append(&mut b, 1).expect("fits");
    let first = |sequence: &Sequence| sequence.block_table()[0] as usize * 2 * PAGE_LEN;
    arena.layer_mut(1)[first(&a)] = 11;
    arena.layer_mut(1)[first(&b)] = 22;
    let (mut a2, mut b2) = (cache.fork(&a, 4), cache.fork(&b, 4));
    cache.append(&mut a2, 1).expect("fits");
    cache.end(a); // its page is the next to be taken, and was the source of a copy that is still to be made
    cache.append(&mut b2, 1).expect("fits");
    assert_eq!(cache.free_pages(), 1);
    let copies: Vec<_> = cache.take_copies().collect();
    assert_eq!((copies.len(), copies[1].to), (2, copies[0].from), "the case that order is needed for");
    copies.iter().for_each(|copy| arena.copy_page(copy.from, copy.to));
    assert_eq!((arena.layer(1)[first(&a2)], arena.layer(1)[first(&b2)]), (11, 22));
    assert_eq!(cache.take_copies().count(), 0);
    for sequence in [a2, b, b2] {
        cache.end(sequence);
    }
    assert_eq!(cache.free_pages(), 4);
}

#[test]
fn samples_of_a_prompt_share_its_pages() {
    let mut cache = cache();
    let mut prompt = cache.sequence(10);
    cache.append(&mut prompt, 10).expect("fits");
    assert_eq!(cache.free_pages(), PAGES - 3);
    let mut samples: Vec<_> = (0..8).map(|_| cache.fork(&prompt, 12)).collect();
    cache.end(prompt);
    assert_eq!(cache.free_pages(), PAGES - 3, "eight samples hold one prompt");
    for sample in &mut samples {
        cache.append(sample, 1).expect("fits");
    }
    // Two full pages shared; the partial one copied by all but the last writer, which finds itself alone.
    assert_eq!(cache.free_pages(), PAGES - 2 - 8);
}

/// A sequence of `len` tokens that are all `token`, remembered and ended.
fn leave(cache: &mut KvCache, token: u32, len: usize) -> Vec<u32> {
    let tokens = vec![token; len];
    let mut sequence = cache.sequence(len);
    cache.append(&mut sequence, len).expect("fits");
    cache.remember(cache.provenance(), &tokens, &sequence);
    cache.end(sequence);
    tokens
}

#[test]
fn the_longest_unused_goes_first_and_leaves_before_what_they_hang_on() {
    let mut cache = cache();
    let (a, b) = (leave(&mut cache, 1, 40), leave(&mut cache, 2, 40)); // ten pages each
    let of = cache.provenance();
    let shared = cache.share_prefix(of, &a, 40, 40);
    cache.end(shared); // used again, so b is the older now
    let mut other = cache.sequence(28);
    cache.append(&mut other, 28).expect("seven pages: four are free, three come from the index");
    assert_eq!(cache.find_prefix(of, &a, 40).tokens, 40);
    assert_eq!(cache.find_prefix(of, &b, 40).tokens, 28);
    cache.append(&mut other, 32).expect("eight more");
    assert_eq!((cache.find_prefix(of, &a, 40).tokens, cache.find_prefix(of, &b, 40).tokens), (36, 0));
    assert_eq!(cache.prefix_stats().evicted, 11);
    cache.end(other);
}

#[test]
fn off_means_off() {
    let mut cache = cache();
    let tokens = leave(&mut cache, 1, 10);
    cache.set_prefix_reuse(false);
    assert_eq!(cache.free_pages(), PAGES);
    assert!(cache.share_prefix(cache.provenance(), &tokens, 10, 10).is_empty());
    leave(&mut cache, 1, 10);
    assert_eq!((cache.free_pages(), cache.prefix_stats().lookups), (PAGES, 0));
    cache.set_prefix_reuse(true);
    leave(&mut cache, 1, 10);
    let shared = cache.share_prefix(cache.provenance(), &tokens, 9, 10);
    assert_eq!((shared.len(), cache.prefix_stats().hits, cache.prefix_stats().hit_tokens), (9, 1, 9));
    cache.end(shared);
}

#[test]
fn a_page_of_two_versions_says_so() {
    let mut cache = cache();
    let mut sequence = cache.sequence(12);
    for (version, tokens) in [(3, 6), (5, 4)] {
        cache.set_provenance(provenance(version));
        cache.append(&mut sequence, tokens).expect("fits");
    }
    let versions: Vec<_> = sequence.block_table().iter().map(|&page| cache.page_versions(PageId(page))).collect();
    assert_eq!(versions, [Some((3, 3)), Some((3, 5)), Some((5, 5))]);
    assert_eq!([3, 4, 5, 6].map(|version| cache.stale_tokens(&sequence, version)), [0, 8, 8, 10]);
    // A copy of a partial page keeps what made it.
    let mut copy = cache.fork_prefix(&sequence, 7, 8);
    cache.set_provenance(provenance(9));
    cache.append(&mut copy, 1).expect("fits");
    assert_eq!(cache.page_versions(PageId(copy.block_table()[1])), Some((3, 9)));
    assert_eq!(cache.page_versions(PageId(sequence.block_table()[1])), Some((3, 5)));
    cache.end(sequence);
    cache.end(copy);
}

proptest! {
    /// Samples of one prompt, each grown to its longest, hold the pages that the layout says, and no more on the way.
    #[test]
    fn a_group_takes_what_the_layout_says(prompt in 1..14_usize, more in 1..9_usize, samples in 1..5_usize) {
        let layer = KvShape {
            kv_heads: 1, head_dim: 1, page_len: PAGE_LEN, k: DType::E4m3, v: DType::E4m3, scale: KvScale::Static,
        };
        let layout = Layout::new(vec![layer]);
        let pages = layout.group(prompt, prompt + more).pages(samples);
        let mut cache = KvCache::new(layout, pages);
        let mut first = cache.sequence(prompt);
        prop_assert!(cache.append(&mut first, prompt).is_ok());
        let mut all: Vec<Sequence> = (0..samples).map(|_| cache.fork(&first, prompt + more)).collect();
        cache.end(first);
        for _ in 0..more {
            for sequence in &mut all {
                prop_assert!(cache.append(sequence, 1).is_ok(), "{pages} pages are too few");
            }
        }
        prop_assert_eq!(cache.free_pages(), 0);
    }
}

#[test]
fn ratios_are_of_whole_pages() {
    let layer = |k, v| KvShape { kv_heads: 2, head_dim: 8, page_len: 4, k, v, scale: KvScale::Token };
    let layout = Layout::new(vec![layer(DType::E4m3, DType::Bf16), layer(DType::Bf16, DType::Bf16)]);
    let by_layer: Vec<f64> = layout.token_bytes().collect();
    assert_eq!((by_layer, layout.token_bytes_total()), (vec![50.0, 64.0], 114.0));
    let bytes = 10 * 4 * 114 + 100;
    assert_eq!(layout.capacity(bytes).tokens, 40);
    assert_eq!(layout.ratio_to_bf16(bytes), Some(40.0 / 36.0));
    assert_eq!((layout.ratio_to_bf16(511), layout.ratio_to_bf16(512)), (None, Some(1.0)));
    assert_eq!((layout.sequences(10, 9), layout.sequences(2, 9), layout.tail_waste()), (3, 0, 1.5));
}
