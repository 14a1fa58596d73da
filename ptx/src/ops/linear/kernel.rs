//! What the driver asks of an instruction set: tile heights, and the tile kernel and widening compiled for it.
//!
//! A tile is up to [`TILE`] rows of x times one panel of 32 outputs. Every version runs, for each row and output, the
//! same chain `acc = fma(a[k], b[k], acc)` over ascending k, so the height of a tile never shows in the bits.

use super::PANEL;
use super::packed::{Codes, place};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::{DType, Isa, dtype};

/// Most rows of a tile on any instruction set.
pub(super) const TILE: usize = 12;

/// Most rows that any instruction set takes as few: they widen codes in registers.
pub(super) const FEW: usize = 24;

/// Runs a block for each row below the constant `$rows`, at most 12, with the row's number in `$r`. Written out, so that
/// sums in arrays are in registers at every level of optimization; a loop of 12 was left rolled at level 2, where the
/// highest tile ran at a quarter of its speed (2026-12-01).
#[cfg(target_arch = "x86_64")]
macro_rules! each_row {
    ($rows:expr, $r:ident, $body:block) => {
        $crate::ops::linear::kernel::each_row!($rows, $r, $body; 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    ($rows:expr, $r:ident, $body:block; $($at:literal)*) => {
        $(
            if $rows > $at {
                let $r: usize = $at;
                $body
            }
        )*
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use each_row;

/// What to ask the memory for while a tile is computed: `step` bytes further with each k.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // as in `tile`
pub(super) struct Ahead {
    pub(super) at: *const u8,
    pub(super) step: usize,
}

impl Ahead {
    /// A share of `bytes` bytes at `at`: the part `part` of `parts`, over `steps` values of k.
    pub(super) fn share(at: *const u8, bytes: usize, part: usize, parts: usize, steps: usize) -> Ahead {
        Ahead { at: at.wrapping_add(bytes / parts * part), step: (bytes / parts).div_ceil(steps.max(1)) }
    }
}

/// Asks the memory for the line at `at`: a hint, nothing where there is no instruction for it.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe)] // safe to call only in newer compilers
    // SAFETY: a prefetch faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Rows of the highest tile: as many sums as the registers hold.
pub(super) fn height(isa: Isa) -> usize {
    match isa {
        Isa::Portable => 2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 6,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 12,
    }
}

/// Most rows for which [`tile`] takes codes and widens them in registers, tile by tile.
pub(super) fn direct_rows(isa: Isa) -> usize {
    match isa {
        Isa::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => FEW,
    }
}

/// Columns of a strip.
pub(super) const STRIP: usize = PANEL / 2;

/// The form in which tiles take a block of values that many of them share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are stored: to widen them costs a tile next to nothing.
    Own,
    /// As bf16, which holds every e4m3.
    Bf16,
    /// As f32, half a panel after the other.
    Strips,
    /// As f32, whole panels.
    F32,
}

/// The form for values of this format. AVX2 takes half a panel at a time, and all of a panel's block in f32 is as large as the
/// first cache: products with bf16 codes ran at 86 % of the multiply-adds where those with widened ones ran at 58 (2026-12-03).
pub(super) fn form(isa: Isa, dtype: DType) -> Form {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => match dtype {
            DType::Bf16 => Form::Own,
            DType::E4m3 => Form::Bf16,
            _ => Form::Strips,
        },
        _ if dtype == DType::F32 => Form::Own,
        _ => Form::F32,
    }
}

/// As [`tile`] for a strip of f32, on an instruction set that takes [`Form::Strips`].
pub(super) fn strip(isa: Isa, a: &[f32], b: &[[f32; STRIP]], sums: &mut [[f32; STRIP]]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::strip(a, b, sums) },
        _ => unreachable!("{isa:?} takes no strips ({} of {} rows)", b.len(), a.len() / sums.len()),
    }
}

/// The values of e4m3 codes without their scale as bf16 codes in the order of a bf16 group, for an instruction set that takes
/// them in that form.
pub(super) fn widen_to_bf16(isa: Isa, codes: Codes<'_>, out: &mut [[u16; PANEL]]) {
    let Codes::E4m3(codes) = codes else { unreachable!("only e4m3 is widened to bf16") };
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::widen_to_bf16(codes, out) },
        _ => unreachable!("{isa:?} takes no values as bf16 ({} groups of {})", out.len(), codes.len()),
    }
}

/// Whether a tile of `rows` rows reads its codes only once.
pub(super) fn one_pass(isa: Isa, rows: usize) -> bool {
    let most = match isa {
        Isa::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::WIDE_ROWS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => TILE,
    };
    rows <= most
}

/// What x is multiplied by where e4m3 codes are widened in registers: they come out as value divided by the same, and a
/// power of two moves from one factor to the other without changing the product.
pub(super) fn e4m3_factor(isa: Isa) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::LANE_FACTOR,
        _ => E4M3_FACTOR,
    }
}

/// Magnitudes of x from here on leave the range of f32 under [`e4m3_factor`]: then codes are widened to their values.
pub(super) fn e4m3_bound(isa: Isa) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 256.0,
        _ => f32::INFINITY,
    }
}

/// The factor by way of f16.
pub(super) const E4M3_FACTOR: f32 = 256.0;

/// Continues the chains of `rows` rows by one step for each group of `b`. `a` is `[groups][rows]`.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))] // only vector kernels look ahead
pub(super) fn tile(isa: Isa, rows: usize, a: &[f32], b: Codes<'_>, sums: &mut [[f32; PANEL]], ahead: Ahead) {
    match isa {
        Isa::Portable => {
            let Codes::F32(b) = b else { unreachable!("portable tiles take widened panels") };
            match rows {
                1 => tile_portable::<1>(a, b, sums),
                _ => tile_portable::<2>(a, b, sums),
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::tile(rows, a, b, sums, ahead) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::tile(rows, a, b, sums, ahead) },
    }
}

fn tile_portable<const R: usize>(a: &[f32], b: &[[f32; PANEL]], sums: &mut [[f32; PANEL]]) {
    let sums: &mut [[f32; PANEL]; R] = sums.try_into().expect("one row of sums for each row");
    let mut acc = *sums;
    for (b, a) in b.iter().zip(a.as_chunks::<R>().0) {
        for r in 0..R {
            for j in 0..PANEL {
                acc[r][j] = a[r].mul_add(b[j], acc[r][j]);
            }
        }
    }
    *sums = acc;
}

/// Adds chains times their scale to the sums, fused, and makes the chains zero for the next block.
pub(super) fn fold(isa: Isa, chains: &mut [[f32; PANEL]], scale: f32, sums: &mut [[f32; PANEL]]) {
    match isa {
        Isa::Portable => {
            for (chains, sums) in chains.iter_mut().zip(sums) {
                for (chain, sum) in chains.iter_mut().zip(sums) {
                    *sum = chain.mul_add(scale, *sum);
                    *chain = 0.0;
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::fold(chains, scale, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::fold(chains, scale, sums) },
    }
}

/// The values of codes without their scale, exactly, outputs in order.
pub(super) fn widen(isa: Isa, codes: Codes<'_>, out: &mut [[f32; PANEL]]) {
    match isa {
        Isa::Portable => widen_portable(codes, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
        Isa::Avx2 => unsafe { avx2::widen(codes, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::widen(codes, out) },
    }
}

fn widen_portable(codes: Codes<'_>, out: &mut [[f32; PANEL]]) {
    match codes {
        Codes::F32(groups) => out.copy_from_slice(groups),
        Codes::Bf16(groups) => {
            for (out, group) in out.iter_mut().zip(groups) {
                for (j, o) in out.iter_mut().enumerate() {
                    *o = dtype::bf16_to_f32(group[place(j)]);
                }
            }
        }
        Codes::E4m3(groups) => {
            for (out, group) in out.iter_mut().zip(groups) {
                for (j, o) in out.iter_mut().enumerate() {
                    *o = dtype::e4m3_to_f32(group[place(j)]);
                }
            }
        }
    }
}

/// Writes `out[o][j] = from[j][o] * scales[o]` (no scales: 1) for a square of 32.
pub(super) fn turn(
    isa: Isa,
    from: &[[f32; PANEL]; PANEL],
    scales: Option<&[f32; PANEL]>,
    out: &mut [[f32; PANEL]; PANEL],
) {
    match isa {
        Isa::Portable => {
            for o in 0..PANEL {
                for j in 0..PANEL {
                    out[o][j] = scales.map_or(from[j][o], |s| from[j][o] * s[o]);
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`); AVX-512 includes AVX2.
        Isa::Avx2 | Isa::Avx512 => unsafe { avx2::turn(from, scales, out) },
    }
}
