//! Weights as the kernels read them: panels of 32 outputs, each panel one sequential stream.

use super::PANEL;
use super::store::Store;
use crate::parallel::Parts;
use crate::{Cpu, DType, dtype, isa::by_isa};

/// Elements of a row that are rounded at a time before they are spread over a panel.
const RUN: usize = 128;
/// Elements below which one thread packs alone.
const SHARE: usize = 1 << 15;

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

/// A weight matrix `[n, k]` in panels `[ceil(n / 32)][k][32]`, the last one padded with zeros.
///
/// f32 keeps the 32 outputs of a panel in order. bf16 and e4m3 store output `i` at place `2 i` and output `16 + i` at
/// place `2 i + 1`: a shift and a mask of whole registers then widen a group in order. e4m3 has one f32 scale per
/// row, amax / 448 (1 for a row of zeros), and value = code x scale. A row with a value that is not finite gets the
/// scale NaN, so that it cannot pass unnoticed.
pub struct Packed {
    dtype: DType,
    n: usize,
    k: usize,
    /// Panels start on a cache line (e4m3 panels of odd k on half of one).
    store: Store,
    /// One per row, padded to whole panels; empty but for e4m3.
    scales: Vec<f32>,
}

/// Groups of 32 codes, one group for each k.
#[derive(Clone, Copy)]
pub(super) enum Codes<'a> {
    F32(&'a [[f32; PANEL]]),
    Bf16(&'a [[u16; PANEL]]),
    E4m3(&'a [[u8; PANEL]]),
}

impl Codes<'_> {
    /// Address of the first code and bytes of a group, for prefetching.
    pub(super) fn place(self) -> (*const u8, usize) {
        match self {
            Codes::F32(groups) => (groups.as_ptr().cast(), 4 * PANEL),
            Codes::Bf16(groups) => (groups.as_ptr().cast(), 2 * PANEL),
            Codes::E4m3(groups) => (groups.as_ptr().cast(), PANEL),
        }
    }
}

impl Packed {
    /// A matrix of zeros.
    ///
    /// # Panics
    /// When `dtype` is not f32, bf16 or e4m3, or a dimension is 0.
    #[must_use]
    pub fn new(dtype: DType, scale: WeightScale, n: usize, k: usize) -> Packed {
        assert!(dtype != DType::E4m3 || scale == WeightScale::Channel, "only channel scales so far");
        assert!(matches!(dtype, DType::F32 | DType::Bf16 | DType::E4m3), "weights are f32, bf16 or e4m3, not {dtype}");
        assert!(n > 0 && k > 0, "a weight matrix of [{n}, {k}] has no elements");
        let rows = n.next_multiple_of(PANEL);
        let bytes = rows * k * dtype.bytes();
        let scales = if dtype == DType::E4m3 { vec![1.0; rows] } else { Vec::new() };
        Packed { dtype, n, k, store: Store::zeroed(bytes), scales }
    }

    /// Outputs (rows).
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs (columns).
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Format of the codes.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes held: codes, padding and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes().len() + self.scales.len() * 4
    }

    /// The scale of each row, `[n]`; none but for e4m3.
    #[must_use]
    pub fn scales(&self) -> Option<&[f32]> {
        (self.dtype == DType::E4m3).then(|| &self.scales[..self.n])
    }

    /// As [`Packed::scales`], padded to whole panels.
    pub(super) fn panel_scales(&self) -> Option<&[f32]> {
        (self.dtype == DType::E4m3).then_some(&self.scales[..])
    }

    /// The groups of panel `panel` for k in `at .. at + len`.
    pub(super) fn codes(&self, panel: usize, at: usize, len: usize) -> Codes<'_> {
        assert!(at + len <= self.k, "k {at}+{len} of {}", self.k);
        let groups = panel * self.k + at..panel * self.k + at + len;
        // Exactly the codes: what a store holds beyond them is no whole number of elements.
        let bytes = &self.store.bytes()[..self.n.next_multiple_of(PANEL) * self.k * self.dtype.bytes()];
        match self.dtype {
            DType::F32 => Codes::F32(&bytemuck::cast_slice::<_, f32>(bytes).as_chunks().0[groups]),
            DType::Bf16 => Codes::Bf16(&bytemuck::cast_slice::<_, u16>(bytes).as_chunks().0[groups]),
            _ => Codes::E4m3(&bytes.as_chunks().0[groups]),
        }
    }

    /// Rounds `rows`, `[r, k]`, into rows `first_row .. first_row + r`. Allocates nothing.
    ///
    /// # Panics
    /// When `rows` is not whole rows or they do not fit.
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
        if r == 0 {
            return;
        }
        let first_panel = first_row / PANEL;
        let panels = (first_row + r).div_ceil(PANEL) - first_panel;
        let scales = Parts::new(&mut self.scales);
        // Calls `$one(isa, rows, k, first source row, rows within the panel, its codes, its scales)` for each panel.
        macro_rules! each_panel {
            ($code:ty, $one:ident, $scales_per_panel:expr) => {{
                let codes = Parts::new(bytemuck::cast_slice_mut::<_, $code>(self.store.bytes_mut()));
                cpu.for_each_if(len >= SHARE, panels, |i| {
                    let top = (first_panel + i) * PANEL;
                    let low = first_row.max(top) - top;
                    let high = (first_row + r).min(top + PANEL) - top;
                    // SAFETY: each task takes the codes of its own panel.
                    let codes = unsafe { codes.range(top * k, PANEL * k) };
                    let per = $scales_per_panel;
                    // SAFETY: each task takes the scales of its own panel.
                    let scales = unsafe { scales.range(top / PANEL * per, per) };
                    $one(isa, rows, k, top + low - first_row, low, high, codes, scales);
                });
            }};
        }
        match self.dtype {
            DType::F32 => each_panel!(f32, set_panel_f32, 0),
            DType::Bf16 => each_panel!(u16, set_panel_bf16, 0),
            _ => each_panel!(u8, set_panel_e4m3, PANEL),
        }
    }

    /// Row `row` as f32, `[k]`: the values that the kernels multiply by.
    ///
    /// # Panics
    /// When there is no such row or `out` is not `[k]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of {}", self.n);
        assert_eq!(out.len(), self.k, "a row has {} values", self.k);
        let at = row % PANEL;
        match self.codes(row / PANEL, 0, self.k) {
            Codes::F32(groups) => out.iter_mut().zip(groups).for_each(|(o, g)| *o = g[at]),
            Codes::Bf16(groups) => {
                let at = place(at);
                out.iter_mut().zip(groups).for_each(|(o, g)| *o = dtype::bf16_to_f32(g[at]));
            }
            Codes::E4m3(groups) => {
                let (at, scale) = (place(at), self.scales[row]);
                out.iter_mut().zip(groups).for_each(|(o, g)| *o = dtype::e4m3_to_f32(g[at]) * scale);
            }
        }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({} [{}, {}])", self.dtype, self.n, self.k)
    }
}

/// Where a bf16 or e4m3 group stores the output `output` of its panel.
pub(super) const fn place(output: usize) -> usize {
    if output < PANEL / 2 { 2 * output } else { 2 * output - (PANEL - 1) }
}

/// Rows to be packed.
#[derive(Clone, Copy)]
enum Rows<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl Rows<'_> {
    /// Elements `at ..` of the whole, as f32.
    #[inline(always)]
    fn load(self, at: usize, out: &mut [f32]) {
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
    encode: impl Fn(usize, f32) -> T,
) {
    let mut run = [0.0_f32; RUN];
    let mut tile = [[T::default(); RUN]; PANEL];
    for at in (0..k).step_by(RUN) {
        let len = RUN.min(k - at);
        for (row, codes) in tile.iter_mut().enumerate().take(high).skip(low) {
            rows.load((first + row - low) * k + at, &mut run[..len]);
            for (code, &x) in codes.iter_mut().zip(&run) {
                *code = encode(row, x);
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
    fn set_panel_f32(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [f32], _scales: &mut [f32]) {
        set_panel(rows, k, first, low, high, codes, |row| row, |_, x| x);
    }
}

by_isa! {
    fn set_panel_bf16(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [u16], _scales: &mut [f32]) {
        set_panel(rows, k, first, low, high, codes, place, |_, x| dtype::bf16_from_f32(x));
    }
}

by_isa! {
    fn set_panel_e4m3(rows: Rows<'_>, k: usize, first: usize, low: usize, high: usize, codes: &mut [u8], scales: &mut [f32]) {
        let mut run = [0.0_f32; RUN];
        for (row, scale) in scales.iter_mut().enumerate().take(high).skip(low) {
            // Magnitudes order as their bits do, and infinities and NaNs come last.
            let mut amax = 0_u32;
            for at in (0..k).step_by(RUN) {
                let len = RUN.min(k - at);
                rows.load((first + row - low) * k + at, &mut run[..len]);
                amax = run[..len].iter().fold(amax, |m, x| m.max(x.to_bits() & 0x7fff_ffff));
            }
            let amax = f32::from_bits(amax);
            let exact = amax / dtype::E4M3_MAX;
            *scale = if !amax.is_finite() { f32::NAN } else if exact == 0.0 { 1.0 } else { exact };
        }
        set_panel(rows, k, first, low, high, codes, place, |row, x| dtype::e4m3_from_f32(x / scales[row]));
    }
}
