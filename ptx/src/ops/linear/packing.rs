//! How rows become panels: what a format rounds to, row by row or block by block, and the scales that go with it.

use std::ops::Range;

use super::PANEL;
use super::packed::{Packed, place};
use super::scales::{SCALE_BLOCK, WeightScale, largest, largest_of, scale_of};
use crate::parallel::Parts;
use crate::{Cpu, DType, dtype, isa::by_isa};

/// Elements of a row that are rounded at a time before they are spread over a panel: within one block of scales.
const RUN: usize = SCALE_BLOCK;
/// Elements below which one thread packs alone.
const SHARE: usize = 1 << 15;

impl Packed {
    /// Rounds `rows`, `[r, k]`, into rows `first_row .. first_row + r`. Allocates nothing.
    ///
    /// # Panics
    /// When `rows` is not whole rows or they do not fit; with scales by block, when they are not whole blocks of 128
    /// rows (but for the last rows of the matrix); with one scale for all, when a magnitude exceeds what
    /// [`Packed::set_amax`] was told, or it was told nothing.
    pub fn set_rows(&mut self, cpu: &Cpu, first_row: usize, rows: &[f32]) {
        self.set(cpu, first_row, rows.len(), Rows::F32(rows));
    }

    /// As [`Packed::set_rows`] from bf16 bits; the same result as widening them first.
    ///
    /// # Panics
    /// As [`Packed::set_rows`].
    pub fn set_rows_bf16(&mut self, cpu: &Cpu, first_row: usize, rows: &[u16]) {
        self.set(cpu, first_row, rows.len(), Rows::Bf16(rows));
    }

    fn set(&mut self, cpu: &Cpu, first_row: usize, len: usize, rows: Rows<'_>) {
        let (n, k, isa) = (self.n, self.k, cpu.isa());
        assert!(len.is_multiple_of(k), "{len} values are not whole rows of {k}");
        let r = len / k;
        assert!(first_row <= n && r <= n - first_row, "rows {first_row}+{r} of {n}");
        let set = first_row..first_row + r;
        match (self.dtype, self.granularity) {
            (DType::F32, _) => self.each_unit(cpu, set, PANEL, 0, |first, at, codes, _| {
                set_panel_f32(isa, rows, k, first, at.start, at.end, codes);
            }),
            (DType::Bf16, _) => self.each_unit(cpu, set, PANEL, 0, |first, at, codes, _| {
                set_panel_bf16(isa, rows, k, first, at.start, at.end, codes);
            }),
            (_, WeightScale::Tensor) => {
                let amax = self.amax.unwrap_or_else(|| panic!("{self:?}: set_amax comes before set_rows"));
                let most = f32::from_bits(largest_of(cpu, len, rows));
                assert!(
                    !amax.is_finite() || most <= amax,
                    "{self:?}: a magnitude of {most} in rows {first_row}+{r}, where set_amax was told {amax}"
                );
                let scale = self.scales[0];
                self.each_unit(cpu, set, PANEL, 0, |first, at, codes, _| {
                    set_panel_tensor(isa, rows, k, first, at.start, at.end, codes, scale);
                });
            }
            (_, WeightScale::Channel) => self.each_unit(cpu, set, PANEL, PANEL, |first, at, codes, scales| {
                set_panel_channel(isa, rows, k, first, at.start, at.end, codes, scales);
            }),
            (_, WeightScale::Block128) => {
                assert!(
                    set.start.is_multiple_of(SCALE_BLOCK) && (set.end == n || set.end.is_multiple_of(SCALE_BLOCK)),
                    "{self:?}: rows {first_row}+{r} are not whole blocks of {SCALE_BLOCK} rows"
                );
                let across = k.div_ceil(SCALE_BLOCK);
                self.each_unit(cpu, set, SCALE_BLOCK, across, |first, at, codes, scales| {
                    set_blocks(isa, rows, k, first, at.end, codes, scales);
                });
            }
        }
    }

    /// Runs `task(first source row, places, codes, scales)` for every `unit` rows that `set` touches: whole panels, each
    /// unit with `scales` scales. `places` are those of the unit's rows that are set.
    fn each_unit<T: bytemuck::Pod + Send>(
        &mut self,
        cpu: &Cpu,
        set: Range<usize>,
        unit: usize,
        scales: usize,
        task: impl Fn(usize, Range<usize>, &mut [T], &mut [f32]) + Sync,
    ) {
        if set.is_empty() {
            return;
        }
        let (k, padded) = (self.k, self.n.next_multiple_of(PANEL));
        let first_unit = set.start / unit;
        let units = set.end.div_ceil(unit) - first_unit;
        let all_codes = Parts::new(bytemuck::cast_slice_mut::<_, T>(self.store.bytes_mut()));
        let all_scales = Parts::new(&mut self.scales);
        cpu.for_each_if(set.len() * k >= SHARE, units, |i| {
            let top = (first_unit + i) * unit;
            let (low, high) = (set.start.max(top) - top, set.end.min(top + unit) - top);
            // SAFETY: each task takes the codes of its own unit.
            let codes = unsafe { all_codes.range(top * k, unit.min(padded - top) * k) };
            // SAFETY: each task takes the scales of its own unit.
            let scales = unsafe { all_scales.range((first_unit + i) * scales, scales) };
            task(top + low - set.start, low..high, codes, scales);
        });
    }
}

/// Rows to be packed.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl Rows<'_> {
    /// Elements `at ..` of the whole, as f32.
    #[inline(always)]
    pub(super) fn load(self, at: usize, out: &mut [f32]) {
        match self {
            Rows::F32(rows) => out.copy_from_slice(&rows[at..at + out.len()]),
            Rows::Bf16(rows) => {
                let rows = &rows[at..at + out.len()];
                for (o, &bits) in out.iter_mut().zip(rows) {
                    *o = dtype::bf16_to_f32(bits);
                }
            }
        }
    }
}

/// Rounds rows into places `low .. high` of one panel: runs along k first, where rounding vectorises, then across.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn set_panel<T: Copy + Default>(
    rows: Rows<'_>,
    k: usize,
    first: usize,
    low: usize,
    high: usize,
    codes: &mut [T],
    place: impl Fn(usize) -> usize,
    encode: impl Fn(usize, usize, f32) -> T,
) {
    let mut run = [0.0_f32; RUN];
    let mut tile = [[T::default(); RUN]; PANEL];
    for at in (0..k).step_by(RUN) {
        let len = RUN.min(k - at);
        for (row, codes) in tile.iter_mut().enumerate().take(high).skip(low) {
            rows.load((first + row - low) * k + at, &mut run[..len]);
            for (code, &x) in codes.iter_mut().zip(&run) {
                *code = encode(row, at, x);
            }
        }
        let groups = codes[at * PANEL..(at + len) * PANEL].as_chunks_mut::<PANEL>().0;
        for (j, group) in groups.iter_mut().enumerate() {
            // A whole panel is the rule, and its loop unrolls.
            if (low, high) == (0, PANEL) {
                for (row, run) in tile.iter().enumerate() {
                    group[place(row)] = run[j];
                }
            } else {
                for (row, run) in tile.iter().enumerate().take(high).skip(low) {
                    group[place(row)] = run[j];
                }
            }
        }
    }
}

by_isa! {
    fn set_panel_f32(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [f32]) {
        set_panel(rows, k, first, low, high, codes, |row| row, |_, _, x| x);
    }
}

by_isa! {
    fn set_panel_bf16(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [u16]) {
        set_panel(rows, k, first, low, high, codes, place, |_, _, x| dtype::bf16_from_f32(x));
    }
}

by_isa! {
    fn set_panel_tensor(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [u8], scale: f32) {
        set_panel(rows, k, first, low, high, codes, place, |_, _, x| dtype::e4m3_from_f32(x / scale));
    }
}

by_isa! {
    fn set_panel_channel(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [u8], scales: &mut [f32]) {
        let mut run = [0.0_f32; RUN];
        for (row, scale) in scales.iter_mut().enumerate().take(high).skip(low) {
            let mut amax = 0;
            for at in (0..k).step_by(RUN) {
                let run = &mut run[..RUN.min(k - at)];
                rows.load((first + row - low) * k + at, run);
                amax = largest(amax, run);
            }
            *scale = scale_of(amax);
        }
        set_panel(rows, k, first, low, high, codes, place, |row, _, x| dtype::e4m3_from_f32(x / scales[row]));
    }
}

by_isa! {
    // The first `high` rows of the panels that share a row of blocks.
    fn set_blocks(rows: Rows<'_>, k: usize, first: usize, high: usize, codes: &mut [u8], scales: &mut [f32]) {
        let mut run = [0.0_f32; RUN];
        for (block, scale) in scales.iter_mut().enumerate() {
            let at = block * SCALE_BLOCK;
            let run = &mut run[..SCALE_BLOCK.min(k - at)];
            let mut amax = 0;
            for row in 0..high {
                rows.load((first + row) * k + at, run);
                amax = largest(amax, run);
            }
            *scale = scale_of(amax);
        }
        for (panel, codes) in codes.chunks_exact_mut(PANEL * k).enumerate() {
            let top = panel * PANEL;
            let high = PANEL.min(high - top);
            set_panel(rows, k, first + top, 0, high, codes, place, |_, at, x| {
                dtype::e4m3_from_f32(x / scales[at / SCALE_BLOCK])
            });
        }
    }
}
