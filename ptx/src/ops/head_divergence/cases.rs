//! Shapes that every option is tested on.

/// One set of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Rows.
    pub rows: usize,
    /// Inputs of the heads.
    pub hidden: usize,
    /// Columns of the student's head.
    pub vocab: usize,
    /// Columns of the teacher's and the rollout's head.
    pub other: usize,
    /// Ids.
    pub valid: usize,
    /// 1 / temperature.
    pub inv_temp: f32,
    /// How far teacher and rollout are from the student, as a share of the logits.
    pub distance: f32,
}

#[allow(clippy::too_many_arguments)]
const fn case(
    rows: usize,
    hidden: usize,
    vocab: usize,
    other: usize,
    valid: usize,
    inv_temp: f32,
    distance: f32,
) -> Case {
    Case { rows, hidden, vocab, other, valid, inv_temp, distance }
}

/// One id; less than a panel; around a tile of 1024; several of them; vocabularies padded differently, to either side and
/// by a whole tile; from nearly equal to unrelated.
pub const CASES: &[Case] = &[
    case(1, 1, 1, 1, 1, 1.0, 0.5),
    case(3, 5, 5, 7, 5, 1.0, 1.0),
    case(2, 16, 40, 33, 33, 0.5, 1e-3),
    case(5, 12, 1023, 1023, 1023, 1.0 / 0.7, 0.3),
    case(4, 8, 1024, 2048, 1000, 2.0, 1e-5),
    case(3, 24, 1088, 1025, 1025, 1.0, 3.0),
    case(7, 10, 4096, 3001, 3001, 1.0 / 1.3, 0.05),
    case(5, 9, 5000, 5100, 2500, 1.0, 10.0),
];
