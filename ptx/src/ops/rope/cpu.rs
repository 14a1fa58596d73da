//! Tokens at a time; the lower and upper half of a head are two streams of whole vectors.

use crate::Cpu;
use crate::isa::by_isa;
use crate::math::sin_cos;
use crate::ops::chunks::{rows_per_task, split, worth_sharing};

/// A sine and cosine cost some 16 elements' worth of copying.
const TABLE_COST: usize = 16;

by_isa! {
    fn fill(positions: &[u32], inv_freq: &[f32], factor: f32, cos: &mut [f32], sin: &mut [f32]) {
        let width = inv_freq.len();
        for ((position, cos), sin) in positions.iter().zip(cos.chunks_exact_mut(width)).zip(sin.chunks_exact_mut(width)) {
            #[allow(clippy::cast_precision_loss)] // positions below 2^24 are exact
            let position = *position as f32;
            for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(inv_freq) {
                let (s, c) = sin_cos(position * freq);
                *cos = c * factor;
                *sin = s * factor;
            }
        }
    }
}

by_isa! {
    fn turn_tokens(back: bool, width: usize, head_dim: usize, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = head_dim / 2;
        let tokens = x.chunks_exact_mut(width).zip(cos.chunks_exact(half)).zip(sin.chunks_exact(half));
        for ((x, cos), sin) in tokens {
            for head in x.chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(half);
                if back {
                    for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        (*a, *b) = (a.mul_add(*c, *b * s), b.mul_add(*c, -(*a * s)));
                    }
                } else {
                    for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        (*a, *b) = (a.mul_add(*c, -(*b * s)), b.mul_add(*c, *a * s));
                    }
                }
            }
        }
    }
}

pub(super) fn tables(cpu: &Cpu, positions: &[u32], inv_freq: &[f32], factor: f32, cos: &mut [f32], sin: &mut [f32]) {
    let width = inv_freq.len();
    let rows = rows_per_task(width * TABLE_COST);
    let (share, tasks) = (worth_sharing(cos.len() * TABLE_COST), positions.len().div_ceil(rows));
    split(cpu, share, tasks, [(cos, rows * width), (sin, rows * width)], |i, [cos, sin]| {
        let positions = &positions[i * rows..][..cos.len() / width];
        fill(cpu.isa(), positions, inv_freq, factor, cos, sin);
    });
}

pub(super) fn turn<const BACK: bool>(
    cpu: &Cpu,
    heads: usize,
    head_dim: usize,
    x: &mut [f32],
    cos: &[f32],
    sin: &[f32],
) {
    let (width, half) = (heads * head_dim, head_dim / 2);
    let rows = rows_per_task(width);
    let (share, tasks) = (worth_sharing(x.len()), (x.len() / width).div_ceil(rows));
    split(cpu, share, tasks, [(x, rows * width)], |i, [x]| {
        let (at, len) = (i * rows * half, x.len() / width * half);
        turn_tokens(cpu.isa(), BACK, width, head_dim, x, &cos[at..][..len], &sin[at..][..len]);
    });
}
