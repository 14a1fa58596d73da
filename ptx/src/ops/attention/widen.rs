//! Keys and values of up to 256 positions as f32 scratch, for many query rows, small pages and odd head dims.

use std::ops::Range;

use super::lanes::{GROUP, GROUPS, ROWS};
use crate::DType;
use crate::dtype::scale_from_exponent;
use crate::element::{Bf16, E4m3, E5m2, Element, F32};
use crate::isa::by_isa;
use crate::kv_tile::KvShape;

/// Keys and values of one head at positions `first..first + keys`, at most 256, in their pages.
#[derive(Clone, Copy)]
pub(super) struct Stretch<'a> {
    pub bytes: &'a [u8],
    pub shape: KvShape,
    pub table: &'a [u32],
    pub head: usize,
    pub first: usize,
    pub keys: usize,
}

impl Stretch<'_> {
    /// Groups of 16 keys, the last perhaps not full.
    pub(super) fn groups(&self) -> usize {
        self.keys.div_ceil(GROUP)
    }

    /// Where each group starts: `slot` bytes for each slot into the tile that starts at `tile(page)`. The rest is zero.
    pub(super) fn starts(&self, tile: impl Fn(u32) -> usize, slot: usize) -> [usize; GROUPS] {
        let mut starts = [0; GROUPS];
        for (g, start) in starts[..self.groups()].iter_mut().enumerate() {
            let position = self.first + g * GROUP;
            *start = tile(self.table[position / self.shape.page_len]) + position % self.shape.page_len * slot;
        }
        starts
    }

    /// The scales that these keys have of their own, with 1 up to the next multiple of 16; none where they have not.
    pub(super) fn k_scales<'b>(&self, to: &'b mut [f32]) -> Option<&'b [f32]> {
        self.scales(|page| self.shape.k_exponents(page, self.head), to)
    }

    /// As `k_scales`, of the values.
    pub(super) fn v_scales<'b>(&self, to: &'b mut [f32]) -> Option<&'b [f32]> {
        self.scales(|page| self.shape.v_exponents(page, self.head), to)
    }

    /// Bytes of slots that these keys are not in are not looked at: they may mean no finite number.
    fn scales<'b>(&self, exponents: impl Fn(u32) -> Option<Range<usize>>, to: &'b mut [f32]) -> Option<&'b [f32]> {
        let to = &mut to[..self.keys.next_multiple_of(GROUP)];
        to[self.keys..].fill(1.0);
        let page_len = self.shape.page_len;
        let mut key = 0;
        while key < self.keys {
            let position = self.first + key;
            let slot = position % page_len;
            let run = (page_len - slot).min(self.keys - key);
            let bytes = &self.bytes[exponents(self.table[position / page_len])?];
            for (to, &e) in to[key..].iter_mut().zip(&bytes[slot..slot + run]) {
                *to = scale_from_exponent(e);
            }
            key += run;
        }
        Some(to)
    }
}

by_isa! {
    /// Codes of the keys to `[ceil(keys / 16)][dims][16]`; lanes after the last key become zero.
    pub(super) fn keys(from: Stretch<'_>, to: &mut [f32]) {
        match from.shape.k {
            DType::F32 => keys_as::<F32>(from, to),
            DType::Bf16 => keys_as::<Bf16>(from, to),
            DType::E4m3 => keys_as::<E4m3>(from, to),
            DType::E5m2 => keys_as::<E5m2>(from, to),
            DType::F16 => unreachable!("refused by `check`"),
        }
    }
}

by_isa! {
    /// Codes of the values to `[ceil(dims / 16)][rows][16]`; dims after the last, and rows after the last key up to a
    /// multiple of 16, become zero.
    pub(super) fn values(from: Stretch<'_>, to: &mut [f32], rows: usize) {
        match from.shape.v {
            DType::F32 => values_as::<F32>(from, to, rows),
            DType::Bf16 => values_as::<Bf16>(from, to, rows),
            DType::E4m3 => values_as::<E4m3>(from, to, rows),
            DType::E5m2 => values_as::<E5m2>(from, to, rows),
            DType::F16 => unreachable!("refused by `check`"),
        }
    }
}

by_isa! {
    /// Groups `[groups][dims][16 keys]` to columns `[ceil(dims / 16)][groups * 16 keys][16 dims]`, or back: the same
    /// transposition of 16 by 16 blocks. Dims after the last become zero.
    pub(super) fn keys_to_values(groups: &[f32], dims: usize, to: &mut [f32], rows: usize) {
        for (g, group) in groups.chunks_exact(dims * GROUP).enumerate() {
            for first in (0..dims).step_by(GROUP) {
                let column = &mut to[(first * rows) + g * GROUP * GROUP..][..GROUP * GROUP];
                let lines = &group[first * GROUP..];
                for lane in 0..GROUP {
                    for key in 0..GROUP {
                        column[key * GROUP + lane] = if first + lane < dims { lines[lane * GROUP + key] } else { 0.0 };
                    }
                }
            }
        }
    }
}

by_isa! {
    /// The other way: columns `[ceil(dims / 16)][rows][16 dims]` to groups `[rows / 16][dims][16 keys]`.
    pub(super) fn values_to_keys(columns: &[f32], dims: usize, to: &mut [f32], rows: usize) {
        for (g, group) in to.chunks_exact_mut(dims * GROUP).take(rows / GROUP).enumerate() {
            for first in (0..dims).step_by(GROUP) {
                let column = &columns[(first * rows) + g * GROUP * GROUP..][..GROUP * GROUP];
                for lane in 0..GROUP.min(dims - first) {
                    let line = &mut group[(first + lane) * GROUP..][..GROUP];
                    for key in 0..GROUP {
                        line[key] = column[key * GROUP + lane];
                    }
                }
            }
        }
    }
}

by_isa! {
    /// Whether an e4m3 tile holds a NaN code, in a free slot or not.
    pub(super) fn has_nan(tile: &[u8]) -> bool {
        tile.iter().fold(0, |most, &code| most.max(code & 0x7f)) == 0x7f
    }
}

#[inline(always)]
fn keys_as<E: Element>(from: Stretch<'_>, to: &mut [f32]) {
    let (dims, page_len) = (from.shape.head_dim, from.shape.page_len);
    let mut key = 0;
    while key < from.keys {
        let position = from.first + key;
        let (slot, lane) = (position % page_len, key % GROUP);
        let run = (page_len - slot).min(GROUP - lane).min(from.keys - key);
        let tile = &from.bytes[from.shape.k_tile(from.table[position / page_len], from.head)];
        let group = &mut to[key / GROUP * dims * GROUP..][..dims * GROUP];
        let lines = tile.chunks_exact(page_len * E::BYTES).zip(group.chunks_exact_mut(GROUP));
        if run == GROUP {
            for (line, to) in lines {
                to.copy_from_slice(&E::read16(&line[slot * E::BYTES..]));
            }
        } else {
            let last = key + run == from.keys;
            for (line, to) in lines {
                let line = &line[slot * E::BYTES..][..run * E::BYTES];
                for (code, to) in line.chunks_exact(E::BYTES).zip(&mut to[lane..]) {
                    *to = E::read(code);
                }
                if last {
                    to[lane + run..].fill(0.0);
                }
            }
        }
        key += run;
    }
}

#[inline(always)]
fn values_as<E: Element>(from: Stretch<'_>, to: &mut [f32], rows: usize) {
    let (dims, page_len) = (from.shape.head_dim, from.shape.page_len);
    for column in to.chunks_exact_mut(rows * GROUP) {
        column[from.keys * GROUP..from.keys.next_multiple_of(GROUP) * GROUP].fill(0.0);
    }
    let whole = dims / GROUP * GROUP;
    for key in 0..from.keys {
        let position = from.first + key;
        let tile = &from.bytes[from.shape.v_tile(from.table[position / page_len], from.head)];
        let row = &tile[position % page_len * dims * E::BYTES..][..dims * E::BYTES];
        for (n, codes) in row.chunks_exact(GROUP * E::BYTES).enumerate() {
            to[(n * rows + key) * GROUP..][..GROUP].copy_from_slice(&E::read16(codes));
        }
        if whole < dims {
            let to = &mut to[(whole / GROUP * rows + key) * GROUP..][..GROUP];
            to.fill(0.0);
            for (code, to) in row[whole * E::BYTES..].chunks_exact(E::BYTES).zip(to) {
                *to = E::read(code);
            }
        }
    }
}

/// Rows laid side by side: `to[dim * rows + r] = gain * row(r)[dim]`.
#[inline]
pub(super) fn interleave<'a>(rows: usize, row: impl Fn(usize) -> &'a [f32], gain: f32, to: &mut [f32]) {
    let from: [&[f32]; ROWS] = std::array::from_fn(|r| row(r.min(rows - 1)));
    for (dim, to) in to.chunks_exact_mut(rows).enumerate() {
        for (to, from) in to.iter_mut().zip(&from) {
            *to = from[dim] * gain;
        }
    }
}
