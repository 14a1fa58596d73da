//! Rows at a time; each row is read from memory once and from the first-level cache after that.

use crate::Cpu;
use crate::isa::by_isa;
use crate::math::tree16;
use crate::ops::chunks::{rows_per_task, split, worth_sharing};

/// Most row blocks of the backward, which bounds its scratch to as many rows.
const BLOCKS: usize = 64;

/// The 16 strided sums of squares of a row and their tree. Arrays of 16 are what the compiler keeps in registers.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let (whole, tail) = x.as_chunks::<16>();
    for x in whole {
        for i in 0..16 {
            sums[i] = x[i].mul_add(x[i], sums[i]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum = x.mul_add(*x, *sum);
    }
    tree16(&sums)
}

/// The same sums of `(dy * gain) * x`.
#[inline(always)]
fn sum_of_products(dy: &[f32], gain: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let ((dy, dy_tail), (gain, gain_tail), (x, x_tail)) =
        (dy.as_chunks::<16>(), gain.as_chunks::<16>(), x.as_chunks::<16>());
    for ((dy, gain), x) in dy.iter().zip(gain).zip(x) {
        for i in 0..16 {
            sums[i] = (dy[i] * gain[i]).mul_add(x[i], sums[i]);
        }
    }
    for (((sum, dy), gain), x) in sums.iter_mut().zip(dy_tail).zip(gain_tail).zip(x_tail) {
        *sum = (dy * gain).mul_add(*x, *sum);
    }
    tree16(&sums)
}

#[inline(always)]
#[allow(clippy::cast_precision_loss)] // rows are shorter than 2^24
fn inv_of(row: &[f32], eps: f32) -> f32 {
    let mean = sum_of_squares(row) / row.len() as f32;
    1.0 / (mean + eps).sqrt()
}

by_isa! {
    fn forward_rows(dim: usize, x: &[f32], gain: &[f32], eps: f32, y: &mut [f32], inv_rms: &mut [f32]) {
        for (row, (x, y)) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).enumerate() {
            let inv = inv_of(x, eps);
            for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
                *y = x * inv * gain;
            }
            if let Some(out) = inv_rms.get_mut(row) {
                *out = inv;
            }
        }
    }
}

by_isa! {
    fn forward_rows_in_place(dim: usize, x: &mut [f32], gain: &[f32], eps: f32, inv_rms: &mut [f32]) {
        for (row, x) in x.chunks_exact_mut(dim).enumerate() {
            let inv = inv_of(x, eps);
            for (x, gain) in x.iter_mut().zip(gain) {
                *x = *x * inv * gain;
            }
            if let Some(out) = inv_rms.get_mut(row) {
                *out = inv;
            }
        }
    }
}

by_isa! {
    /// `dgain` is overwritten with the sum over these rows.
    fn backward_rows(
        dim: usize,
        x: &[f32],
        gain: &[f32],
        inv_rms: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
        dgain: &mut [f32],
    ) {
        dgain.fill(0.0);
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim)).zip(inv_rms);
        for (((x, dy), dx), &inv) in rows {
            let (x, dy, dx, gain, dgain) = (&x[..dim], &dy[..dim], &mut dx[..dim], &gain[..dim], &mut dgain[..dim]);
            #[allow(clippy::cast_precision_loss)] // rows are shorter than 2^24
            let mean = sum_of_products(dy, gain, x) * inv / dim as f32;
            if accumulate {
                for j in 0..dim {
                    let unit = x[j] * inv;
                    dgain[j] = dy[j].mul_add(unit, dgain[j]);
                    dx[j] += unit.mul_add(-mean, dy[j] * gain[j]) * inv;
                }
            } else {
                for j in 0..dim {
                    let unit = x[j] * inv;
                    dgain[j] = dy[j].mul_add(unit, dgain[j]);
                    dx[j] = unit.mul_add(-mean, dy[j] * gain[j]) * inv;
                }
            }
        }
    }
}

by_isa! {
    /// Adds rows `first..` of `dim` columns of `partial` to `dgain`, the columns from `at` on.
    fn add_rows(dim: usize, at: usize, partial: &[f32], dgain: &mut [f32]) {
        let mut sums = [0.0_f32; COLUMNS];
        let sums = &mut sums[..dgain.len()];
        for row in partial.chunks_exact(dim) {
            for (sum, x) in sums.iter_mut().zip(&row[at..]) {
                *sum += x;
            }
        }
        for (dgain, sum) in dgain.iter_mut().zip(sums) {
            *dgain += *sum;
        }
    }
}

/// Columns of `dgain` that one task sums.
const COLUMNS: usize = 256;

/// `inv_rms` may be empty: then it is not wanted.
pub(super) fn forward(cpu: &Cpu, dim: usize, x: &[f32], gain: &[f32], eps: f32, y: &mut [f32], inv_rms: &mut [f32]) {
    let rows = rows_per_task(dim);
    let tasks = (x.len() / dim).div_ceil(rows);
    split(cpu, worth_sharing(x.len()), tasks, [(y, rows * dim), (inv_rms, rows)], |i, [y, inv_rms]| {
        let x = &x[i * rows * dim..][..y.len()];
        forward_rows(cpu.isa(), dim, x, gain, eps, y, inv_rms);
    });
}

pub(super) fn forward_in_place(cpu: &Cpu, dim: usize, x: &mut [f32], gain: &[f32], eps: f32, inv_rms: &mut [f32]) {
    let rows = rows_per_task(dim);
    let (share, tasks) = (worth_sharing(x.len()), (x.len() / dim).div_ceil(rows));
    split(cpu, share, tasks, [(x, rows * dim), (inv_rms, rows)], |_, [x, inv_rms]| {
        forward_rows_in_place(cpu.isa(), dim, x, gain, eps, inv_rms);
    });
}

#[allow(clippy::too_many_arguments)]
pub(super) fn backward(
    cpu: &Cpu,
    dim: usize,
    x: &[f32],
    gain: &[f32],
    inv_rms: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    accumulate_dx: bool,
    dgain: &mut [f32],
) {
    let rows = rows_per_task(dim).max(inv_rms.len().div_ceil(BLOCKS));
    let blocks = inv_rms.len().div_ceil(rows);
    crate::scratch::with::<0, _>(blocks * dim, |partial| {
        split(cpu, worth_sharing(x.len()), blocks, [(dx, rows * dim), (&mut *partial, dim)], |i, [dx, partial]| {
            let elements = i * rows * dim..i * rows * dim + dx.len();
            let inv_rms = &inv_rms[i * rows..][..dx.len() / dim];
            let (x, dy) = (&x[elements.clone()], &dy[elements]);
            backward_rows(cpu.isa(), dim, x, gain, inv_rms, dy, dx, accumulate_dx, partial);
        });
        let share = worth_sharing(partial.len());
        split(cpu, share, dim.div_ceil(COLUMNS), [(dgain, COLUMNS)], |i, [dgain]| {
            add_rows(cpu.isa(), dim, i * COLUMNS, partial, dgain);
        });
    });
}
