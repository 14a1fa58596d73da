//! Straight loops of integer operations and rounding that the compiler vectorises.

use crate::Cpu;
use crate::dtype::{self, E4M3_MAX, round_bf16};
use crate::isa::by_isa;
use crate::ops::chunks::{rows_per_task, split_elements, worth_sharing};
use crate::parallel::Parts;

by_isa! {
    fn bf16_part(x: &mut [f32]) {
        for x in x {
            *x = round_bf16(*x);
        }
    }
}

pub(super) fn bf16(cpu: &Cpu, x: &mut [f32]) {
    split_elements(cpu, [x], |_, [x]| bf16_part(cpu.isa(), x));
}

by_isa! {
    fn e4m3_part(width: usize, x: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        for ((x, codes), scale) in x.chunks_exact(width).zip(codes.chunks_exact_mut(width)).zip(scales) {
            // Magnitudes order as their bits do, and infinities and NaNs come last.
            let mut amax = 0_u32;
            for x in x {
                amax = amax.max(x.to_bits() & 0x7fff_ffff);
            }
            let amax = f32::from_bits(amax);
            *scale = if amax.is_finite() { dtype::scale_pow2(amax, E4M3_MAX) } else { f32::NAN };
            // From 2^-126 to 2^120, so its inverse is a power of two too, and the product rounds as the quotient does.
            let inverse = 1.0 / *scale;
            for (code, x) in codes.iter_mut().zip(x) {
                *code = dtype::e4m3_from_f32(x * inverse);
            }
        }
    }
}

pub(super) fn e4m3_rows(cpu: &Cpu, width: usize, x: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let (rows, per) = (scales.len(), rows_per_task(width));
    let (codes, scales) = (Parts::new(codes), Parts::new(scales));
    cpu.for_each_if(worth_sharing(x.len()), rows.div_ceil(per), |i| {
        let first = i * per;
        let count = per.min(rows - first);
        // SAFETY: each task takes the codes of its own rows.
        let codes = unsafe { codes.range(first * width, count * width) };
        // SAFETY: each task takes the scales of its own rows.
        let scales = unsafe { scales.range(first, count) };
        e4m3_part(cpu.isa(), width, &x[first * width..(first + count) * width], codes, scales);
    });
}
