//! The slow truth in f64.

/// Adds the rows of `dy` to the rows `ids` of `dtable`.
pub fn backward(hidden: usize, ids: &[u32], dy: &[f64], dtable: &mut [f64]) {
    for (token, &id) in ids.iter().enumerate() {
        for j in 0..hidden {
            dtable[id as usize * hidden + j] += dy[token * hidden + j];
        }
    }
}
