//! Zeroed memory for weights: cache-line aligned, on huge pages when large, so that a stream over it rarely waits
//! for an address translation.

use memmap2::MmapMut;

/// A cache line.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// Bytes from which memory is mapped: a few huge pages of 2 MiB.
const MAPPED: usize = 4 << 20;

/// Zeroed bytes that begin on a cache line.
pub(super) enum Store {
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

impl Store {
    /// At least `bytes` bytes of zeros.
    ///
    /// # Panics
    /// When the system has no memory left.
    pub(super) fn zeroed(bytes: usize) -> Store {
        if bytes < MAPPED {
            return Store::Heap(vec![Line([0; 64]); bytes.div_ceil(64)]);
        }
        let map = MmapMut::map_anon(bytes).unwrap_or_else(|e| panic!("no memory for {bytes} bytes of weights: {e}"));
        // Only a wish: without huge pages the same bytes are read a little slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Store::Mapped(map)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Store::Heap(lines) => bytemuck::cast_slice(lines),
            Store::Mapped(map) => map,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Store::Heap(lines) => bytemuck::cast_slice_mut(lines),
            Store::Mapped(map) => map,
        }
    }
}
