//! Blocks of whole vectors; a block's sum waits in scratch until all are there.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::BLOCK;
use crate::Cpu;
use crate::isa::by_isa;
use crate::math::tree16;
use crate::ops::chunks::{TASK, split, worth_sharing};

const BLOCKS_PER_TASK: usize = TASK / BLOCK;

by_isa! {
    /// One sum per block.
    fn block_sums(x: &[f32], sums: &mut [f32]) {
        for (block, out) in x.chunks(BLOCK).zip(sums) {
            let mut sums = [0.0_f32; 16];
            let (whole, tail) = block.as_chunks::<16>();
            for x in whole {
                for i in 0..16 {
                    sums[i] = x[i].mul_add(x[i], sums[i]);
                }
            }
            for (sum, x) in sums.iter_mut().zip(tail) {
                *sum = x.mul_add(*x, *sum);
            }
            *out = tree16(&sums);
        }
    }
}

by_isa! {
    /// Without a branch, so that it vectorises: an element is not finite when all bits of its exponent are set.
    fn any_not_finite(x: &[f32]) -> bool {
        let largest = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max);
        largest >= 0x7f80_0000
    }
}

pub(super) fn sum_of_squares(cpu: &Cpu, x: &[f32]) -> f64 {
    let blocks = x.len().div_ceil(BLOCK);
    crate::scratch::with::<0, _>(blocks, |sums| {
        let tasks = blocks.div_ceil(BLOCKS_PER_TASK);
        split(cpu, worth_sharing(x.len()), tasks, [(&mut *sums, BLOCKS_PER_TASK)], |i, [sums]| {
            block_sums(cpu.isa(), &x[i * TASK..], sums);
        });
        sums.iter().map(|&sum| f64::from(sum)).sum()
    })
}

pub(super) fn first_not_finite(cpu: &Cpu, x: &[f32]) -> Option<usize> {
    let first = AtomicUsize::new(usize::MAX);
    cpu.for_each_if(worth_sharing(x.len()), x.len().div_ceil(TASK), |i| {
        let at = i * TASK;
        let part = &x[at..x.len().min(at + TASK)];
        if at < first.load(Ordering::Relaxed) && any_not_finite(cpu.isa(), part) {
            let within = part.iter().position(|x| !x.is_finite()).expect("one of these is not finite");
            first.fetch_min(at + within, Ordering::Relaxed);
        }
    });
    Some(first.into_inner()).filter(|&index| index != usize::MAX)
}
