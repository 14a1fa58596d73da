//! What this machine can do at most: reading memory, and multiplying and adding in f32. Benches divide by it.

use std::hint::black_box;

use crate::isa::by_isa;
use crate::{Cpu, Isa};

/// A megabyte: what a task reads.
const PIECE: usize = 1 << 20;
/// Bytes asked for ahead of their use; the detectors of streams alone do not fill the memory.
const AHEAD: usize = 8 << 10;
/// Chains of one thread: enough to hide the latency of a multiply-add, few enough for the registers.
const CHAINS: usize = 12;
/// Steps of one task of [`multiply_add`].
const STEPS: usize = 1 << 16;

/// Reads every byte of `buffer` once, on all threads, and returns a sum of its words.
pub fn read(cpu: &Cpu, buffer: &[u64]) -> u64 {
    let total = std::sync::atomic::AtomicU64::new(0);
    cpu.for_each(buffer.len().div_ceil(PIECE / 8), |i| {
        let piece = &buffer[i * PIECE / 8..buffer.len().min((i + 1) * PIECE / 8)];
        total.fetch_add(sum(cpu.isa(), piece), std::sync::atomic::Ordering::Relaxed);
    });
    total.into_inner()
}

by_isa! {
    fn sum(words: &[u64]) -> u64 {
        let mut sums = [0_u64; 32];
        for words in words.as_chunks::<32>().0 {
            let at = words.as_ptr().cast::<u8>();
            for line in 0..4 {
                crate::ops::linear::prefetch(at.wrapping_add(AHEAD + 64 * line));
            }
            for i in 0..32 {
                sums[i] = sums[i].wrapping_add(words[i]);
            }
        }
        sums.iter().fold(0, |sum, x| sum.wrapping_add(*x))
    }
}

/// Runs `tasks` tasks of independent chains of f32 multiply-adds in registers, on all threads; returns the flops.
pub fn multiply_add(cpu: &Cpu, tasks: usize) -> f64 {
    let lanes = match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 16,
        _ => 8,
    };
    cpu.for_each(tasks, |_| {
        let factor = black_box(0.999_f32);
        black_box(match cpu.isa() {
            Isa::Portable => chains_portable(factor),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
            Isa::Avx2 => unsafe { chains_avx2(factor) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 => unsafe { chains_avx512(factor) },
        });
    });
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let flops = (2 * tasks * STEPS * CHAINS * lanes) as f64;
    flops
}

fn chains_portable(factor: f32) -> f32 {
    let mut sums = [[1.0_f32; 8]; CHAINS];
    for _ in 0..STEPS {
        for x in sums.as_flattened_mut() {
            *x = x.mul_add(factor, 0.5);
        }
    }
    sums.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2(factor: f32) -> f32 {
    use std::arch::x86_64::{_mm256_add_ps, _mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let (factor, half) = (_mm256_set1_ps(factor), _mm256_set1_ps(0.5));
    let mut sums = [half; CHAINS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, half);
        }
    }
    _mm256_cvtss_f32(sums.iter().fold(half, |a, &b| _mm256_add_ps(a, b)))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn chains_avx512(factor: f32) -> f32 {
    use std::arch::x86_64::{_mm512_add_ps, _mm512_cvtss_f32, _mm512_fmadd_ps, _mm512_set1_ps};
    let (factor, half) = (_mm512_set1_ps(factor), _mm512_set1_ps(0.5));
    let mut sums = [half; CHAINS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, half);
        }
    }
    _mm512_cvtss_f32(sums.iter().fold(half, |a, &b| _mm512_add_ps(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_once() {
        let buffer: Vec<u64> = (0..(3 << 17)).collect();
        for isa in Isa::available() {
            for threads in [1, 2] {
                assert_eq!(read(&Cpu::with_isa(threads, isa), &buffer), buffer.iter().sum::<u64>());
            }
        }
    }

    #[test]
    fn flops_count_lanes_and_chains() {
        let flops = multiply_add(&Cpu::with_isa(1, Isa::detect()), 1);
        let lane = 2.0 * f64::from(1_u32 << 16) * 12.0;
        assert!(flops == 8.0 * lane || flops == 16.0 * lane);
    }
}
