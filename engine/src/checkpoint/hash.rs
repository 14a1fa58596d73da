//! The model hash: which weights these are, whatever files they are spread over.
//!
//! BLAKE3 over the tensors sorted by name (bytewise), each as: length of the name, name, length of the dtype's name,
//! dtype (`BF16`, ...), number of axes, axes, number of bytes, bytes as stored. All lengths and axes are 64-bit little
//! endian. Parameters and scales count; what a checkpoint holds without using does not.

use super::{Checkpoint, Place, stored_name};
use ptx::DType;

/// Bytes that are read before their pages are given back.
const PIECE: usize = 8 << 20;

/// Hashes a model's tensors, given in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct ModelHasher {
    hasher: blake3::Hasher,
    last: Option<String>,
    owed: u64, // bytes of the current tensor still to come
}

impl ModelHasher {
    /// Nothing hashed yet.
    #[must_use]
    pub fn new() -> ModelHasher {
        ModelHasher::default()
    }

    /// Begins a tensor; its bytes follow by [`ModelHasher::bytes`].
    ///
    /// # Panics
    /// When names do not ascend, or the tensor before lacks bytes.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        let bytes = shape.iter().product::<usize>() * dtype.bytes();
        self.begin(name, stored_name(dtype), shape, bytes);
    }

    fn begin(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: usize) {
        assert_eq!(self.owed, 0, "{:?} lacks bytes before {name}", self.last);
        assert!(self.last.as_deref().is_none_or(|last| last < name), "{name} after {:?}", self.last);
        self.text(name);
        self.text(dtype);
        self.count(shape.len());
        for &n in shape {
            self.count(n);
        }
        self.owed = self.count(bytes);
        self.last = Some(name.to_owned());
    }

    /// Bytes of the tensor begun last, little endian, in one piece or several.
    ///
    /// # Panics
    /// When they are more than the tensor has.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let len = u64::try_from(bytes.len()).expect("a length has 64 bits");
        self.owed = self.owed.checked_sub(len).expect("no more bytes than the tensor has");
        self.hasher.update(bytes);
    }

    /// The hash, 64 hexadecimal digits.
    ///
    /// # Panics
    /// When the last tensor lacks bytes.
    #[must_use]
    pub fn finish(self) -> String {
        assert_eq!(self.owed, 0, "{:?} lacks bytes", self.last);
        self.hasher.finalize().to_hex().to_string()
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.hasher.update(text.as_bytes());
    }

    fn count(&mut self, n: usize) -> u64 {
        let n = u64::try_from(n).expect("a length has 64 bits");
        self.hasher.update(&n.to_le_bytes());
        n
    }
}

impl Checkpoint {
    /// The model hash of the folder, by reading all of it.
    #[must_use]
    pub fn model_hash(&self) -> String {
        let weights = self.tensors.iter().map(|t| (t.name.as_str(), stored_name(t.dtype), &t.shape[..], t.at));
        let scales = self.scale_entries.iter().map(|(e, file)| {
            let at = Place { file: *file, start: e.start, end: e.end };
            (e.name.as_str(), e.dtype, &e.shape[..], at)
        });
        let mut all: Vec<_> = weights.chain(scales).collect();
        all.sort_by_key(|(name, ..)| *name);
        let mut hasher = ModelHasher::new();
        for (name, dtype, shape, at) in all {
            hasher.begin(name, dtype, shape, at.end - at.start);
            // The whole model passes by here, in pieces, since its pages are not wanted again at once.
            for start in (at.start..at.end).step_by(PIECE) {
                let end = at.end.min(start + PIECE);
                hasher.bytes(self.bytes(Place { start, end, ..at }));
                self.files[at.file].1.release(start, end - start);
            }
        }
        hasher.finish()
    }
}
