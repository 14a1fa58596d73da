//! One layer of the page pool on a device.
//!
//! The bytes hold the tiles of all pages, page after page, and behind them, with [`KvScale::Token`], the exponent bytes of
//! all pages; so every tile is aligned to 16 bytes. A page has as many bytes as on the CPU, and inside it tiles and
//! exponents are in the same order. But a K tile is `[page_len][head_dim]` here, as a V tile is everywhere.

use super::{Arg, View};
use crate::DType;
use crate::kv_tile::{KvScale, KvShape};

/// One layer of the pool on a device, for reading and writing.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    shape: KvShape,
    bytes: View<u8>,
    k_scales: Option<View<f32>>,
    v_scales: Option<View<f32>>,
}

impl Pages {
    /// Pages of `shape` in `bytes`. The scales, `[kv_heads]` powers of two, are needed for 8-bit keys and values without
    /// scales by token, and not used otherwise.
    ///
    /// # Panics
    /// When there is no kernel for the shape ([`Pages::has_kernels`]), a scale is missing, or the bytes are not whole
    /// pages aligned to 16 bytes.
    #[must_use]
    pub fn new(shape: KvShape, bytes: View<u8>, k_scales: Option<View<f32>>, v_scales: Option<View<f32>>) -> Pages {
        assert!(Pages::has_kernels(&shape), "no CUDA kernels for pages of {shape:?}");
        assert!(bytes.address().is_multiple_of(16), "pages at {:#x} are not aligned to 16 bytes", bytes.address());
        assert!(bytes.len().is_multiple_of(shape.page_bytes()), "{} bytes are no whole number of pages", bytes.len());
        for (name, dtype, scales) in [("k", shape.k, k_scales), ("v", shape.v, v_scales)] {
            if dtype.largest_code().is_some() && shape.scale == KvScale::Static {
                let len = scales.map_or(0, |s| s.len());
                assert_eq!(len, shape.kv_heads, "{name} needs one scale for each kv head");
            }
        }
        Pages { shape, bytes, k_scales, v_scales }
    }

    /// Whether there are kernels: heads of 16, 32, 64, 96 or 128 elements in bf16, e4m3 or e5m2, in pages of a
    /// [length](Pages::has_page_len) that they take.
    #[must_use]
    pub fn has_kernels(shape: &KvShape) -> bool {
        let stored = |dtype| matches!(dtype, DType::Bf16 | DType::E4m3 | DType::E5m2);
        Pages::has_page_len(shape.page_len)
            && [16, 32, 64, 96, 128].contains(&shape.head_dim)
            && stored(shape.k)
            && stored(shape.v)
    }

    /// Whether kernels take pages of so many tokens: a power of two up to 256.
    #[must_use]
    pub fn has_page_len(page_len: usize) -> bool {
        page_len.is_power_of_two() && page_len <= 256
    }

    /// Shape of the pages.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.shape.page_bytes()
    }

    /// The tiles of all pages.
    #[must_use]
    pub fn tiles(&self) -> View<u8> {
        self.bytes.part(0, self.count() * self.shape.tiles_bytes())
    }

    /// The exponent bytes of all pages; none with static scales.
    #[must_use]
    pub fn exponents(&self) -> View<u8> {
        let tiles = self.count() * self.shape.tiles_bytes();
        self.bytes.part(tiles, self.bytes.len() - tiles)
    }

    /// Log2 of the tokens of a page.
    pub(crate) fn page_shift(&self) -> u32 {
        self.shape.page_len.trailing_zeros()
    }

    /// Addresses of the scales of K and V; 0 where there are none.
    pub(crate) fn scale_args(&self) -> [Arg; 2] {
        [self.k_scales, self.v_scales].map(|scales| Arg::Pointer(scales.map_or(0, |view| view.address())))
    }

    /// What kernels are told about the formats: the first bits of `Flags` in their sources.
    pub(crate) fn flags(&self) -> u32 {
        let set = |bit: u32, on: bool| if on { bit } else { 0 };
        let s = &self.shape;
        set(1, s.k == DType::E5m2)
            | set(2, s.v == DType::E5m2)
            | set(4, s.scale == KvScale::Token)
            | set(32, s.k.bytes() == 1)
            | set(64, s.v.bytes() == 1)
    }

    /// The CPU's bytes of whole pages in the device's order.
    ///
    /// # Panics
    /// When the bytes are no whole number of pages.
    #[must_use]
    pub fn from_cpu(shape: &KvShape, bytes: &[u8]) -> Vec<u8> {
        let mut to = vec![0; bytes.len()];
        reorder(shape, bytes.len(), |cpu, device| to[device] = bytes[cpu]);
        to
    }

    /// The device's bytes of whole pages in the CPU's order.
    ///
    /// # Panics
    /// When the bytes are no whole number of pages.
    #[must_use]
    pub fn to_cpu(shape: &KvShape, bytes: &[u8]) -> Vec<u8> {
        let mut to = vec![0; bytes.len()];
        reorder(shape, bytes.len(), |cpu, device| to[cpu] = bytes[device]);
        to
    }
}

/// Calls `pair` with the place of every byte of `len` on the CPU and on the device.
fn reorder(shape: &KvShape, len: usize, mut pair: impl FnMut(usize, usize)) {
    assert!(len.is_multiple_of(shape.page_bytes()), "{len} bytes are no whole number of pages");
    let (page_bytes, tiles) = (shape.page_bytes(), shape.tiles_bytes());
    let (pages, exponents) = (len / page_bytes, page_bytes - tiles);
    let (size, k_tile) = (shape.k.bytes(), shape.tile_bytes(shape.k));
    for page in 0..pages {
        let (cpu, device) = (page * page_bytes, page * tiles);
        for head in 0..shape.kv_heads {
            for (dim, slot) in (0..shape.head_dim).flat_map(|dim| (0..shape.page_len).map(move |slot| (dim, slot))) {
                let from = head * k_tile + (dim * shape.page_len + slot) * size;
                let to = head * k_tile + (slot * shape.head_dim + dim) * size;
                (0..size).for_each(|byte| pair(cpu + from + byte, device + to + byte));
            }
        }
        (shape.kv_heads * k_tile..tiles).for_each(|byte| pair(cpu + byte, device + byte));
        let behind = pages * tiles + page * exponents;
        (0..exponents).for_each(|byte| pair(cpu + tiles + byte, behind + byte));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_place_and_comes_back() {
        for (k, v, scale) in [
            (DType::Bf16, DType::E4m3, KvScale::Token),
            (DType::E5m2, DType::E5m2, KvScale::Token),
            (DType::E4m3, DType::Bf16, KvScale::Static),
        ] {
            let shape = KvShape { kv_heads: 3, head_dim: 16, page_len: 4, k, v, scale };
            let len = 5 * shape.page_bytes();
            let mut seen = vec![0; len];
            reorder(&shape, len, |_, device| seen[device] += 1);
            assert!(seen.iter().all(|&n| n == 1), "{shape:?}");
            let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
            assert_eq!(Pages::to_cpu(&shape, &Pages::from_cpu(&shape, &bytes)), bytes, "{shape:?}");
        }
    }
}
