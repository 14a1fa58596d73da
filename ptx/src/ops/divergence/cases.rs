//! Shapes and distances that every device is tested on.

use crate::ops::log_softmax::cases::{CASES as BLOCKS, Case as Block};

/// A block of pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Shape, temperature and spread of the student's logits.
    pub block: Block,
    /// Standard deviation of teacher - student: from nearly equal to unrelated.
    pub distance: f32,
}

/// Every block of logits at every distance.
pub fn cases() -> impl Iterator<Item = Case> {
    let distances = [0.0, 1e-5, 1e-3, 0.05, 0.6, 4.0, 30.0];
    BLOCKS.iter().flat_map(move |&block| distances.into_iter().map(move |distance| Case { block, distance }))
}
