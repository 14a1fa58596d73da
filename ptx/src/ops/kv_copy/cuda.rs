//! The launcher.

use crate::cuda::{CudaError, Gpu, Kernel, Launch, Mem, Pages, View};

/// Where the pages of every layer lie, for the kernel.
#[derive(Debug)]
pub struct Layers {
    places: Mem<u64>,
    count: u32,
}

/// Words of a layer: address and bytes of a page for tiles, and for exponents.
const WORDS: usize = 4;

impl Layers {
    /// Device bytes for so many layers.
    #[must_use]
    pub fn bytes(layers: usize) -> usize {
        layers * WORDS * size_of::<u64>()
    }

    /// The layers of a pool, whose buffers must outlive it.
    pub fn new(gpu: &Gpu, layers: &[Pages]) -> Result<Layers, CudaError> {
        let places: Vec<u64> = layers
            .iter()
            .flat_map(|pages| -> [u64; WORDS] {
                let (tiles, exponents, count) = (pages.tiles(), pages.exponents(), pages.count().max(1));
                [tiles.address(), (tiles.len() / count) as u64, exponents.address(), (exponents.len() / count) as u64]
            })
            .collect();
        Ok(Layers { places: gpu.upload(&places)?, count: u32::try_from(layers.len()).expect("few layers") })
    }
}

/// Copies pages in every layer: `pairs` is `[count, 2]`, page from and page to. A pair of equal pages does nothing, so a
/// list can be filled up to the size of a captured graph. No page that is written may be in another pair; the device
/// cannot see whether page numbers are good.
///
/// # Panics
/// When the list is shorter than `count` pairs.
pub fn forward(gpu: &Gpu, layers: &Layers, pairs: View<u32>, count: usize) -> Result<(), CudaError> {
    assert!(pairs.len() >= 2 * count, "{} words for {count} pairs", pairs.len());
    if count == 0 || layers.count == 0 {
        return Ok(());
    }
    let pair_count = u32::try_from(count).expect("fewer than 2^32 pairs");
    let launch = Launch { grid: [pair_count, layers.count, 1], threads: 256, shared_bytes: 0 };
    let kernel = Kernel { op: "kv_copy", entry: "kv_copy" };
    gpu.launch(kernel, launch, &[layers.places.view().into(), pairs.into()])
}
