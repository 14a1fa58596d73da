//! The cache against a naive model under random operations: every sequence reads back exactly the tokens it was given,
//! no page is lost or held twice, and what cannot be had changes nothing.

use kv::{KvCache, Layout, PoolExhausted, Sequence};
use proptest::prelude::*;
use ptx::DType;
use ptx::kv_tile::{KvScale, KvShape};

#[derive(Clone, Debug)]
enum Op {
    New,
    Append { which: usize, tokens: usize },
    Fork { which: usize },
    End { which: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let which = 0..16_usize;
    prop::collection::vec(
        prop_oneof![
            1 => Just(Op::New),
            5 => (which.clone(), 0..11_usize).prop_map(|(which, tokens)| Op::Append { which, tokens }),
            2 => which.clone().prop_map(|which| Op::Fork { which }),
            2 => which.prop_map(|which| Op::End { which }),
        ],
        1..120,
    )
}

const PAGE_LEN: usize = 4;
const PAGES: usize = 24;

/// One byte a token: the layer has one head of one e4m3 element, so a K tile is `page_len` bytes.
fn cache() -> KvCache {
    let layer = KvShape {
        kv_heads: 1,
        head_dim: 1,
        page_len: PAGE_LEN,
        k: DType::E4m3,
        v: DType::E4m3,
        scale: KvScale::Static,
    };
    KvCache::new(Layout::new(vec![layer, layer]), PAGES)
}

fn slot(cache: &KvCache, sequence: &Sequence, position: usize) -> usize {
    let page = sequence.block_table()[position / PAGE_LEN];
    cache.layout().layers()[0].k_tile(page, 0).start + position % PAGE_LEN
}

fn run(ops: &[Op]) {
    let mut cache = cache();
    let mut live: Vec<(Sequence, Vec<u8>)> = Vec::new();
    let mut next = 0_u8;
    for op in ops {
        match *op {
            Op::New => live.push((cache.sequence(8), Vec::new())),
            Op::Append { which, tokens } if !live.is_empty() => {
                let at = which % live.len();
                let (sequence, bytes) = &mut live[at];
                let (before, want) = (cache.free_pages(), cache.pages_to_append(sequence, tokens));
                match cache.append(sequence, tokens) {
                    Ok(()) => {
                        assert_eq!(before - cache.free_pages(), want);
                        for _ in 0..tokens {
                            next = next.wrapping_add(1);
                            let slot = slot(&cache, sequence, bytes.len());
                            bytes.push(next);
                            cache.arena_mut().layer_mut(0)[slot] = next;
                            cache.arena_mut().layer_mut(1)[slot] = !next;
                        }
                    }
                    Err(PoolExhausted { want: asked, free }) => {
                        assert_eq!((asked, free, cache.free_pages()), (want, before, before));
                        assert_eq!(sequence.len(), bytes.len(), "a refused append changed the sequence");
                    }
                }
            }
            Op::Fork { which } if !live.is_empty() => {
                let at = which % live.len();
                let copy = cache.fork(&live[at].0, 16);
                let bytes = live[at].1.clone();
                live.push((copy, bytes));
            }
            Op::End { which } if !live.is_empty() => {
                let at = which % live.len();
                cache.end(live.swap_remove(at).0);
            }
            _ => {}
        }
        let mut held = std::collections::HashSet::new();
        for (sequence, bytes) in &live {
            assert_eq!(sequence.len(), bytes.len());
            held.extend(sequence.block_table().iter().copied());
            for (position, &byte) in bytes.iter().enumerate() {
                let slot = slot(&cache, sequence, position);
                assert_eq!(cache.arena().layer(0)[slot], byte, "position {position}");
                assert_eq!(cache.arena().layer(1)[slot], !byte, "position {position}, second layer");
            }
        }
        assert_eq!(cache.free_pages() + held.len(), PAGES, "a page is lost or counted twice");
    }
    for (sequence, _) in live {
        cache.end(sequence);
    }
    assert_eq!(cache.free_pages(), PAGES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sequences_read_back_what_they_wrote(ops in ops()) {
        run(&ops);
    }
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
