//! Weights as the kernels read them: panels of 32 outputs, each panel one sequential stream.

use super::PANEL;
use super::scales::{SCALE_BLOCK, Scales, WeightScale, scale_of};
use super::store::Store;
use crate::{DType, dtype};

/// A weight matrix `[n, k]` in panels `[ceil(n / 32)][k][32]`, the last one padded with zeros.
///
/// f32 keeps the 32 outputs of a panel in order. bf16 and e4m3 store output `i` at place `2 i` and output `16 + i` at
/// place `2 i + 1`: a shift and a mask of whole registers then widen a group in order. e4m3 has one f32 scale for each
/// row, block or matrix, as [`WeightScale`] says: amax / 448 of the values it covers (1 where all are zero), and value =
/// code x scale. A value that is not finite makes its scale NaN, so that it cannot pass unnoticed.
pub struct Packed {
    pub(super) dtype: DType,
    pub(super) granularity: WeightScale,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Panels start on a cache line (e4m3 panels of odd k on half of one).
    pub(super) store: Store,
    /// As [`Packed::scales`], those of channels padded to whole panels; empty but for e4m3.
    pub(super) scales: Vec<f32>,
    /// What a scale for the whole matrix was made from, once it is known.
    pub(super) amax: Option<f32>,
}

/// Groups of 32 codes, one group for each k.
#[derive(Clone, Copy)]
pub(super) enum Codes<'a> {
    F32(&'a [[f32; PANEL]]),
    Bf16(&'a [[u16; PANEL]]),
    E4m3(&'a [[u8; PANEL]]),
}

impl<'a> Codes<'a> {
    /// The groups `first .. first + len`.
    pub(super) fn part(self, first: usize, len: usize) -> Codes<'a> {
        match self {
            Codes::F32(groups) => Codes::F32(&groups[first..first + len]),
            Codes::Bf16(groups) => Codes::Bf16(&groups[first..first + len]),
            Codes::E4m3(groups) => Codes::E4m3(&groups[first..first + len]),
        }
    }

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
    /// A matrix of zeros. `scale` matters for e4m3 alone.
    ///
    /// # Panics
    /// When `dtype` is not f32, bf16 or e4m3, or a dimension is 0.
    #[must_use]
    pub fn new(dtype: DType, scale: WeightScale, n: usize, k: usize) -> Packed {
        let store = Store::zeroed(code_bytes(dtype, n, k));
        let scales = vec![1.0; scale.count(dtype, n, k)];
        Packed { dtype, granularity: scale, n, k, store, scales, amax: None }
    }

    /// What [`Packed::bytes`] of such a matrix says, without making one.
    ///
    /// # Panics
    /// As [`Packed::new`].
    #[must_use]
    pub fn bytes_for(dtype: DType, scale: WeightScale, n: usize, k: usize) -> usize {
        Store::bytes_for(code_bytes(dtype, n, k)) + scale.count(dtype, n, k) * size_of::<f32>()
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
        self.store.bytes().len() + self.scales.len() * size_of::<f32>()
    }

    /// Those of [`Packed::bytes`] that come from the system and not from the allocator.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.store.mapped_bytes()
    }

    /// What one scale covers; none but for e4m3.
    #[must_use]
    pub fn granularity(&self) -> Option<WeightScale> {
        (self.dtype == DType::E4m3).then_some(self.granularity)
    }

    /// The scales: `[1]` by tensor, `[n]` by channel, `[ceil(n / 128), ceil(k / 128)]` by block; none but for e4m3.
    #[must_use]
    pub fn scales(&self) -> Option<&[f32]> {
        self.granularity().map(|granularity| match granularity {
            WeightScale::Channel => &self.scales[..self.n],
            WeightScale::Tensor | WeightScale::Block128 => &self.scales[..],
        })
    }

    /// The scales as a product takes them.
    pub(super) fn product_scales(&self) -> Scales<'_> {
        match self.granularity() {
            None => Scales::One,
            Some(WeightScale::Tensor) => Scales::Tensor(self.scales[0]),
            Some(WeightScale::Channel) => Scales::Channel(&self.scales),
            Some(WeightScale::Block128) => {
                Scales::Block128 { scales: &self.scales, across: self.k.div_ceil(SCALE_BLOCK) }
            }
        }
    }

    /// Says the largest magnitude of the whole matrix ([`amax`](super::amax)), which a scale for all of it is made
    /// from. Codes stay as they are, so every row is to be set anew after it.
    ///
    /// # Panics
    /// When the matrix does not have one scale for all, or `amax` is negative.
    pub fn set_amax(&mut self, amax: f32) {
        assert!(self.granularity() == Some(WeightScale::Tensor), "{self:?} has no scale for the whole matrix");
        assert!(amax.is_nan() || amax >= 0.0, "{amax} is no largest magnitude");
        self.scales[0] = scale_of(amax.abs().to_bits());
        self.amax = Some(amax);
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
                let (panel, lane, at) = (row / PANEL, at, place(at));
                let scales = self.product_scales();
                for (block, (out, groups)) in out.chunks_mut(SCALE_BLOCK).zip(groups.chunks(SCALE_BLOCK)).enumerate() {
                    let scale = scales.of_panel(panel, block * SCALE_BLOCK).map_or(1.0, |scales| scales[lane]);
                    out.iter_mut().zip(groups).for_each(|(o, g)| *o = dtype::e4m3_to_f32(g[at]) * scale);
                }
            }
        }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({} [{}, {}])", self.dtype, self.n, self.k)
    }
}

/// Bytes of the codes with the padding of the last panel, once the format and the shape are found to be possible.
fn code_bytes(dtype: DType, n: usize, k: usize) -> usize {
    assert!(matches!(dtype, DType::F32 | DType::Bf16 | DType::E4m3), "weights are f32, bf16 or e4m3, not {dtype}");
    assert!(n > 0 && k > 0, "a weight matrix of [{n}, {k}] has no elements");
    n.next_multiple_of(PANEL) * k * dtype.bytes()
}

/// Where a bf16 or e4m3 group stores the output `output` of its panel.
pub(super) const fn place(output: usize) -> usize {
    if output < PANEL / 2 { 2 * output } else { 2 * output - (PANEL - 1) }
}
