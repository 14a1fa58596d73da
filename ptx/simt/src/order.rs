//! In which order the blocks of a launch run.

use crate::state::Random;

/// A bijection of block numbers: turn t runs block `(t * step + start) % blocks`, `step` and `blocks` without a common
/// divisor. Of any two blocks either may come first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    blocks: u64,
    step: u64,
    start: u64,
}

impl Order {
    /// The order of the numbers; with a seed one drawn from it and the launch, so that launches of two blocks have both.
    pub(crate) fn new(blocks: u64, seed: Option<u64>, launch: u32) -> Order {
        let mut order = Order { blocks, step: 1, start: 0 };
        if let Some(seed) = seed {
            let mut random = Random::new(seed ^ u64::from(launch).wrapping_mul(0xa076_1d64_78bd_642f));
            order.start = random.wide() % blocks;
            order.step = random.wide() % blocks;
            while greatest_divisor(order.step, blocks) != 1 {
                order.step = (order.step + 1) % blocks;
            }
        }
        order
    }

    /// The block whose turn it is.
    pub(crate) fn block(self, turn: u64) -> u64 {
        let block = (u128::from(turn) * u128::from(self.step) + u128::from(self.start)) % u128::from(self.blocks);
        u64::try_from(block).expect("a remainder is below its divisor")
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { greatest_divisor(b % a, a) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_turn() {
        for blocks in (1..50).chain([64, 96, 210, 1009, 4096]) {
            for launch in 1..6 {
                let order = Order::new(blocks, Some(7), launch);
                let mut turns: Vec<u64> = (0..blocks).map(|turn| order.block(turn)).collect();
                turns.sort_unstable();
                assert!(turns.into_iter().eq(0..blocks), "{order:?}");
            }
        }
        let largest = Order::new(u64::from(u32::MAX) << 31, Some(1), 1);
        assert!((0..1000).all(|turn| largest.block(turn) < largest.blocks));
    }

    #[test]
    fn without_a_seed_it_is_the_numbers_order() {
        assert!((0..100).all(|turn| Order::new(100, None, 3).block(turn) == turn));
    }

    #[test]
    fn of_two_blocks_either_may_come_first() {
        for (blocks, pair) in [(2, [0, 1]), (3, [1, 2]), (8, [0, 7]), (12, [3, 4])] {
            let earlier = |launch| {
                let order = Order::new(blocks, Some(5), launch);
                let turn = |block| (0..blocks).position(|turn| order.block(turn) == block);
                turn(pair[0]) < turn(pair[1])
            };
            let firsts = (0..64).filter(|&launch| earlier(launch)).count();
            assert!((16..48).contains(&firsts), "{pair:?} of {blocks}: {firsts} of 64");
        }
    }
}
