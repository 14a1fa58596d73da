//! Scales of e4m3 weights: what one of them covers, how it comes from the values, and how a product applies it.

use std::sync::atomic::{AtomicU32, Ordering};

use super::PANEL;
use super::packing::Rows;
use crate::{Cpu, DType, dtype, isa::by_isa};

/// Outputs and inputs that one scale of [`WeightScale::Block128`] covers.
pub const SCALE_BLOCK: usize = 128;

/// Elements that are looked at in one task.
const PIECE: usize = 1 << 14;
/// Elements that are widened at a time.
const RUN: usize = 128;

/// What one scale of e4m3 weights covers; other formats have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightScale {
    /// The whole matrix.
    Tensor,
    /// One output (row).
    Channel,
    /// A block of 128 outputs by 128 inputs.
    Block128,
}

impl WeightScale {
    /// Scales held for `[n, k]` weights of `dtype`: those of channels padded to whole panels.
    pub(super) fn count(self, dtype: DType, n: usize, k: usize) -> usize {
        match self {
            _ if dtype != DType::E4m3 => 0,
            WeightScale::Tensor => 1,
            WeightScale::Channel => n.next_multiple_of(PANEL),
            WeightScale::Block128 => n.div_ceil(SCALE_BLOCK) * k.div_ceil(SCALE_BLOCK),
        }
    }
}

/// The scales of a matrix, as a product applies them.
#[derive(Clone, Copy)]
pub(super) enum Scales<'a> {
    /// Codes are values.
    One,
    /// Of every output.
    Tensor(f32),
    /// By output, padded to whole panels.
    Channel(&'a [f32]),
    /// `[blocks of outputs, across]`, where `across` counts the blocks of inputs.
    Block128 { scales: &'a [f32], across: usize },
}

impl Scales<'_> {
    /// The scale that the outputs of `panel` share for the inputs of the block around `input`, if scales go by block.
    pub(super) fn of_block(self, panel: usize, input: usize) -> Option<f32> {
        match self {
            Scales::Block128 { scales, across } => {
                Some(scales[panel * PANEL / SCALE_BLOCK * across + input / SCALE_BLOCK])
            }
            _ => None,
        }
    }

    /// Inputs whose products form one chain: all of them, but for scales by block.
    pub(super) fn chain(self) -> usize {
        if let Scales::Block128 { .. } = self { SCALE_BLOCK } else { usize::MAX }
    }

    /// The scales of the outputs of `panel` for the inputs of the block around `input`; none where all are 1.
    pub(super) fn of_panel(self, panel: usize, input: usize) -> Option<[f32; PANEL]> {
        match self {
            Scales::One => None,
            Scales::Tensor(scale) => Some([scale; PANEL]),
            Scales::Channel(scales) => Some(scales.as_chunks().0[panel]),
            Scales::Block128 { .. } => self.of_block(panel, input).map(|scale| [scale; PANEL]),
        }
    }
}

/// The scale of values whose largest magnitude has these bits: amax / 448, 1 where all are zero, and NaN where one is
/// not finite, so that it cannot pass unnoticed.
#[inline(always)]
pub(super) fn scale_of(amax: u32) -> f32 {
    let amax = f32::from_bits(amax);
    let exact = amax / dtype::E4M3_MAX;
    if !amax.is_finite() {
        f32::NAN
    } else if exact == 0.0 {
        1.0
    } else {
        exact
    }
}

/// The largest of `amax` and the magnitudes of `values`, all as bits: magnitudes order as their bits do, and
/// infinities and NaNs come last.
#[inline(always)]
pub(super) fn largest(amax: u32, values: &[f32]) -> u32 {
    let mut amax = amax;
    for value in values {
        amax = amax.max(value.to_bits() & 0x7fff_ffff);
    }
    amax
}

/// The largest magnitude among `rows`; infinity if one is infinite, and NaN if one is NaN. 0 of no rows.
///
/// Of several pieces take the [`larger`], since `f32::max` loses a NaN.
#[must_use]
pub fn amax(cpu: &Cpu, rows: &[f32]) -> f32 {
    f32::from_bits(largest_of(cpu, rows.len(), Rows::F32(rows)))
}

/// The larger of two magnitudes, NaN above all.
#[must_use]
pub fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits(largest(largest(0, &[a]), &[b]))
}

/// [`amax`] of `len` values, as bits.
pub(super) fn largest_of(cpu: &Cpu, len: usize, rows: Rows<'_>) -> u32 {
    let all = AtomicU32::new(0);
    cpu.for_each_if(len >= 4 * PIECE, len.div_ceil(PIECE), |i| {
        let at = i * PIECE;
        all.fetch_max(largest_part(cpu.isa(), rows, at, PIECE.min(len - at)), Ordering::Relaxed);
    });
    all.into_inner()
}

by_isa! {
    fn largest_part(rows: Rows<'_>, first: usize, len: usize) -> u32 {
        let mut run = [0.0_f32; RUN];
        let mut amax = 0;
        for at in (0..len).step_by(RUN) {
            let run = &mut run[..RUN.min(len - at)];
            rows.load(first + at, run);
            amax = largest(amax, run);
        }
        amax
    }
}
