//! Weights on a CUDA device, in the order in which its matrix instruction takes them.

use super::packed::{Codes, Packed, place};
use super::{PANEL, SCALE_BLOCK, WeightScale};
use crate::DType;
use crate::cuda::{CudaError, Gpu, Mem, View};

/// Outputs and inputs of a tile.
pub(super) const TILE_ROWS: usize = 16;
const TILE_DEPTH: usize = 32;
/// Consecutive inputs of one output that a lane holds.
const RUN: usize = 8;
/// Host bytes of packed tiles on their way to the device, or one row of tiles if that is more.
const STAGING_BYTES: usize = 4 << 20;

/// One or several matrices `[n, k]` of one format, stacked along n, on the device.
///
/// Codes lie in tiles of 16 outputs by 32 inputs, filled up with zeros, in the order `fragment.cuh` describes. e4m3 has
/// one f32 scale for each output (a scale for a whole matrix is repeated), or with scales by block one for each 16
/// outputs and 128 inputs.
#[derive(Debug)]
pub struct Weights {
    dtype: DType,
    granularity: Option<WeightScale>,
    /// Outputs of each matrix.
    outputs: Vec<usize>,
    n: usize,
    k: usize,
    codes: Mem<u8>,
    scales: Option<Mem<f32>>,
    bias: Option<Mem<f32>>,
}

impl Weights {
    /// Device bytes of such weights with these outputs each: codes with padding, scales and bias, an allocation each.
    ///
    /// # Panics
    /// When no kernel takes the format, there is no matrix, or a dimension is 0.
    #[must_use]
    pub fn sizes_for(dtype: DType, scale: WeightScale, outputs: &[usize], k: usize, bias: bool) -> [usize; 3] {
        assert!(matches!(dtype, DType::Bf16 | DType::E4m3), "CUDA kernels take weights in bf16 or e4m3, not {dtype}");
        assert!(!outputs.is_empty() && k > 0 && outputs.iter().all(|&n| n > 0), "weights of {outputs:?} by {k}");
        let n: usize = outputs.iter().sum();
        let granularity = (dtype == DType::E4m3).then_some(scale);
        let floats = [scales_len(granularity, n, k), if bias { n } else { 0 }].map(|len| len * size_of::<f32>());
        [codes_len(dtype, n, k), floats[0], floats[1]]
    }

    /// Packs and uploads `matrices`, whose outputs follow each other in y; `biases`, one `[n]` for each matrix.
    ///
    /// # Panics
    /// When there is no matrix, they differ in k, dtype or scales, they are f32, a bias has another length, or, with
    /// scales by block, a matrix other than the last has outputs that are no multiple of 16.
    pub fn new(gpu: &Gpu, matrices: &[&Packed], biases: Option<&[&[f32]]>) -> Result<Weights, CudaError> {
        let first = matrices.first().expect("weights of no matrix");
        let (dtype, k, granularity) = (first.dtype(), first.k(), first.granularity());
        assert!(matches!(dtype, DType::Bf16 | DType::E4m3), "CUDA kernels take weights in bf16 or e4m3, not {dtype}");
        let outputs: Vec<usize> = matrices.iter().map(|w| w.n()).collect();
        if granularity == Some(WeightScale::Block128) {
            let (_, before) = outputs.split_last().expect("there is a first");
            let whole = before.iter().all(|n| n.is_multiple_of(TILE_ROWS));
            assert!(
                whole,
                "{outputs:?} outputs with scales by block: all but the last must be multiples of {TILE_ROWS}"
            );
        }
        let n = outputs.iter().sum();
        let scales = scales_len(granularity, n, k);
        let weights = Weights {
            dtype,
            granularity,
            outputs,
            n,
            k,
            codes: gpu.alloc(codes_len(dtype, n, k))?,
            scales: if scales > 0 { Some(gpu.alloc(scales)?) } else { None },
            bias: if biases.is_some() { Some(gpu.alloc(n)?) } else { None },
        };
        weights.update(gpu, matrices, biases)?;
        Ok(weights)
    }

    /// Puts other values in place: nothing is allocated on the device, addresses stay.
    ///
    /// # Panics
    /// When a shape or format differs from what [`Weights::new`] was given, or a bias comes or goes.
    pub fn update(&self, gpu: &Gpu, matrices: &[&Packed], biases: Option<&[&[f32]]>) -> Result<(), CudaError> {
        assert_eq!(matrices.len(), self.outputs.len(), "matrices");
        for (i, (w, &n)) in matrices.iter().zip(&self.outputs).enumerate() {
            let same = (w.dtype(), w.granularity(), w.n(), w.k()) == (self.dtype, self.granularity, n, self.k);
            assert!(same, "matrix {i} is {w:?}, which does not go with {self:?}");
        }
        assert_eq!(biases.is_some(), self.bias.is_some(), "a bias comes or goes");
        self.write_codes(gpu, matrices)?;
        if let Some(to) = &self.scales {
            gpu.write(to.view(), &self.device_scales(matrices))?;
        }
        if let (Some(to), Some(biases)) = (&self.bias, biases) {
            assert_eq!(biases.len(), matrices.len(), "biases");
            for (i, (bias, &n)) in biases.iter().zip(&self.outputs).enumerate() {
                assert_eq!(bias.len(), n, "bias {i}");
            }
            gpu.write(to.view(), &biases.concat())?;
        }
        Ok(())
    }

    /// Tiles in blocks of [`STAGING_BYTES`], so that no second copy of a large matrix exists on the host.
    fn write_codes(&self, gpu: &Gpu, matrices: &[&Packed]) -> Result<(), CudaError> {
        let row_bytes = codes_len(self.dtype, TILE_ROWS, self.k);
        let tiles = self.n.div_ceil(TILE_ROWS);
        let together = (STAGING_BYTES / row_bytes).clamp(1, tiles);
        let mut staging = vec![0_u8; together * row_bytes];
        let mut rows = matrices.iter().flat_map(|w| (0..w.n()).map(move |row| (*w, row)));
        for first in (0..tiles).step_by(together) {
            let staging = &mut staging[..together.min(tiles - first) * row_bytes];
            staging.fill(0);
            for tile in staging.chunks_exact_mut(row_bytes) {
                for (at, (w, row)) in rows.by_ref().take(TILE_ROWS).enumerate() {
                    pack_row(w, row, at, tile);
                }
            }
            gpu.write(self.codes.view().part(first * row_bytes, staging.len()), staging)?;
        }
        Ok(())
    }

    fn device_scales(&self, matrices: &[&Packed]) -> Vec<f32> {
        let mut all = Vec::with_capacity(scales_len(self.granularity, self.n, self.k));
        for w in matrices {
            let scales = w.scales().unwrap_or_default();
            match w.granularity() {
                None => {}
                Some(WeightScale::Tensor) => all.extend(std::iter::repeat_n(scales[0], w.n())),
                Some(WeightScale::Channel) => all.extend_from_slice(scales),
                Some(WeightScale::Block128) => {
                    let across = w.k().div_ceil(SCALE_BLOCK);
                    for first in (0..w.n()).step_by(TILE_ROWS) {
                        all.extend_from_slice(&scales[first / SCALE_BLOCK * across..][..across]);
                    }
                }
            }
        }
        all
    }

    /// Outputs of all matrices.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Format of the codes.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What one scale covers; none but for e4m3.
    #[must_use]
    pub fn granularity(&self) -> Option<WeightScale> {
        self.granularity
    }

    /// Device bytes held: the sum of [`Weights::sizes_for`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        let floats = |mem: &Option<Mem<f32>>| mem.as_ref().map_or(0, |mem| mem.view().len() * size_of::<f32>());
        self.codes.view().len() + floats(&self.scales) + floats(&self.bias)
    }

    pub(crate) fn codes(&self) -> View<u8> {
        self.codes.view()
    }

    pub(crate) fn scales(&self) -> Option<View<f32>> {
        self.scales.as_ref().map(Mem::view)
    }

    pub(crate) fn bias(&self) -> Option<View<f32>> {
        self.bias.as_ref().map(Mem::view)
    }
}

fn codes_len(dtype: DType, n: usize, k: usize) -> usize {
    n.next_multiple_of(TILE_ROWS) * k.next_multiple_of(TILE_DEPTH) * dtype.bytes()
}

fn scales_len(granularity: Option<WeightScale>, n: usize, k: usize) -> usize {
    match granularity {
        None => 0,
        Some(WeightScale::Tensor | WeightScale::Channel) => n,
        Some(WeightScale::Block128) => n.div_ceil(TILE_ROWS) * k.div_ceil(SCALE_BLOCK),
    }
}

/// Spreads row `row` of `w` over a row of tiles, of whose 16 outputs it becomes number `at`.
pub(super) fn pack_row(w: &Packed, row: usize, at: usize, tiles: &mut [u8]) {
    let (panel, from) = (row / PANEL, place(row % PANEL));
    let tile_bytes = TILE_ROWS * TILE_DEPTH * w.dtype().bytes();
    for (step, tile) in tiles.chunks_exact_mut(tile_bytes).enumerate() {
        let first = step * TILE_DEPTH;
        match w.codes(panel, first, TILE_DEPTH.min(w.k() - first)) {
            Codes::F32(_) => unreachable!("weights of f32 were refused"),
            // Row g = at % 8 begins at 64 g of its half of the tile, and its 32 values follow each other.
            Codes::Bf16(groups) => {
                let to: &mut [u8] = &mut tile[at / RUN * 512 + at % RUN * 64..][..64];
                for (to, group) in to.as_chunks_mut().0.iter_mut().zip(groups) {
                    *to = group[from].to_ne_bytes();
                }
            }
            // Row g begins at 64 g; runs of 8 values alternate with those of row g + 8.
            Codes::E4m3(groups) => {
                let to = &mut tile[at % RUN * 64..][..64];
                for (to, groups) in to[at / RUN * RUN..].chunks_mut(2 * RUN).zip(groups.chunks(RUN)) {
                    for (to, group) in to.iter_mut().zip(groups) {
                        *to = group[from];
                    }
                }
            }
        }
    }
}
