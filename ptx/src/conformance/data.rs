//! Seeded inputs.

use crate::rng::{Purpose, Stream};

/// `len` standard normals, the `index`-th set.
pub(crate) fn normals(index: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(11, Purpose::Test, index);
    (0..len).map(|_| stream.normal()).collect()
}
