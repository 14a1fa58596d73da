//! Buffers of a step: exactly as large as the largest step so far, so that `crate::plan` can say what they take.

/// Makes `buffer` `len` elements long; what it holds afterwards is unspecified. It grows to exactly `len`, and gives its old
/// memory back before it takes the new.
pub(crate) fn size<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.capacity() < len {
        *buffer = Vec::new();
        buffer.reserve_exact(len);
    }
    buffer.resize(len, T::default());
}
